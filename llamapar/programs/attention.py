"""Attention over TP × CP, and Meta's own arithmetic of heads, each beside its unsharded reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.placement import BESIDE
from llamapar.spmd import collectives, compat, kernels
from llamapar.spmd.setting import Setting

from . import plain
from .parts import column_input, rms_norm, rope, row_output, split_heads

_start = attrgetter("start")

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
    q = rope(q, positions, setting.model)
    k = rope(k, positions, setting.model)
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
    each: kernels.Each = partial(compat.each_rank, mesh)
    trading = setting.trading
    documents = setting.documents
    if trading.gathers:
        ranks = setting.sequence.ranks
        k, v = whole_sequence(k, mesh, setting), whole_sequence(v, mesh, setting)  # [batch, all of seq, …]
        return kernels.attend(
            q, k, v, lambda coord: kernels.segments(ranks[coord["cp"]].chunks, documents), each=each
        )
    if (copies := trading.copies(k.shape[2])) > 1:
        # More ranks trade than there are KV heads, and each rank needs one to attend with.
        k = k.repeat_interleave(copies, 2)
        v = v.repeat_interleave(copies, 2)
    q, k, v = (tokens_to_heads(t, mesh, setting) for t in (q, k, v))  # [batch, more of seq, fewer heads, …]
    heads = kernels.ring_attend(
        q,
        k,
        v,
        [sorted(chunks, key=_start) for chunks in _of_groups(setting)],
        lambda t: compat.ring_shift(t, mesh, "cp", trading.heads),
        each=each,
        documents=documents,
        among=trading.heads,
    )
    return heads_to_tokens(heads, mesh, setting)


def whole_sequence(t: Tensor, mesh: DeviceMesh, setting: Setting) -> Tensor:
    """All-gather over CP, tokens in the order of the sequence: [batch, seq, …] → [batch, all of seq, …]."""
    # Ranks are joined in their order, so under head-tail rank 0's two chunks come first, then rank 1's.
    chunks = [chunk for rank in setting.sequence.ranks for chunk in rank.chunks]
    gathered = collectives.all_gather(t, mesh, "cp", 1)
    return in_order(gathered, chunks, sorted(chunks, key=_start))


def tokens_to_heads(t: Tensor, mesh: DeviceMesh, setting: Setting) -> Tensor:
    """[batch, seq/cp, heads, …] of a rank's tokens → [batch, seq/ring, heads/ulysses, …] of its group's.

    The tokens of the result are in the order of the sequence. The same t where no rank trades.
    """
    among = setting.trading.heads
    chunks = _of_groups(setting)[0]
    traded = collectives.all_to_all(t, mesh, "cp", 2, 1, among)
    return in_order(traded, chunks, sorted(chunks, key=_start))


def heads_to_tokens(t: Tensor, mesh: DeviceMesh, setting: Setting) -> Tensor:
    """The way back: [batch, seq/ring, heads/ulysses, …] → [batch, seq/cp, heads, …] of the rank's tokens."""
    among = setting.trading.heads
    chunks = _of_groups(setting)[0]
    return collectives.all_to_all(in_order(t, sorted(chunks, key=_start), chunks), mesh, "cp", 1, 2, among)


def in_order(t: Tensor, now: Sequence[range], wanted: Sequence[range]) -> Tensor:
    """[batch, tokens, …] with the chunks of tokens that stand there now, in another order."""
    if now == wanted:
        return t
    pieces = dict(zip(map(_start, now), t.split([len(chunk) for chunk in now], 1), strict=True))
    return torch.cat([pieces[chunk.start] for chunk in wanted], 1)


def _of_groups(setting: Setting) -> list[list[range]]:
    """The chunks of each group of ranks that trade heads, as its ranks hold them, one after another."""
    # Chunks are equally long, and stand in the same order in every group.
    ranks = setting.sequence.ranks
    among = setting.trading.heads
    groups = [ranks[first : first + among] for first in range(0, len(ranks), among)]
    return [[chunk for rank in group for chunk in rank.chunks] for group in groups]


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
    model = setting.model
    tp = setting.layout.tp
    # These floor divisions are Meta's. With more ranks than KV heads the second one is 0, and the third
    # raises ZeroDivisionError: the incident that this program shows.
    n_local_heads = model.n_heads // tp
    n_local_kv_heads = model.n_kv_heads // tp
    n_rep = n_local_heads // n_local_kv_heads
    x = column_input(x, mesh, setting)
    q = (x @ wq.mT).view(*x.shape[:2], n_local_heads, model.head_dim)
    k = (x @ wk.mT).view(*x.shape[:2], n_local_kv_heads, model.head_dim)
    v = (x @ wv.mT).view(*x.shape[:2], n_local_kv_heads, model.head_dim)
    q = rope(q, positions, model)
    k = rope(k, positions, model)
    k = k.repeat_interleave(n_rep, 2)
    v = v.repeat_interleave(n_rep, 2)
    heads = causal(q, k, v, mesh, setting)
    partial = heads.flatten(2) @ wo.mT
    return row_output(partial, mesh, setting)
