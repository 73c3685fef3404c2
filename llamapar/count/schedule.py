"""How many micro-batches a pipeline rank has in flight, by schedule: each keeps its activations."""

from __future__ import annotations

from functools import lru_cache

from llamapar.describe.options import offer
from llamapar.place.orders import ALL_FORWARD_FIRST, ORDERS
from llamapar.place.schedule import own_name, row_of
from llamapar.place.walk import flying_at_peak

SCHEDULES = tuple(ORDERS)
"""Those of `lp.schedule`. Over several stages a rank 1f1b is interleaved, and gpipe looped breadth-first."""

offer("schedule", SCHEDULES)


def in_flight(
    schedule: str, rank: int, pp: int, virtual_stages: int, micro_batches: int, nc: int | None = None
) -> tuple[int, ...]:
    """The most micro-batches in flight on each virtual stage of PP rank `rank` at its peak.

    They are what the schedule's table has, but tables may be long, so that formulas say the same: all
    forwards of schedules that begin with them; of 1F1B min(pp - rank, micro-batches); interleaved, the first
    (v - 1)·round + 2(pp - rank - 1) + 1 forwards, which walk through the rank's stages in rounds of pp
    micro-batches, or of a few more where that makes rounds equal (torch/distributed/pipelining/schedules.py;
    arXiv:2104.04473 section 2.2). Of split backwards a rank frees nothing before its first W, which comes as
    many backwards later as the rank's number: each has (v - 1)·round + pp forwards. On a V rank 0 keeps
    2·pp - 1 micro-batches of its first stage and one of its last, every further rank one less and one more;
    DualPipeV one more of the first.

    Raises LayoutError where the schedule is not defined.
    """
    v, m = virtual_stages, micro_batches
    name = own_name(schedule, v)
    equal = m % max(1, m // pp) == 0
    if nc is not None:
        return _peak(schedule, rank, pp, v, m, nc)
    if pp == 1 and schedule in ("1f1b", "gpipe"):
        return (min(m, 1),) * v
    if name == "1f1b":
        return (min(pp - rank, m),)
    if name in ALL_FORWARD_FIRST or (name == "flexible" and m < pp):
        return (m,) * v
    if schedule == "1f1b" or (name == "interleaved-1f1b" and equal) or (name == "flexible" and m % pp == 0):
        return of_first_forwards(pp, v, m, 2 * (pp - rank - 1))
    if name == "interleaved-zero-bubble" and equal:
        return of_first_forwards(pp, v, m, pp - 1)
    if name == "zbv" and v == 2:
        return min(m, 2 * pp - rank - 1), min(m, rank + 1)
    if name == "dualpipev" and v == 2 and m >= 2 * pp:
        return 2 * pp - rank, rank + 1
    return _peak(schedule, rank, pp, v, m, nc)


def of_first_forwards(pp: int, virtual_stages: int, micro_batches: int, hops: int) -> tuple[int, ...]:
    """By stage of a rank, its first (v - 1)·round + hops + 1 forwards of an interleaved schedule.

    hops: 2(pp - rank - 1), or on rank 0 with split backwards, which follow one another there, pp - 1.
    """
    v, m = virtual_stages, micro_batches
    rounds = max(1, m // pp)
    size = pp if m % rounds else m // rounds
    warm_up = min((v - 1) * size + hops + 1, m * v)
    counts = [0] * v
    first = 0
    while warm_up:
        group = min(size, m - first)
        for stage in range(v):
            taken = min(group, warm_up)
            counts[stage] += taken
            warm_up -= taken
        first += group
    return tuple(counts)


@lru_cache(maxsize=4096)
def _peak(
    name: str, rank: int, pp: int, virtual_stages: int, micro_batches: int, nc: int | None
) -> tuple[int, ...]:
    """Counted in the rank's row: the chunks of each of its stages when it first has the most of them."""
    return flying_at_peak(*row_of(name, rank, pp, virtual_stages, micro_batches, nc))
