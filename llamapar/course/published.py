"""Published runs beside what the library says of them."""

from __future__ import annotations

from typing import Any

import llamapar as lp

PRINTED = {"paper-8k-gpus": 430, "paper-16k-gpus": 400, "paper-131k-tokens": 380}
"""TFLOP/s of a GPU in Table 4 of the Llama 3 paper, by the names of `lp.JOBS`, which have its MFU."""

_FACTS = ("seq_len", "global_batch", "schedule", "layer_split")
"""What the paper says of a row beside its layout, as arguments of `lp.cost` and `lp.memory`."""


def table_4(**reading: Any) -> dict[str, lp.Cost]:
    """The rows of the Llama 3 paper's Table 4 by `lp.cost`, by the names of `lp.JOBS`.

    reading: arguments of `lp.cost` in place of what no source says of these runs. By default they have no
    recomputation, which is said of 8,192 tokens alone, and the attention of FlashAttention-2, with which the
    paper on their training compares (ISCA 2025, section 7.2).
    """
    return {
        name: lp.cost(
            ran.job.model,
            ran.job.layout,
            **{fact: getattr(ran.job, fact) for fact in _FACTS},
            **{"flash": "fa2", "recompute": "none"} | reading,
        )
        for name, ran in lp.JOBS.items()
    }


def table_4_memory() -> dict[str, lp.Memory]:
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
