"""How many micro-batches a pipeline rank has in flight, by schedule: each keeps its activations."""

from __future__ import annotations

from llamapar.describe.options import offer

SCHEDULES = ("1f1b", "gpipe")
"""1f1b: one forward, one backward (arXiv:2104.04473), interleaved where a rank has several stages.
gpipe: all forward, then all backward (arXiv:1811.06965)."""

offer("schedule", SCHEDULES)


def in_flight(schedule: str, rank: int, pp: int, virtual_stages: int, micro_batches: int) -> tuple[int, ...]:
    """The most micro-batches in flight on each virtual stage of PP rank `rank` at its peak.

    1F1B: min(pp - rank, micro-batches). Interleaved: the first (v - 1)·pp + 2(pp - rank - 1) + 1 forwards,
    which walk through the rank's stages in groups of pp micro-batches (Megatron-LM
    core/pipeline_parallel/schedules.py; arXiv:2104.04473 section 2.2).
    """
    v, m = virtual_stages, micro_batches
    if schedule == "gpipe" or pp == 1:
        return (m if pp > 1 else min(m, 1),) * v
    if v == 1:
        return (min(pp - rank, m),)
    warm_up = min((v - 1) * pp + 2 * (pp - rank - 1) + 1, m * v)
    counts = [0] * v
    first = 0
    while warm_up:
        group = min(pp, m - first)
        for stage in range(v):
            taken = min(group, warm_up)
            counts[stage] += taken
            warm_up -= taken
        first += group
    return tuple(counts)
