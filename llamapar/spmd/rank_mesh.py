"""The mesh of one rank, with only its own groups, for worlds too large to list.

torch's DeviceMesh stores every rank and creates every group: 11 s for 2²⁰ ranks. A program asks the mesh only
for the size of an axis and for this rank's group on it, and both follow from arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.layout import Layout


class Stride(NamedTuple):
    """`size` ranks, each `step` after the one before."""

    size: int
    step: int


class RankMesh(DeviceMesh):
    """The part of a DeviceMesh that programs use, for one rank of the default process group.

    axes: name → the strides that make up the axis, slowest first.
    """

    def __init__(self, axes: Mapping[str, tuple[Stride, ...]], rank: int) -> None:
        # DeviceMesh.__init__ is not called: it lists all ranks and creates all groups, which this class
        # is to avoid.
        self.rank = rank
        self.axes = dict(axes)
        self._own: dict[str, dist.ProcessGroup] = {}

    @classmethod
    def of(cls, layout: Layout, rank: int) -> RankMesh:
        """The mesh of `compat.make_mesh` as seen by the rank."""
        axes = {name: (Stride(layout.size(name), layout.stride(name)),) for name in reversed(layout.axes)}
        if layout.pp == 1:
            del axes["pp"]
        return cls(axes, rank)

    @property
    def device_type(self) -> str:
        return "cpu"

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        return tuple(self.axes)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def size(self, mesh_dim: int | None = None) -> int:
        """Number of ranks of an axis, given by its number, or of all axes."""
        names = list(self.axes)[slice(None) if mesh_dim is None else slice(mesh_dim, mesh_dim + 1)]
        total = 1
        for name in names:
            for stride in self.axes[name]:
                total *= stride.size
        return total

    @property
    def coord(self) -> dict[str, int]:
        """The coord of the rank."""
        return {name: self._index(name) for name in self.axes}

    def _index(self, name: str) -> int:
        # A joined axis has several strides. Its index counts through them like the digits of a number,
        # slowest first.
        index = 0
        for size, step in self.axes[name]:
            index = index * size + self.rank // step % size
        return index

    def members(self, name: str) -> list[int]:
        """The global ranks of the rank's group on an axis, in its order."""
        strides = self.axes[name]
        # The member with index 0 on every stride; all others follow from it by whole steps.
        first = self.rank - sum(self.rank // step % size * step for size, step in strides)
        places = itertools.product(*(range(0, size * step, step) for size, step in strides))
        return [first + sum(place) for place in places]

    def get_group(self, mesh_dim: int | str | None = None) -> dist.ProcessGroup:
        """The rank's group on an axis, created at the first request."""
        assert isinstance(mesh_dim, str)
        if mesh_dim not in self._own:
            made = dist.new_group(self.members(mesh_dim), group_desc=f"mesh_{mesh_dim}")
            assert isinstance(made, dist.ProcessGroup)
            self._own[mesh_dim] = made
        return self._own[mesh_dim]

    def split(self, axis: str, sizes: tuple[int, int], names: tuple[str, str]) -> RankMesh:
        """The mesh with one axis split in two, the slower first."""
        ((_, step),) = self.axes[axis]
        # The slower part steps over whole runs of the faster one.
        two = (Stride(sizes[0], sizes[1] * step),), (Stride(sizes[1], step),)
        found: dict[str, tuple[Stride, ...]] = {}
        for name, strides in self.axes.items():
            found |= dict(zip(names, two, strict=True)) if name == axis else {name: strides}
        return RankMesh(found, self.rank)

    def joined(self, replicas: int, slow: str, fast: str) -> RankMesh:
        """The mesh of two axes: "replicas", the copies of dp, which are its slower part, and "shards", `slow`
        and `fast` joined.
        """
        ((ways, step),) = self.axes["dp"]
        shards = ways // replicas
        strides = {**self.axes, "dp": (Stride(shards, step),)}
        # dp counts copies × shards with the shards faster, so one copy is `shards` steps from the next.
        copies = (Stride(replicas, step * shards),)
        return RankMesh({"replicas": copies, "shards": (*strides[slow], *strides[fast])}, self.rank)
