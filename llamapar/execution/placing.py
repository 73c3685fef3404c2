"""How the ranks of each axis hold a tensor: derived by comparing their numbers with one process's.

Each axis can cut the tensor along a dim (*piece*), hold it whole on every rank (*copy*), or hold addends of
it (*summand*); where KV heads are copied, ranks with the same piece can hold addends of that piece. The
shapes leave few possibilities, and the numbers decide: pieces are cut from the whole, summands are added, and
the placement that reproduces the numbers is the answer. No table lists what a line should produce, so your
own program is placed like ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from llamapar.describe.layout import Coord
from llamapar.describe.splits import Split
from llamapar.records.trace import Place
from llamapar.spmd.setting import Setting

from .module_reading import added_up, taken

COPY = Place("copy")
SUMMAND = Place("summand")
OWN = Place("own")

CLOSE = 1e-9
"""Largest difference, of float64 numbers and in parts of the larger one, that counts as equal."""

_UNITS = ("n_heads", "n_kv_heads", "q_dim", "kv_dim", "ffn_dim", "vocab_size")
"""Dims that TP cuts by a map of `Cut`; any other dim is cut evenly."""

SHARED, GATHERED = "shared", "gathered"
"""As ZeRO shares a parameter; and as an all-gather over CP leaves the tokens."""

At = tuple[tuple[range, ...], ...]
"""For each dim the ranges of the whole."""


class Placed(NamedTuple):
    """The placement of a tensor. places: axis → how its ranks hold the tensor. at: rank → the range of its
    piece.

    agrees: whether the numbers equal one process's.
    """

    places: dict[str, Place]
    at: dict[int, At]
    agrees: bool


NOT_PLACED = Placed({}, {}, False)


def placement_of(
    whole: Tensor, local: Mapping[int, Tensor], setting: Setting, coords: Mapping[int, Coord]
) -> Placed:
    """The placement of `whole`, one process's tensor, given each rank's own tensors `local`.

    If no placement reproduces the numbers, the pieces follow from the shapes, and axes that cut nothing are
    "own". For shapes that fit no placement, the result is empty.
    """
    axes = [axis for axis in ("dp", "cp", "tp") if setting.layout.size(axis) > 1]
    fallback: Placed | None = None
    wide = whole.to(torch.float64)
    numbers = {rank: t.to(torch.float64) for rank, t in local.items()}
    for ways, kept in _ways(axes, whole, setting):
        at = {rank: _where(whole, ways, setting, coords[rank], kept) for rank in local}
        if any([sum(map(len, held)) for held in at[rank]] != list(t.shape) for rank, t in local.items()):
            continue
        if _agree(wide, numbers, ways, at, coords):
            return Placed(ways, at, True)
        fallback = fallback or Placed(
            {axis: place if place.dim is not None else OWN for axis, place in ways.items()}, at, False
        )
    return fallback or NOT_PLACED


def _ways(axes: list[str], whole: Tensor, setting: Setting) -> Iterator[tuple[dict[str, Place], str]]:
    """Every possible placement, likeliest first, with its extra operation: SHARED, GATHERED or ""."""
    pieces = [Place("piece", dim) for dim in range(whole.dim())]

    def unlikely(axis: str, place: Place) -> int:
        if place.dim is None or place.kind == "summand":
            if place is COPY:
                return 0
            return 1
        size = whole.shape[place.dim]
        usual = {
            "dp": place.dim == 0 and size == setting.global_batch,
            "cp": place.dim == _seq(whole) and size == setting.seq_len,
            "tp": not (place.dim == 0 and size == setting.global_batch),
        }
        if usual[axis]:
            return 0
        return 3

    each: list[list[Place]] = [[COPY, SUMMAND, *pieces] for _ in axes]
    if setting.heads.replicas > 1:
        each[axes.index("tp")] += [Place("summand", place.dim) for place in pieces]
    found = [dict(zip(axes, ways, strict=True)) for ways in itertools.product(*each)]
    found.sort(key=lambda ways: sum(unlikely(axis, way) for axis, way in ways.items()))
    yield from ((ways, "") for ways in found)
    if "cp" in axes and whole.dim() and setting.seq_len == whole.shape[_seq(whole)]:
        yield from ((ways, GATHERED) for ways in found if ways["cp"] is COPY)
    if setting.layout.zero and setting.shards.ranks > 1 and pieces:
        sharing = [axis for axis in axes if axis != "tp" and axis in setting.shards.axis]
        yield from ((ways, SHARED) for ways in found if all(ways[axis] == pieces[0] for axis in sharing))


def _seq(whole: Tensor) -> int:
    """The dim that tokens would have."""
    return min(1, whole.dim() - 1)


def _where(whole: Tensor, ways: Mapping[str, Place], setting: Setting, coord: Coord, kept: str) -> At:
    """For each dim, the ranges of the whole that a rank holds.

    kept: SHARED for ZeRO's shards, cut along dim 0 from what the other axes leave; GATHERED for the chunks of
    CP rank after CP rank.
    """
    at: list[tuple[range, ...]] = [(range(size),) for size in whole.shape]
    if kept == GATHERED:
        at[_seq(whole)] = tuple(chunk for part in setting.sequence.ranks for chunk in part.chunks)
    for axis, place in ways.items():  # dp, cp, tp: sequence parallelism cuts what CP has left
        if place.dim is not None and not (kept == SHARED and axis != "tp"):
            tokens = place.dim == 1 and whole.dim() > 2  # of which TP takes even parts
            at[place.dim] = _cut(at[place.dim], axis, setting, coord, tokens)
    if kept == SHARED:
        at[0] = _kept(at[0], setting.shards.rows(sum(map(len, at[0])), coord._asdict()))
    return tuple(at)


def _cut(
    ranges: tuple[range, ...], axis: str, setting: Setting, coord: Coord, tokens: bool
) -> tuple[range, ...]:
    """The ranges of a dim after one axis has cut it."""
    size = sum(map(len, ranges))
    index = getattr(coord, axis)
    if axis == "cp" and size == setting.seq_len:
        return setting.sequence.rank(index).chunks
    if axis == "tp" and len(ranges) == 1 and not tokens:
        sizes = {name: getattr(setting.model, name) for name in _UNITS}
        unit = next((name for name in _UNITS if sizes[name] == size), None)
        if unit is not None and ranges[0].start == 0:
            return (setting.along(unit, index),)
    return _kept(ranges, Split(size, setting.layout.size(axis))[index])


def _kept(ranges: tuple[range, ...], keep: range) -> tuple[range, ...]:
    """The parts of ranges whose indexes are in `keep`."""
    left = []
    first = 0
    for part in ranges:
        own = range(max(keep.start - first, 0), min(keep.stop - first, len(part)))
        if len(own):
            left.append(part[own.start : own.stop])
        first += len(part)
    return tuple(left)


def _agree(
    whole: Tensor,
    local: Mapping[int, Tensor],
    ways: Mapping[str, Place],
    at: Mapping[int, At],
    coords: Mapping[int, Coord],
) -> bool:
    """Whether the ranks' numbers, combined by this placement, equal the whole."""
    summed = {axis: "sum" for axis, place in ways.items() if place.kind == "summand"}
    for rank, total in added_up(local, summed, coords, at).items():
        expected = taken(whole, rows_of(at[rank]))
        pads = expected.isnan() & ~total.isnan()
        if not torch.allclose(total[~pads], expected[~pads], rtol=CLOSE, atol=CLOSE):
            return False
    return True


def rows_of(at: At) -> list[Sequence[int]]:
    """For each dim the indexes of the whole in the ranges."""
    return [ranges[0] if len(ranges) == 1 else [*itertools.chain(*ranges)] for ranges in at]
