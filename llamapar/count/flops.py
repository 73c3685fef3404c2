"""FLOPs of a training step per token: matmuls, causal attention, and what is computed again."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from llamapar.describe.models import ModelConfig

AGAIN = {
    "none": frozenset[str](),
    "selective": frozenset({"wk", "wo", "w3"}),
    "full": frozenset({"wq", "wk", "wv", "wo", "w1", "w2", "w3", "attention"}),
}
"""Recomputation → the parts of a layer that are computed again.

Selective is torchtitan's: every second matmul (pytorch/torchtitan,
torchtitan/parallelisms/parallelize_llama.py @004b3148a9); attention's output is kept.
"""


@lru_cache(maxsize=256)
def layer_numel(model: ModelConfig) -> Counter[str]:
    """Parameters of one layer, by key; both norms share a key."""
    found = Counter[str]()
    for p in model.replace(n_layers=1).parameters():
        if p.layer is not None:
            found[p.key] += p.numel
    return found


def flops_a_token(model: ModelConfig, seq_len: int, recompute: str) -> float:
    """FLOPs of a step per token: forward, backward, and recomputation.

    A matmul takes 2 FLOPs a parameter; causal attention 2·seq_len·q_dim in all, half of the square. The
    backward takes twice the forward (arXiv:2104.04473 appendix).
    """
    matmuls = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
    layer: dict[str, float] = {key: 2.0 * layer_numel(model)[key] for key in matmuls}
    layer["attention"] = 2.0 * seq_len * model.q_dim
    again = sum(layer[key] for key in AGAIN[recompute])
    # 3: the forward once and the backward twice as much. The output layer is one more matmul, 3 · 2 FLOPs
    # a parameter, and is not computed again.
    return model.n_layers * (3 * sum(layer.values()) + again) + 6.0 * model.dim * model.vocab_size
