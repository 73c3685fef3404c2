"""How ranks hold the tensors of a whole module, found by comparing numbers, and the first submodule that is
wrong.

What ranks hold is a copy of the whole, a part of it (rows along dims), or summands: the whole, or such a
part, once they are summed or averaged over an axis. So a cut by hand needs no declaration, and a wrong cut
shows as rows that no rank holds. A parameter, its gradient, an output and the loss are all read in this way,
and so is what every submodule takes and gives.

Where a module's output can be read in no way, the search goes into the first submodule whose output cannot be
read although its input can, until there is none; a module whose output is right is not searched. A summand is
right where a sum follows; so where the next tensor is wrong because a summand was taken as a whole, the
submodule that gave it is named. Gradients are read in the same way, backwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from llamapar.describe.layout import Coord, Layout
from llamapar.records.tables import span
from llamapar.records.trace import grouped, some

from .module_run import Key, ModuleCall

Part = tuple[Sequence[int], ...]
"""For each dim the indexes of the whole, a range if they are contiguous."""

Parts = Mapping[int, Part | None]
"""rank → its part; None if it holds none that can be found."""

FORWARD = {"tp": ("sum",), "cp": ("sum",)}
"""Axis → the ways in which ranks may still add up a tensor of the forward, or its gradient."""

TRAINER = {"cp": ("mean", "sum"), "dp": ("mean", "sum")}
"""The same of losses and parameters' gradients, which a trainer's data parallelism adds up."""

FIT = 1e-7
"""Largest max|Δ| / max|whole| that fits in float64: a module may round to float32 inside."""

REDUCTIONS: Mapping[str, Callable[..., Tensor]] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}
"""A way in which ranks add up a tensor → what does it along a dim."""

SAMPLED = 64
"""Numbers of a row that are compared to find it; what is found is compared in full."""

MOST_PAIRS = 2**22
"""Pairs of rows that are compared with each other; of more, only contiguous rows are found."""


class TensorReading(NamedTuple):
    """The reading of the ranks' tensors that fits the whole, or that none does; `words` say it.

    error: max|Δ| / max|whole| over all ranks; of the reading that comes nearest where none fits. summed:
    axis → "sum" or "mean", of the axes over which the tensors are summands.
    """

    fits: bool
    words: str
    error: float = math.inf
    summed: Mapping[str, str] = {}


class Culprit(NamedTuple):
    """The submodule where a module differs, what is wrong there, and the last one before that is right."""

    name: str
    words: str
    equal_up_to: str = ""


def gap(own: Tensor, whole: Tensor) -> float:
    """Largest difference of two numbers; infinite where a number is NaN, or the shapes differ."""
    if own.shape != whole.shape:
        return math.inf
    found = 0.0
    if own.numel():
        found = float((own - whole).abs().max())
    if math.isnan(found):
        return math.inf
    return found


def largest(t: Tensor) -> float:
    """The largest absolute number, to which an error is related; 1 of zeros or of nothing."""
    return (float(t.abs().max()) if t.numel() else 0.0) or 1.0


# -- parts -----------------------------------------------------------------------------------------


def part_of(own: Tensor, whole: Tensor, limit: float = 0.0) -> Part | None:
    """The part of `whole` that `own` is, if no number differs by more than `limit`; None if it is none.

    Along the last dim that is cut any rows are found, along the others a whole multiple of what is held.
    """
    if own.dim() != whole.dim() or any(a > b for a, b in zip(own.shape, whole.shape, strict=True)):
        return None
    part: list[Sequence[int]] = [range(n) for n in whole.shape]
    cut = [d for d in range(own.dim()) if own.shape[d] < whole.shape[d]]
    if not cut:
        if gap(own, whole) <= limit:
            return tuple(part)
        return None
    starts = [range(0, whole.shape[d] - own.shape[d] + 1, max(1, own.shape[d])) for d in cut[:-1]]
    for at in itertools.product(*starts):
        for d, start in zip(cut, at, strict=False):
            part[d] = range(start, start + own.shape[d])
        rows = rows_in(own, taken(whole, part), cut[-1], limit)
        if rows is not None:
            part[cut[-1]] = rows
            return tuple(part)
    return None


def rows_in(own: Tensor, whole: Tensor, dim: int, limit: float) -> Sequence[int] | None:
    """The indexes of `whole` along `dim` that `own` holds, contiguous where there is a choice; or None."""
    n = own.shape[dim]
    size = whole.shape[dim]
    if not own.numel():
        return range(n)
    width = own.numel() // n
    columns = torch.linspace(0, width - 1, min(SAMPLED, width)).long()
    a, b = (t.movedim(dim, 0).reshape(-1, width)[:, columns].double() for t in (own, whole))
    for start in ((b - a[0]).abs().amax(1) <= limit).nonzero().flatten().tolist():
        if start + n <= size and gap(own, whole.narrow(dim, start, n)) <= limit:
            return range(start, start + n)
    if n * size > MOST_PAIRS:
        return None
    nearest = torch.cdist(a, b, p=math.inf).argmin(1)
    if gap(own, whole.index_select(dim, nearest)) <= limit:
        return tuple(nearest.tolist())
    return None


def taken(whole: Tensor, part: Sequence[Sequence[int]]) -> Tensor:
    """The part of a whole tensor; rows beyond its end are pad rows, filled with NaN."""
    for dim, rows in enumerate(part):
        if rows == range(whole.shape[dim]):
            continue
        past = max(rows, default=0) + 1 - whole.shape[dim]
        if past > 0:
            pad = whole.new_full((*whole.shape[:dim], past, *whole.shape[dim + 1 :]), torch.nan)
            whole = torch.cat([whole, pad], dim)
        whole = whole.index_select(dim, torch.tensor(rows, dtype=torch.int64))
    return whole


def parts_in_words(parts: Parts, layout: Layout, whole: Sequence[int]) -> str:
    """rank → its part, in words: "dim 0 by tp", or the rows of each rank and those that no rank has."""
    held = {rank: part for rank, part in parts.items() if part is not None}
    if lost := [rank for rank in parts if rank not in held]:
        return f"{some(lost)}: holds no part of the whole that can be found"
    axes = [axis for axis in layout.axes if layout.size(axis) > 1]
    words = []
    for dim, size in enumerate(whole):
        rows = {rank: tuple(part[dim]) for rank, part in held.items()}
        if all(len(own) == size for own in rows.values()):
            continue
        missing = sorted(set(range(size)).difference(*rows.values()))
        text = ": " + "; ".join(f"{some(of)} {runs_in_words(own)}" for own, of in grouped(rows))
        if missing:
            text += f"; no rank has {runs_in_words(missing)}"
        for order in (order for n in range(len(axes)) for order in itertools.permutations(axes, n + 1)):
            regular = {rank: range(size) for rank in rows}
            for axis in order:
                for rank, own in regular.items():
                    n = -(-len(own) // layout.size(axis))  # the shards of torch.chunk
                    regular[rank] = own[getattr(layout.coord_of(rank), axis) * n :][:n]
            if all(tuple(own) == rows[rank] for rank, own in regular.items()):
                text = f" by {' and '.join(order)}"
                break
        words.append(f"dim {dim}{text}")
    return ", ".join(words) or "copy"


def runs_in_words(rows: Sequence[int]) -> str:
    """Indexes as people write them: "0–3, 8–11"."""
    starts = [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1] + 1]
    few = [span(range(rows[a], rows[b - 1] + 1)) for a, b in itertools.pairwise([*starts, len(rows)])]
    return ", ".join([*few[:4], *(["…"] if len(few) > 4 else [])]) or "none"


# -- readings --------------------------------------------------------------------------------------


def added_up(
    owns: Mapping[int, Tensor],
    ways: Mapping[str, str],
    coords: Mapping[int, Coord],
    parts: Mapping[int, object] | None,
) -> dict[int, Tensor]:
    """rank → the sum, mean or maximum over each axis of `ways`, of the ranks that hold the same part."""
    values = dict(owns)
    for axis, way in ways.items():
        groups = dict[object, list[int]]()
        for rank, t in values.items():
            place = coords[rank]._replace(**{axis: 0}), parts and parts[rank], t.shape
            groups.setdefault(place, []).append(rank)
        for ranks in groups.values():
            stack = torch.stack([values[rank] for rank in ranks])
            values |= dict.fromkeys(ranks, REDUCTIONS[way](stack, 0))
    return values


def reading(
    owns: Mapping[int, Tensor],
    whole: Tensor,
    layout: Layout,
    tolerance: float,
    ways: Mapping[str, Sequence[str]],
    parts: Mapping[int, Part] | None = None,
) -> TensorReading:
    """How the ranks hold a tensor, with the fewest sums of those that `ways` allows.

    parts: what each rank is to hold, for a gradient that of its parameter. Without them parts are searched,
    and count only if all ranks together hold the whole.
    """
    size = largest(whole)
    nearest = math.inf
    coords = {rank: layout.coord_of(rank) for rank in owns}
    axes = [axis for axis in ways if layout.size(axis) > 1]
    choices = itertools.product(*(("", *ways[axis]) for axis in axes))
    for choice in sorted(choices, key=lambda choice: len(axes) - choice.count("")):
        summed = {axis: way for axis, way in zip(axes, choice, strict=True) if way}
        values = added_up(owns, summed, coords, parts)
        found: Parts = parts or {r: part_of(t, whole, tolerance * size) for r, t in values.items()}
        held = {r: part for r, part in found.items() if part is not None}
        rows = [set().union(*(part[dim] for part in held.values())) for dim in range(whole.dim())]
        if len(held) < len(found) or not (parts or [*map(len, rows)] == list(whole.shape)):
            continue
        error = max(gap(t, taken(whole, held[r])) for r, t in values.items()) / size
        nearest = min(nearest, error)
        if error <= tolerance:
            words = ""
            if summed:
                words = f"a summand over {' and '.join(summed)}"
            words = words or parts_in_words(held, layout, whole.shape)
            return TensorReading(True, words if words != "copy" else "whole on each rank", error, summed)
    return TensorReading(False, "DIFFERS", nearest)


def call_reading(owns: Mapping[int, Tensor], whole: Tensor, layout: Layout, backward: bool) -> TensorReading:
    """How ranks hold what a submodule took or gave, or its gradient."""
    found = reading(owns, whole, layout, FIT, FORWARD)
    if backward and not found.fits:
        # The loss of a dp rank is often a mean over its own sequences, and its gradients are larger.
        found = reading({r: t / layout.dp for r, t in owns.items()}, whole, layout, FIT, FORWARD)
    return found


# -- the first difference --------------------------------------------------------------------------


class _Calls:
    """The calls that ranks and the whole module both have, in the forward or in the backward.

    takes, gives: what a call takes and gives there. inside: a call → the calls that it made, in their order.
    """

    def __init__(
        self,
        ranks: Mapping[int, Sequence[ModuleCall]],
        whole: Sequence[ModuleCall],
        layout: Layout,
        backward: bool,
    ) -> None:
        self.layout = layout
        self.backward = backward
        self.takes, self.gives = (
            ("output's gradient", "input's gradient") if backward else ("input", "output")
        )
        self.ranks = {rank: {call.key: call for call in calls} for rank, calls in ranks.items()}
        self.whole = {c.key: c for c in whole if all(c.key in calls for calls in self.ranks.values())}
        self.inside: dict[Key | None, list[Key]] = {key: [] for key in (None, *self.whole)}
        for key in reversed(self.whole) if backward else self.whole:
            self.inside.setdefault(self.whole[key].caller, []).append(key)

    def read(self, key: Key, what: str, less: Key | None = None) -> TensorReading:
        """The reading in one of what a call takes or gives; if that is nothing it fits not, and has no words.

        less: a call inside it, whose tensors are subtracted first.
        """
        sides = list[dict[int, Tensor]]()
        found = []
        for calls in (self.whole, *self.ranks.values()):
            tensors = calls[key].tensors.get(what, {})
            if less is not None:
                added = calls[less].tensors.get(what, {})
                common = [i for i, t in tensors.items() if i in added and added[i].shape == t.shape]
                tensors = {i: tensors[i] - added[i] for i in common}
            sides.append(tensors)
        for i in (i for i in sides[0] if all(i in side for side in sides)):
            whole, *of_ranks = (side[i] for side in sides)
            owns = dict(zip(self.ranks, of_ranks, strict=True))
            one = call_reading(owns, whole, self.layout, self.backward)
            found.append(one)
        words = "; ".join(dict.fromkeys(one.words for one in found))
        summed = {axis: way for one in found for axis, way in one.summed.items()}
        return TensorReading(bool(found) and all(one.fits for one in found), words, summed=summed)

    def culprit(self, at: Key, last: str = "") -> Culprit | None:
        """Who is wrong in a call: a submodule that it calls, or its own code; None if what it gives is right.

        last: the last submodule before it that is right.
        """
        gave = self.read(at, self.gives)
        inside = self.inside[at]
        right = list[Key]()
        taker = None
        if gave.fits:
            return None
        for key, then in itertools.zip_longest(inside, inside[1:]):
            given = self.read(key, self.gives)
            took = self.read(key, self.takes)
            if given.fits:
                right.append(key)
            elif given.words and took.words and not took.fits:
                taker = key
                break
            # Where the next one makes something right of what cannot be read, only its form is strange.
            elif not then or self.read(then, self.takes).fits or not self.read(then, self.gives).fits:
                found = self.culprit(key, right[-1][0] if right else last)
                if found is not None:
                    return found
        if not taker and not gave.words:
            return None
        prefix = ""
        if self.backward:
            prefix = "backward: "
        after = ""
        if right and self.read(right[-1], self.gives).summed:
            # In what is given the summand was added as it is, if the rest is right.
            rest = self.read(at, self.gives, less=right[-1])
            if taker or (rest.fits and not rest.summed):
                while len(right) > 1 and self.read(right[-1], self.takes).summed:
                    right.pop()  # It passes a summand on; who made it is to be named.
                source = right.pop()
                whose = f"{taker[0]} takes" if taker else f"{at[0] or 'the module itself'} adds"
                summand = f"{prefix}its {self.gives} is {self.read(source, self.gives).words}"
                inner = [key for key in self.inside[source] if self.read(key, self.gives).fits]
                last = [last, *(key[0] for key in (*right, *inner))][-1]
                words = f"{summand}, which nobody sums; {whose} it as if it were the whole"
                return Culprit(source[0], words, last)
        what = f"what it gives to {taker[0]}" if taker else f"its {self.gives}"
        took = self.read(at, self.takes)
        if not taker and took.fits:
            after = f", though its {self.takes} is right ({took.words})"
        if right:
            last = right[-1][0]
            after += f"; inside, {last} is the last that is right"
        return Culprit(at[0], f"{prefix}{what} is no part of the whole module's{after}", last)


def first_difference(
    ranks: Mapping[int, Sequence[ModuleCall]], whole: Sequence[ModuleCall], layout: Layout
) -> Culprit | None:
    """The first submodule that differs in the forward, or else in the backward; None if all can be read."""
    for calls in (_Calls(ranks, whole, layout, backward) for backward in (False, True)):
        for root in calls.inside[None]:
            if (found := calls.culprit(root)) is not None:
                return found
    return None
