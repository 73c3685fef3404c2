"""The parts of every program: the ways into and out of tensor parallelism, RMSNorm and RoPE.

Shapes: batch is the sequences of a dp way, seq a CP rank's tokens, over tp a rank's own heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.models import ModelConfig
from llamapar.describe.rope import RopeScaling
from llamapar.spmd import collectives
from llamapar.spmd.compat import each_rank
from llamapar.spmd.setting import Setting, at_least_float32


def column_input(x: Tensor, mesh: DeviceMesh, setting: Setting) -> Tensor:
    """Into column-parallel matmuls: [batch, seq(/tp), dim] → [batch, seq, dim].

    Copy forward, all-reduce backward; under sequence parallelism all-gather, reduce-scatter.
    """
    # Under SP the residual stream is cut by tokens, and a matmul over heads or columns needs all of them.
    if setting.sp:
        return collectives.all_gather(x, mesh, "tp", 1)
    return collectives.copy(x, mesh, "tp")


def row_output(partial: Tensor, mesh: DeviceMesh, setting: Setting) -> Tensor:
    """Out of a row-parallel matmul: summands [batch, seq, dim] → their sum, [batch, seq(/tp), dim].

    All-reduce forward, copy backward; under sequence parallelism reduce-scatter, all-gather.
    """
    if setting.sp:
        # From here to the next way in each rank holds seq/tp tokens, so norms and residual sums are not
        # done tp times.
        return collectives.reduce_scatter(partial, mesh, "tp", 1)
    return collectives.all_reduce(partial, mesh, "tp")


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """[batch, seq, heads·head_dim] → [batch, seq, heads, head_dim]."""
    # -1 is the rank's own number of heads. A cut through the middle of a head makes view fail here.
    return x.view(x.shape[0], x.shape[1], -1, head_dim)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight, in float32 at least (Llama: arXiv:2302.13971, section 2.2)."""
    # The mean of squares is taken in float32, as in Meta's code: in bf16 a sum over dim loses its small
    # terms.
    wide = x.to(at_least_float32(x.dtype))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rope_frequencies(model: ModelConfig, device: torch.device) -> Tensor:
    """Radians per position of each pair of dims: [head_dim/2], float64, with Llama 3.1's scaling.

    llama-models, models/llama3/model.py `precompute_freqs_cis` and `apply_scaling`, @a9c89c4.
    """
    # 0, -2, -4, …: pair i turns theta^(-2i/head_dim) radians a position.
    dims = torch.arange(0, -model.head_dim, -2, dtype=torch.float64, device=device)
    frequencies = model.rope_theta ** (dims / model.head_dim)
    scaling = model.rope_scaling
    if not isinstance(scaling, RopeScaling):
        return frequencies
    # Tokens until a pair has turned once. Llama 3.1 divides the frequency of long waves by `factor`,
    # leaves short ones, and goes over smoothly between the two bounds.
    length = 2 * math.pi / frequencies
    low = scaling.original_max_seq_len / scaling.low_freq_factor
    high = scaling.original_max_seq_len / scaling.high_freq_factor
    smooth = (scaling.original_max_seq_len / length - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    scaled = torch.where(length > low, frequencies / scaling.factor, frequencies)
    return torch.where((length >= high) & (length <= low), between, scaled)


def rope(x: Tensor, positions: Tensor, model: ModelConfig) -> Tensor:
    """Turn each pair of dims of x [batch, seq, heads, head_dim] by its position [seq] (arXiv:2104.09864)."""
    wide = at_least_float32(x.dtype)
    # [seq, 1, head_dim/2]: every head is turned by the same angles.
    angles = positions.to(wide).view(-1, 1, 1) * rope_frequencies(model, x.device).to(wide)
    cos, sin = angles.cos(), angles.sin()  # [seq, 1, head_dim/2]
    # Meta's order has the two dims of a pair side by side; transformers has them half a head apart.
    even, odd = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return turned.flatten(-2).to(x.dtype)


def row_range(mesh: DeviceMesh, setting: Setting, device: torch.device) -> tuple[Tensor, Tensor]:
    """Vocabulary rows of the rank: the first, and the first past those that stand for a token."""

    def ends(coord: dict[str, int]) -> tuple[Tensor, ...]:
        own = setting.vocab.rank(coord["tp"])
        # A rank of pad rows alone has an empty range, first = past, so it answers for no token.
        past = own.real.stop if len(own.real) else own.rows.start
        return tuple(torch.tensor(n, device=device) for n in (own.rows.start, past))

    first, past = each_rank(mesh, ends)
    return first, past
