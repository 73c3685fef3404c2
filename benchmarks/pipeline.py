"""How fast a pipeline runs: a warm `lp.run` of Llama in each engine, and torch's own pipelining beside it.

    .venv/bin/python benchmarks/pipeline.py [--repeats 7] [--schedule 1f1b]

The tiny model, TP=2 x PP=2 with four micro-batches, on the CPU. `lp.run` is the whole call: cutting the
inputs, the pipeline, the unsharded model, the comparison. A step is what a rank does from its first operation
to its summed gradients, the slowest rank's; torch.distributed.pipelining does the same on the same ranks, by
`tests/torch_pipeline.py`. Ours records every operation and what it sends meanwhile; torch's records nothing.
Beside each median stands the least, which a busy machine disturbs least, and the processor time of this
process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import llamapar as lp
import torch_pipeline
from llamapar.execution.engines import pool, processes

LAYOUT, MICRO_BATCHES = lp.Layout(tp=2, pp=2), 4
ASKED = {"local": 2.0, "processes": 0.3}


def timed(call: Callable[[], lp.RunResult], repeats: int) -> tuple[list[float], list[float], lp.RunResult]:
    """Wall and processor seconds of each of some calls after one that warms up, and the last result."""
    result = call()
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        result = call()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        if not result.ok:
            raise SystemExit(str(result))
    return walls, cpus, result


def row(what: str, walls: list[float], cpus: list[float] | None = None, asked: float | None = None) -> None:
    cpu = f"{statistics.median(cpus):10.3f}" if cpus else " " * 10
    print(f"{what:<38}{statistics.median(walls):10.3f}{min(walls):10.3f}{cpu}{asked or '':>8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--schedule", default="1f1b", choices=list(torch_pipeline.SCHEDULES))
    given = parser.parse_args()
    print(f"tiny, {LAYOUT}, {given.schedule}, {MICRO_BATCHES} micro-batches; {os.cpu_count()} CPUs")
    print(f"{'seconds':<38}{'median':>10}{'least':>10}{'CPU':>10}{'asked':>8}")
    for engine, asked in ASKED.items():

        def call(engine: str = engine) -> lp.RunResult:
            return lp.run(
                "llama",
                "tiny",
                LAYOUT,
                engine=engine,
                device="cpu",
                schedule=given.schedule,
                micro_batches=MICRO_BATCHES,
                global_batch=MICRO_BATCHES,  # torch's pipelining sends views over gloo if there are more
            )

        walls, cpus, result = timed(call, given.repeats)
        row(f"lp.run, {engine}", walls, cpus, asked)
    ranks = pool.pool(LAYOUT.world, preload=processes.PRELOAD)
    ours = []
    for _ in range(given.repeats):
        reports = [answer.value for answer in ranks.run(processes.run_here, result.task)]
        spans = [report.work.operations for report in reports]
        ours.append(max(span[-1].end for span in spans) - min(span[0].start for span in spans))
    row("first to last operation, ours", ours)
    answers = ranks.run(torch_pipeline.by_torch, result.task, given.repeats + 1)
    theirs = [max(times) for times in zip(*(answer.value[1][1:] for answer in answers), strict=True)]
    row("a step by torch's pipelining", theirs)
    pool.close_pool()


if __name__ == "__main__":
    main()
