"""Modules that a user could bring, the plans that cut them, and the slips in those plans.

`Decoder` is cut by hand: `cut_by_hand` narrows its weights and gives its parts the mesh, on which their
forward then communicates. Each slip is one wrong line, chosen by name before the bisection was first run.
`TitanBlock` is written after torchtitan's Llama 3 block, with the rotary table as a complex buffer:
pytorch/torchtitan, torchtitan/models/llama3/model.py and models/common/{attention,feed_forward,rope}.py at
commit b5bcd76c66d0acb1a08b176d9639425bc55e0b2a; its plan follows models/llama3/sharding.py there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 32, 4, 2, 8, 48, 64


class _Reduce(torch.autograd.Function):
    """All-reduce in the forward, in the backward, or in both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, forward: bool, backward: bool) -> Tensor:
        ctx.group, ctx.backward = group, backward
        return _summed(x, group) if forward else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return (_summed(dy, ctx.group) if ctx.backward else dy), None, None, None


def _summed(x: Tensor, group: Any) -> Tensor:
    x = x.clone().contiguous()
    dist.all_reduce(x, group=group)
    return x


class _Gather(torch.autograd.Function):
    """All-gather of the last dim in the forward, its own piece in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh, turned: bool) -> Tensor:
        ctx.mesh, ctx.n = mesh, x.shape[-1]
        parts = [torch.empty_like(x) for _ in range(mesh["tp"].size())]
        dist.all_gather(parts, x.contiguous(), group=mesh.get_group("tp"))
        return torch.cat(parts[::-1] if turned else parts, -1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return dy.narrow(-1, ctx.mesh.get_local_rank("tp") * ctx.n, ctx.n), None, None


class Part(nn.Module):
    """A part that communicates once it has a mesh. slip: what it does wrong."""

    mesh: DeviceMesh | None = None
    slip = ""

    def reduce(self, x: Tensor, forward: bool = False, backward: bool = False) -> Tensor:
        if self.mesh is None:
            return x
        return _Reduce.apply(x, self.mesh.get_group("tp"), forward, backward)


class Attention(Part):
    """Grouped-query attention with a norm of each head's queries."""

    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(DIM, HEADS * HEAD_DIM, bias=False)
        self.wk, self.wv = (nn.Linear(DIM, KV_HEADS * HEAD_DIM, bias=False) for _ in range(2))
        self.q_norm = nn.RMSNorm(HEAD_DIM)
        self.wo = nn.Linear(HEADS * HEAD_DIM, DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        x = self.reduce(x, backward=self.slip != "no sum on the way back")
        q, k, v = (w(x).view(batch, seq, -1, HEAD_DIM).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q = self.q_norm(q)
        if self.slip == "first KV head for all":
            k = k[:, :1].expand_as(k) if k.shape[1] > 1 else k.roll(1, -1)
        scale = (q.shape[1] * HEAD_DIM) ** -0.5 if self.slip == "scale of the rank" else HEAD_DIM**-0.5
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        y = self.wo(y.transpose(1, 2).reshape(batch, seq, -1))
        return self.reduce(y, forward=self.slip != "no sum")


class Mlp(Part):
    """SwiGLU whose gate and up weights are one tensor, the gate's rows first."""

    def __init__(self) -> None:
        super().__init__()
        self.w13 = nn.Linear(DIM, 2 * FFN, bias=False)
        self.w2 = nn.Linear(FFN, DIM)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w13(self.reduce(x, backward=True)).chunk(2, -1)
        hidden = nn.functional.silu(gate) * up
        if self.mesh is None or self.slip == "bias on every rank":
            return self.reduce(self.w2(hidden), forward=True)
        y = nn.functional.linear(hidden, self.w2.weight)
        y = self.reduce(y, forward=self.slip != "no sum", backward=self.slip == "sum on the way back too")
        return y + self.w2.bias


class Embedding(Part):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCAB, DIM))

    def forward(self, tokens: Tensor) -> Tensor:
        if self.mesh is None:
            return nn.functional.embedding(tokens, self.weight)
        rows = self.weight.shape[0]
        own = tokens - self.mesh.get_local_rank("tp") * rows
        last = rows - 1 if self.slip == "last row missed" else rows
        there = (own >= 0) & (own < last)
        found = nn.functional.embedding(own.clamp(0, rows - 1), self.weight) * there.unsqueeze(-1)
        return self.reduce(found, forward=True)


