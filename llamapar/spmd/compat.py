"""Differences between torch versions, engines and backends, and every private part of torch in use.

A collective here takes the mesh and the name of an axis, and never changes its input. It works the same on
real ranks, on the local engine's LocalTensors, on the meta device over the fake process group, and for CUDA
tensors over gloo. Gradients are left out: `collectives` adds them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._ops import OpOverload as OpOverload
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.multiprocessing.reductions import StorageWeakRef as StorageWeakRef

from llamapar.describe.layout import Layout
from llamapar.errors import Choice, LlamaparError

from .rank_mesh import RankMesh

try:
    from torch.distributed._local_tensor import (
        LocalIntNode,
        enabled_local_tensor_mode,
    )
    from torch.distributed._local_tensor import LocalTensor as LocalTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore
except ImportError as missing:  # These modules are private, so a new torch may move them.
    raise ImportError(
        f"torch {torch.__version__} has no LocalTensorMode; llamapar needs torch 2.11 or newer"
    ) from missing

Coord = dict[str, int]
"""A rank's index on each axis of the mesh."""

Arguments = tuple[Any, ...]
"""What an operation of torch is called with."""

Own = TypeVar("Own", Tensor, tuple[Tensor, ...])
"""What a rank's own arithmetic makes."""

_c10d: Any = dist.distributed_c10d
_ops = torch.ops._c10d_functional  # All wrappers of torch 2.11 to 2.13 call these functional collectives.


acting_rank: ContextVar[int | None] = ContextVar("acting_rank", default=None)
"""The rank for which the local engine is running a rank's own arithmetic just now."""


# -- collectives -------------------------------------------------------------------------------


def _sent(op: Callable[..., Tensor], t: Tensor, mesh: DeviceMesh, axis: str, *details: object) -> Tensor:
    """The result of a collective on `t`; through host memory where gloo has no CUDA version of the
    collective.
    """
    # The op returns before the transfer has ended, and nothing may read its result before wait_tensor.
    group = mesh.get_group(axis)
    by_host = t.is_cuda and dist.get_backend(group) == "gloo"
    made: Tensor = _ops.wait_tensor.default(op(t.cpu() if by_host else t, *details, group.group_name))
    if by_host:
        return made.to(t.device)
    return made


def all_reduce(t: Tensor, mesh: DeviceMesh, axis: str, op: str = "sum") -> Tensor:
    """Sum (or "max") of `t` over the axis, on every rank; `t` itself on an axis of one rank."""
    if axis_size(mesh, axis) == 1:
        return t
    begun = _ops.all_reduce.default(t.contiguous(), op, mesh.get_group(axis).group_name)
    return _ops.wait_tensor.default(begun)  # gloo takes CUDA tensors here


