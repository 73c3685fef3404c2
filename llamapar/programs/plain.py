"""Heads, RMSNorm and RoPE for the references, written otherwise than in `parts`.

A mistake in what the programs are made of would be the reference's too if both were made of the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from llamapar.describe.models import ModelConfig
from llamapar.describe.rope import RopeScaling


def split_heads_plainly(x: Tensor, head_dim: int) -> Tensor:
    """[batch, seq, heads·head_dim] → [batch, seq, heads, head_dim]: one slice after the other."""
    return torch.stack(x.split(head_dim, -1), 2)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(|x|²/dim + eps) · weight, by the length of x (arXiv:2302.13971, section 2.2)."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=_wide(x))
    return (x / (length**2 / x.shape[-1] + eps).sqrt()).to(x.dtype) * weight


def rotated(x: Tensor, positions: Tensor, model: ModelConfig) -> Tensor:
    """RoPE of x [batch, seq, heads, head_dim]: each pair of dims is a complex number, times e^(i·angle).

    llama-models, models/llama3/model.py `apply_rotary_emb`, @a9c89c4.
    """
    frequencies = [_frequency(pair, model) for pair in range(model.head_dim // 2)]
    per_position = torch.tensor(frequencies, dtype=_wide(x), device=x.device)
    angles = torch.outer(positions.to(per_position.dtype), per_position)  # [seq, head_dim/2]
    # [seq, 1, head_dim/2], so that it meets x as [batch, seq, heads, head_dim/2].
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    pairs = torch.view_as_complex(x.to(angles.dtype).unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


def _frequency(pair: int, model: ModelConfig) -> float:
    """Radians per position of a pair of dims; Llama 3.1 slows those whose wave is long."""
    frequency = model.rope_theta ** (-2 * pair / model.head_dim)
    scaling = model.rope_scaling
    if not isinstance(scaling, RopeScaling):
        return frequency
    # Counted in waves here and in wave lengths in `parts`: the same bounds from the other side.
    waves = scaling.original_max_seq_len * frequency / (2 * math.pi)  # in the length trained on
    if waves <= scaling.low_freq_factor:
        return frequency / scaling.factor
    if waves >= scaling.high_freq_factor:
        return frequency
    kept = (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return frequency * (kept + (1 - kept) / scaling.factor)


def _wide(x: Tensor) -> torch.dtype:
    """The dtype to compute in: float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)
