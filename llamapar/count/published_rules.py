"""Published rules for the same memory, each as its authors wrote it: what other tools would say."""

from __future__ import annotations

from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.frameworks import padding_rule

from .terms import Breakdown, Term

_MEGATRON = "NVIDIA/Megatron-LM, megatron/training/theoretical_memory_usage.py @d98e8a64dd"
_ULTRASCALE = (
    "Ultra-Scale Playbook, nanotron/ultrascale-playbook @924e4d0b88: closed forms of its memory plots"
)


def _inputs(m: ModelConfig, lay: Layout, seq_len: int, micro_batch: int, padded: int) -> dict[str, float]:
    """Symbols of the papers: s, b, h, a, L, t, pp, v; g KV heads, d head_dim, f ffn_dim, V vocabulary."""
    sizes = {"h": m.dim, "a": m.n_heads, "g": m.n_kv_heads, "d": m.head_dim, "f": m.ffn_dim, "L": m.n_layers}
    ways = {"t": lay.tp, "pp": lay.pp, "dp": lay.dp, "v": lay.virtual_stages, "c": lay.cp}
    return {"s": seq_len, "b": micro_batch, **sizes, **ways, "V": padded}


def megatron(
    m: ModelConfig, lay: Layout, seq_len: int, micro_batch: int, micro_batches: int, recompute: str
) -> Breakdown:
    """Megatron-LM's theoretical report, for its most loaded shard. It knows neither cp nor uneven stages.

    Under sequence parallelism with selective recomputation (at tp=1 too) activations are table 2's. In every
    other case they are those "without SP", with its factor 1.05. zero=0: without its distributed optimizer.
    """
    inputs = _inputs(m, lay, seq_len, micro_batch, padding_rule("megatron").padded(m.vocab_size, lay.tp))
    inputs["m"] = micro_batches
    # The formulas keep each author's form, so that the totals are those that their own tools print.
    matmuls = "L * (3 * h * f + 2 * h * a * d * (1 + g / a))"
    norms = "(2 * L + 1) * h"
    ends = "2 * V * h" if lay.pp == 1 and not m.tied else "V * h"
    # 18 bytes a parameter: 2 weight, 4 gradient, 4 master, 8 Adam; the distributed optimizer cuts the
    # last 12 by dp.
    each = "(6 + 12 / dp)" if lay.zero else "18"
    terms = [
        Term(
            "weights and optimizer",
            f"(({matmuls} / pp + {ends}) / t + {norms} / pp) * {each}",
            inputs,
            _MEGATRON,
        )
    ]
    if lay.virtual_stages > 1:
        flying = "(1 + (pp - 1) / (pp * v))"
    else:
        # Fewer micro-batches than stages cannot fill the pipeline.
        flying = "min(1, m / pp)" if lay.pp > 1 else "1"
    ends = "8 * s * b * pp + s * b * h * pp"
    if recompute == "selective" and (lay.sp or lay.tp == 1):
        layers = f"(L * s * b * h * (18 + 4 * f / h) + {ends}) * {flying} / t"
        logits = "4 * s * b * h * (1 + V / h) / t"
    else:
        layers = f"1.05 * (L * s * b * h * (10 + 24 / t) + {ends}) * {flying}"
        logits = "1.05 * 2 * (s * b * V / t + s * b * h)"
    terms.append(Term("activations", layers, inputs, _MEGATRON))
    if lay.pp == 1:
        terms.append(Term("logits and loss", logits, inputs, _MEGATRON))
    return Breakdown(0, tuple(terms))


def ultrascale(m: ModelConfig, lay: Layout, seq_len: int, micro_batch: int, recompute: str) -> Breakdown:
    """The Ultra-Scale Playbook's plots: 34·s·b·h a layer; 2, 2 and 8 bytes a weight; nothing for norms.

    Activations are divided by tp and cp; the rest by tp and pp, and by dp according to ZeRO.
    """
    inputs = _inputs(m, lay, seq_len, micro_batch, m.vocab_size) | {"shard": lay.dp_shard * lay.cp}
    inputs["matrices"] = m.n_params - (2 * m.n_layers + 1) * m.dim
    each = "34 / t" if lay.sp else "10 + 24 / t"
    layers = f"L * s / c * b * h * {'2' if recompute == 'full' else f'({each})'}"
    over = {name: " / shard" if lay.zero >= stage else "" for name, stage in (("p", 3), ("g", 2), ("o", 1))}
    terms = (
        Term("parameters", f"2 * matrices / (t * pp){over['p']}", inputs, _ULTRASCALE),
        Term("gradients", f"2 * matrices / (t * pp){over['g']}", inputs, _ULTRASCALE),
        Term("optimizer states", f"8 * matrices / (t * pp){over['o']}", inputs, _ULTRASCALE),
        Term("activations", layers, inputs, _ULTRASCALE),
    )
    return Breakdown(0, terms)
