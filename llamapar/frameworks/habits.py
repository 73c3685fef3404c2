"""How trainers use memory, as data: what each keeps, gathers and buffers, with the code that says so."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Source


@dataclass(frozen=True)
class Habits:
    """What a trainer does with memory; None where its code leaves the choice to a run's settings.

    regather: under sequence parallelism the inputs of column-parallel matmuls are gathered again in the
        backward, rather than kept.
    sources: where each of them stands, by the name of the field.
    """

    regather: bool | None
    sources: dict[str, Source]


UNKNOWN_TRAINER = Habits(regather=None, sources={})
"""Nothing is known: every choice is open."""

HABITS: dict[str, Habits] = {
    "megatron-lm": Habits(
        regather=True,
        sources={
            "regather": Source(
                "NVIDIA/Megatron-LM",
                "megatron/core/tensor_parallel/layers.py",
                "d98e8a64ddf34856e74b24714e3bedb2f5a39553",
            ),
        },
    ),
    "torchtitan": Habits(
        regather=False,
        sources={
            "regather": Source(
                "pytorch/torchtitan",
                "torchtitan/parallelisms/parallelize_llama.py",
                "004b3148a9",
            ),
        },
    ),
}
"""Framework → its habits."""
