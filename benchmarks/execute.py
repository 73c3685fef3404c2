"""How fast programs run on ranks: starting a pool of processes, and a warm `lp.run` in each engine.

    .venv/bin/python benchmarks/execute.py [--repeats 11] [--programs block …]

All times are wall times on the CPU. Beside each median stand the least of the repeats, which disturbs a
busy machine least, what was asked of it, and its ratio to a reference measured in the same run: a fresh
interpreter that imports torch for the pool, the unsharded model in one process for each program. The runs
of a program and its reference take turns. The tiny model, TP=4 x CP=2, is 8 ranks.

A last table says why the local engine is slower on a machine of several cores, or a busy one: it runs on one
thread. Beside the wall seconds of a run stand the processor seconds of all its processes, and, on Linux, how
long the calling thread waited for a core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

import llamapar as lp
from llamapar.execution.body import asked_shapes, reference
from llamapar.execution.engines import pool, processes
from llamapar.execution.execute import prepare
from llamapar.execution.run_options import RunOptions
from llamapar.execution.ticking import few_threads

MODEL, LAYOUT = "tiny", lp.Layout(tp=4, cp=2)
ASKED = {"processes": 0.25, "local": 0.8}
READY = 0.5


@dataclass(frozen=True)
class Row:
    """One line of the table; seconds."""

    what: str
    times: list[float]
    asked: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.times)


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def turns(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Times of each call: all of them in turn, again and again, after one turn that warms them up."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(timed(call))
    return times


def started() -> pool.Pool:
    """8 ranks that have met: each has joined the process group and been in its first all-reduce."""
    ranks = pool.Pool(LAYOUT.world, preload=processes.PRELOAD)
    ranks.run(type)  # type(context): what a rank is asked does not matter
    return ranks


def starting(repeats: int) -> list[Row]:
    """The reference, then the pool's one-time preload, its ranks ready, and a job that does nothing."""
    torch = [sys.executable, "-c", "import torch"]
    fresh = Row(
        "python -c 'import torch'", [timed(lambda: subprocess.run(torch, check=True)) for _ in range(3)]
    )
    preload = Row("one-time preload", [timed(lambda: pool._the_server(processes.PRELOAD, None))])
    ready, empty = [], []
    for _ in range(repeats):
        begun = time.perf_counter()
        with started() as ranks:
            ready.append(time.perf_counter() - begun)
            empty += [timed(lambda: ranks.run(type)) for _ in range(5)]
    return [
        fresh,
        preload,
        Row("8 ranks ready, with their first all-reduce", ready, READY),
        Row("8 warm ranks, a job that does nothing", empty),
    ]


def running(program: str, repeats: int, asked: dict[str, float]) -> list[Row]:
    """The unsharded model, then warm runs of `program` in each engine, without and with the backward."""
    task, _, _ = prepare(program, MODEL, RunOptions(LAYOUT))

    def run(**options: Any) -> None:
        result = lp.run(program, MODEL, LAYOUT, device="cpu", **options)
        if not result.ok:
            raise SystemExit(str(result))

    def unsharded() -> None:
        with few_threads(asked_shapes(task).values()):  # as every run has it
            reference(task)

    calls: dict[str, Callable[[], object]] = {f"{program} unsharded": unsharded}
    for engine in ("processes", "local"):
        for backward, passes in ((False, "forward"), (True, "forward, backward")):
            calls[f"{program} in {engine}, {passes}"] = partial(run, engine=engine, backward=backward)
    times = turns(calls, repeats)
    wanted = {name: next((s for e, s in asked.items() if f" {e}," in name), None) for name in calls}
    return [Row(name, times[name], wanted[name]) for name in calls]


def spent() -> tuple[float, float, float]:
    """So far: wall seconds, processor seconds of this process and its ranks, and this thread's for a core."""
    own = psutil.Process()
    clocks = [p.cpu_times() for p in (own, *own.children(recursive=True))]
    queue = Path("/proc/thread-self/schedstat")
    waited = int(queue.read_text().split()[1]) / 1e9 if queue.exists() else 0.0
    return time.perf_counter(), sum(c.user + c.system for c in clocks), waited


def where_time_goes(program: str, repeats: int) -> None:
    """Medians of what runs in each engine spend, in turns."""
    found: dict[str, list[list[float]]] = {"processes": [], "local": []}
    for _ in range(repeats):
        for engine, runs in found.items():
            before = spent()
            lp.run(program, MODEL, LAYOUT, device="cpu", engine=engine)
            runs.append([after - start for after, start in zip(spent(), before, strict=True)])
    for engine, runs in found.items():
        cells = "".join(f"{shown(statistics.median(part)):>11}" for part in zip(*runs, strict=True))
        print(f"{f'{program} in {engine}, forward, backward':46}{cells}")


def shown(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--programs", nargs="+", default=["attention", "block", "llama"])
    given = parser.parse_args()
    repeats = given.repeats
    cores, few = os.cpu_count(), max(3, repeats // 3)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    print(f"{cores} cores, {os.getloadavg()[0]:.1f} processes waiting or running in the last minute")
    print(f"{'':46}{'median':>11}{'least':>11}{'asked':>11}   ratio of medians")
    wanted: dict[str, tuple[int, dict[str, float]]] = {"attention": (repeats, ASKED)}
    programs = (running(program, *wanted.get(program, (few, {}))) for program in given.programs)
    for rows in chain([starting(max(5, repeats // 2))], programs):
        base = rows[0]
        print(f"{base.what:46}{shown(base.median):>11}{shown(min(base.times)):>11}{'':>11}   1 (reference)")
        for row in rows[1:]:
            cells = "".join(f"{shown(s):>11}" for s in (row.median, min(row.times), row.asked))
            print(f"{row.what:46}{cells}   {row.median / base.median:.3g} x {base.what}")
    print(f"{'':46}{'wall':>11}{'processor':>11}{'waited':>11}")
    for program in given.programs:
        where_time_goes(program, few)
    pool.close_pool()
    print(f"{os.getloadavg()[0]:.1f} processes waiting or running in the minute before the end")


if __name__ == "__main__":
    main()
