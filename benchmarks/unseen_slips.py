"""Slips in sharded code that nobody put into the table of faults: whether `lp.run` notices and explains each.

    python benchmarks/unseen_slips.py --only rope-turns-back   # one slip, with what its runs say
    python benchmarks/unseen_slips.py --measure                # all of them: writes unseen_slips.json
    python benchmarks/unseen_slips.py --explain "sixty slips"  # how they are explained: explained_slips.json
    python benchmarks/unseen_slips.py --page                   # writes docs/accuracy.md

A slip of `unseen_slips.toml` is one edit, made in a temporary copy of the package. There a new process runs
the slip's program as a user does, with defaults, in float64 and with both engines. A slip is noticed if the
run differs from its reference or raises an error; it is unseen if the run says that it is equal. Every run is
first made without its slip, and must be equal. The page shows the outcomes as they were measured, once.

An explanation says a place, a pattern and a line, each or none. A slip's own columns say what is right of
each; what is said besides misleads. A line alone counts as neither place nor pattern.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed._local_tensor
import torch.testing._internal.distributed.fake_pg  # noqa: F401

import _page

PROJECT = Path(__file__).resolve().parent.parent
SLIPS = Path(__file__).with_suffix(".toml")
OUTCOMES = Path(__file__).with_suffix(".json")
EXPLAINED = Path(__file__).with_name("explained_slips.json")
"""A set of slips → slip → how it was explained."""

ENGINES = ("local", "processes")
PARTS = ("place", "pattern", "line")
"""What an explanation may say of a difference."""

FORK = multiprocessing.get_context("fork")
"""A fork has torch, which takes longer to import than most of the runs take, and no llamapar yet."""
LIMIT = 400
"""Seconds for the runs of one slip; the processes engine itself gives up after 60 s without progress."""

Outcome = dict[str, dict[str, Any]]
"""Engine → whether the run noticed the slip, and what it says: what differs, or what it did not exercise."""


@dataclass(frozen=True)
class Slip:
    """`old` → `new` in `file` under llamapar/, and the run of `program` that should notice it.

    what: what the engineer did. unseen: why the run did not notice it, found out after the measurement.
    place, pattern, line: what a right explanation may say, as regular expressions; "" for nothing.
    """

    id: str
    program: str
    layout: dict[str, int | bool]
    file: str
    old: str
    new: str
    what: str
    options: dict[str, Any] = field(default_factory=dict)
    unseen: str = ""
    place: str = ""
    pattern: str = ""
    line: str = ""

    @property
    def run(self) -> str:
        """The run in words: "block, tp=2 cp=2"."""
        said = " ".join(f"{name}={value}" for name, value in (self.layout | self.options).items())
        return f"{self.program}, {said}"

    def changed(self, package: Path) -> str:
        """The file's text with the slip. Raises ValueError unless `old` stands in it exactly once."""
        text = (package / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(
                f"{self.id}: {self.old!r} stands {count} times in llamapar/{self.file}, not once"
            )
        text = text.replace(self.old, self.new)
        compile(text, self.file, "exec")
        return text


def slips(file: Path = SLIPS) -> list[Slip]:
    """The slips of a file, in its order."""
    return [Slip(**entry) for entry in tomllib.loads(file.read_text(encoding="utf-8"))["slip"]]


def judged(slip: Slip, said: dict[str, str]) -> dict[str, str]:
    """Of place, pattern and line: "right", "wrong", or "" where nothing is said."""
    return {
        part: ("right" if wanted and re.search(wanted, words) else "wrong") if words else ""
        for part, words, wanted in ((part, said[part], getattr(slip, part)) for part in PARTS)
    }


def outcome(package: Path, slip: Slip, engines: Sequence[str], explain: bool = False) -> Outcome:
    """What the runs of a slip say, in a process of their own, with the package as it stands in the copy."""
    here, there = FORK.Pipe()
    process = FORK.Process(target=_run, args=(there, package, slip, engines, explain))
    process.start()
    there.close()
    try:
        if not here.poll(LIMIT):
            raise RuntimeError(f"{slip.id}: the runs have not ended after {LIMIT} s")
        found: Outcome = here.recv()
    except EOFError as error:
        raise RuntimeError(f"{slip.id}: the process ended without an answer") from error
    finally:
        process.terminate()
        process.join()
    return found


def _run(answer: Connection, package: Path, slip: Slip, engines: Sequence[str], explain: bool) -> None:
    """In a fork: import the changed package, run the slip's program, and send what the runs say."""
    os.chdir(package.parent)
    sys.path.insert(0, str(package.parent))
    os.environ |= {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True  # a file changes more than once in a second
    import llamapar as lp

    if not Path(str(lp.__file__)).is_relative_to(package):
        raise RuntimeError(f"another llamapar was imported: {lp.__file__}")
    found: Outcome = {}
    for engine in engines:
        try:
            run = lp.run(slip.program, "tiny", slip.layout, dtype="float64", engine=engine, **slip.options)
        except Exception as error:
            found[engine] = {"noticed": True, "says": [f"raises {_first_line(error)}"]}
            continue
        if run.ok:
            says = [f"not exercised: {what}" for what in run.untouched]
        else:
            raised = (f"rank {rank} raises {_first_line(error)}" for rank, error in run.errors.items())
            says = [next(raised, run.where)]
        found[engine] = {"noticed": not run.ok, "says": says}
        if explain and run.difference is not None:
            why = run.difference
            found[engine]["explained"] = {
                "what": why.explanation.what,
                "place": "; ".join(filter(None, [why.place, why.wrong_place])),
                "pattern": "; ".join(filter(None, [why.pattern, why.wrong_pattern])),
                "line": why.line,
            }
    answer.send(found)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def measured(
    chosen: Sequence[Slip], engines: Sequence[str], explain: bool = False
) -> Iterator[tuple[str, Outcome]]:
    """Each slip's id, and what its runs say. Exits if a run without a slip is not equal to its reference."""
    with tempfile.TemporaryDirectory(prefix="slips-") as folder:
        package = Path(folder).resolve() / "llamapar"
        shutil.copytree(PROJECT / "llamapar", package)
        texts = {slip.id: slip.changed(package) for slip in chosen}
        for slip in () if explain else {slip.run: slip for slip in chosen}.values():
            sound = outcome(package, slip, engines)
            print(f"without a slip: {slip.run}: {_in_words(sound)}", flush=True)
            if any(of["noticed"] for of in sound.values()):
                raise SystemExit(f"{slip.run} is not equal to its reference without a slip: {sound}")
        for slip in chosen:
            file = package / slip.file
            right = file.read_text(encoding="utf-8")
            file.write_text(texts[slip.id], encoding="utf-8")
            found = outcome(package, slip, engines, explain)
            file.write_text(right, encoding="utf-8")
            print(f"{slip.id}: {_in_words(found)}", flush=True)
            yield slip.id, found


def _in_words(outcome: Outcome) -> str:
    """ "noticed (local: output out; processes: output out)"."""
    by_engine = (f"{engine}: {'; '.join(of['says']) or 'equal'}" for engine, of in outcome.items())
    return f"{_verdict(outcome)} ({' | '.join(by_engine)})"


def _verdict(outcome: Outcome) -> str:
    seen = [engine for engine, of in outcome.items() if of["noticed"]]
    if len(seen) == len(outcome):
        return "noticed"
    return f"noticed by {seen[0]} alone" if seen else "unseen"


def tables() -> dict[str, list[str]]:
    """Those of docs/accuracy.md, from the outcomes that were measured."""
    found: dict[str, Outcome] = json.loads(OUTCOMES.read_text(encoding="utf-8"))["outcomes"]
    seen = [sum(of[engine]["noticed"] for of in found.values()) for engine in ENGINES]
    head = ("slips", *(f"noticed, {engine}" for engine in ENGINES))
    told = json.loads(EXPLAINED.read_text(encoding="utf-8"))
    told_head = ("set", "wrong numbers", "place or pattern", "pattern", "first line", "misleading")
    return {
        "slips": _page.table(head, [(len(found), *seen)]),
        "slips_explained": _page.table(told_head, [score(name, told[name]) for name in told]),
    }


def score(name: str, explained: dict[str, dict[str, str]]) -> tuple[object, ...]:
    """Of a set of slips: how many gave wrong numbers, were told by place or pattern, by pattern, by the first
    wrong line, and in a misleading way. explained: id → what was said, and how it was judged.
    """
    judgements = [[of[f"{part} is"] for part in PARTS] for of in explained.values()]
    return (
        name,
        len(judgements),
        sum("right" in of[:2] and "wrong" not in of[:2] for of in judgements),
        sum(of[1] == "right" for of in judgements),
        sum(of[2] == "right" for of in judgements),
        sum("wrong" in of[:2] for of in judgements),
    )


def explained(chosen: Sequence[Slip]) -> dict[str, dict[str, str]]:
    """id → what the local engine's explanation says of it, and whether that is right; of wrong numbers."""
    found = {}
    for (name, outcome), slip in zip(measured(chosen, ENGINES[:1], explain=True), chosen, strict=True):
        said = outcome[ENGINES[0]].get("explained")
        if said is not None:
            found[name] = said | {f"{part} is": how for part, how in judged(slip, said).items()}
            print("   ", found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="ID", action="append", help="this slip (may be given again)")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--measure", action="store_true", help="write unseen_slips.json")
    parser.add_argument("--explain", metavar="NAME", help="write their explanations to the JSON by this name")
    parser.add_argument("--slips", type=Path, default=SLIPS, help="the file with the slips")
    parser.add_argument("--page", action="store_true", help="write docs/accuracy.md")
    args = parser.parse_args()
    if args.page:
        _page.write(tables())
        return
    known = slips(args.slips)
    chosen = [slip for slip in known if not args.only or slip.id in args.only]
    if unknown := set(args.only or ()) - {slip.id for slip in chosen}:
        parser.error(f"no such slip: {', '.join(sorted(unknown))}")
    if args.explain:
        sets = json.loads(EXPLAINED.read_text(encoding="utf-8")) if EXPLAINED.exists() else {}
        sets[args.explain] = explained(chosen)
        EXPLAINED.write_text(json.dumps(sets, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(score(args.explain, sets[args.explain]))
        return
    if args.measure and (len(chosen) < len(known) or tuple(args.engines) != ENGINES):
        parser.error("--measure is of all slips and of both engines")
    found: dict[str, Outcome] = {}
    for name, said in measured(chosen, args.engines):
        found[name] = said
        if args.measure:  # after each, so that a failure does not lose those before it
            text = json.dumps({"outcomes": found}, indent=1, ensure_ascii=False)
            OUTCOMES.write_text(text + "\n", encoding="utf-8")
    for engine in args.engines:
        seen = sum(of[engine]["noticed"] for of in found.values())
        print(f"{engine}: {seen} of {len(found)} noticed")


if __name__ == "__main__":
    main()
