"""How fast one rank of 405B runs dry, forward and backward and the whole step; and how fast 8B is taped.

    .venv/bin/python benchmarks/dry.py [--repeats 5]

TP=8 x CP=16 x PP=16 x DP=8 at 131,072 tokens in bfloat16, as rank 12,473, whose stage has eight layers; the
whole step is its 32 micro-batches. Then as rank 2**20 - 1 of 2**20. Wall and processor seconds of a warm
`lp.run`, the median and the least; the first run, which imports what torch imports late, stands apart. A
second table says what the run found beside `lp.traffic` and `lp.memory`.

Last `lp.tape` of Llama 3 8B at TP=8, which runs one rank and one layer for all that are alike. Its reference,
once in the same run, is the record of every rank and layer: the same Llama as a program of one's own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import llamapar as lp
from llamapar.programs import llama
from llamapar.records.trace import TapeStep
from llamapar.spmd.setting import Setting

PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)
MILLION = lp.Layout(tp=8, cp=16, pp=16, dp=512)
ASKED = 2.0
"""Seconds for eight layers forward and backward, warm."""
TAPE_ASKED = 1.5
"""Processor seconds for the tape of Llama 3 8B at TP=8."""

CASES = {
    "eight layers, one micro-batch": (PAPER, 12473, 1),
    "eight layers, 32 micro-batches": (PAPER, 12473, 32),
    "the same as one of 2**20 ranks": (MILLION, 2**20 - 128 * 15, 32),
}


def once(layout: lp.Layout, rank: int, micro_batches: int) -> tuple[float, float, lp.DryRun]:
    """Wall and processor seconds, and the run."""
    wall, cpu = time.perf_counter(), time.process_time()
    run = lp.run(
        "llama",
        "llama3.1-405b",
        layout,
        engine="dry",
        rank=rank,
        seq_len=131072,
        dtype="bfloat16",
        micro_batches=micro_batches,
    )
    assert isinstance(run, lp.DryRun)
    return time.perf_counter() - wall, time.process_time() - cpu, run


def every_rank_and_layer(
    mesh: DeviceMesh,
    setting: Setting,
    tokens: Tensor,
    positions: Tensor,
    targets: Tensor,
    weights: Mapping[str, Tensor],
) -> object:
    """Llama as a program of one's own, of which nothing is known to be alike."""
    return llama.llama(mesh, setting, tokens, positions, targets, weights)


def taped(program: str | Callable[..., object]) -> tuple[float, list[TapeStep]]:
    """Processor seconds of the tape, and its steps in the model's own functions."""
    cpu = time.process_time()
    tape = lp.tape(program, "llama3-8b", lp.Layout(tp=8))
    cpu = time.process_time() - cpu
    return cpu, [step for step in tape.steps if not step.where.startswith("every_rank_and_layer:")]


def tapes(repeats: int) -> None:
    """The tape's processor seconds beside those of its reference."""
    cpus, steps = zip(*[taped("llama") for _ in range(repeats)], strict=True)
    reference, each = taped(every_rank_and_layer)
    median = statistics.median(cpus)
    print(f"{'processor seconds of a tape':<34}{'median':>8}{'least':>8}{'asked':>8}   ratio")
    print(f"{'8B at tp=8, every rank and layer':<34}{reference:8.2f}{reference:8.2f}{'':>8}   1 (reference)")
    print(f"{'8B at tp=8':<34}{median:8.2f}{min(cpus):8.2f}{TAPE_ASKED:8.1f}   {median / reference:.3f}")
    same = "equal" if all(own == each for own in steps) else "NOT OK: not equal"
    print(f"their {len(each)} steps are {same}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    wall, cpu, _ = once(*CASES["eight layers, one micro-batch"])
    print(f"{os.cpu_count()} CPUs; the first run took {wall:.2f} s, {cpu:.2f} s of processor time")
    print(f"{'seconds':<34}{'median':>8}{'least':>8}{'CPU':>8}{'least':>8}{'asked':>8}")
    found = {}
    for name, case in CASES.items():
        times = [once(*case) for _ in range(given.repeats)]
        walls, cpus, runs = zip(*times, strict=True)
        found[name] = runs[-1]
        print(
            f"{name:<34}{statistics.median(walls):8.2f}{min(walls):8.2f}"
            f"{statistics.median(cpus):8.2f}{min(cpus):8.2f}{ASKED:8.1f}"
        )
    for name, run in found.items():
        layout, rank, many = CASES[name]
        formula = lp.traffic(
            "llama",
            "llama3.1-405b",
            layout,
            seq_len=131072,
            dtype="bfloat16",
            micro_batches=many,
            rank=rank,
        )
        same = "as lp.traffic says" if formula.by_axis == run.trace.by_axis else "NOT as lp.traffic says"
        kept = "to the byte what lp.memory says" if run.kept and run.kept.ok else "NOT what lp.memory says"
        print(f"{name}: bytes {same}; a layer keeps {kept}; peak {run.peak_bytes / 2**30:.2f} GiB")
    tapes(given.repeats)


if __name__ == "__main__":
    main()
