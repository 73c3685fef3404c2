"""Collectives that know their gradient: the contract of each in one line.

Every function takes the mesh and the name of an axis; on an axis of one rank it returns its input.
What they send is Megatron-LM's f and g (arXiv:1909.08053, section 3) and, under sequence parallelism,
their two halves (arXiv:2205.05198, section 4.2.2).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from . import compat


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh, axis: str) -> Tensor:
        ctx.args = mesh, axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return compat.all_reduce(grad, *ctx.args), None, None


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh, axis: str) -> Tensor:
        return compat.all_reduce(x, mesh, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
        ctx.args = mesh, axis, dim
        return compat.all_gather(x, mesh, axis, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return compat.reduce_scatter(grad, *ctx.args), None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
        ctx.args = mesh, axis, dim
        return compat.reduce_scatter(x, mesh, axis, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return compat.all_gather(grad, *ctx.args), None, None, None


def copy(x: Tensor, mesh: DeviceMesh, axis: str) -> Tensor:
    """Copy forward, all-reduce backward: Megatron's f."""
    return _Copy.apply(x, mesh, axis) if compat.size(mesh, axis) > 1 else x


def all_reduce(x: Tensor, mesh: DeviceMesh, axis: str) -> Tensor:
    """All-reduce forward, copy backward: Megatron's g. For a sum that all ranks then use alike."""
    return _AllReduce.apply(x, mesh, axis) if compat.size(mesh, axis) > 1 else x


def all_gather(x: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
    """All-gather along `dim` forward, reduce-scatter backward. For ranks that then do different work."""
    return _AllGather.apply(x, mesh, axis, dim) if compat.size(mesh, axis) > 1 else x


def reduce_scatter(x: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
    """Reduce-scatter along `dim` forward, all-gather backward."""
    return _ReduceScatter.apply(x, mesh, axis, dim) if compat.size(mesh, axis) > 1 else x


def maximum(x: Tensor, mesh: DeviceMesh, axis: str) -> Tensor:
    """The greatest of the ranks' values; a constant for autograd."""
    return compat.all_reduce(x.detach(), mesh, axis, "max") if compat.size(mesh, axis) > 1 else x.detach()
