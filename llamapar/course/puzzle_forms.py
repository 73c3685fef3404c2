"""What a puzzle is: what ranks have, what one process makes of it, and the slips that it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

WORLD = 4
"""Ranks of every puzzle."""

RANKS = range(WORLD)

Given = tuple[Any, ...]
"""What one rank's function is called with."""

Made = tuple[Tensor, ...]
"""What it returns: one tensor, or several."""


UNEVEN, NOT_FINITE = "uneven shapes", "not finite"
"""What goes wrong before numbers can be compared, and may have a hint of its own."""

Solve = Callable[[list[Given]], Sequence[Made]]
"""What all ranks make of what all ranks are given."""


@dataclass(frozen=True)
class Puzzle:
    """What is to be written.

    given: what each rank has. truth: what each rank should have. names: of the tensors that are returned.
    calls: the kinds of messages that may be sent. axis: what the ranks are. cuts: the dim along which a
    tensor is cut over them, by its name. slips: what usual mistakes make, by their names; of_slips: the
    hint for each. hints: for a first wrong try, a second, and so on. when: the hint where ranks gave one
    collective UNEVEN shapes, where numbers of the output are NOT_FINITE, or where the gradient of this name
    is the first tensor that differs. backward: whether what is returned is one tensor, after which the
    gradients of all that were given are compared, too.
    """

    given: Callable[[], list[Given]]
    truth: Solve
    names: tuple[str, ...]
    calls: tuple[str, ...]
    slips: Mapping[str, Solve]
    hints: tuple[str, ...] = ()
    of_slips: Mapping[str, str] = field(default_factory=dict)
    when: Mapping[str, str] = field(default_factory=dict)
    backward: bool = False
    axis: str = "tp"
    cuts: Mapping[str, int] = field(default_factory=dict)


def parts(t: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """A tensor cut evenly, one part a rank."""
    return t.chunk(WORLD, dim)


def alike(*made: Tensor) -> list[Made]:
    """The same on every rank."""
    return [made] * WORLD


def together(given: list[Given], place: int, dim: int = 0) -> Tensor:
    """The ranks' parts of what stands at a place, put together."""
    return torch.cat([own[place] for own in given], dim)


def summed(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


@cache
def numbers(name: str, *shape: int) -> Tensor:
    """Random numbers that are always the same for a name and a shape."""
    seed = sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 2**31
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_gradients(out: Tensor, given: Sequence[object]) -> Made:
    """An output, and the gradients of all tensors that it was made of."""
    out.backward(numbers("gradient", *out.shape).to(out.dtype))
    tensors = [t for t in given if isinstance(t, Tensor) and t.is_floating_point()]
    return out.detach(), *(torch.zeros_like(t) if t.grad is None else t.grad for t in tensors)
