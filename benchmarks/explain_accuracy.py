"""How often `lp.explain` finds the cause, and how often it is sure of a wrong one.

    .venv/bin/python benchmarks/explain_accuracy.py [FILE.jsonl ...] [--only] [--misses] [--half even|odd]
    .venv/bin/python benchmarks/explain_accuracy.py --page    # writes docs/accuracy.md

Cases in the form of tests/oracles/error-cases.jsonl hold message, context, category, subtype,
parallel_caused, self_explaining and diagnosable_from; those of raised.jsonl also verdict and decides. Every
set of tests/oracles is asked, then each FILE (--only: no other); each case twice, with its context and with
the message alone. Three scores a set, and a kind of case:

cause first: the category comes first. Of a look-alike without a category: it is not called "sharding".
verdict too: and the verdict is right.
wrong and likely: another cause than the true one at the surest level with the verdict "sharding"; a
    look-alike so called; or what sharding caused said to be "not_sharding".
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "oracles")]

import _page  # noqa: E402
import llamapar as lp  # noqa: E402
from llamapar.diagnosis import Level  # noqa: E402
from llamapar.diagnosis.vocabulary import NOT_SHARDING, SHARDING  # noqa: E402
from make_raised import half  # noqa: E402

ORACLES = ROOT / "tests" / "oracles"
SETS: tuple[str, ...] = ("error-cases", "wild", "wordings", "genuine", "raised", "reported")
SETS += ("raised_again", "reported_again")
SETS += ("raised_third", "reported_third", "raised_fourth", "reported_fourth", "raised_fifth")
SETS += ("raised_sixth", "raised_seventh", "raised_eighth")
Case = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One case, asked once."""

    case: Case
    told: Any
    alone: bool
    seconds: float

    @property
    def categories(self) -> list[str]:
        """The right ones: of genuine.json several, for its fault breaks several rules, and of
        the sixth set two where honest people could choose."""
        return list(self.case.get("categories") or [self.case["category"]])

    @property
    def rank(self) -> int:
        """Place of the case's category, from 1; 0 where it does not come up."""
        names = list(dict.fromkeys(d.category for d in self.told.diagnoses))
        return min((names.index(c) + 1 for c in self.categories if c in names), default=0)

    @property
    def strict(self) -> bool:
        if self.categories == ["none"]:
            return bool(self.told.verdict != SHARDING)
        return self.rank == 1

    @property
    def verdict(self) -> bool:
        """Whether the verdict is that of the cause. A case without one may be called anything."""
        if self.case["parallel_caused"] is None:
            return True
        return bool(self.told.verdict == (SHARDING if self.case["parallel_caused"] else NOT_SHARDING))

    @property
    def right(self) -> bool:
        return self.strict and self.verdict

    @property
    def asserted_wrong(self) -> bool:
        if self.told.verdict == NOT_SHARDING:
            return self.case["parallel_caused"] is True
        if self.told.verdict != SHARDING or not sure(self.told.best):
            return False
        return look_alike(self.case) or self.told.best.category not in self.categories

    @property
    def spared(self) -> bool:
        """Whether a look-alike is not blamed on sharding."""
        return bool(self.told.verdict != SHARDING)


def sure(diagnosis: Any) -> bool:
    """Whether a diagnosis is said at the surest level."""
    return diagnosis is not None and diagnosis.level is Level.LIKELY


def ask(cases: Iterable[Case], alone: bool) -> list[Answer]:
    answers = []
    for case in cases:
        start = time.perf_counter()
        told = lp.explain(case["message"], context=None if alone else case.get("context"))
        answers.append(Answer(case, told, alone, time.perf_counter() - start))
    return answers


def look_alike(case: Case) -> bool:
    return case["parallel_caused"] is False


GROUPS: dict[str, Callable[[Case], bool]] = {
    "all": lambda c: True,
    "self-explaining": lambda c: not look_alike(c) and c["self_explaining"] is True,
    "cryptic": lambda c: not look_alike(c) and c["self_explaining"] is False,
    "observed shape": lambda c: not look_alike(c) and c["self_explaining"] is None,
    "look-alike": look_alike,
}
"""The four kinds by who can tell the cause."""


