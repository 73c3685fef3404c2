"""The live facts of 60 failing programs, beside what is true of them.

The programs of `failing_cells/` were written before the code that reads their facts, half of them with a
sharding problem, half with a plain bug. Each runs in a process of its own, and when it fails,
`lp.explain(error)` speaks. The facts are right if the failing expression, every tensor in it with shape,
dtype and placement, every integer, and the process are those of truth.toml. Beside them stands whether the
verdict is right, open or wrong.

    python benchmarks/live_facts.py --only 55   # some programs, with what is not as it is in truth
    python benchmarks/live_facts.py --measure   # all of them: writes live_facts.json
    python benchmarks/live_facts.py --edits     # their edits, too: the same file
    python benchmarks/live_facts.py --page      # writes docs/accuracy.md
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _page

CELLS = Path(__file__).resolve().parent / "failing_cells"
OUTCOMES = Path(__file__).with_suffix(".json")
EDIT_SECONDS = 10.0
"""For all trials of a program, which starts anew with each: more than the usual three."""
Truth = dict[str, object]


def answer(path: str, edits: bool) -> None:
    """Run a program, and print what `lp.explain`, or `llamapar debug`, says of its error as JSON."""
    import llamapar as lp

    try:
        runpy.run_path(path, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != path:
            trace = trace.tb_next
        if edits:
            print(json.dumps(lp.debug(error.with_traceback(trace), seconds=EDIT_SECONDS).as_dict()))
            return
        found = lp.explain(error)
        assert found.live is not None
        rows = []
        for one in found.live.operands:
            placed = one.placement.replace("DTensor, ", f"DTensor: whole {list(one.whole)}, ", 1)
            rows.append({"name": one.name, "shape": f"{list(one.shape)} {one.dtype}", "placement": placed})
        facts = {"expression": found.live.expression, "operands": rows, "numbers": dict(found.live.numbers)}
        print(json.dumps({**found.as_dict(), "live": {**facts, "process": found.live.process}}))


def normal(text: str) -> str:
    """An expression without its blanks and kinds of quotes, in which ways to write it differ."""
    return re.sub(r"\s+|,(?=\s*[)\]])", "", text).replace("'", '"')


def shape_of(said: str) -> str:
    """A shape and dtype of truth.toml in the words of the facts: of a DTensor what is here, and its whole."""
    whole, _, rest = said.partition(", here ")
    if not rest:
        return said
    here, _, placed = rest.partition("], ")
    return f"{here}] {whole.rpartition(' ')[2]} of {whole.rpartition(' ')[0]}, {placed}"


def read(row: dict[str, str]) -> str:
    """An operand of the facts in the same words."""
    found = re.match(r"DTensor: whole (\[.*?\]), (.*)", row["placement"])
    if found is None:
        return row["shape"]
    axes = dict(re.findall(r"over (\w+)=(\d+)", found[2]))
    mesh = {axis: int(n) for axis, n in axes.items()}
    placed = re.sub(r" over \w+=\d+", "", found[2])
    placed = re.sub(r"\b(Replicate)\b(?!\()", r"\1()", placed)
    return f"{row['shape']} of {found[1]}, {placed} on {mesh}"


def single(numbers: dict[str, int | list[int]]) -> Iterator[tuple[str, int]]:
    """Integers by their source; each of several by its place: n = [2, 8] is n[0] = 2 and n[1] = 8."""
    for name, n in numbers.items():
        several = enumerate(n) if isinstance(n, list) else ()
        yield from ((f"{normal(name)}[{i}]", one) for i, one in several)
        if isinstance(n, int):
            yield normal(name), n


def wrong(truth: dict[str, Truth], live: dict[str, object]) -> list[str]:
    """What of the facts is not as it is in truth."""
    found = []
    if normal(str(truth["expression"])) != normal(str(live["expression"])):
        found.append(f"expression {live['expression']}")
    operands = {normal(row["name"]): read(row) for row in live["operands"]}  # type: ignore[attr-defined]
    due = {normal(name): shape_of(str(said)) for name, said in truth.get("operands", {}).items()}
    found += [f"{name}: {operands.get(name, 'missing')} for {due.get(name, 'nothing')}"
              for name in sorted({*operands, *due}) if operands.get(name) != due.get(name)]  # fmt: skip
    numbers = dict(single(live["numbers"]))  # type: ignore[arg-type]
    due_numbers = dict(single(truth.get("integers", {})))  # type: ignore[arg-type]
    found += [f"integers {numbers} for {due_numbers}"] * (numbers != due_numbers)
    process = truth["process"]
    lone = "one process, torch.distributed not initialised"
    said = f"rank {process['rank']} of {process['world']}" if process["initialised"] else lone
    return found + [f"process {live['process']}"] * (not str(live["process"]).startswith(said))


def asked(name: str, *options: str) -> dict[str, Any]:
    """What a program's own process answers."""
    command = [sys.executable, __file__, *options, "--of", str(CELLS / f"{name}.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def edits(only: str) -> dict[str, str]:
    """Program → whether its first edit is the true one, another that is not called proved, none, or wrong."""
    truths = tomllib.loads((CELLS / "truth.toml").read_text())
    due = tomllib.loads((CELLS / "edits.toml").read_text())
    found = {}
    for name in [name for name in truths if name.startswith(only)]:
        said = asked(name, "--edits")
        added = " ".join(line for line in said["edit"] if line.startswith("+ ")).replace("'", '"')
        true = name in due and any(text in added for text in due[name].split(" || "))
        proved = any(line.startswith("proved") for line in said["proof"])
        against = said["verdict"] == ("not_sharding" if truths[name]["sharding"] else "sharding")
        found[name] = "undecided" if added else "none"
        if against or (proved and not true):
            found[name] = "wrong"
        elif true and not said["what"].startswith("Undecided"):
            found[name] = "right"
        print(f"{name:<28} {found[name]:<10} {said['what'][:90]}", *said["edit"], *said["proof"], flush=True)
    return found


def measured(only: str) -> dict[str, tuple[bool, str]]:
    """Program → whether its facts are right, and how its verdict is. only: the beginning of a name."""
    truths = tomllib.loads((CELLS / "truth.toml").read_text())
    found = {}
    for name, truth in truths.items():
        if not name.startswith(only):
            continue
        told = asked(name)
        faults = wrong(truth, told["live"])
        due = "sharding" if truth["sharding"] else "not_sharding"
        found[name] = not faults, {due: "right", "unknown": "open"}.get(told["verdict"], "wrong")
        print(f"{name:<28} verdict {found[name][1]:<6} facts {'; '.join(faults) or 'right'}", flush=True)
    return found


def tables() -> dict[str, list[str]]:
    """The table of docs/accuracy.md, of the outcomes as they were measured."""
    rows = []
    known = json.loads(OUTCOMES.read_text())
    known.pop("edits")  # benchmarks/cell_flows.py shows them beside its own.
    for when, outcomes in known.items():
        verdicts = [verdict for _, verdict in outcomes.values()]
        counts = [verdicts.count(verdict) for verdict in ("right", "open", "wrong")]
        rows.append([when, len(outcomes), sum(facts for facts, _ in outcomes.values()), *counts])
    head = ("measured", "programs", "facts right", "verdict right", "open", "wrong")
    return {"live_facts": _page.table(head, rows)}


def main() -> None:
    """As the options ask."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="of programs whose name begins so")
    parser.add_argument("--measure", action="store_true", help="of all programs: write live_facts.json")
    parser.add_argument("--edits", action="store_true", help="which edits repair them")
    parser.add_argument("--page", action="store_true", help="write docs/accuracy.md")
    parser.add_argument("--of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.of:
        answer(given.of, given.edits)
    elif given.page:
        _page.write(tables())
    elif given.edits:
        by_program = edits(given.only)
        if not given.only:
            outcomes = json.loads(OUTCOMES.read_text()) | {"edits": by_program}
            OUTCOMES.write_text(json.dumps(outcomes, indent=1) + "\n")
    else:
        found = measured("" if given.measure else given.only)
        if given.measure:
            outcomes = json.loads(OUTCOMES.read_text()) | {"now": found}
            OUTCOMES.write_text(json.dumps(outcomes, indent=1) + "\n")


if __name__ == "__main__":
    main()
