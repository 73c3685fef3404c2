"""What `lp.debug` says of the failing programs that can be run again, beside what is true of them.

50 of the 60 programs of `failing_cells/` have an `attempt(model, layout)`. Each is debugged in a process of
its own. The answer is right if its verdict is that of truth.toml, the axes that make it pass alone are the
same, and one of the sizes that make it pass, where truth names one, is found. It is wrong if its verdict is
decided and is the other one; else it is open.

    python benchmarks/experiments.py --only 55   # some programs, with the whole answer
    python benchmarks/experiments.py --measure   # all of them: writes experiments.json
    python benchmarks/experiments.py --page      # writes docs/accuracy.md
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _page

CELLS = Path(__file__).resolve().parent / "failing_cells"
OUTCOMES = Path(__file__).with_suffix(".json")


def answer(path: str, whole: bool) -> None:
    """Debug a program's attempt, and print the answer as JSON, or as a user sees it."""
    import llamapar as lp

    space: dict[str, Any] = {"__name__": "attempted", "__file__": path}
    exec(compile(Path(path).read_text(), path, "exec"), space)
    began = time.monotonic()
    found = lp.debug(space["attempt"], SimpleNamespace(**space["MODEL"]), space["LAYOUT"], prove=whole)
    if whole:
        print(found, found.table(), sep="\n\n")
    else:
        print(json.dumps(found.as_dict() | {"seconds": round(time.monotonic() - began, 2)}))


def judged(found: dict[str, Any], truth: dict[str, Any]) -> tuple[str, str]:
    """right, open or wrong, and what is not as it is in truth."""
    said, true = found["verdict"], "sharding" if truth["sharding"] else "not_sharding"
    experiment = truth["experiment"]
    if said != true:
        return ("open" if said == "unknown" else "wrong"), f"{said}: {found['reason']}"
    if found["axes"] != experiment["axes"]:
        return "open", f"axes {found['axes']}, not {experiment['axes']}"
    for axis, passing in experiment.get("passes", {}).items():
        tried = found["degrees"].get(axis, {})
        passed = [int(n) for n, outcome in tried.items() if outcome == "passes"]
        if tried and passed != passing:
            return "open", f"{axis} that pass: {passed}, not {passing}"
    dims = experiment.get("dims", {})
    if dims and not {name for name, *_ in found["flips"]} & dims.keys():
        return "open", f"no flip of {', '.join(dims)}"
    return "right", ""


def measured(names: list[str]) -> dict[str, dict[str, Any]]:
    truths = tomllib.loads((CELLS / "truth.toml").read_text())
    found = {}
    for name in names:
        command = [sys.executable, __file__, "--answer", str(CELLS / f"{name}.py")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        said = json.loads(done.stdout.splitlines()[-1])
        outcome, why = judged(said, truths[name])
        row = {"outcome": outcome, "why": why, "rules": said["rules"], "trials": len(said["trials"])}
        found[name] = row | {"seconds": said["seconds"]}
        print(name, outcome, why, said["rules"][:3], said["seconds"], flush=True)
    return found


def tables() -> dict[str, list[str]]:
    """The table of docs/accuracy.md, of the outcomes as they were measured."""
    rows = []
    for when, found in json.loads(OUTCOMES.read_text()).items():
        outcomes = [row["outcome"] for row in found.values()]
        counts = [outcomes.count(outcome) for outcome in ("right", "open", "wrong")]
        medians = [statistics.median(row[of] for row in found.values()) for of in ("trials", "seconds")]
        rows.append([when, len(found), *counts, round(medians[0]), f"{medians[1]:.1f}"])
    head = ("measured", "programs", "right", "open", "wrong", "trials, median", "seconds, median")
    return {"debug": _page.table(head, rows)}


def main() -> None:
    """As the options ask."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--only", nargs="+", help="numbers of programs: print their whole answers")
    asked.add_argument("--measure", action="store_true", help="all programs: write experiments.json")
    asked.add_argument("--page", action="store_true", help="write docs/accuracy.md")
    asked.add_argument("--answer", help=argparse.SUPPRESS)
    given = asked.parse_args()
    truths = tomllib.loads((CELLS / "truth.toml").read_text())
    names = [name for name, truth in truths.items() if "experiment" in truth]
    if given.answer:
        answer(given.answer, bool(given.only))
    elif given.page:
        _page.write(tables())
    elif given.measure:
        outcomes = json.loads(OUTCOMES.read_text()) | {"now": measured(names)}
        OUTCOMES.write_text(json.dumps(outcomes, indent=1) + "\n")
    else:
        for name in names:
            if name.startswith(tuple(given.only or ())):
                path = str(CELLS / f"{name}.py")
                subprocess.run([sys.executable, __file__, "--answer", path, "--only", name], check=True)


if __name__ == "__main__":
    main()