def all_gather(t: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
    """The ranks' tensors joined along `dim`, in the order of the axis; all must have the same shape."""
    # torch's op joins along dim 0 only, so `dim` is moved there for the transfer and back afterwards.
    moved = t.movedim(dim, 0).contiguous()
    return _sent(_ops.all_gather_into_tensor.default, moved, mesh, axis, axis_size(mesh, axis)).movedim(
        0, dim
    )


def reduce_scatter(t: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
    """Sum of `t` over the axis; each rank keeps its equal piece along `dim`."""
    ranks = axis_size(mesh, axis)
    if t.shape[dim] % ranks:
        raise LlamaparError(
            f"reduce_scatter over {axis}={ranks}: dim {dim} of {list(t.shape)} does not divide",
            f"every rank keeps {t.shape[dim]}/{ranks} of it",
        )
    moved = t.movedim(dim, 0).contiguous()
    return _sent(_ops.reduce_scatter_tensor.default, moved, mesh, axis, "sum", ranks).movedim(0, dim)


def all_to_all(t: Tensor, mesh: DeviceMesh, axis: str, cut: int, join: int, among: int) -> Tensor:
    """Cut `t` along a dim into a piece for each of `among` neighbours, and join theirs along another dim."""
    pieces = torch.stack(t.chunk(among, cut))  # [among, …], in the order of the ranks that get them
    at = per_rank_int(mesh, lambda coord: coord[axis] // among)
    # A rank of another group of neighbours gets nothing, and sends nothing.
    splits = [_where(at, i // among, 1) for i in range(axis_size(mesh, axis))]
    return torch.cat(_sent(_ops.all_to_all_single.default, pieces, mesh, axis, splits, splits).unbind(), join)


def ring_shift(t: Tensor, mesh: DeviceMesh, axis: str, hop: int) -> Tensor:
    """Send `t` to the rank `hop` further on the axis, and return the tensor of the one as far before."""
    ranks, n = axis_size(mesh, axis), t.numel()

    # torch has no functional send and receive. A ring is an all-to-all in which each rank sends all its n
    # numbers to one rank and none to the others, as in torch's own permute_tensor.
    def splits(step: int) -> list[int | torch.SymInt]:
        at = per_rank_int(mesh, lambda coord: (coord[axis] + step) % ranks)
        return [_where(at, i, n) for i in range(ranks)]

    # From the rank before, to the rank after.
    received = splits(-hop)
    sent = splits(hop)
    flat = t.contiguous().flatten()
    return _sent(_ops.all_to_all_single.default, flat, mesh, axis, received, sent).view(t.shape)


# -- rank by rank ------------------------------------------------------------------------------


def axis_size(mesh: DeviceMesh, axis: str) -> int:
    """Ranks of an axis of the mesh."""
    return mesh.size((mesh.mesh_dim_names or ()).index(axis))


def coord_of(mesh: DeviceMesh, rank: int) -> Coord:
    """The coord of a global rank, cached, because a DeviceMesh rebuilds its table at each call."""
    if isinstance(mesh, RankMesh):
        return mesh.coord
    known: dict[int, Coord] = mesh.__dict__.setdefault("_llamapar_coords", {})
    if rank not in known:
        place = (mesh.mesh == rank).nonzero()[0].tolist()
        known[rank] = dict(zip(mesh.mesh_dim_names or (), place, strict=True))
    return known[rank]


def each_rank(mesh: DeviceMesh, function: Callable[..., Own], *tensors: Tensor) -> Own:
    """`function(coord, *tensors)` for this rank; in the local engine for every rank, one after another.

    function: the part of the work that differs by rank (its rows, its chunks). It turns plain tensors into a
    tensor or a tuple of tensors, and it must not communicate.
    """
    local = [t for t in tensors if isinstance(t, LocalTensor)]
    mode = enabled_local_tensor_mode()
    if mode is None and not local:
        return function(coord_of(mesh, dist.get_rank()), *tensors)
    # LocalTensors know their ranks even where the mode is off, as in a cell that looks at a result.
    ranks = sorted(mode.ranks if mode is not None else local[0]._ranks)
    made: dict[int, Own] = {}
    # With the mode on, torch would run each operation of `function` once more for every rank. No gradient
    # is recorded here either: what needs one calls this inside an autograd.Function.
    with mode.disable() if mode is not None else nullcontext(), torch.no_grad():
        for rank in ranks:
            token = acting_rank.set(rank)
            try:
                made[rank] = function(coord_of(mesh, rank), *(of_rank(t, rank) for t in tensors))
            finally:
                acting_rank.reset(token)
    first = made[ranks[0]]
    if isinstance(first, Tensor):
        return cast(Own, LocalTensor(made))
    # One LocalTensor for each position of the tuples: rank → tuple becomes tuple of rank → tensor.
    return cast(Own, tuple(LocalTensor({r: made[r][i] for r in ranks}) for i in range(len(first))))


def in_local_mode() -> bool:
    """Whether a LocalTensorMode is active, in a program or in a `with` of LocalRanks."""
    return enabled_local_tensor_mode() is not None


def per_rank_int(mesh: DeviceMesh, function: Callable[[Coord], int]) -> dict[int, int] | int:
    """function(coord) for this rank; in the local engine, one value for each rank."""
    mode = enabled_local_tensor_mode()
    if mode is None:
        return function(coord_of(mesh, dist.get_rank()))
    with mode.disable():
        return {rank: function(coord_of(mesh, rank)) for rank in sorted(mode.ranks)}


def _where(at: dict[int, int] | int, i: int, n: int) -> int | torch.SymInt:
    """n if `at` is i, else 0; in the local engine a torch.SymInt with a value for each rank."""
    if isinstance(at, int):
        if at == i:
            return n
        return 0
    # A size that differs by rank has no plain int; torch's own shape code accepts a SymInt in its place.
    return torch.SymInt(LocalIntNode({rank: n if own == i else 0 for rank, own in at.items()}))


def int_of_rank(n: int | torch.SymInt, rank: int) -> int:
    """A rank's own value of a whole number that may differ by rank."""
    node = getattr(n, "node", None)
    if isinstance(node, LocalIntNode):
        return node._local_ints[rank]
    return int(n)


def by_rank(t: Tensor) -> dict[int, Tensor] | None:
    """rank → tensor of a LocalTensor; None for a plain tensor."""
    if isinstance(t, LocalTensor):
        return dict(sorted(t._local_tensors.items()))
    return None


def of_rank(t: Tensor, rank: int) -> Tensor:
    """A rank's own tensor of a LocalTensor; a plain tensor itself. Both are waited for."""
    if isinstance(t, AsyncCollectiveTensor):
        t = t.trigger_wait()
    if isinstance(t, LocalTensor):
        return t._local_tensors[rank]
    return t


def first_of(t: Tensor) -> Tensor:
    """The first rank's own tensor of a LocalTensor; a plain tensor itself."""
    return next(iter((by_rank(t) or {0: t}).values()))


def storage_of(t: Tensor) -> StorageWeakRef:
    """A key for the storage that the views of one tensor share; the key does not keep the storage alive."""
    return StorageWeakRef(first_of(t).untyped_storage())


def raising_rank(error: BaseException) -> int | None:
    """The rank that was running when the local engine raised; None if the program itself raised."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        # torch's loop over ranks keeps the rank in its local variable r, and ours in `rank`. The walk
        # goes from the outermost frame inwards, so the last one found was nearest to the error.
        if trace.tb_frame.f_code.co_name == "_for_each_rank_run_func":
            found = trace.tb_frame.f_locals.get("r", found)
        elif trace.tb_frame.f_code is each_rank.__code__:
            found = trace.tb_frame.f_locals.get("rank", found)
        trace = trace.tb_next
    return found


# -- groups and meshes -------------------------------------------------------------------------


def make_mesh(layout: Layout, device: str) -> DeviceMesh:
    """The ranks as a DeviceMesh, slowest axis first, by the names "dp", "cp", "tp", and "pp" where pp > 1."""
    # Neighbouring ranks differ on the last axis of a DeviceMesh, while `layout.axes` has the fastest axis
    # first. Programs ask for dp, cp and tp by name, so these are there even with one rank.
    names = [axis for axis in reversed(layout.axes) if axis != "pp" or layout.pp > 1]
    ranks = torch.arange(layout.world).view([layout.size(axis) for axis in names])
    return DeviceMesh(device, ranks, mesh_dim_names=tuple(names))


def split_axis(mesh: DeviceMesh, axis: str, sizes: tuple[int, int], names: tuple[str, str]) -> DeviceMesh:
    """`mesh` with one axis split in two, the slower first; cached for each mesh."""
    # Kept on the mesh itself: making a mesh creates process groups, which is slow and takes every rank.
    made: dict[tuple[str, ...], DeviceMesh] = mesh.__dict__.setdefault("_llamapar_split", {})
    old = list(mesh.mesh_dim_names or ())
    at = old.index(axis)
    new = (*old[:at], *names, *old[at + 1 :])
    if new not in made:
        if isinstance(mesh, RankMesh):
            made[new] = mesh.split(axis, sizes, names)
            return made[new]
        shape = (*mesh.mesh.shape[:at], *sizes, *mesh.mesh.shape[at + 1 :])
        made[new] = DeviceMesh(mesh.device_type, mesh.mesh.reshape(shape), mesh_dim_names=new)
    return made[new]


def joined(mesh: DeviceMesh, replicas: int, slow: str, fast: str) -> DeviceMesh:
    """The mesh with `slow` and `fast` joined as the axis "shards", and the copies of dp as "replicas";
    cached.

    dp is copies × shards, with shards the faster. Every rank must call this, because making groups is
    collective.
    """
    made: dict[int, DeviceMesh] = mesh.__dict__.setdefault("_llamapar_joined", {})
    if replicas not in made and isinstance(mesh, RankMesh):
        made[replicas] = mesh.joined(replicas, slow, fast)
    if replicas not in made:
        names = list(mesh.mesh_dim_names or ())
        at = names.index("dp")
        shape = list(mesh.mesh.shape)
        # dp becomes two axes, with the copies as the slower one: [..., replicas, dp_shard, ...].
        ranks = mesh.mesh.reshape(*shape[:at], replicas, shape[at] // replicas, *shape[at + 1 :])
        names[at : at + 1] = ["replicas", "dp"]
        # `slow` and `fast` are moved to the end, where they can be flattened into one axis in the order
        # of ranks.
        others = [i for i, name in enumerate(names) if name not in ("replicas", slow, fast)]
        order = [*others, *(names.index(name) for name in ("replicas", slow, fast))]
        ways = axis_size(mesh, "cp") * (shape[at] // replicas)
        by_copy = ranks.permute(order).reshape(-1, replicas, ways)
        made[replicas] = DeviceMesh(
            mesh.device_type, by_copy, mesh_dim_names=("others", "replicas", "shards")
        )
    return made[replicas]


def process_groups() -> frozenset[dist.ProcessGroup]:
    """The existing process groups."""
    return frozenset(_c10d._world.pg_map)


def gpus() -> int:
    """Number of GPUs that CUDA gives this process.

    torch.cuda.device_count() may ask NVML instead, which counts whole cards where CUDA gives MIG slices.
    """
    return getattr(torch._C, "_cuda_getDeviceCount", lambda: 0)()


def group_named(group: str | torch.ScriptObject | dist.ProcessGroup) -> dist.ProcessGroup:
    """The process group of an op's argument: a name, a group, or a boxed one."""
    if isinstance(group, str):
        return _c10d._resolve_process_group(group)
    if isinstance(group, dist.ProcessGroup):
        return group
    return dist.ProcessGroup.unbox(group)


def axis_names(mesh: DeviceMesh) -> dict[str, str]:
    """Group name → axis, of the mesh's axes of more than one rank."""
    names = mesh.mesh_dim_names or ()
    return {str(mesh.get_group(a).group_name): a for i, a in enumerate(names) if mesh.size(i) > 1}


def axis_of(group: dist.ProcessGroup) -> str:
    """The axis name of a DeviceMesh's group; "world" for the default group; else the group's own name."""
    if group == dist.group.WORLD:
        return "world"
    return str(group.group_desc).removeprefix("mesh_") or str(group.group_name)


def translates(group: tuple[int, ...], world: int) -> dict[int, tuple[int, ...]]:
    """rank → its group, for the groups that are `group` shifted: those of one mesh axis."""
    base = [rank - group[0] for rank in group]
    found: dict[int, tuple[int, ...]] = {}
    for rank in range(world):
        # Ranks are tried upwards, so the first one without a group is the lowest of its group, as
        # group[0] is.
        if rank not in found:
            moved = tuple(rank + offset for offset in base)
            found.update(dict.fromkeys(moved, moved))
    return found


@contextmanager
def fake_world(size: int, rank: int = 0) -> Iterator[None]:
    """A fake process group of `size` ranks, of which this process is one; nothing is sent."""
    if dist.is_initialized():
        raise LlamaparError(
            "torch.distributed has a process group in this process already",
            "a local run makes one of its own, and there can only be one",
            ["torch.distributed.destroy_process_group()", Choice.of(engine="processes")],
            "engine",
        )
    hook = sys.excepthook  # torch sets its own store here and does not remove it.
    try:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        yield
    finally:
        if dist.is_initialized():  # The program may have destroyed the group already.
            dist.destroy_process_group()
        sys.excepthook = hook
