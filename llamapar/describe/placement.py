"""THE placement table: which axis cuts which tensor on which dim.

This is the only place that says so. Checks, memory, execution, checkpoints and pictures read it.
"""

from __future__ import annotations

from dataclasses import dataclass

# -- placements --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """The tensor is cut along dim `dim`, in units of `unit`."""

    dim: int
    unit: str

    def __str__(self) -> str:
        return f"Shard({self.dim}) by {self.unit}"


@dataclass(frozen=True)
class Replicate:
    """Every rank of the axis holds the whole tensor."""

    def __str__(self) -> str:
        return "Replicate"


@dataclass(frozen=True)
class Partial:
    """Every rank of the axis holds a summand; an all-reduce or reduce-scatter adds them up."""

    def __str__(self) -> str:
        return "Partial(sum)"


Placement = Shard | Replicate | Partial

REPLICATED = Replicate()

PARAMETERS: dict[str, Placement] = {
    "tok_embeddings": Shard(0, "vocabulary row"),
    "wq": Shard(0, "query head"),
    "wk": Shard(0, "KV head"),
    "wv": Shard(0, "KV head"),
    "bq": Shard(0, "query head"),
    "bk": Shard(0, "KV head"),
    "bv": Shard(0, "KV head"),
    "wo": Shard(1, "query head"),
    "bo": REPLICATED,
    "w1": Shard(0, "FFN column"),
    "w3": Shard(0, "FFN column"),
    "w2": Shard(1, "FFN column"),
    "norm": REPLICATED,
    "q_norm": REPLICATED,
    "k_norm": REPLICATED,
    "output": Shard(0, "vocabulary row"),
}
"""How TP places each kind of parameter; keys are `model.Parameter.key`.

CP replicates every parameter, PP gives each stage whole layers, and DP shares optimizer state,
gradients or parameters by ZeRO stage over dp_shard x cp (The Llama 3 Herd of Models, section 3.3.2;
Megatron-LM, arXiv:1909.08053, section 3, for the column and row split).
"""

KV_PARAMETERS = tuple(key for key, placed in PARAMETERS.items() if placed == Shard(0, "KV head"))
"""Keys of the parameters with KV heads as rows; several ranks may hold copies of these."""

BESIDE = {"wq": ("bq", "q_norm"), "wk": ("bk", "k_norm"), "wv": ("bv",), "wo": ("bo",)}
"""Weight → the biases and norms beside it, which only some models have: biases Qwen2, norms Qwen3."""

HEAD_NORMS = ("q_norm", "k_norm")
"""Norms that TP replicates and that each rank applies to its own heads."""

COUNTED_IN = {
    "query head": "q_dim",
    "KV head": "kv_dim",
    "FFN column": "ffn_dim",
    "vocabulary row": "vocab_size",
    "embedding column": "dim",
}
"""Unit of a cut → the model's number of rows or columns along that dim."""


@dataclass(frozen=True)
class Activation:
    """An activation's dims, and its placement on each axis; `tp_sp` is TP's under sequence parallelism."""

    dims: tuple[str, ...]
    tp: Placement
    tp_sp: Placement
    cp: Placement
    dp: Placement = Shard(0, "sequence of the batch")


_CHUNK = Shard(1, "sequence chunk")
_TOKEN = Shard(1, "token")

ACTIVATIONS: dict[str, Activation] = {
    "tokens": Activation(("batch", "seq"), REPLICATED, REPLICATED, _CHUNK),
    "residual": Activation(("batch", "seq", "dim"), REPLICATED, _TOKEN, _CHUNK),
    "q": Activation(
        ("batch", "seq", "n_heads", "head_dim"),
        Shard(2, "query head"),
        Shard(2, "query head"),
        _CHUNK,
    ),
    "k": Activation(
        ("batch", "seq", "n_kv_heads", "head_dim"), Shard(2, "KV head"), Shard(2, "KV head"), _CHUNK
    ),
    "v": Activation(
        ("batch", "seq", "n_kv_heads", "head_dim"), Shard(2, "KV head"), Shard(2, "KV head"), _CHUNK
    ),
    "ffn": Activation(("batch", "seq", "ffn_dim"), Shard(2, "FFN column"), Shard(2, "FFN column"), _CHUNK),
    "row_parallel_out": Activation(("batch", "seq", "dim"), Partial(), Partial(), _CHUNK),
    "logits": Activation(
        ("batch", "seq", "vocab_size"),
        Shard(2, "vocabulary row"),
        Shard(2, "vocabulary row"),
        _CHUNK,
    ),
    "loss": Activation(("batch",), REPLICATED, REPLICATED, REPLICATED),
}
"""How each axis places the activations of one pipeline stage."""
