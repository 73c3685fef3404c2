"""How fast the core is: importing, checking, and the records of 16,384 and of 2**20 ranks.

    .venv/bin/python benchmarks/core.py [--repeats 15]

Each time is the median of the repeats, each repeat a batch long enough to measure. An import is timed in
a fresh interpreter, a bare one of the same moment taken off. Beside each time stand what was asked of it
and its ratio to `import json`, or to a JSON round trip of a report, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import llamapar as lp
from llamapar.rules import memory_rule

PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)
SHORT = lp.Layout(tp=8, pp=16, dp=128)
SLIP = PAPER.replace(dp=4)
MILLION = lp.Layout(tp=16, cp=16, pp=64, dp=64)
FACTS: dict[str, Any] = {"gpus": 16384, "seq_len": 131072, "batch_tokens": 2**24, "batch_per_dp": 16}
BATCH_SECONDS = 0.02


@dataclass(frozen=True)
class Row:
    """One line of the table; seconds."""

    what: str
    took: float
    asked: float | None = None


def interpreter(code: str) -> float:
    """Wall time of a fresh interpreter that runs `code`."""
    root = str(Path(lp.__file__).parent.parent)
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {root!r}); {code}"], check=True
    )
    return time.perf_counter() - started


def imported(name: str, repeats: int) -> float:
    """Time of `import name` alone: bare and importing interpreters take turns."""
    pairs = [(interpreter("pass"), interpreter(f"import {name}")) for _ in range(repeats)]
    return statistics.median(whole - bare for bare, whole in pairs)


def median(call: Callable[[], object], repeats: int) -> float:
    """Median time of one call, over batches of at least BATCH_SECONDS."""
    call()
    started = time.perf_counter()
    call()
    count = max(1, int(BATCH_SECONDS / max(time.perf_counter() - started, 1e-7)))
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - started) / count)
    return statistics.median(times)


def check() -> lp.Report:
    return lp.check("llama3.1-405b", PAPER, **FACTS)


def words() -> str:
    """A report with three findings, two of them errors, all its words, fixes and verdicts."""
    memory_rule.load_of.cache_clear()
    return str(lp.check("llama3.1-405b", SLIP, **FACTS).as_dict())


def grid(layout: lp.Layout, rank: int) -> str:
    return str(lp.ranks(layout, rank))


def memory(layout: lp.Layout) -> dict[str, object]:
    """Every stage's terms and totals."""
    return lp.memory("llama3.1-405b", layout, seq_len=8192, global_batch=2048).as_dict()


def all_groups(layout: lp.Layout) -> int:
    return sum(len(group) for axis in lp.AXES for group in layout.groups(axis))


def measure(repeats: int) -> list[tuple[str, Row, list[Row]]]:
    """(name of the reference, its row, the rows that are compared with it)."""
    report = lp.check("llama3.1-405b", SLIP, **FACTS).as_dict()
    trip = Row("JSON round trip of a report", median(lambda: json.loads(json.dumps(report)), repeats))

    def timed(what: str, call: Callable[[], object], asked: float | None = None) -> Row:
        return Row(what, median(call, repeats), asked)

    rows = [
        timed("check 405B at 16,384 ranks", check, 1e-3),
        timed("the same with an error, its words, fixes and verdicts", words),
        timed("rank grid of 16,384 ranks, as text", lambda: grid(PAPER, 12345), 50e-3),
        timed("rank grid of 2**20 ranks, as text", lambda: grid(MILLION, 2**20 - 1)),
        timed("every group of 16,384 ranks, four axes", lambda: all_groups(PAPER)),
        timed("head map of 405B at tp=8, as text", lambda: str(lp.heads("llama3.1-405b", PAPER))),
        timed("sequence map of 131,072 over cp=16, as text", lambda: str(lp.sequence(PAPER, 131072))),
        timed("memory of 405B at 16,384 ranks, 16 stages, every term", lambda: memory(SHORT), 5e-3),
        timed("the same with 8 virtual stages", lambda: memory(SHORT.replace(virtual_stages=8)), 5e-3),
    ]
    loaded = Row("import llamapar", imported("llamapar", repeats), 0.15)
    return [
        ("import json", Row("import json", imported("json", repeats)), [loaded]),
        ("JSON round trip", trip, rows),
    ]


def shown(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds < 0.1 else f"{seconds:.3f} s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    groups = measure(parser.parse_args().repeats)
    print(f"{'':54}{'median':>12}{'asked':>12}   ratio")
    for name, reference, rows in groups:
        print(f"{reference.what:54}{shown(reference.took):>12}{'':>12}   1 (reference)")
        for row in rows:
            asked = shown(row.asked) if row.asked else "–"
            print(f"{row.what:54}{shown(row.took):>12}{asked:>12}   {row.took / reference.took:.2f} x {name}")


if __name__ == "__main__":
    main()
