"""The tensors with which a program's ranks end, each beside the whole of one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from llamapar.describe.placement import PARAMETERS, Shard
from llamapar.errors import LlamaparError
from llamapar.spmd.setting import kind

from .body import RankReport, Task, piece, placement
from .module_reading import Part
from .patterns import UNITS, Axis, Pieces, axes_of
from .rows import GRADIENT, MEAN, OUTPUT, WEIGHT
from .steps import DIMS, dim_size
from .unsharded import Unsharded


class End(NamedTuple):
    """A tensor of the ranks beside one process's. owns: rank → its own, None for none. take: (a tensor as
    large as `whole`, rank) → the rank's piece.
    """

    kind: str
    name: str
    whole: Tensor
    owns: Mapping[int, Tensor | None]
    take: Callable[[Tensor, int], Tensor]


def end_tensors(task: Task, reports: Sequence[RankReport], alone: Unsharded) -> Iterator[End]:
    """Everything of the ranks that one process has as well; of training steps after the first."""
    setting = task.setting
    coords = {report.rank: setting.layout.coord_of(report.rank)._asdict() for report in reports}

    def held(what: str, name: str) -> Callable[[Tensor, int], Tensor]:
        return lambda t, rank: setting.held(name, t, coords[rank], what)

    def part(name: str) -> Callable[[Tensor, int], Tensor]:
        return lambda t, rank: piece(task, name, t, coords[rank])

    def gradient(name: str) -> Callable[[Tensor, int], Tensor]:
        return lambda t, rank: setting.gradient(name, piece(task, name, t, coords[rank]), coords[rank])

    for of, wholes, take in ((OUTPUT, alone.made.outputs, part), (GRADIENT, alone.made.gradients, gradient)):
        for name, whole in wholes.items():
            having = [r for r in reports if setting.holds(name, coords[r.rank]["pp"])]
            owns = {r.rank: (r.outputs if of == OUTPUT else r.gradients).get(name) for r in having}
            try:
                placed = placement(task.program, name) or kind(name)
            except LlamaparError:  # the placement table does not have it
                continue
            if placed:
                yield End(of, name, whole, owns, take(name))
    for first in alone.steps[:1]:
        norm = torch.tensor([first.norm], dtype=torch.float64)
        yield End(OUTPUT, "norm", norm, {r.rank: r.curve["norms"][:1] for r in reports}, lambda t, rank: t)
        for name, state in first.states.items():
            having = [r for r in reports if name in r.first]
            means = {r.rank: r.first[f"exp_avg.{name}"] for r in having}
            yield End(MEAN, name, state.exp_avg, means, held("optimizer state", name))
            weight = state.master.to(setting.torch_dtype)
            yield End(WEIGHT, name, weight, {r.rank: r.first[name] for r in having}, held("parameters", name))


def axes_in(task: Task, end: End) -> list[Axis]:
    """What the dims of a program's tensor are."""
    sizes = {name: dim_size(task.setting, name) for name in DIMS if name in UNITS}
    head_dim = task.setting.model.head_dim
    axes = axes_of(end.whole.shape, sizes, head_dim)
    if len(axes) > 3:  # [batch, seq, heads, head_dim]
        axes[-1] = Axis("channel")
    cut = None
    if end.kind in (GRADIENT, MEAN, WEIGHT):
        cut = PARAMETERS.get(kind(end.name))
    if isinstance(cut, Shard):
        axes[cut.dim] = Axis(cut.unit, head_dim if "head" in cut.unit else 1)
    return axes


def pieces_of(end: End, axes: Sequence[Axis]) -> Pieces:
    """The same with the part of the whole that each rank should have; without padding. axes: of its dims."""
    index = torch.arange(1, end.whole.numel() + 1, dtype=torch.float64).view(end.whole.shape)
    owns = dict[int, Tensor | None]()
    others = dict[int, Tensor]()
    parts = dict[int, Part]()
    for rank, own in end.owns.items():
        places = end.take(index, rank)
        parts[rank] = _part(places, end.whole.shape)
        owns[rank] = None
        if own is not None and own.shape == places.shape:
            owns[rank] = own[tuple(slice(len(rows)) for rows in parts[rank])]
        elif own is not None:
            others[rank] = own
    return Pieces(end.kind, end.name, end.whole, axes, owns, parts, others)


def _part(places: Tensor, shape: Sequence[int]) -> Part:
    """The part of a whole. places: where in the flattened whole each number stands, from 1; 0 for padding, at
    the end.
    """
    found = list[Sequence[int]]()
    for dim, size in enumerate(shape):
        line = places[tuple(slice(None) if d == dim else slice(1) for d in range(len(shape)))].flatten()
        at = line[line > 0].long() - 1
        found.append(tuple((at // math.prod(shape[dim + 1 :]) % size).tolist()))
    return tuple(found)
