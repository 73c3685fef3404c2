"""Causal attention of one context-parallel rank: exactly the pairs its queries need, on torch's kernels.

A rank's queries are chunks of the sequence. Each attends to a causal square (its own chunk) and to a
dense rectangle (all keys before the chunk, or before it within its document). Their outputs are merged
by log-sum-exp; the backward of a flash kernel takes the merged output and log-sum-exp, so each block's
gradient is one call as well. No mask is ever made, nor anything of size seq x seq.

`attend` wants the whole sequence's keys (The Llama 3 Herd of Models, section 3.3.2: all-gathered);
`ring_attend` passes each rank's keys around (Ring Attention, arXiv:2310.01889).

`b` batch, `s` tokens, `h` heads, `d` head_dim; kernels want [b, h, s, d], the rest of llamapar
[b, s, h, d]. KV heads may be fewer than query heads (GQA): head i reads KV head i // (h / h_kv).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from llamapar.errors import LayoutError, whole
from llamapar.place.sequence_map import in_runs
from llamapar.records.trace import causal_pairs

from .compat import Coord, Own
from .setting import at_least_float32

# -- which keys a rank's queries need --------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """Queries at positions start..stop-1, which attend causally to the keys from `first` on."""

    start: int
    stop: int
    first: int = 0

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def pairs(self) -> int:
        """(query, key) pairs of one head."""
        return causal_pairs(range(self.start - self.first, self.stop - self.first))


def segments(chunks: Sequence[range], documents: Sequence[int] | None = None) -> tuple[Segment, ...]:
    """The chunks of a rank, split where documents end. Adjacent chunks are merged, and empty ones dropped.

    documents: number of tokens of each document; documents are consecutive and cover the sequence, and a
    token attends only to its own document. Raises LayoutError if the chunks extend beyond the last document.
    """
    ends = list(accumulate(whole("document length", n) for n in documents or ()))
    made = []
    for run in in_runs(chunks):
        if documents is not None and run.stop > (ends[-1] if ends else 0):
            raise LayoutError(
                f"documents of {sum(documents)} tokens in all, and a chunk that ends at {run.stop}",
                "every token belongs to one document",
                field="documents",
            )
        # Without documents the loop runs once; with them it stops at each end that lies within the chunk.
        first, end, at = 0, run.stop, run.start
        while at < run.stop:
            if ends:
                document = bisect_right(ends, at)
                first, end = ends[document] - documents[document], ends[document]  # type: ignore[index]
            made.append(Segment(at, min(end, run.stop), first))
            at = made[-1].stop
    return tuple(made)


class Block(NamedTuple):
    """One kernel call: slices of the rank's own q and of the keys it holds now."""

    queries: slice
    keys: slice
    causal: bool


def blocks(mine: Sequence[Segment], key_ranges: Sequence[range]) -> Iterator[Block]:
    """The kernel calls that the queries of `mine` need for `key_ranges`, in the order of both."""
    runs, q = in_runs(key_ranges), 0
    for segment in mine:
        # The segment's own positions form a causal square, the keys before it a dense rectangle.
        wanted = ((range(segment.start, segment.stop), True), (range(segment.first, segment.start), False))
        k = 0
        for run in runs:
            for keys, causal in wanted:
                low, high = max(keys.start, run.start), min(keys.stop, run.stop)
                if low < high:
                    here = slice(k + low - run.start, k + high - run.start)
                    yield Block(slice(q, q + len(segment)), here, causal)
            k += len(run)
        q += len(segment)


# -- one block on torch's kernels ------------------------------------------------------------------

_aten = torch.ops.aten


def _kernel(q: Tensor) -> str:
    """cpu and meta: the CPU's flash kernel. cuda: flash in half precision, the memory-efficient one in
    float32, on GPUs before Ampere and past a head_dim of 256. Float64 on cuda, and other devices: plain
    matrix products, which do hold one block's [queries, keys] scores."""
    if q.device.type in ("cpu", "meta"):
        return "cpu"
    if q.device.type != "cuda" or q.dtype == torch.float64:
        return "plain"
    half = q.dtype in (torch.float16, torch.bfloat16)
    ampere = torch.cuda.get_device_capability(q.device) >= (8, 0)
    if half and ampere and q.shape[-1] <= 256:
        return "flash"
    return "efficient"


