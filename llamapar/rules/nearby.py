"""Other layouts of a given number of GPUs, the nearest first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from llamapar.describe.job import Job
from llamapar.describe.layout import Layout, divisors
from llamapar.errors import LlamaparError

_COST = (1.2, 1.4, 1.6, 1.0)
"""Weight of doubling or halving TP, CP, PP and DP: DP is the cheapest to change, PP the dearest."""

_NEAR = 7
"""How many divisors of the world size are tried per axis; for TP, those that divide the heads."""


def _nearest(degrees: list[int], present: int) -> list[int]:
    """The degrees nearest to the present one, and 1."""
    # In powers of two: from 8, both 4 and 16 are one step away.
    near = sorted(degrees, key=lambda d: abs(math.log2(d / present)))[:_NEAR]
    # An axis can always be given up, however far 1 is from the present degree.
    return near if 1 in near else [*near, 1]


def layouts(job: Job, world: int) -> Iterator[Layout]:
    """Layouts of `world` ranks, the nearest first."""
    lay = job.layout
    present = (lay.tp, lay.cp, lay.pp, lay.dp)
    for tp, cp, pp, dp in _by_distance(job.model.n_heads, present, lay.dp_replicate, world):
        # Degrees may not suit the other fields, such as dp_replicate, which `replace` then refuses.
        with suppress(LlamaparError):
            yield lay.replace(tp=tp, cp=cp, pp=pp, dp=dp)


_Degrees = tuple[int, int, int, int]
"""The degrees of TP, CP, PP and DP."""


@lru_cache(maxsize=256)
def _by_distance(n_heads: int, present: _Degrees, replicas: int, world: int) -> list[_Degrees]:
    """Degrees with the product `world`, the nearest to the present ones first."""
    ways = divisors(world)
    # Eight degrees an axis at most, so a few hundred products; DP is what is left and needs no list.
    options = [
        _nearest([d for d in ways if n_heads % d == 0], present[0]),
        _nearest(ways, present[1]),
        _nearest(ways, present[2]),
    ]
    found = [
        (tp, cp, pp, world // (tp * cp * pp))
        for tp, cp, pp in itertools.product(*options)
        if world % (tp * cp * pp) == 0
    ]

    def distance(degrees: _Degrees) -> float:
        turned = zip(_COST, degrees, present, strict=True)
        return sum(weight * abs(math.log2(new / old)) for weight, new, old in turned)

    return sorted(
        (degrees for degrees in found if degrees[3] % replicas == 0),
        # Equal distances are ordered by the degrees, so that the same job is always offered the same
        # fixes.
        key=lambda degrees: (distance(degrees), degrees),
    )
