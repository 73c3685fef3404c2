"""The wrong functions of faults that need more than a line; each gets the right one before its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.models import ModelConfig
from llamapar.place.orders import Action
from llamapar.place.pipeline import Schedule
from llamapar.spmd import collectives, compat, setting, update, zero
from llamapar.spmd.training import Training

Right = Callable[..., Any]
"""The function that a wrong one stands for."""


def own_gradient(right: Right, *given: Tensor) -> Tensor:
    """In place of a sum of gradients over ranks, or over groups: the gradient, which is the last argument."""
    return given[-1]


def next_slice(right: Right, group: zero.ZeroGroup, whole: Tensor) -> Tensor:
    """The slice of the rank that comes next, where slices are equal: the rows are turned by one of them."""
    rows = -(-whole.shape[0] // group.shards.ranks)
    return right(group, whole.roll(-rows, 0))


def contiguous_positions(right: Right, self: setting.Setting, whole: Tensor, coord: compat.Coord) -> Tensor:
    """The positions of a rank whose tokens are one piece of the sequence."""
    # Right for contiguous chunks. Under head-tail RoPE turns most tokens by a position that is not
    # theirs, and no shape differs.
    n = self.seq_len // self.layout.cp
    return whole[coord["cp"] * n : (coord["cp"] + 1) * n].clone()


def added_but_the_last(
    right: Right, total: Tensor | None, own: Tensor, setting: setting.Setting, number: int
) -> Tensor:
    """The sum as it is before the last micro-batch."""
    if total is not None and number == setting.micro_batches - 1:
        return total
    return right(total, own, setting, number)


def crossed_row(right: Right, schedule: Schedule, pp_rank: int) -> tuple[Action, ...]:
    """Rank 0's row with its first forward behind its own backward, which then never gets its input."""
    row = list(right(schedule, pp_rank))
    # The forward of a micro-batch moves behind its own backward. The other stages never get it, so the
    # gradient that the backward waits for is never sent.
    if pp_rank == 0 and schedule.pp > 1:
        first = row.pop(0)
        backward = next(
            at for at, action in enumerate(row) if action.kind in "BI" and action[1:] == first[1:]
        )
        row.insert(backward + 1, first)
    return tuple(row)


def neighbours_shard(right: Right, group: zero.ZeroGroup, whole: Tensor) -> Tensor:
    """The shard of the next dp way, of which this rank has no state."""
    ways = group.setting.layout.dp

    def shard(coord: compat.Coord, t: Tensor) -> Tensor:
        return group.setting.shard(t, {**coord, "dp": (coord["dp"] + 1) % ways})

    return compat.each_rank(group.mesh, shard, whole)


# -- a line of the model ---------------------------------------------------------------------------


def without_last_row(
    right: Right, mesh: DeviceMesh, setting: setting.Setting, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The rank's vocabulary rows but the last one."""
    first, past = right(mesh, setting, device)
    return first, past - 1


def no_collective(right: Right, x: Tensor, *given: object) -> Tensor:
    """In place of a collective: what the rank has. Gradients pass unchanged, too."""
    return collectives.same(x)


def own_slice_of_sum(right: Right, x: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
    """In place of a reduce-scatter: the rank's slice of its own summand. The backward is right."""
    return collectives.exchange(x, _slice, compat.all_gather, mesh, axis, dim)


def traded_one_way(right: Right, x: Tensor, mesh: DeviceMesh, axis: str, *dims: int) -> Tensor:
    """In place of an all-to-all: its backward cuts and joins the gradient without sending it."""
    return collectives.exchange(
        x,
        compat.all_to_all,
        lambda grad, mesh, axis, cut, join, among: torch.cat(grad.chunk(among, join), cut),
        mesh,
        axis,
        *dims,
    )


def gathered_without_sum(right: Right, x: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
    """All-gather forward and, wrongly, a slice backward."""
    return collectives.exchange(x, compat.all_gather, _slice, mesh, axis, dim)


def _slice(x: Tensor, mesh: DeviceMesh, axis: str, dim: int) -> Tensor:
    # The shape of a reduce-scatter's result without its sum.
    def own(coord: compat.Coord, t: Tensor) -> Tensor:
        return t.chunk(compat.axis_size(mesh, axis), dim)[coord[axis]].contiguous()

    return compat.each_rank(mesh, own, x)


def heads_of_transposed(right: Right, x: Tensor, head_dim: int) -> Tensor:
    """The heads of x [batch, seq, …] as if it were [seq, batch, …]: equal for a batch of one."""
    return x.transpose(0, 1).reshape(x.shape[0], x.shape[1], -1, head_dim)


def kv_heads_in_turn(
    right: Right, q: Tensor, k: Tensor, v: Tensor, mesh: DeviceMesh, setting: setting.Setting
) -> Tensor:
    """Query head i reads KV head i mod n_kv_heads, instead of i // group."""
    # The queries are put into the order in which head i mod groups reads right, and the outputs put back.
    groups = min(k.shape[2], setting.model.n_kv_heads // setting.layout.tp)  # Meta's form repeats k
    order = torch.arange(q.shape[2], device=q.device).view(-1, groups).mT.flatten()
    return right(q[:, :, order], k, v, mesh, setting)[:, :, order.argsort()]


def rope_by_halves(right: Right, x: Tensor, positions: Tensor, model: ModelConfig) -> Tensor:
    """RoPE that pairs each dim with the one half a head away, as transformers does."""
    # [d0 ... dn-1] becomes pairs (d0, d_n/2), (d1, d_n/2+1), …, which the right function then turns.
    paired = x.unflatten(-1, (2, -1)).mT.flatten(-2)
    return right(paired, positions, model).unflatten(-1, (-1, 2)).mT.flatten(-2)


def decay_in_gradient(
    right: Right, state: update.ParameterState, gradient: Tensor, training: Training, step: int
) -> update.ParameterState:
    """Adam with L2: the decay goes through the means."""
    # With a decay of 0 in `training` the right function decays nothing a second time.
    decayed = gradient + training.weight_decay * state.master
    return right(state, decayed, replace(training, weight_decay=0.0), step)
