"""Published runs beside what the library says of them."""

from __future__ import annotations

import llamapar as lp
from llamapar.count import Memory
from llamapar.timing.cost import Cost

PRINTED = {"paper-8k-gpus": 430, "paper-16k-gpus": 400, "paper-131k-tokens": 380}
"""TFLOP/s of a GPU in Table 4 of the Llama 3 paper, by the names of `lp.JOBS`, which have its MFU."""

_FACTS = ("seq_len", "global_batch", "schedule", "layer_split")
"""What the paper says of a row beside its layout, as arguments of `lp.cost` and `lp.memory`."""


def table_4(*, flash: str = "fa2", flops: str = "causal") -> dict[str, Cost]:
    """The rows of the Llama 3 paper's Table 4 by `lp.cost`, by the names of `lp.JOBS`.

    flash, flops: what no source says of these runs, as in `lp.cost`. By default the attention is that of
    FlashAttention-2, with which the paper on their training compares (ISCA 2025, section 7.2). Nothing is
    recomputed, which is said of 8,192 tokens alone.
    """
    return {
        name: lp.cost(
            ran.job.model,
            ran.job.layout,
            **{fact: getattr(ran.job, fact) for fact in _FACTS},
            recompute="none",
            flash=flash,
            flops=flops,
        )
        for name, ran in lp.JOBS.items()
    }


def table_4_memory() -> dict[str, Memory]:
    """The rows of the Llama 3 paper's Table 4 by `lp.memory`, by the names of `lp.JOBS`."""
    return {
        name: lp.memory(
            ran.job.model,
            ran.job.layout,
            **{fact: getattr(ran.job, fact) for fact in _FACTS},
            recompute=ran.job.recompute,
            framework=ran.framework,
        )
        for name, ran in lp.JOBS.items()
    }
