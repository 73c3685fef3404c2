"""What autograd keeps of a Llama block for the backward, tensor by tensor.

kernels="eager" is this project's own programs (llamapar/programs), operation by operation; torch keeps
exactly these bytes. kernels="fused" is the same block with RMSNorm and RoPE as one kernel each, as in GPU
training frameworks: RMSNorm keeps its input and one number a row, RoPE keeps nothing.

Names in formulas are those of `Sizes.activations`. Selective recomputation is counted with one call of
attention. A CP rank of ours makes three (two squares and a rectangle), and each would be kept.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from llamapar.describe.models import ModelConfig
from llamapar.describe.options import offer

from .flops import layer_numel

KERNELS = ("eager", "fused")
RECOMPUTE = ("none", "selective", "full")
offer("recompute", RECOMPUTE)

_OWN = "llamapar/programs, saved_tensors_hooks"
_FUSED = "arXiv:2205.05198 section 4.1 with SwiGLU, RMSNorm and flash attention (arXiv:2205.14135)"
SELECTIVE_SOURCE = (
    "torchtitan's policy: outputs of attention, of reduce-scatters and of every second matmul are kept "
    "(pytorch/torchtitan, torchtitan/parallelisms/parallelize_llama.py @004b3148a9)"
)
FULL_SOURCE = "arXiv:2205.05198 section 5: a recomputed layer keeps its input"


class Saved(NamedTuple):
    """The saved tensors of one part of a layer, or of one end of the model, in bytes for one micro-batch."""

    part: str
    formula: str
    source: str


_NORM = {"eager": "residual * wide + residual * item + rows * wide", "fused": "residual * item + rows * 4"}
"""RMSNorm. eager: x in float32 (x itself if it is), the normalised x, and 1/rms. fused: x and 1/rms."""

_COLUMN = {
    # matmuls of a gathered batch of several sequences fold it by a copy each
    "eager": "column * item * (1 + {more} * folds)",
    "fused": "column * item",
}

_SWIGLU = {"eager": " + 4 * ffn * item", "fused": " + kept * ffn * item"}
"""Gate, up and their product; and SiLU's output unless it is computed again."""

_SAVED: dict[str, tuple[Saved, ...]] = {
    kernels: (
        Saved("norms", f"2 * ({_NORM[kernels]})", source),
        Saved(
            "attention",
            _COLUMN[kernels].format(more=2)
            + " + (2 * q + 2 * keys + back) * item + lse * wide"
            + (" + 2 * rope * wide" if kernels == "eager" else "")
            + " + copies * item",
            source,
        ),
        Saved("MLP", _COLUMN[kernels].format(more=1) + _SWIGLU[kernels], source),
    )
    for kernels, source in (("eager", _OWN), ("fused", _FUSED))
}

_QK_NORMS = {
    ("eager", False): Saved("QK norms", "(q + k) * (wide + item) + (lse + lse * k / q) * wide", _OWN),
    ("fused", False): Saved("QK norms", "(q + k) * item + (lse + lse * k / q) * 4", _FUSED),
    ("eager", True): Saved("QK norms", "(q + k) * (wide + item) + 2 * rows * wide", _OWN),
    ("fused", True): Saved("QK norms", "(q + k) * item + 2 * rows * 4", _FUSED),
}
"""(kernels, over the whole width) → the norms of Q and of K: over each head in Qwen3, whole in OLMo 2.

k / q: KV heads per query head.
"""

_SELECTIVE: tuple[Saved, ...] = (
    Saved("layer inputs", "residual * item", FULL_SOURCE),
    Saved(
        "attention", "(2 * q + k + back) * item + lse * wide + residual * item * (gathered > residual)", ""
    ),
    Saved("MLP", "(ffn + gathered) * item + residual * item * (gathered > residual)", ""),
)

_ENDS = {
    "embedding": {"eager": "tokens * 9", "fused": "tokens * 9"},  # int64 rows, and which are other ranks'
    "head": {kernels: f"{_NORM[kernels]} + column * item" for kernels in KERNELS},
    "loss": {"eager": "2 * logits * wide + columns + tokens * (wide + 9)", "fused": "logits * wide"},
}
"""eager loss: float32 logits, their exponentials, a mask of pad columns; per token the sum and whose row."""


@cache
def kept_of_layer(kernels: str, recompute: str, model: ModelConfig | None) -> tuple[Saved, ...]:
    """What is kept of one layer, part by part; without a model of one that has Llama's two norms.

    Of a mixture, without its experts, and without MLA.
    """
    if recompute == "full":
        return _SELECTIVE[:1]
    judged = slice(3)
    if model and model.experts:
        judged = slice(1 if model.experts.latent else 2)
    if recompute == "selective":
        return tuple(row._replace(source=row.source or SELECTIVE_SOURCE) for row in _SELECTIVE[judged])
    # OLMo's norms have no weights and keep their inputs all the same.
    norms = (layer_numel(model)["norm"] // model.dim if model else 0) or 2
    first, *others = _SAVED[kernels][judged]
    every = first._replace(formula=f"{norms} * ({_NORM[kernels]})"), *others
    if model and model.qk_norm:
        return (*every, _QK_NORMS[kernels, model.norms_width])
    return every


def kept_of_end(name: str, kernels: str) -> Saved:
    """What is kept of the "embedding", the "head" (final norm and its matmul's input) or the "loss"."""
    return Saved(name, _ENDS[name][kernels], _OWN if kernels == "eager" else _FUSED)