class Head(Part):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCAB, DIM) / 6)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.linear(self.reduce(x, backward=True), self.weight)
        return y if self.mesh is None else _Gather.apply(y, self.mesh, self.slip == "gathered backwards")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.ffn_norm(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.output = Embedding(), nn.RMSNorm(DIM), Head()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def cut_by_hand(module: nn.Module, mesh: DeviceMesh, at: str = "", slip: str = "") -> None:
    """Cut a Decoder over tp. at: the part that does `slip`."""
    rank, ranks = mesh.get_local_rank("tp"), mesh["tp"].size()

    def cut(owner: nn.Module, dim: int, wrong: str = "", blocks: int = 1) -> None:
        whole = owner.get_parameter("weight").detach()
        n = whole.shape[dim] // ranks // blocks
        start = rank * n
        if wrong == "slice off by one":
            start = rank * (n - 1)
        if wrong == "pieces swapped":
            start = (ranks - 1 - rank) * n
        width = whole.shape[dim] // blocks
        pieces = [whole.narrow(dim, b * width + start, n) for b in range(blocks)]
        owner.weight = nn.Parameter(torch.cat(pieces, dim))

    for name, part in module.named_modules():
        if isinstance(part, Part):
            part.mesh, part.slip = mesh, slip if name == at else ""
        own = slip if at == name else ""
        if name == at and slip == "another eps":
            vars(part)["eps"] = 0.1
        if isinstance(part, Embedding | Head):
            cut(part, 0)
        elif name.endswith("w13"):
            cut(part, 0, blocks=1 if own == "gate and up not split" else 2)
        elif name.endswith(("wq", "wk", "wv")):
            cut(part, 0, own)
        elif name.endswith(("wo", "w2")):
            cut(part, 1)
        elif name.endswith("q_norm") and own != "gradient not summed":
            # Each rank's gradient covers its own heads.
            part.weight.register_hook(partial(_summed, group=mesh.get_group("tp")))


# -- the same by torch's parallelize_module --------------------------------------------------------


class PlainBlock(nn.Module):
    """A block of plain layers, without a word about ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.attention = Attention()
        self.w1, self.w3, self.w2 = nn.Linear(DIM, FFN), nn.Linear(DIM, FFN), nn.Linear(FFN, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        h = self.ffn_norm(x)
        return x + self.w2(nn.functional.silu(self.w1(h)) * self.w3(h))


class Plain(nn.Module):
    """tied: the head's weight is the embedding's. dropout: its probability after each block."""

    def __init__(self, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCAB, DIM), nn.RMSNorm(DIM)
        self.output = nn.Linear(DIM, VOCAB, bias=False)
        self.layers = nn.ModuleList([PlainBlock()])
        self.drop = nn.Dropout(dropout)
        self.register_buffer("scale", torch.ones(1))
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * self.scale
        for layer in self.layers:
            x = self.drop(layer(x))
        return self.output(self.norm(x))


def plan_of_plain(sequence_parallel: bool = True, **instead: Any) -> dict[str, Any]:
    """The plan for `Plain`, the residual stream cut over the sequence. instead: "layers__0__w1" → its style;
    None leaves it out.
    """
    stream = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "output": ColwiseParallel(input_layouts=stream, output_layouts=Replicate()),
    }
    at = "layers.0"
    plan |= {f"{at}.attention.{w}": ColwiseParallel() for w in ("wq", "wk", "wv")}
    plan |= {f"{at}.{w}": ColwiseParallel(input_layouts=stream) for w in ("w1", "w3")}
    plan |= {f"{at}.{w}": RowwiseParallel(output_layouts=stream) for w in ("attention.wo", "w2")}
    plan[f"{at}.attention.q_norm"] = SequenceParallel(sequence_dim=1, use_local_output=True)
    if sequence_parallel:
        plan[f"{at}.attention"] = PrepareModuleInput(
            input_layouts=(stream,), desired_input_layouts=(Replicate(),)
        )
        plan |= {name: SequenceParallel() for name in ("norm", f"{at}.attention_norm", f"{at}.ffn_norm")}
    for name, style in instead.items():
        plan[name.replace("__", ".")] = style
    return {name: style for name, style in plan.items() if style is not None}


# -- after torchtitan ------------------------------------------------------------------------------


class TitanAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(DIM, HEADS * HEAD_DIM, bias=False)
        self.wk, self.wv = (nn.Linear(DIM, KV_HEADS * HEAD_DIM, bias=False) for _ in range(2))
        self.wo = nn.Linear(HEADS * HEAD_DIM, DIM, bias=False)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        q, k, v = (w(x).view(batch, seq, -1, HEAD_DIM) for w in (self.wq, self.wk, self.wv))

        def turned(t: Tensor) -> Tensor:
            pairs = torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * freqs_cis[:seq, None]).flatten(3).type_as(t)

        q, k, v = (t.transpose(1, 2) for t in (turned(q), turned(k), v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(batch, seq, -1))


class TitanFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(DIM, FFN, bias=False), nn.Linear(DIM, FFN, bias=False)
        self.w2 = nn.Linear(FFN, DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class TitanBlock(nn.Module):
    """x [batch, seq, dim] → the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = TitanAttention(), TitanFeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        angles = torch.outer(torch.arange(64), 10000.0 ** -torch.arange(0, 1, 2 / HEAD_DIM))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), self.freqs_cis)
        return x + self.feed_forward(self.ffn_norm(x))


