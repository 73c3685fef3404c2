"""The Layout: how many ways each mesh axis cuts the model, and which rank sits where.

A Layout is a frozen value and needs no process group. A group of ranks along one axis is an arithmetic
progression, kept as a `range`, so 2**20 ranks cost as little as eight. Whether a layout can cut a given model
is for `lp.check` to say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from llamapar.errors import MAX_DEGREE, Choice, Fields, LayoutError, flag, one_of, shown, whole

from .configfile import Values

AXES = ("tp", "cp", "pp", "dp")
"""Mesh axes: tensor, context, pipeline and data parallelism."""

SHARDING = "dp-cp"
"""The joint axes that share ZeRO's states (arXiv:2407.21783, section 3.3.2), if both have several ranks."""

AXIS_TITLES = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "pp": "pipeline parallel",
    "dp": "data parallel",
}

MAX_WORLD = 2**24
"""Largest number of ranks that a Layout describes."""

PAPER_ORDER = "tp-cp-pp-dp"
"""Fastest axis first: The Llama 3 Herd of Models, arXiv:2407.21783, section 3.3.2."""


class Coord(NamedTuple):
    """The place of a rank in the mesh: one index for each axis."""

    tp: int
    cp: int
    pp: int
    dp: int


@dataclass(frozen=True)
class Layout(Fields, word="layout field"):
    """Degrees of the four mesh axes, and the order in which global ranks walk through them.

    tp, cp, pp, dp: degrees, each >= 1; their product is the number of ranks (`world`).
    dp_replicate: how many of the dp ways hold full copies; the other `dp_shard` = dp / dp_replicate
        ways share the ZeRO/FSDP shards (HSDP). dp_shard is the faster of the two.
    sequence_parallel: Megatron's sequence parallelism over the TP group; None means "on when tp > 1".
    virtual_stages: pipeline stages per rank (interleaving).
    zero: ZeRO stage, 0 to 3: what the sharding group (dp_shard x cp) shares.
    order: axis names joined by "-", fastest first; the default is the paper's.

    Raises LayoutError, naming the field, for an invalid value.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    dp_replicate: int = 1
    sequence_parallel: bool | None = None
    virtual_stages: int = 1
    zero: int = 1
    order: str = PAPER_ORDER

    def __post_init__(self) -> None:
        # A frozen dataclass refuses plain assignment, even of the checked value in place of the given one.
        put = object.__setattr__
        for name in (*AXES, "virtual_stages"):
            put(self, name, whole(name, getattr(self, name), 1, MAX_DEGREE))
        try:
            put(self, "dp_replicate", whole("dp_replicate", self.dp_replicate, 1, MAX_DEGREE))
        except LayoutError as problem:  # the nearest whole number need not divide dp
            nearest = next((c.values[0][1] for c in problem.choices if isinstance(c, Choice)), 1)
            raise self._replicas_refused(problem.what, problem.why, nearest) from None
        put(self, "zero", whole("zero", self.zero, 0, 3))
        if self.sequence_parallel is not None:
            flag("sequence_parallel", self.sequence_parallel)
        one_of("order", self.order, ORDERS)
        if self.world > MAX_WORLD:
            raise LayoutError(
                f"tp·cp·pp·dp = {self.tp}·{self.cp}·{self.pp}·{self.dp} = {self.world} ranks, "
                f"more than {MAX_WORLD}",
                "a layout of more ranks than any machine has is a slip of the keyboard",
                [self._within_reach()],
                "world",
            )
        if self.dp % self.dp_replicate:
            raise self._replicas_refused(
                f"dp_replicate={self.dp_replicate} does not divide dp={self.dp}",
                "dp = dp_replicate x dp_shard",
                self.dp_replicate,
            )

    def _replicas_refused(self, what: str, why: str, near: object) -> LayoutError:
        """The error for an invalid dp_replicate; it offers the divisors of dp on either side of `near`."""
        nearest = nearest_divisors(self.dp, near if isinstance(near, int) else 1)
        return LayoutError(what, why, [Choice.of(dp_replicate=n) for n in nearest], "dp_replicate")

    def _within_reach(self) -> Choice:
        """A suggestion of at most MAX_WORLD ranks that lowers as few of the largest degrees as it can."""
        lowered = dict[str, int]()
        world = self.world
        for axis in sorted(AXES, key=lambda axis: -getattr(self, axis)):
            # dp has to stay a multiple of dp_replicate, so it cannot go below it.
            least = 1
            if axis == "dp":
                least = min(self.dp, self.dp_replicate)
            most = MAX_WORLD * getattr(self, axis) // world // least * least
            lowered[axis] = most or least
            if most:
                break
            world = world // getattr(self, axis) * least
        return Choice.of(**lowered)

    # -- sizes ---------------------------------------------------------------------------------

    @property
    def world(self) -> int:
        """Number of ranks: tp·cp·pp·dp."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def model_ranks(self) -> int:
        """Number of ranks that hold one model together: tp·cp·pp."""
        return self.tp * self.cp * self.pp

    @property
    def dp_shard(self) -> int:
        """How many dp ways share the ZeRO/FSDP shards: dp / dp_replicate."""
        return self.dp // self.dp_replicate

    @property
    def sp(self) -> bool:
        """Whether sequence parallelism is in effect; it needs a TP group of more than one rank."""
        return self.tp > 1 and self.sequence_parallel is not False

    @property
    def sp_ways(self) -> int:
        """TP ranks that share the tokens of the residual stream: tp, or 1 without sequence parallelism."""
        if self.sp:
            return self.tp
        return 1

    @property
    def stages(self) -> int:
        """Number of pipeline stages: pp x virtual_stages."""
        return self.pp * self.virtual_stages

    @property
    def usual_micro_batches(self) -> int:
        """Default number of micro-batches in a step: two for each PP rank, which suits every schedule."""
        return 2 * self.pp

    def size(self, axis: str) -> int:
        """Degree of `axis`, or the product of joint axes such as "dp-cp"."""
        return math.prod(getattr(self, name) for name in _axes(axis))

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes, fastest first."""
        return tuple(self.order.split("-"))

    def stride(self, axis: str) -> int:
        """Distance in global ranks between neighbours along `axis`."""
        step = 1
        for name in self.axes:
            if name == axis:
                return step
            step *= getattr(self, name)
        raise _no_axis(axis)

    # -- ranks and groups ----------------------------------------------------------------------

    def coord_of(self, rank: int) -> Coord:
        """The (tp, cp, pp, dp) of a global rank. Raises LayoutError for a rank outside the layout."""
        rank = whole("rank", rank, 0, self.world - 1)
        place = {}
        for axis in self.axes:
            # The axes are the digits of the rank in a mixed base, the fastest axis being the last digit.
            rank, place[axis] = divmod(rank, getattr(self, axis))
        return Coord(**place)

    def rank_of(self, tp: int = 0, cp: int = 0, pp: int = 0, dp: int = 0) -> int:
        """The global rank at (tp, cp, pp, dp). Raises LayoutError for an index outside its axis."""
        place = {"tp": tp, "cp": cp, "pp": pp, "dp": dp}
        return sum(whole(axis, place[axis], 0, getattr(self, axis) - 1) * self.stride(axis) for axis in AXES)

    def group(self, axis: str, rank: int) -> range | tuple[int, ...]:
        """The ranks that `rank` communicates with along `axis`, itself included, in ascending order.

        axis: one axis ("tp"), which gives a range; or several joined by "-", which give a tuple. "dp-cp" is
        the sharding group of ZeRO and FSDP in Llama 3.
        """
        names = _axes(axis)
        place = self.coord_of(rank)
        # The group's first rank has index 0 on the group's axes and shares all other indexes.
        first = rank - sum(getattr(place, name) * self.stride(name) for name in names)
        # Slowest first, in the order of ranks, whatever the order in which the caller named the axes.
        ordered = [name for name in reversed(self.axes) if name in names]
        steps = [range(0, getattr(self, n) * self.stride(n), self.stride(n)) for n in ordered]
        if len(steps) == 1:
            return range(first, first + steps[0].stop, steps[0].step)
        return tuple(first + sum(offsets) for offsets in itertools.product(*steps))

    # -- words ---------------------------------------------------------------------------------

    def replace(self, **changes: object) -> Layout:
        """A copy with some fields changed. Raises LayoutError as Layout does."""
        return replace(self, **Values(changes))

    def __str__(self) -> str:
        return " ".join(f"{axis}={getattr(self, axis)}" for axis in AXES)

    @classmethod
    def of(cls, value: LayoutLike | None = None, **degrees: object) -> Layout:
        """A Layout from a Layout, from a mapping of its fields, or from fields given by name.

        Fields given by name replace those of `value`; any other field has its default. Raises LayoutError for
        anything else, and if nothing is given.
        """
        if isinstance(value, Mapping) or (value is None and degrees):
            degrees = {**(value or {}), **degrees}
            cls._refuse_unknown(degrees)
            return cls(**Values(degrees))
        if isinstance(value, cls):
            if degrees:
                return value.replace(**degrees)
            return value
        raise LayoutError(
            f"layout={shown(value)}: a layout is needed" if value is not None else "a layout is needed",
            "the degrees given by name are a layout: leave this argument out" if degrees else "",
            [Choice.of(tp=8, dp=2), "lp.Layout(tp=8, dp=2)", 'a dict such as {"tp": 8, "dp": 2}'],
            "layout",
        )


LayoutLike = Layout | Mapping[str, object]
"""What a public function accepts as a layout: a Layout, or a mapping of its fields; `Layout.of` reads it."""

ORDERS: tuple[str, ...] = tuple("-".join(names) for names in itertools.permutations(AXES))
"""All orders of the four axes, each with its fastest axis first."""


def _no_axis(axis: object) -> LayoutError:
    return LayoutError(f"axis {shown(axis)} is not one of {', '.join(AXES)}", field="axis")


def _axes(axis: object) -> tuple[str, ...]:
    """The axis names in "tp" or "dp-cp"."""
    if not isinstance(axis, str):
        raise _no_axis(axis)
    names = tuple(axis.split("-"))
    for name in names:
        one_of("axis", name, AXES)
    if len(set(names)) < len(names):
        raise LayoutError(
            f"axis={shown(axis)} names an axis twice",
            "",
            [Choice.of(axis="-".join(dict.fromkeys(names)))],
            "axis",
        )
    return names


def divisors(n: int) -> list[int]:
    """The divisors of n, ascending."""
    # Divisors come in pairs around the root, so the search ends there even for 2**24 ranks.
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def nearest_divisors(n: int, value: int) -> list[int]:
    """The divisors of n on either side of value, which an error offers as the nearest valid choices."""
    all_of = divisors(n)
    below = [d for d in all_of if d <= value][-1:]
    above = [d for d in all_of if d > value][:1]
    return below + above