def traceback_of(case: Case) -> str:
    """A case of genuine.json as it was pasted: its last lines of source, and the words."""
    frames = "".join(f'  File "model.py", line 1, in forward\n    {line}\n' for line in case["code"] if line)
    return f"Traceback (most recent call last):\n{frames}{case['error']}: {case['message']}\n"


def genuine(case: Case) -> Case:
    """A case of genuine.json in the form of the others."""
    return {
        "id": f"{case['framework']} {case['model']} {case['layout']}",
        "message": traceback_of(case),
        "category": case["categories"][0],
        "categories": case["categories"],
        "parallel_caused": True,
        "self_explaining": None,
        "diagnosable_from": "text+model+layout",
        "context": {name: case[name] for name in ("model", "seq", "world") if name in case} | case["layout"],
    }


def read(path: Path) -> list[Case]:
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        return [genuine(case) for case in json.loads(text)["cases"]]
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def known() -> list[Path]:
    """The sets of tests/oracles that are there."""
    found = [ORACLES / f"{name}{suffix}" for name in SETS for suffix in (".jsonl", ".json")]
    return [path for path in found if path.exists()]


SCORES = ("strict", "right", "asserted_wrong")
"""What is counted of an Answer."""

HEAD = ("kind of text", "n", "cause first", "verdict too", "wrong and likely")


def counted(answers: list[Answer]) -> list[tuple[object, ...]]:
    """A row for each kind of text: how many, and the three scores."""
    rows = []
    for name, belongs in GROUPS.items():
        own = [answer for answer in answers if belongs(answer.case)]
        rows.append((name, len(own), *(sum(getattr(a, what) for a in own) for what in SCORES)))
    return rows


def tables() -> dict[str, list[str]]:
    """That of docs/accuracy.md: all sets together, asked with their context."""
    told = [answer for path in known() for answer in ask(read(path), alone=False)]
    return {"explain": _page.table(HEAD, counted(told))}


def misses(answers: list[Answer]) -> list[str]:
    rows = []
    for a in answers:
        if a.right and not a.asserted_wrong:
            continue
        got = ", ".join(d.title for d in a.told.diagnoses[:3]) or "nothing"
        rows.append(
            f"  {a.case['id']}  {' '.join(a.case['message'].split())[-100:]}\n"
            f"      is {a.case['category']} ({a.case['diagnosable_from']}); said {a.told.verdict}: {got}"
            + (f"; asks for {', '.join(a.told.needs)}" if a.told.needs else "")
            + ("  ASSERTED WRONG" if a.asserted_wrong else "")
        )
    return rows


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("file", nargs="*", type=Path)
    parser.add_argument("--only", action="store_true", help="the files given, not the sets of the tests")
    parser.add_argument("--misses", action="store_true", help="name every case that was missed")
    parser.add_argument("--half", choices=("even", "odd"), help="only cases of even or odd place, from 0")
    parser.add_argument("--split", choices=("seen", "unseen"), help="only this half, by the hash of the id")
    parser.add_argument("--page", action="store_true", help="write docs/accuracy.md")
    args = parser.parse_args()
    if args.page:
        _page.write(tables())
        return
    lp.explain("AssertionError: 25 is not divisible by 4")  # the first call compiles the patterns
    for path in [*([] if args.only else known()), *args.file]:
        cases = read(path)
        if args.split:
            cases = [case for case in cases if half(case["id"]) == args.split]
        if args.half:
            cases = cases[args.half == "odd" :: 2]
        for alone in (False, True):
            answers = ask(cases, alone)
            print(f"\n{path.stem}: {len(cases)} cases, {'message alone' if alone else 'with context'}")
            print(*_page.table(HEAD, counted(answers)), sep="\n")
            took = [a.seconds * 1e3 for a in answers]
            print(f"median {statistics.median(took):.2f} ms, longest {max(took):.1f} ms")
            if args.misses:
                print("\n".join(misses(answers)))


if __name__ == "__main__":
    main()
