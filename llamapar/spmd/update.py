"""The end of a training step: the norm of the gradients, clipping, and AdamW, on a rank's own pieces.

Each part is a function that is looked up when it is called, so that a fault can replace it. Every operation
works element by element and rounds once, so a piece gets the same bits as the whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from . import compat
from .setting import TIED, Setting, kind
from .training import Training
from .zero import ZeroGroup


class ParameterState(NamedTuple):
    """A parameter's state between steps, in float32 at least; all tensors have one shape."""

    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


STATES = ParameterState._fields


def share_of_squares(setting: Setting, name: str, pp_rank: int) -> float:
    """The fraction of a parameter's squares that this rank adds to the norm: the copies together count
    once.
    """
    assert setting.schedule is not None
    if name == TIED and setting.model.tied and setting.schedule.rank_of(0) != pp_rank:
        return 0.0  # the other end of the pipeline counts it
    # Every copy adds the same squares, and the sum over tp runs over all copies, so each adds its
    # fraction.
    return 1 / setting.copies(kind(name))


def squares(setting: Setting, gradients: Mapping[str, Tensor], pp_rank: int, start: Tensor) -> Tensor:
    """[1]: the sum of squares of the rank's gradients, over its stages. start: zero, [1]."""
    own = start
    for name, gradient in gradients.items():
        own = own + gradient.square().sum() * share_of_squares(setting, name, pp_rank)
    return own


def over_tensor(own: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum of squares over tp."""
    return compat.all_reduce(own, mesh, "tp")


def over_shards(own: Tensor, group: ZeroGroup) -> Tensor:
    """The sum of squares over the ranks that share gradients."""
    return compat.all_reduce(own, *group.sharing)


def over_stages(by_pp_rank: Sequence[Tensor], pp_rank: int) -> Tensor:
    """The sum of squares over the pipeline, added in the order of its ranks, so that all ranks get the same
    bits.
    """
    # Floating-point sums depend on their order. An all-reduce promises none, and stages that clip by factors
    # that differ in the last bit would drift apart.
    first, *others = by_pp_rank
    for other in others:
        first = first + other
    return first


def clip_factor(norm: Tensor, own: Tensor, training: Training) -> Tensor:
    """The factor for all gradients: max_norm / (norm + 1e-6), at most 1, as in torch's clip_grad_norm_.

    norm: of all gradients. own: of the rank's own gradients; it has no influence on the factor.
    """
    # 1e-6 is torch's own guard against a norm of zero; with another value the bits would differ from
    # torch's.
    return (training.max_norm / (norm + 1e-6)).clamp(max=1.0)


def adamw(state: ParameterState, gradient: Tensor, training: Training, step: int) -> ParameterState:
    """One step of AdamW (arXiv:1711.05101, algorithm 2); step: its number, from 1.

    Written like torch.optim.AdamW: the step size and the denominator contain the bias corrections.
    """
    lr = training.lr
    beta1 = training.beta1
    beta2 = training.beta2
    exp_avg = state.exp_avg * beta1 + gradient * (1 - beta1)
    exp_avg_sq = state.exp_avg_sq * beta2 + gradient * gradient * (1 - beta2)
    denominator = exp_avg_sq.sqrt() / math.sqrt(1 - beta2**step) + training.eps
    # The decay is decoupled: it shrinks the weight itself and is no part of the gradient's means.
    decayed = state.master * (1 - lr * training.weight_decay)
    return ParameterState(decayed - exp_avg / denominator * (lr / (1 - beta1**step)), exp_avg, exp_avg_sq)


def own_shard(group: ZeroGroup, whole: Tensor) -> Tensor:
    """The rank's shard of a full gradient: the rows whose AdamW state is on this rank."""
    return group.own(whole)


def gathered_weight(group: ZeroGroup, name: str, before: Tensor, after: Tensor) -> Tensor:
    """All rows of a weight after each rank has updated its shard. before: the shard before the update."""
    return group.whole(after, name)
