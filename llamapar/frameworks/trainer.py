"""What a trainer may do with memory, as a record: every choice that `memory` counts by, open or known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llamapar.describe.configfile import Values

from .base import Source

EACH, LAST, LAST_IN_PIPELINE = "each", "last", "last in a pipeline"
"""When gradients that ranks share become shards, where a step has several micro-batches: after each of them,
after the last one of a stage, or in a pipeline after the last one and else after each."""


@dataclass(frozen=True)
class Habits:
    """What a trainer does with memory; None where it is not known, or a run's own settings decide.

    regather: under sequence parallelism the inputs of column-parallel matmuls are gathered again in the
        backward, rather than kept.
    silu_kept: the backward of SwiGLU keeps SiLU's output, rather than computing it again.
    elementwise_kept: outputs of norms and SwiGLU's product are kept for the matmuls that read them, rather
        than computed again.
    gradients_stay: gradients are buffers that stay between steps; else the first micro-batch of a step finds
        none, and they come as activations go.
    step_copies: the optimizer's step makes so many copies of the size of its parameters, as torch's foreach
        does one.
    loss: one of `losses.LOSSES`; where tp > 1 `tp_loss`.
    selective: what "selective" recomputation computes again: "matmuls", every second of them and norms,
        "attention" alone, of which flash attention keeps nothing more anyway, or "elementwise", all but
        matmuls and attention.
    grads_in_dtype: sums of gradients are in the dtype of parameters, not in float32.
    master_weights: float32 ones and states beside parameters of fewer bits; else all is in their dtype.
    step_gradients: what the optimizer's step makes of a rank's own gradients, as a formula of own, item, wide
        and zero; all others and the reduction's buffers are gone by then.
    bucket: numbers in the buffers of a gradient reduction.
    overlaps: whether those are two, of which one is reduced while the other fills, below ZeRO 3 too.
    live: most parameters that ZeRO 3 keeps gathered; 0: those of two layers.
    merged_qkv: without GQA Q stays a view of the merged Q, K and V, beside K and V of their own (flash-attn's
        rotary works in place on Q).
    merged_v: without GQA V stays a view of the merged Q, K and V, beside Q and K of their own, unless a
        compiler parts them.
    transposes: of several sequences the output of attention is transposed by a copy.
    repeats_kv: K and V are repeated for every query head before attention, which keeps them so.
    reduces_after: under ZeRO 1 gradients are reduced whole, in one collective once the last backward has
        ended, and parameters gathered in one before the next step, which is then copied apart: for every
        tensor as many pieces as ranks share it. 0, or the tensors of a layer.
    reduces: when gradients are reduced under ZeRO 2 and 3: EACH, LAST or LAST_IN_PIPELINE.
    unreduced_in_dtype: until then they are in the dtype of parameters, not in that of the sums.
    sources: where each of them stands, by the name of the field.
    """

    regather: bool | None = None
    silu_kept: bool | None = None
    elementwise_kept: bool | None = None
    gradients_stay: bool | None = None
    step_copies: int | None = None
    loss: str | None = None
    tp_loss: str | None = None
    selective: str = "matmuls"
    grads_in_dtype: bool = False
    master_weights: bool = True
    step_gradients: str = ""
    bucket: int = 0
    overlaps: bool = True
    live: int = 0
    merged_qkv: bool = False
    merged_v: bool = False
    transposes: bool = False
    repeats_kv: bool = False
    reduces_after: int = 0
    reduces: str | None = None
    unreduced_in_dtype: bool = False
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False)

    def source(self, name: str) -> str:
        """Where a choice stands, as text."""
        return str(self.sources.get(name, ""))

    @property
    def open(self) -> tuple[str, ...]:
        """The choices that are not known."""
        return tuple(name for name in LEAST if getattr(self, name) is None)

    def reduces_once(self, pp: int) -> bool:
        """Whether a stage's gradients under ZeRO 2 and 3 stay whole until its last micro-batch, and travel
        once in a step; else each micro-batch's are reduced to shards at once, and as often.

        Of a trainer that is not known as of MOST, torch's pipelining and torchtitan, and as `run` does.
        """
        reduces = self.reduces or MOST["reduces"]
        return reduces == LAST or (reduces == LAST_IN_PIPELINE and pp > 1)

    def reductions(self, pp: int, zero: int) -> str:
        """The same in words, of a pipeline under ZeRO 2 or 3."""
        whole = "whole until a stage's last micro-batch, so they take the memory of ZeRO 1's"
        if self.reduces is None:
            found = f"torch's pipelining keeps gradients {whole}; other trainers reduce each micro-batch's"
        elif self.reduces_once(pp):
            found = f"gradients stay {whole}"
        else:
            found = "gradients are reduced after every micro-batch, not once a step"
        return f"{found}; parameters are gathered for every micro-batch" if zero == 3 else found

    def under(self, recompute: str) -> tuple[Habits, str]:
        """These, and a mode of recomputation, where "selective" is one of the others with its own choices."""
        if recompute != "selective" or self.selective == "matmuls":
            return self, recompute
        again = {"regather": True, "silu_kept": False, "elementwise_kept": False}
        return (replace(self, **Values(again)) if self.selective == "elementwise" else self), "none"

    def least(self) -> Habits:
        """With every open choice as it takes least memory."""
        return replace(self, **Values({name: LEAST[name] for name in self.open}))

    def most(self) -> Habits:
        """With every open choice as it takes most."""
        return replace(self, **Values({name: MOST[name] for name in self.open}))


LEAST: dict[str, bool | int | str] = {
    "regather": True,
    "silu_kept": False,
    "elementwise_kept": False,
    "gradients_stay": False,
    "step_copies": 0,
    "loss": "in_place",
    "reduces": EACH,
}
MOST: dict[str, bool | int | str] = {
    "regather": False,
    "silu_kept": True,
    "elementwise_kept": True,
    "gradients_stay": True,
    "step_copies": 0,
    "loss": "vocab_parallel",
    "reduces": LAST_IN_PIPELINE,
}
"""Choice → how it takes least memory, and most. No trainer is taken to copy at the step unless it does, nor
to keep a loss worse or better than the vocabulary-parallel ones."""

UNKNOWN_TRAINER = Habits()
"""Nothing is known: every choice is open."""
