"""After the backward: turn each rank's gradients into gradients of the whole batch.

Which sums a gradient needs follows from what the ranks did not see: other tokens, other heads, other
sequences. Each sum is a function that is looked up when it is called, so that a fault can leave it out.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.placement import HEAD_NORMS, PARAMETERS

from . import compat
from .setting import Setting, is_replicated, kind
from .zero import ZeroGroup, zero_group


def reduce_gradients(
    mesh: DeviceMesh, setting: Setting, gradients: dict[str, Tensor], scattered: bool = False
) -> dict[str, Tensor]:
    """Each gradient of the mean objective over all dp ways; under ZeRO 2 and 3 the rank's shard of it.

    Every parameter is summed over cp and averaged over dp. A copied KV head is also summed over its copies. A
    parameter that TP replicates is also summed over tp where ranks saw different parts: other tokens under
    sequence parallelism, other heads for the norms of heads. An activation's gradient is summed over nothing.
    scattered: the backward has already done the reduce-scatter of shards.
    """
    group = None
    if setting.shards.cuts("gradients"):
        group = zero_group(mesh, setting)
    return {
        name: _reduce(mesh, setting, group, name, gradient, scattered) for name, gradient in gradients.items()
    }


def _reduce(
    mesh: DeviceMesh, setting: Setting, group: ZeroGroup | None, name: str, gradient: Tensor, scattered: bool
) -> Tensor:
    if kind(name) in PARAMETERS:
        # All these sums are linear, so their order is free. The reduce-scatter comes first, because after
        # it every further sum carries only the rank's own rows.
        if group is not None and not scattered:
            gradient = sum_shards(group, name, gradient)
        # A copied KV head gets a gradient from the query heads of its own rank only.
        if not is_replicated(name) and setting.copies(kind(name)) > 1:
            gradient = sum_copies(mesh, setting, gradient)
        if is_replicated(name) and (setting.sp or kind(name) in HEAD_NORMS):
            gradient = sum_tokens(mesh, gradient)
        if group is not None:
            # The sharing ranks already cover cp and dp_shard, so the copies of dp are all that is left to
            # add.
            gradient = sum_replicas(group, gradient)
        else:
            gradient = sum_context(mesh, gradient)
            gradient = sum_data(mesh, gradient)
    # Each dp way's objective is the mean over its own sequences, so the mean of all is their sum over dp.
    # CP needs no division: its ranks hold parts of one loss, over the tokens of the same sequences. An
    # activation is divided too, because the reference takes the mean over the global batch.
    return gradient / setting.layout.dp


def sum_copies(mesh: DeviceMesh, setting: Setting, gradient: Tensor) -> Tensor:
    """The sum over the ranks that hold the same KV head; tp is ranks by (KV head, copy)."""
    by_copy = kv_copy_mesh(mesh, setting)
    if by_copy is None:
        return gradient
    return compat.all_reduce(gradient, by_copy, "tp")


def kv_copy_mesh(mesh: DeviceMesh, setting: Setting) -> DeviceMesh | None:
    """The mesh with the copies of a KV head as its axis "tp"; None if each head has one copy.

    Every rank must call this, because making groups is collective.
    """
    copies = setting.heads.replicas
    if copies == 1:
        return None
    return compat.split_axis(mesh, "tp", (setting.model.n_kv_heads, copies), ("kv_head", "tp"))


def sum_tokens(mesh: DeviceMesh, gradient: Tensor) -> Tensor:
    return compat.all_reduce(gradient, mesh, "tp")


def sum_context(mesh: DeviceMesh, gradient: Tensor) -> Tensor:
    return compat.all_reduce(gradient, mesh, "cp")


def sum_data(mesh: DeviceMesh, gradient: Tensor) -> Tensor:
    return compat.all_reduce(gradient, mesh, "dp")


def sum_shards(group: ZeroGroup, name: str, gradient: Tensor) -> Tensor:
    """The rank's shard of the sum over the ranks that share the parameter."""
    return group.scattered(gradient, name)


def sum_replicas(group: ZeroGroup, gradient: Tensor) -> Tensor:
    return group.replicated(gradient)
