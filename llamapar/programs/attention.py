"""Attention over TP × CP, and Meta's own arithmetic of heads, each beside its unsharded reference."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.placement import BESIDE
from llamapar.spmd import collectives, compat, kernels
from llamapar.spmd.setting import Setting

from . import plain
from .parts import column_input, rms_norm, rope, row_output, split_heads

WEIGHTS = (*BESIDE, *(name for names in BESIDE.values() for name in names))
"""Parameters of a layer that attention takes."""


def attention(
    mesh: DeviceMesh,
    setting: Setting,
    x: Tensor,
    positions: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    **more: Tensor,
) -> Tensor:
    """x [batch, seq(/tp), dim] → the same shape; wq, wk, wv by rows (heads), wo by columns.

    more: biases and norms of a model that has them. bq, bk and bv are cut by heads like their weights; bo,
    q_norm and k_norm are whole on every rank.
    """
    x = column_input(x, mesh, setting)  # [batch, seq, dim]
    q = split_heads(x @ wq.mT, setting.model.head_dim)  # [batch, seq, n_heads/tp, head_dim]
    k = split_heads(x @ wk.mT, setting.model.head_dim)  # [batch, seq, n_kv_heads/tp, head_dim]
    v = split_heads(x @ wv.mT, setting.model.head_dim)
    if more:
        q, k, v = with_biases_and_norms(q, k, v, more, setting)
    q, k = rope(q, positions, setting.model), rope(k, positions, setting.model)
    heads = causal(q, k, v, mesh, setting)  # [batch, seq, n_heads/tp, head_dim]
    partial = heads.flatten(2) @ wo.mT  # [batch, seq, dim], of the rank's own heads
    if "bo" in more:
        return more["bo"] + row_output(partial, mesh, setting)
    return row_output(partial, mesh, setting)


def with_biases_and_norms(
    q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Tensor], setting: Setting
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [batch, seq, heads/tp, head_dim] plus their biases; Q and K then normed, head by head."""
    each = {"q": q, "k": k, "v": v}
    for name, heads in each.items():
        if f"b{name}" in more:
            heads = heads + more[f"b{name}"].view(-1, setting.model.head_dim)
        if f"{name}_norm" in more:
            heads = rms_norm(heads, more[f"{name}_norm"], setting.model.norm_eps)
        each[name] = heads
    return each["q"], each["k"], each["v"]


def causal(q: Tensor, k: Tensor, v: Tensor, mesh: DeviceMesh, setting: Setting) -> Tensor:
    """Causal attention of a CP rank's queries to the whole sequence, by `setting.cp_method`."""
    chunks = [part.chunks for part in setting.sequence.ranks]

    each: kernels.Each = partial(compat.each_rank, mesh)

    def mine(coord: compat.Coord) -> tuple[kernels.Segment, ...]:
        return kernels.segments(chunks[coord["cp"]], setting.documents)

    if setting.cp_method == "ring":
        return kernels.ring_attend(
            q,
            k,
            v,
            chunks,
            lambda t: compat.ring_shift(t, mesh, "cp"),
            each=each,
            documents=setting.documents,
        )
    k, v = whole_sequence(k, mesh, setting), whole_sequence(v, mesh, setting)  # [batch, all of seq, …]
    return kernels.attend(q, k, v, mine, each=each)


def whole_sequence(t: Tensor, mesh: DeviceMesh, setting: Setting) -> Tensor:
    """All-gather over CP, tokens in the order of the sequence: [batch, seq, …] → [batch, all of seq, …]."""
    # Ranks are joined in their order, so under head-tail rank 0's two chunks come first, then rank 1's.
    gathered = collectives.all_gather(t, mesh, "cp", 1)
    order = [p for r in range(setting.layout.cp) for c in setting.sequence.rank(r).chunks for p in c]
    if order == list(range(len(order))):
        return gathered
    # `order` says which token stands at each place; its argsort says at which place each token stands.
    return gathered.index_select(1, torch.tensor(order, device=t.device).argsort())


def attention_reference(
    setting: Setting,
    x: Tensor,
    positions: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    **more: Tensor,
) -> Tensor:
    """The same on one device, by torch's scaled_dot_product_attention; documents by a dense mask."""
    pairs = ((wq, more.get("bq")), (wk, more.get("bk")), (wv, more.get("bv")))
    q, k, v = (plain.split_heads_plainly(F.linear(x, w, b), setting.model.head_dim) for w, b in pairs)
    if "q_norm" in more:
        q = plain.norm(q, more["q_norm"], setting.model.norm_eps)
        k = plain.norm(k, more["k_norm"], setting.model.norm_eps)
    return F.linear(causal_reference(setting, positions, q, k, v), wo, more.get("bo"))


def causal_reference(setting: Setting, positions: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """RoPE and attention of all heads on one device: q [batch, seq, n_heads, head_dim] → [batch, seq, …]."""
    q, k = (plain.rotated(t, positions, setting.model) for t in (q, k))
    mask = None
    if setting.documents is not None:
        ids = torch.arange(len(setting.documents), device=q.device)
        own = ids.repeat_interleave(torch.tensor(setting.documents, device=q.device))
        # [seq, seq]: a query sees a key of its own document that is not after it.
        mask = (own[:, None] == own) & (positions[:, None] >= positions)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    heads = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
    return heads.transpose(1, 2).flatten(2)


def meta_attention(
    mesh: DeviceMesh,
    setting: Setting,
    x: Tensor,
    positions: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
) -> Tensor:
    """Attention with head counts as Meta's code has them: models/llama3/model.py:112-116 @a9c89c4."""
    model, tp = setting.model, setting.layout.tp
    # These floor divisions are Meta's. With more ranks than KV heads the second one is 0, and the third
    # raises ZeroDivisionError: the incident that this program shows.
    n_local_heads = model.n_heads // tp
    n_local_kv_heads = model.n_kv_heads // tp
    n_rep = n_local_heads // n_local_kv_heads
    x = column_input(x, mesh, setting)
    q = (x @ wq.mT).view(*x.shape[:2], n_local_heads, model.head_dim)
    k = (x @ wk.mT).view(*x.shape[:2], n_local_kv_heads, model.head_dim)
    v = (x @ wv.mT).view(*x.shape[:2], n_local_kv_heads, model.head_dim)
    q, k = rope(q, positions, model), rope(k, positions, model)
    k, v = k.repeat_interleave(n_rep, 2), v.repeat_interleave(n_rep, 2)
    heads = causal(q, k, v, mesh, setting)
    partial = heads.flatten(2) @ wo.mT
    return row_output(partial, mesh, setting)
