"""ZeRO: ranks that would hold copies of a parameter, its gradient or its state share one copy.

The idea (arXiv:1910.02054, section 5; FSDP: arXiv:2304.11277): a shared tensor is cut along dim 0, see
`llamapar.place.shards`. Each use of a parameter starts with an all-gather, whose backward is the
reduce-scatter of the gradient. dp_shard·cp ranks share a copy; the dp_replicate groups sum their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.layout import SHARDING
from llamapar.describe.placement import PARAMETERS
from llamapar.place.shards import Shards

from . import collectives, compat
from .compat import Coord, StorageWeakRef
from .setting import Setting, kind


@dataclass(frozen=True)
class ZeroGroup:
    """The ranks that share parameters, on a mesh.

    sharing: the mesh and axis of the ranks that share one copy. replicas: the mesh and axis of the groups
    that hold equal shards. Tensors are a rank's pieces by tp and pp, each with the name of its parameter.
    """

    mesh: DeviceMesh
    setting: Setting
    sharing: tuple[DeviceMesh, str]
    replicas: tuple[DeviceMesh, str] | None

    @property
    def shards(self) -> Shards:
        return self.setting.shards

    @property
    def axes(self) -> dict[str, str]:
        """Group name → axis, in the form that a recorder expects."""
        found = {}
        for lane, axis in ((self.sharing, self.shards.axis), (self.replicas, "dp")):
            if lane is not None and compat.axis_size(*lane) > 1:
                found[str(lane[0].get_group(lane[1]).group_name)] = axis
        return found

    def own(self, whole: Tensor) -> Tensor:
        """The rank's shard of a tensor: [rows, …] → [its rows, …], a new tensor."""
        return compat.each_rank(self.mesh, lambda coord, t: self.setting.shard(t, coord), whole)

    def gathered(self, name: str, shard: Tensor) -> Tensor:
        """All-gather forward, reduce-scatter backward: the rank's shard → all rows."""
        mesh, axis = self.sharing
        if compat.axis_size(mesh, axis) == 1:
            return shard
        # Both take (tensor, name), which is all that an Exchange passes on, so they serve as its two
        # directions.
        return collectives.Exchange.apply(shard, self.whole, self.scattered, name)

    def stand_in(self, name: str, shard: Tensor) -> Tensor:
        """A tensor with the whole parameter's shape that takes no memory; gradients of the parameter end at
        it.
        """

        def of_shape(coord: Coord, t: Tensor) -> Tensor:
            # An expanded scalar has stride 0, so it takes no memory at any size.
            return t.new_zeros(()).expand(self._rows(name, coord), *t.shape[1:])

        return compat.each_rank(self.mesh, of_shape, shard).requires_grad_()

    def whole(self, shard: Tensor, name: str) -> Tensor:
        """All-gather without a gradient. Shards are padded to the size of a full one for the transfer."""

        def padded(coord: Coord, t: Tensor) -> Tensor:
            # torch.chunk's last shards may be short or empty, and an all-gather sends equal pieces only.
            return _with_rows(t, self.shards.padded(self._rows(name, coord)) // self.shards.ranks)

        def cropped(coord: Coord, t: Tensor) -> Tensor:
            return t[: self._rows(name, coord)]

        if compat.axis_size(*self.sharing) == 1:
            return shard
        gathered = compat.all_gather(compat.each_rank(self.mesh, padded, shard), *self.sharing, 0)
        return compat.each_rank(self.mesh, cropped, gathered)

    def scattered(self, gradient: Tensor, name: str) -> Tensor:
        """Reduce-scatter: a gradient of all rows → the rank's shard of the sum over the sharing ranks."""

        def padded(coord: Coord, t: Tensor) -> Tensor:
            return _with_rows(t, self.shards.padded(t.shape[0]))

        def cropped(coord: Coord, t: Tensor) -> Tensor:
            return t[: len(self.shards.rows(self._rows(name, coord), coord))]

        if compat.axis_size(*self.sharing) == 1:
            return gradient
        # reduce_scatter needs equal pieces, so pad first and crop afterwards.
        even = compat.each_rank(self.mesh, padded, gradient)
        return compat.each_rank(self.mesh, cropped, compat.reduce_scatter(even, *self.sharing, 0))

    def replicated(self, gradient: Tensor) -> Tensor:
        """The sum over the groups that hold equal shards: an all-reduce."""
        if self.replicas is not None:
            return compat.all_reduce(gradient, *self.replicas)
        return gradient

    def _rows(self, name: str, coord: Coord) -> int:
        return self.setting.local_rows(kind(name), coord["tp"])


def zero_group(mesh: DeviceMesh, setting: Setting) -> ZeroGroup:
    """The ranks of `mesh` that share parameters. Every rank must call this, because making groups is
    collective.
    """
    layout = setting.layout
    copies = layout.dp_replicate
    # The joined axis must keep the order of the ranks, so the axis with the larger stride is the slower part.
    slow, fast = ("cp", "dp") if layout.stride("cp") > layout.stride("dp") else ("dp", "cp")
    # All sharing ranks lie on one axis that the mesh has already, so no groups are made.
    if copies == 1 and setting.shards.axis != SHARDING:
        return ZeroGroup(mesh, setting, (mesh, setting.shards.axis), None)
    # Every dp way is a copy of its own, and cp alone shares within it.
    if layout.dp_shard == 1:
        return ZeroGroup(mesh, setting, (mesh, "cp"), (mesh, "dp"))
    joined = compat.joined(mesh, copies, slow, fast)
    return ZeroGroup(mesh, setting, (joined, "shards"), (joined, "replicas") if copies > 1 else None)


def group_axes(mesh: DeviceMesh, setting: Setting) -> dict[str, str]:
    """Group name → axis, for all groups of a run. Every rank must call this, because making groups is
    collective.
    """
    names = compat.axis_names(mesh)
    shared = "optimizer state"
    if setting.training is None:
        shared = "gradients"
    if setting.shards.cuts(shared):
        return names | zero_group(mesh, setting).axes
    return names


class _Late(torch.autograd.Function):
    """All-gather forward; the backward returns the gradient of the whole parameter, for a stand-in of its
    shape.
    """

    @staticmethod
    def forward(ctx: object, stand_in: Tensor, shard: Tensor, group: ZeroGroup, name: str) -> Tensor:
        return group.whole(shard, name)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None, None, None]:
        # The shard gets no gradient here. What collects at the stand-in is reduced once, after the last
        # micro-batch.
        return grad, None, None, None