TITAN_PLAN = {
    "attention_norm": SequenceParallel(),
    "attention": PrepareModuleInput(
        input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
    ),
    **{f"attention.{w}": ColwiseParallel() for w in ("wq", "wk", "wv")},
    "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    "ffn_norm": SequenceParallel(),
    "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "feed_forward.w1": ColwiseParallel(),
    "feed_forward.w3": ColwiseParallel(),
    "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
}


class TitanModel(nn.Module):
    """The block between an embedding and a head, as it stands in a model."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings, self.norm = nn.Embedding(VOCAB, DIM), nn.RMSNorm(DIM)
        self.layers = nn.ModuleDict({"0": TitanBlock()})
        self.output = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.norm(self.layers["0"](self.tok_embeddings(tokens))))


TITAN_MODEL_PLAN = {
    "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
} | {f"layers.0.{name}": style for name, style in TITAN_PLAN.items()}


# -- slips -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Slip:
    """make, plan: what is run. named: the submodules that are a right answer."""

    name: str
    make: Callable[[], nn.Module]
    plan: Any
    named: tuple[str, ...]


def _hand(name: str, at: str, slip: str, *also: str) -> Slip:
    return Slip(name, Decoder, partial(cut_by_hand, at=at, slip=slip), (at, *also))


def _plain(name: str, at: str, sequence_parallel: bool = True, **instead: Any) -> Slip:
    return Slip(name, Plain, plan_of_plain(sequence_parallel, **instead), (at,))


ASKED = (
    _hand("a forgotten all-reduce", "layers.1.attention", "no sum"),
    _plain("rowwise for colwise", "layers.0.w1", False, layers__0__w1=RowwiseParallel()),
    _hand("a slice off by one", "layers.0.attention.wk", "slice off by one"),
    _hand("a gradient not summed", "layers.0.attention.q_norm", "gradient not summed"),
)
"""A slip of each kind that the issue asks for."""

OWN = (
    _hand("no all-reduce after the MLP", "layers.0.mlp", "no sum"),
    _hand("no all-reduce backward", "layers.1.attention", "no sum on the way back"),
    _hand("swapped pieces of wv", "layers.1.attention.wv", "pieces swapped", "layers.1.attention"),
    _hand("the scale of a rank's width", "layers.0.attention", "scale of the rank"),
    _hand("a bias on every rank", "layers.0.mlp", "bias on every rank", "layers.0.mlp.w2"),
    _hand("one KV head for all", "layers.1.attention", "first KV head for all"),
    _hand("the last row of a shard missed", "embedding", "last row missed"),
    _hand("logits gathered backwards", "output", "gathered backwards"),
    _plain("a norm without its style", "layers.0.attention_norm", layers__0__attention_norm=None),
    _hand("gradients twice as large", "layers.1.mlp", "sum on the way back too"),
    _hand("another eps in a norm", "layers.1.ffn_norm", "another eps"),
    _hand("gate and up cut as one", "layers.0.mlp.w13", "gate and up not split", "layers.0.mlp"),
)
"""Twelve more, written before the bisection was first run."""
