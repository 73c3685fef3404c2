"""Where a tensor differs from the right one, and by which pattern, told from its numbers alone.

Every number of a rank's piece has its place in the whole. So a difference can be reduced to axes ("heads 4–7,
all that rank 1 has"), and what the ranks have can be compared with what a mistake makes of right numbers: a
factor, one summand of a sum, other rows. A pattern is said only where it fits to rounding. What is left out:
what a tensor is for, and the line that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from llamapar.describe.layout import Layout, divisors
from llamapar.records.trace import some

from .module_reading import Part, gap, largest, part_of, reading, rows_in, runs_in_words, taken

FIT = 1e-9
"""Largest max|Δ| / max|whole| that fits a pattern, in float64."""

UNITS = {
    "batch": "sequence",
    "seq": "token",
    "n_heads": "head",
    "n_kv_heads": "KV head",
    "q_dim": "head",
    "kv_dim": "KV head",
    "ffn_dim": "FFN column",
    "vocab_size": "vocabulary row",
    "dim": "channel",
}
"""A dim's name → what its rows are; `head_dim` of them in q_dim and kv_dim."""


class Axis(NamedTuple):
    """What the rows along a dim are: `size` rows make one `unit`."""

    unit: str = "row"
    size: int = 1

    def units(self, rows: Iterable[int]) -> list[int]:
        """The units in which rows are, in the order of the rows."""
        return [*dict.fromkeys(row // self.size for row in rows)]


@dataclass(frozen=True)
class Pieces:
    """A tensor of the ranks beside the whole of it. axes: of its dims. owns: rank → its own, None for none or
    another shape. parts: rank → the part of the whole that its own should be. others: rank → its own, of
    another shape.
    """

    kind: str
    name: str
    whole: Tensor
    axes: Sequence[Axis]
    owns: Mapping[int, Tensor | None]
    parts: Mapping[int, Part]
    others: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        return [rank for rank, own in self.owns.items() if own is None]

    @cached_property
    def pairs(self) -> dict[int, tuple[Tensor, Tensor]]:
        """rank → what it has, and what it should have."""
        wide = {rank: own.double() for rank, own in self.owns.items() if own is not None}
        whole = self.whole.double()
        return {rank: (own, taken(whole, self.parts[rank])) for rank, own in wide.items()}

    @cached_property
    def limit(self) -> float:
        """The distance that counts as rounding."""
        return FIT * largest(self.whole.double())

    @cached_property
    def off(self) -> dict[int, Tensor]:
        """rank → True where a number differs, of the ranks that differ."""
        wrong = {rank: ~((own - right).abs() <= self.limit) for rank, (own, right) in self.pairs.items()}
        return {rank: off for rank, off in wrong.items() if bool(off.any())}

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those on which it differs."""
        return tuple(sorted([*self.missing, *self.off]))


def axes_of(shape: Sequence[int], sizes: Mapping[str, int], head_dim: int) -> list[Axis]:
    """What the dims of a tensor are, by their sizes; each name is for one dim, the first of that size."""
    found = list[Axis]()
    left = dict(sizes)
    for n in shape:
        name = next((name for name, size in left.items() if size == n), "")
        left.pop(name, None)
        found.append(Axis(UNITS.get(name, "row"), head_dim if name in ("q_dim", "kv_dim") else 1))
    return found


# -- where -----------------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """The units along a dim in which a tensor differs, by a rule that `words` say. held, off: rank → its
    units, and those that differ.
    """

    words: str
    unit: str
    size: int
    held: Mapping[int, set[int]]
    off: Mapping[int, set[int]]


def place_in_words(t: Pieces) -> str:
    """Where a tensor differs: ranks and units of its dims; "" where it differs everywhere or anyhow."""
    words = [stretch.words for stretch in stretches(t)]
    if 0 < len(t.ranks) < len(t.owns):
        words.insert(0, f"on {some(t.ranks)}")
    return ", ".join(words)


def stretches(t: Pieces) -> Iterator[Stretch]:
    """The dims along which a tensor differs in a place that can be said."""
    for dim, axis in enumerate(t.axes):
        held = dict[int, set[int]]()
        used = set[int]()
        off = dict[int, set[int]]()
        for rank, (own, right) in t.pairs.items():
            rows = t.parts[rank][dim]
            held[rank] = {*axis.units(rows)}
            # A row that nobody uses, as of a token that the batch lacks, cannot differ.
            used.update(axis.units(rows[i] for i in _indexes((own != right) | (right != 0), dim)))
            if rank in t.off:
                off[rank] = {*axis.units(rows[i] for i in _indexes(t.off[rank], dim))}
        wrong = set[int]().union(*off.values())
        words = ""
        if wrong and wrong != used:
            words = _stretch(axis.unit, sorted(wrong), held)
        if words:
            yield Stretch(words, axis.unit, t.whole.shape[dim] // axis.size, held, off)


def _indexes(mask: Tensor, dim: int) -> list[int]:
    """The indexes along a dim at which anything is True."""
    indexes: list[int] = mask.nonzero()[:, dim].unique().tolist()
    return indexes


def _stretch(unit: str, wrong: Sequence[int], held: Mapping[int, set[int]]) -> str:
    """Units along a dim, with whose they are; "" for units that no rule describes. held: rank → its own."""
    text = f"{unit if len(wrong) == 1 else f'{unit}s'} {runs_in_words(wrong)}"
    owners = [rank for rank, own in held.items() if own <= {*wrong}]
    if len(owners) < len(held) and set[int]().union(*(held[rank] for rank in owners)) == {*wrong}:
        return f"{text}, all that {some(owners)} {'has' if len(owners) == 1 else 'have'}"
    firsts = {n for own in held.values() for n in own if n - 1 not in own}
    lasts = {n for own in held.values() for n in own if n + 1 not in own}
    for edge, edges in (("first", firsts), ("last", lasts)):
        if len(wrong) > 1 and edges.issuperset(wrong):
            return f"{text}, each the {edge} of what a rank holds in a row"
    if len(wrong) == wrong[-1] - wrong[0] + 1:
        return text
    return ""


# -- why -------------------------------------------------------------------------------------------


def pattern_of(t: Pieces, layout: Layout, names: Mapping[str, float]) -> str:
    """The first pattern that fits, "" for none. names: of the factors that a layout and a step bring in."""
    if not t.ranks:
        return ""
    if t.missing:
        return _missing(t)
    own, _ = _all_numbers(t)
    if not bool(own.isfinite().all()):
        if bool(own.isnan().any()):
            return "not a number"
        return "infinite"
    if not bool(own.any()):
        return "all zero"
    factor = factor_of(t)
    if factor is not None and abs(factor - 1) > FIT and (own.numel() > 4 or equal_names(factor, names)):
        return factor_in_words(factor, equal_names(factor, names))
    return _summand(t, layout) or _other_rows(t) or _zero(t) or shuffled(t)


def _all_numbers(t: Pieces) -> tuple[Tensor, Tensor]:
    """What all ranks have, one after the other, and what they should have."""
    own, right = (
        torch.cat([side.flatten() for side in sides]) for sides in zip(*t.pairs.values(), strict=True)
    )
    return own, right


def factor_of(t: Pieces) -> float | None:
    """The number times which the right tensor is what all ranks have; None if there is none."""
    if not t.pairs:
        return None
    own, right = _all_numbers(t)
    size = float(right @ right)
    factor = 0.0
    if size:
        factor = float(own @ right) / size
    if gap(own, right * factor) <= t.limit:
        return factor
    return None


def equal_names(factor: float, names: Mapping[str, float]) -> list[str]:
    """Those of the names that a factor is, or else those that 1/factor is."""
    equal = [name for name, size in names.items() if size != 1 and abs(size - factor) < 1e-8 * size]
    inverse = [name for name, size in names.items() if size != 1 and abs(size * factor - 1) < 1e-8]
    return equal or inverse


def factor_in_words(factor: float, names: Sequence[str]) -> str:
    """A factor with all its names: "2 × the right one (2 = tp = micro-batches)"."""
    text = f"{factor:.6g} × the right one"
    if names and factor < 1:
        factor = 1 / factor
        text = f"1/{factor:.6g} of the right one"
    if names:
        return f"{text} ({factor:.6g} = {' = '.join(names)})"
    return text


def _summand(t: Pieces, layout: Layout) -> str:
    """Ranks that should all have one sum, mean or maximum, and have their own part of it."""
    owns = {rank: own for rank, (own, _) in t.pairs.items()}
    # Ranks of tp and pp never average; where their mean fits, a sum over another axis was made twice.
    ways = dict.fromkeys(layout.axes, ("sum", "max")) | dict.fromkeys(("cp", "dp"), ("sum", "mean", "max"))
    found = reading(owns, t.whole.double(), layout, FIT, ways, t.parts)
    if not found.fits or not found.summed:
        return ""
    over = " and ".join(found.summed)
    if len({*t.parts.values()}) > 1:
        over += " of ranks with the same part"
    how = {*found.summed.values()}
    if how == {"sum"}:
        return f"each rank has its own summand of the sum over {over}"
    # Where some rank has it right, or numbers are few, a mean or a maximum fits by chance.
    if len(t.off) < len(t.owns) or ("max" in how and t.whole.numel() <= 4):
        return ""
    return f"each rank has its own; right is their {' and '.join(how)} over {over}"


def _other_rows(t: Pieces) -> str:
    """Ranks that have other rows of the whole, along one dim, than they should."""
    wrong = t.off
    for dim, axis in enumerate(t.axes):
        moved = dict[int, Sequence[int]]()
        for rank in wrong:
            own, _right = t.pairs[rank]
            around = [*t.parts[rank]]
            around[dim] = range(t.whole.shape[dim])
            rows = rows_in(own, taken(t.whole.double(), around), dim, t.limit)
            if rows is None or not bool(own[wrong[rank]].any()):
                break
            moved[rank] = rows
        else:
            rank = min(moved)
            pairs = [pair for pair in zip(moved[rank], t.parts[rank][dim], strict=True) if len({*pair}) > 1]
            has, should = (runs_in_words(axis.units(rows)) for rows in zip(*pairs, strict=True))
            return f"{axis.unit}s in another order: rank {rank} has {has} where {should} should be"
    return ""


def _missing(t: Pieces) -> str:
    """No tensor on some ranks, or one of another shape, and the rows that it leaves out."""
    rank = t.missing[0]
    if rank not in t.others:
        return f"missing on {some(t.missing)}"
    own = t.others[rank].double()
    should = t.parts[rank]
    words = f"{list(own.shape)} where {[*map(len, should)]} should be, on {some(t.missing)}"
    held = part_of(own, taken(t.whole.double(), should), t.limit)
    for axis, all_rows, rows in zip(t.axes, should, held or (), strict=False):
        lost = sorted({*range(len(all_rows))}.difference(rows))
        if lost:
            words += f": without {axis.unit}s {runs_in_words(axis.units(all_rows[n] for n in lost))}"
    return words


def _zero(t: Pieces) -> str:
    """Zero where it differs."""
    pairs = t.pairs
    if any(bool(pairs[rank][0][off].any()) for rank, off in t.off.items()):
        return ""
    return "zero where it differs"


def shuffled(t: Pieces) -> str:
    """The same numbers at other places; "" if they are not, or at none."""
    for rank in t.off:
        own, right = (side.flatten().sort().values for side in t.pairs[rank])
        if len(own) <= 4 or gap(own, right) > t.limit:
            return ""
    if not t.off:
        return ""
    return "the right numbers in another order"


# -- sums ------------------------------------------------------------------------------------------


def weights(own: Tensor, columns: Sequence[Tensor], limit: float) -> list[float] | None:
    """The weights with which `own` is a sum of the columns, by least squares; None if it is none to rounding,
    or if several sums would do.
    """
    if any(column.shape != own.shape for column in columns) or own.numel() < 2 * len(columns):
        return None
    matrix = torch.stack([column.flatten() for column in columns], 1)
    found = torch.linalg.lstsq(matrix, own.flatten()[:, None], driver="gelsd")
    if int(found.rank) < len(columns) or gap(matrix @ found.solution, own.flatten()[:, None]) > limit:
        return None
    return [round(weight, 6) + 0.0 for weight in found.solution.flatten().tolist()]


def sum_in_words(got: Sequence[float], of: str) -> str:
    """A sum with its weights: "the sum over ranks 0–1", "0.5 × the sum over ranks 0–3"."""
    has = [n for n, weight in enumerate(got) if weight]
    shares = {got[n] for n in has}
    if len(shares) > 1:
        return " + ".join(f"{got[n]:g} × {of} {n}'s" for n in has)
    times = ""
    if not shares <= {1.0}:
        times = f"{shares.pop():g} × "
    if len(has) == 1:
        return f"{times}what {of} {has[0]} has"
    return f"{times}the sum over {of}s {runs_in_words(has)}"


def maximum_in_words(own: Tensor, columns: Sequence[Tensor], should: Sequence[float], limit: float) -> str:
    """What `own` is if ranks, or groups of as many ranks, took a maximum where they should have summed:
    "the maximum of the sums over ranks 0–1 and 2–3"; "" if it is no maximum.

    should: the weights with which the right sum has the columns, one for each rank.
    """
    has = [rank for rank, weight in enumerate(should) if weight]
    for size in divisors(len(has))[:-1]:
        groups = [has[n : n + size] for n in range(0, len(has), size)]
        sums = [torch.stack([should[rank] * columns[rank] for rank in of]).sum(0) for of in groups]
        if gap(own, torch.stack(sums).amax(0)) <= limit:
            of = "the sums over ranks"
            if size == 1:
                of = "ranks"
            return f"the maximum of {of} {' and '.join(map(runs_in_words, groups))}"
    return ""
