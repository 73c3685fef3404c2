"""Attention and a block with biases on Q, K and V, as Qwen2 has them, each beside its unsharded reference.

A bias is cut by heads, like the rows of the weight that it belongs to; nothing more is sent forward.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.spmd.setting import Setting

from . import plain
from .attention import causal, causal_reference
from .mlp import mlp, mlp_reference
from .parts import column_input, rms_norm, rope, row_output, split_heads


def attention(
    mesh: DeviceMesh,
    setting: Setting,
    x: Tensor,
    positions: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    bq: Tensor,
    bk: Tensor,
    bv: Tensor,
) -> Tensor:
    """x [batch, seq(/tp), dim] → the same shape; wq, wk, wv and their biases by heads, wo by columns."""
    x = column_input(x, mesh, setting)  # [batch, seq, dim]
    q = split_heads(x @ wq.mT + bq, setting.model.head_dim)  # [batch, seq, n_heads/tp, head_dim]
    k = split_heads(x @ wk.mT + bk, setting.model.head_dim)  # [batch, seq, n_kv_heads/tp, head_dim]
    v = split_heads(x @ wv.mT + bv, setting.model.head_dim)
    q, k = rope(q, positions, setting.model), rope(k, positions, setting.model)
    heads = causal(q, k, v, mesh, setting)
    partial = heads.flatten(2) @ wo.mT
    return row_output(partial, mesh, setting)


def attention_reference(
    setting: Setting,
    x: Tensor,
    positions: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    bq: Tensor,
    bk: Tensor,
    bv: Tensor,
) -> Tensor:
    """The same on one device."""
    pairs = ((wq, bq), (wk, bk), (wv, bv))
    q, k, v = (plain.split_heads_plainly(F.linear(x, w, b), setting.model.head_dim) for w, b in pairs)
    return causal_reference(setting, positions, q, k, v) @ wo.mT


def block(
    mesh: DeviceMesh,
    setting: Setting,
    x: Tensor,
    positions: Tensor,
    attention_norm: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    bq: Tensor,
    bk: Tensor,
    bv: Tensor,
    ffn_norm: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
) -> Tensor:
    """x [batch, seq(/tp), dim] → the same shape: norm, attention, norm, MLP, each added to its input."""
    normed = rms_norm(x, attention_norm, setting.model.norm_eps)
    x = x + attention(mesh, setting, normed, positions, wq, wk, wv, wo, bq, bk, bv)
    return x + mlp(mesh, setting, rms_norm(x, ffn_norm, setting.model.norm_eps), w1, w2, w3)


def block_reference(
    setting: Setting,
    x: Tensor,
    positions: Tensor,
    attention_norm: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    bq: Tensor,
    bk: Tensor,
    bv: Tensor,
    ffn_norm: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
) -> Tensor:
    """The same on one device."""
    normed = plain.norm(x, attention_norm, setting.model.norm_eps)
    x = x + attention_reference(setting, normed, positions, wq, wk, wv, wo, bq, bk, bv)
    return x + mlp_reference(setting, plain.norm(x, ffn_norm, setting.model.norm_eps), w1, w2, w3)
