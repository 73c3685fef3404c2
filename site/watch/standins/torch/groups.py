"""What stands for torch.distributed: one process in which all ranks live, their mesh, and collectives.

A group knows the members of every rank's own group on its axis, so that a collective serves all at once.
"""

from __future__ import annotations

import itertools
import math
from contextlib import contextmanager
from types import SimpleNamespace

from .dispatch import Operator
from .numbers import OPERATORS
from .tensors import LocalTensor, Tensor


class ProcessGroup:
    """members: of the first rank's group. of: rank → its own group on the axis."""

    def __init__(self, name: str, of: dict[int, tuple[int, ...]]) -> None:
        self.of, self.members = of, next(iter(of.values()))
        self.group_desc, self.group_name = name, f"{name} {next(_numbers)}"
        GROUPS[self.group_name] = self


_numbers = itertools.count()
GROUPS: dict[str, ProcessGroup] = {}
group = SimpleNamespace(WORLD=None)
_rank = 0


def init_process_group(backend: str, *, store: object, rank: int, world_size: int) -> None:
    global _rank
    everyone = tuple(range(world_size))
    _rank, group.WORLD = rank, ProcessGroup("world", dict.fromkeys(everyone, everyone))


def destroy_process_group(_: object = None) -> None:
    GROUPS.clear()
    group.WORLD = None


def is_initialized() -> bool:
    return group.WORLD is not None


def get_rank(_: object = None) -> int:
    return _rank


def get_world_size(_: object = None) -> int:
    return len(group.WORLD.members)


def new_group(members: list[int], *, group_desc: str = "") -> ProcessGroup:
    return ProcessGroup(group_desc, dict.fromkeys(members, tuple(members)))


def get_process_group_ranks(one: ProcessGroup) -> list[int]:
    return list(one.members)


class DeviceMesh:
    """Ranks by axes. The groups of an axis are the ranks that differ in it alone."""

    def __init__(self, device: str, mesh: Tensor, *, mesh_dim_names: tuple[str, ...]) -> None:
        self.device_type, self.mesh, self.mesh_dim_names = device, mesh, mesh_dim_names
        self._groups: dict[str, ProcessGroup] = {}

    def size(self, dim: int | None = None) -> int:
        return math.prod(self.mesh.shape) if dim is None else self.mesh.shape[dim]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mesh.shape)

    def get_group(self, axis: str) -> ProcessGroup:
        if axis not in self._groups:
            dim = self.mesh_dim_names.index(axis)
            moved = OPERATORS["movedim"](self.mesh, dim, -1).flat()
            n = self.mesh.shape[dim]
            each = [tuple(moved[i : i + n]) for i in range(0, len(moved), n)]
            found = {rank: members for members in each for rank in members}
            self._groups[axis] = ProcessGroup(f"mesh_{axis}", dict(sorted(found.items())))
        return self._groups[axis]


# -- collectives -------------------------------------------------------------------------------


class LocalIntNode:
    """A number of its own on every rank. Nothing here compares it."""

    eq = ne = lt = le = gt = ge = None

    def __init__(self, by_rank: dict[int, int]) -> None:
        self._local_ints = by_rank


class SymInt:
    def __init__(self, node: LocalIntNode) -> None:
        self.node = node


def _serves(t: Tensor, name: str):
    """(rank → tensor, rank → members): of every rank, or of the one that is alone."""
    of = GROUPS[name].of
    return (t.pieces if isinstance(t, LocalTensor) else dict.fromkeys(of, t)), of


def _total(tensors: list[Tensor], op: str) -> Tensor:
    total = tensors[0]
    for t in tensors[1:]:
        if t.shape != total.shape:
            raise RuntimeError(f"ranks send different shapes: {list(total.shape)} and {list(t.shape)}")
        total = OPERATORS["add" if op == "sum" else "maximum"](total, t)
    return OPERATORS["clone"](total)


def all_reduce(t: Tensor, op: str, name: str) -> Tensor:
    own, of = _serves(t, name)
    return LocalTensor({r: _total([own[m] for m in of[r]], op) for r in own})


def all_gather_into_tensor(t: Tensor, ranks: int, name: str) -> Tensor:
    own, of = _serves(t, name)
    return LocalTensor({r: OPERATORS["cat"]([own[m] for m in of[r]], 0) for r in own})


def reduce_scatter_tensor(t: Tensor, op: str, ranks: int, name: str) -> Tensor:
    own, of = _serves(t, name)
    made = {}
    for r, members in of.items():
        total = _total([own[m] for m in members], op)
        each = total.shape[0] // ranks
        made[r] = OPERATORS["clone"](OPERATORS["narrow"](total, 0, members.index(r) * each, each))
    return LocalTensor(made)


def all_to_all_single(t: Tensor, received: list, sent: list, name: str) -> Tensor:
    own, of = _serves(t, name)

    def size(n: int | SymInt, r: int) -> int:
        return n.node._local_ints[r] if isinstance(n, SymInt) else n

    pieces = {r: OPERATORS["split"](own[r], [size(n, r) for n in sent], 0) for r in own}
    return LocalTensor({r: OPERATORS["cat"]([pieces[m][of[r].index(r)] for m in of[r]], 0) for r in own})


COLLECTIVES = {
    function.__name__: Operator(function.__name__, function, "_c10d_functional", together=True)
    for function in (all_reduce, all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single)
}
COLLECTIVES["wait_tensor"] = Operator("wait_tensor", lambda t: t, "_c10d_functional", together=True)


# -- the local engine's mode -------------------------------------------------------------------

_entered: list[LocalTensorMode] = []


class LocalTensorMode:
    """While it is entered the program computes for all ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = frozenset(range(ranks))

    def __enter__(self):
        _entered.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _entered.remove(self)

    @contextmanager
    def disable(self):
        before = _entered[:]
        _entered.clear()
        try:
            yield
        finally:
            _entered[:] = before


def enabled_local_tensor_mode() -> LocalTensorMode | None:
    return _entered[-1] if _entered else None