def block_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of q [b, h, n, d] to k, v [b, h_kv, m, d], with its log-sum-exp.

    causal: query i sees keys 0..i, n = m. Returns (out like q, lse [b, h, n]), lse in float32 at least.
    """
    kernel, n, d = _kernel(q), q.shape[2], q.shape[3]
    if kernel == "cpu":
        return _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    if kernel == "flash":
        q, k, v = map(_eights, (q, k, v))
        out, lse, *_ = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
        return out[..., :d], lse
    k, v = (_every_head(x, q.shape[1]) for x in (k, v))
    if kernel == "efficient":
        q, k, v = map(_eights, (q, k, v))
        out, lse, *_ = _aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, causal, scale=scale
        )
        return out[..., :d], lse[..., :n]
    scores = _scores(q, k, causal, scale)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp() @ v, lse


def block_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """This block's part of the gradients of q, k, v; `out` and `lse` are the merged ones of all blocks."""
    kernel, h_kv, d = _kernel(q), k.shape[1], q.shape[3]
    if kernel == "cpu":
        return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, scale=scale
        )
    lse = lse.contiguous()
    unused = torch.empty(2, dtype=torch.int64, device=q.device)  # the seed and offset of dropout
    if kernel == "flash":
        grad, q, k, v, out = map(_eights, (grad, q, k, v, out))
        made = _aten._scaled_dot_product_flash_attention_backward(
            *(grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, unused, unused[0]),
            scale=scale,
        )
        return tuple(x[..., :d] for x in made)
    k, v = (_every_head(x, q.shape[1]) for x in (k, v))
    if kernel == "efficient":
        grad, q, k, v, out = map(_eights, (grad, q, k, v, out))
        # Give this kernel `out` with the memory order [b, s, h, d], as its own forward does.
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
        lse = F.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf)  # as its own forward pads it
        dq, dk, dv, _ = _aten._scaled_dot_product_efficient_attention_backward(
            *(grad, q, k, v, None, out, lse, unused[0], unused[1], 0.0, (True, True, True, False), causal),
            scale=scale,
        )
    else:
        p = (_scores(q, k, causal, scale) - lse.unsqueeze(-1)).exp()
        # `out` is merged over all blocks, so grad · out is already the sum of p · dp over every key of a row
        # (FlashAttention, arXiv:2205.14135), and a block needs nothing of the others.
        ds = p * (grad @ v.mT - (grad * out).sum(-1, keepdim=True)) * scale
        dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ grad
    # The query heads of a group share one KV head, so its gradient is the sum of theirs.
    dk, dv = (x.unflatten(1, (h_kv, -1)).sum(2) for x in (dk, dv))
    return dq[..., :d], dk[..., :d], dv[..., :d]


def _eights(x: Tensor) -> Tensor:
    """Zero-pad head_dim to a multiple of 8, because the CUDA kernels require it."""
    if x.shape[-1] % 8:
        return F.pad(x, (0, -x.shape[-1] % 8))
    return x


