"""Collectives with their gradients; the docstring of each is its contract in one line.

Every function takes the mesh and the name of an axis; on an axis of one rank it returns its input. They are
Megatron-LM's f and g (arXiv:1909.08053, section 3) and, for sequence parallelism, the two halves of these
(arXiv:2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from . import compat

Collective = Callable[..., Tensor]
"""collective(tensor, mesh, axis, …), without a gradient: one of `compat`, or `same`."""


class Exchange(torch.autograd.Function):
    """One collective forward, and another of the same arguments backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Collective, backward: Collective, *args: object) -> Tensor:
        # No tensor is saved: the gradient of a sum, a copy or a join does not depend on the values that
        # went in.
        ctx.back = backward
        ctx.args = args
        return forward(x, *args)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Autograd wants a gradient for each argument of forward: None for the two functions and for their
        # arguments.
        return ctx.back(grad, *ctx.args), None, None, *(None for _ in ctx.args)


def exchange(
    x: Tensor, forward: Collective, backward: Collective, mesh: DeviceMesh, axis: str, *dim: int
) -> Tensor:
    """One collective forward, another backward; x itself on an axis of one rank."""
    if compat.axis_size(mesh, axis) > 1:
        return Exchange.apply(x, forward, backward, mesh, axis, *dim)
    return x


def same(x: Tensor, *_: object) -> Tensor:
    """The tensor unchanged: the operation of a rank that sends nothing."""
    return x.view_as(x)


def copy(x: Tensor, mesh: DeviceMesh, axis: str) -> Tensor:
    """Copy forward, all-reduce backward: Megatron's f."""
    # Every rank uses the whole x with its own columns of the weights, so its gradient of x is one
    # summand.
    return exchange(x, same, compat.all_reduce, mesh, axis)


def all_reduce(x: Tensor, mesh: DeviceMesh, axis: str) -> Tensor:
    """All-reduce forward, copy backward: Megatron's g. For a sum that all ranks then use alike."""
    # The sum's gradient arrives equal on all ranks, because all go on alike, so it is passed on as it is.
    # One more all-reduce would make it as many times too large as there are ranks.
    return exchange(x, compat.all_reduce, same, mesh, axis)


def all_gather(x: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
    """All-gather along `dim` forward, reduce-scatter backward. For ranks that then do different work."""
    # A rank's gradient of the gathered tensor is a summand over all tokens. The reduce-scatter adds the
    # summands and leaves each rank the part that it put in.
    return exchange(x, compat.all_gather, compat.reduce_scatter, mesh, axis, dim)


def reduce_scatter(x: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
    """Reduce-scatter along `dim` forward, all-gather backward."""
    return exchange(x, compat.reduce_scatter, compat.all_gather, mesh, axis, dim)


def all_to_all(x: Tensor, mesh: DeviceMesh, axis: str, cut: int, join: int, among: int) -> Tensor:
    """Cut along `cut`, trade among neighbours, join along `join`; backward the same the other way."""
    # A rank's gradient of what it got belongs to whoever sent it, so it goes back as it came.
    if among > 1:
        return exchange(x, compat.all_to_all, _back, mesh, axis, cut, join, among)
    return x


def _back(grad: Tensor, mesh: DeviceMesh, axis: str, cut: int, join: int, among: int) -> Tensor:
    return compat.all_to_all(grad, mesh, axis, join, cut, among)


def maximum(x: Tensor, mesh: DeviceMesh, axis: str) -> Tensor:
    """The maximum over the ranks; a constant for autograd."""
    # Softmax is the same whatever number is subtracted from all logits, so the maximum has no gradient.
    return compat.all_reduce(x.detach(), mesh, axis, "max")
