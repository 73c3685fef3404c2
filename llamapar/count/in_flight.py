"""How many micro-batches a pipeline rank has in flight under a schedule; each keeps its activations."""

from __future__ import annotations

from functools import lru_cache

from llamapar.describe.options import offer
from llamapar.place.orders import ALL_FORWARD_FIRST, ORDERS
from llamapar.place.schedule import own_name, row_of
from llamapar.place.walk import flying_at_peak

SCHEDULES = tuple(ORDERS)
"""The names of `lp.schedule`. Over several stages a rank, 1f1b is interleaved and gpipe looped."""

offer("schedule", SCHEDULES)


def in_flight(
    schedule: str, rank: int, pp: int, virtual_stages: int, micro_batches: int, nc: int | None = None
) -> tuple[int, ...]:
    """The most micro-batches in flight on each virtual stage of PP rank `rank`, at the rank's peak.

    They equal what the schedule's table has. Tables may be long, so formulas say the same:
    - schedules that begin with all forwards: all of them;
    - 1F1B: min(pp - rank, micro-batches);
    - interleaved: the first (v - 1)·round + 2(pp - rank - 1) + 1 forwards. They walk through the rank's
    stages in rounds of pp micro-batches, or of a few more if that makes rounds equal
    (torch/distributed/pipelining/schedules.py; arXiv:2104.04473 section 2.2);
    - split backwards: (v - 1)·round + pp forwards on each rank. A rank frees nothing before its first W,
    which lags by as many backwards as the rank's number;

    Raises LayoutError if the schedule is not defined.
    """
    v = virtual_stages
    m = micro_batches
    name = own_name(schedule, v)
    # Whether rounds are equal. If not, `schedule` refuses, and _peak below raises its error.
    equal = m % max(1, m // pp) == 0
    if nc is not None:
        return _peak(schedule, rank, pp, v, m, nc)
    if pp == 1 and schedule in ("1f1b", "gpipe"):
        return (min(m, 1),) * v
    if name == "1f1b":
        return (min(pp - rank, m),)
    if name in ALL_FORWARD_FIRST or (name == "flexible" and m < pp):
        return (m,) * v
    # A layout's "1f1b" over several stages takes any number of micro-batches, with a short last round.
    if schedule == "1f1b" or (name == "interleaved-1f1b" and equal) or (name == "flexible" and m % pp == 0):
        return of_first_forwards(pp, v, m, 2 * (pp - rank - 1))
    if name == "interleaved-zero-bubble" and equal:
        return of_first_forwards(pp, v, m, pp - 1)
    if name in ("zbv", "dualpipev"):
        m = min(m, 4 * pp)  # a V is full with 2·pp of them
    return _peak(schedule, rank, pp, v, m, nc)


def of_first_forwards(pp: int, virtual_stages: int, micro_batches: int, hops: int) -> tuple[int, ...]:
    """A rank's first (v - 1)·round + hops + 1 forwards of an interleaved schedule, counted by stage.

    hops: 2(pp - rank - 1). On rank 0 with split backwards, which follow one another there, pp - 1.
    """
    v = virtual_stages
    m = micro_batches
    rounds = max(1, m // pp)
    size = pp if m % rounds else m // rounds
    warm_up = min((v - 1) * size + hops + 1, m * v)
    counts = [0] * v
    first = 0
    while warm_up:
        # One round: `group` micro-batches through every stage of the rank in turn, until the warm-up is
        # used up.
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
    """The chunks of each of the rank's stages at the first peak, counted in the rank's row."""
    return flying_at_peak(*row_of(name, rank, pp, virtual_stages, micro_batches, nc))