def _every_head(x: Tensor, h: int) -> Tensor:
    """KV heads repeated once for each query head, for kernels without GQA."""
    return x.repeat_interleave(h // x.shape[1], 1)


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    scores = q @ k.mT * scale
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores


# -- a rank's blocks -------------------------------------------------------------------------------


def _heads_first(x: Tensor) -> Tensor:
    """[b, s, h, d] viewed as [b, h, s, d]. Kernels assume stride 1 along d and do not check it."""
    return (x if x.stride(-1) == 1 else x.contiguous()).transpose(1, 2)


def _merge(
    todo: Sequence[Block], scale: float, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, ...]:
    """Merge the results of the blocks into out [b, s, h, d] and lse [b, h, s], in place."""
    q, k, v = map(_heads_first, (q, k, v))
    for queries, keys, causal in todo:
        one, one_lse = block_forward(q[:, :, queries], k[:, :, keys], v[:, :, keys], causal, scale)
        old, old_lse = out[:, queries], lse[:, :, queries]
        # This factor is 1 for the first block, because old_lse is -inf.
        # A row's outputs are averaged by the sums of their exponentials: e^a / (e^a + e^b) is sigmoid(a -
        # b).
        weight = torch.sigmoid(one_lse - old_lse).mT.unsqueeze(-1)
        old.lerp_(one.transpose(1, 2).to(old.dtype), weight)
        old_lse.copy_(torch.logaddexp(old_lse, one_lse))
    return out, lse


def _spread(todo: Sequence[Block], scale: float, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Add the blocks' gradients to dq, dk, dv, in place. tensors: q, k, v, out, grad, lse, dq, dk, dv."""
    q, k, v, out, grad = map(_heads_first, tensors[:5])
    lse, *totals = tensors[5:]
    for queries, keys, causal in todo:
        mine, merged, dy, mine_lse = (x[:, :, queries] for x in (q, out, grad, lse))
        made = block_backward(dy, mine, k[:, :, keys], v[:, :, keys], merged, mine_lse, causal, scale)
        for total, where, part in zip(totals, (queries, keys, keys), made, strict=True):
            # Added, because every key is read by the queries of several blocks.
            total[:, where] += part.transpose(1, 2)
    return tuple(totals)


class Each(Protocol):
    """each(function, *tensors): calls function(coord, *tensors) for one rank, or for each of the tensors'."""

    def __call__(self, function: Callable[..., Own], *tensors: Tensor) -> Own: ...


def at(**coord: int) -> Each:
    """The `each` of a single rank at `coord` in the mesh: at(cp=3)."""
    return lambda function, *tensors: function(coord, *tensors)


@dataclass(frozen=True)
class _Plan:
    """Everything except tensors. todo: (coord, step, tokens of q, tokens of k) → the blocks of that step."""

    todo: Callable[[Coord, int, int, int], Sequence[Block]]
    each: Each
    scale: float
    steps: int = 1
    exchange: Callable[[Tensor], Tensor] = lambda x: x

    def run(
        self, arithmetic: Callable[..., tuple[Tensor, ...]], step: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute the step on each rank's own tensors; the first two are q and k."""

        def one(coord: Coord, *own: Tensor) -> tuple[Tensor, ...]:
            return arithmetic(self.todo(coord, step, own[0].shape[1], own[1].shape[1]), self.scale, *own)

        return self.each(one, *tensors)

    def next_keys(self, step: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The next step's keys, requested before this step's arithmetic so that the transfer overlaps it."""
        if step < self.steps - 1:
            return (self.exchange(k), self.exchange(v))
        return (k, v)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: _Plan) -> Tensor:
        ctx.plan = plan
        exact = at_least_float32(q.dtype)  # Merge bf16 and fp16 in float32.
        out = torch.zeros_like(q, dtype=exact, memory_format=torch.contiguous_format)
        lse = torch.full_like(q[..., 0].transpose(1, 2), -torch.inf, dtype=exact)
        now = k, v
        for step in range(plan.steps):
            following = plan.next_keys(step, *now)
            out, lse = plan.run(_merge, step, q, *now, out, lse)
            now = following
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan: _Plan = ctx.plan
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = (
            torch.zeros_like(x, dtype=lse.dtype, memory_format=torch.contiguous_format) for x in (q, k, v)
        )
        for step in range(plan.steps):
            following = plan.next_keys(step, k, v)
            dq, dk, dv = plan.run(_spread, step, q, k, v, out, grad, lse, dq, dk, dv)
            # Gradients travel with their keys; one more shift after the last step brings them home.
            if plan.steps > 1:
                dk, dv = plan.exchange(dk), plan.exchange(dv)
            k, v = following
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None


# -- what programs call ----------------------------------------------------------------------------


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Callable[[Coord], Sequence[Segment]],
    *,
    each: Each | None = None,
) -> Tensor:
    """Causal attention of a rank's queries to the keys of the whole sequence; returns a tensor like q.

    q: [batch, seq/cp, n_heads, head_dim], the rank's chunks one after another; k, v: [batch, seq, n_kv_heads,
    head_dim], in the order of the sequence. plan(coord): the `segments` of the rank's chunks, called again in
    the backward. each: calls a function of (coord, plain tensors) for the rank or ranks; by default once,
    with coord {}. The backward needs q, k, v and out, so these are kept. Raises LayoutError if the sizes do
    not fit.
    """

    def todo(coord: Coord, step: int, n_q: int, n_k: int) -> list[Block]:
        mine = plan(coord)
        # A plan past the last key gives more positions than keys, which `_fitting` refuses.
        return _fitting(mine, [range(max([n_k, *(segment.stop for segment in mine)]))], n_q, n_k)

    return _Attention.apply(q, k, v, _Plan(todo, each or at(), softmax_scale(q, k)))


def ring_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chunks: Sequence[Sequence[range]],
    exchange: Callable[[Tensor], Tensor],
    *,
    each: Each,
    documents: Sequence[int] | None = None,
    among: int = 1,
) -> Tensor:
    """`attend` by ring: keys and values pass around the CP ranks in `ring` steps; returns a tensor like q.

    q: [batch, seq/ring, n_heads, head_dim]; k, v: [batch, seq/ring, n_kv_heads, head_dim]. chunks: of the
    groups of `among` neighbours, which hold the same tokens; there are `ring` groups. At step i the rank at
    coord["cp"] holds the keys of the i-th group before its own. exchange: sends a tensor to the next group
    and returns the previous one's; called 2(ring - 1) times forward, for k and v, and, with several groups,
    2(2·ring - 1) times backward, for k, v and, in float32 at least, their gradients. each, documents: as
    in `attend` and `segments`.
    """
    ring = len(chunks)

    def todo(coord: Coord, step: int, n_q: int, n_k: int) -> list[Block]:
        group = coord["cp"] // among
        return _fitting(segments(chunks[group], documents), chunks[(group - step) % ring], n_q, n_k)

    return _Attention.apply(q, k, v, _Plan(todo, each, softmax_scale(q, k), ring, exchange))


def _fitting(mine: Sequence[Segment], key_ranges: Sequence[range], n_q: int, n_k: int) -> list[Block]:
    """The blocks of a step. Raises LayoutError unless its tensors have one token for each position."""
    for what, given, positions in (("queries", n_q, mine), ("keys", n_k, key_ranges)):
        if given != (wanted := sum(map(len, positions))):
            raise LayoutError(
                f"{given} {what} for positions of {wanted} tokens",
                "each token has one position in the sequence",
            )
    return list(blocks(mine, key_ranges))


def softmax_scale(q: Tensor, k: Tensor) -> float:
    """The softmax's scale, 1 / sqrt(head_dim), after a check that the heads fit."""
    h, h_kv, d = q.shape[2], k.shape[2], q.shape[3]
    if h_kv == 0 or h % h_kv:
        raise LayoutError(
            f"{h} query heads, {h_kv} KV heads", "each KV head serves the same number of query heads"
        )
    return d**-0.5