class _Dropped(NamedTuple):
    """Placeholder in autograd's graph for a gathered parameter: its name, and whether it is transposed."""

    name: str
    transposed: bool


class Gathered(Mapping[str, Tensor]):
    """A program's tensors by name; parameters are shards, and a look-up gathers them.

    late: gradients are of whole parameters, `leaves`, and are reduced after the last micro-batch; else they
    are of the shards. `setting.reshard_after_forward`: a parameter is gathered at each use, and once more in
    the backward where autograd would have kept it; else it is gathered once and kept.
    """

    def __init__(self, group: ZeroGroup, shards: Mapping[str, Tensor], late: bool = False) -> None:
        self._group = group
        self._shards = shards
        self._late = late
        self._again = group.setting.reshard_after_forward
        self.told: Callable[[str, Tensor], None] = lambda what, t: None
        """Told of each tensor that is "gathered", and of each that autograd has "kept"."""
        self._kept: dict[str, Tensor] = {}
        self._dropped: dict[StorageWeakRef, tuple[str, torch.Size]] = {}
        self.leaves = {name: group.stand_in(name, t) for name, t in shards.items()} if late else dict(shards)

    def __getitem__(self, name: str) -> Tensor:
        if name in self._kept:
            return self._kept[name]
        shard = self._shards[name]
        if kind(name) not in PARAMETERS:
            return shard
        if self._late:
            # autograd sees the stand-in as the parameter, so gradients of several uses and micro-batches
            # add up on it at full size.
            whole: Tensor = _Late.apply(self.leaves[name], shard, self._group, name)
        else:
            whole = self._group.gathered(name, shard)
        self.told("gathered", whole)
        if not self._again:
            self._kept[name] = whole
        # An axis of one rank returns the shard itself, which has to stay.
        elif whole is not shard:
            self._dropped[compat.storage_of(whole)] = name, compat.first_of(whole).shape
        return whole

    @property
    def shards(self) -> Mapping[str, Tensor]:
        """The rank's tensors by name, with parameters as shards."""
        return self._shards

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def only(self, names: list[str]) -> Gathered:
        """The same mapping for some of the names."""
        some = Gathered(self._group, {name: self._shards[name] for name in names}, self._late)
        # Shared, not copied: a stage's part of the mapping must know what the whole has gathered.
        some._kept = self._kept
        some._dropped = self._dropped
        some.told = self.told
        return some

    def forward(self) -> AbstractContextManager[object]:
        """Context of a forward: autograd does not keep gathered parameters, and gathers them again in the
        backward.
        """
        if not self._again:
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, t: Tensor) -> Tensor | _Dropped:
        # Found by storage, because autograd saves views of a parameter and not the parameter itself.
        name, shape = self._dropped.get(compat.storage_of(t), ("", None))
        own = compat.first_of(t)
        # A view of some of the rows could not be rebuilt from the name alone, so it is kept as it is.
        if shape is None or own.numel() != shape.numel():
            self.told("kept", t)
            return t.detach()  # Saving an operation's own output would create a reference cycle.
        # A matmul can save the transpose of a weight, which is a view of the same storage, so remember which
        # of the two it was.
        return _Dropped(name, transposed=own.shape != shape or not own.is_contiguous())

    def _unpack(self, kept: Tensor | _Dropped) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        whole = self._group.whole(self._shards[kept.name].detach(), kept.name)
        if kept.transposed:
            return whole.mT
        return whole


def leaves_of(given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The leaves at which gradients of a program's tensors end, by name."""
    if isinstance(given, Gathered):
        return given.leaves
    return given


def forward_of(given: Mapping[str, Tensor]) -> AbstractContextManager[object]:
    """Context of a forward with these tensors; see `Gathered.forward`."""
    if isinstance(given, Gathered):
        return given.forward()
    return nullcontext()


def _with_rows(t: Tensor, rows: int) -> Tensor:
    """`t` zero-padded below to this number of rows."""
    # F.pad counts dims from the last one, so the pair for dim 0 comes at the end.
    return F.pad(t, (*(0, 0) * (t.dim() - 1), 0, rows - t.shape[0]))
