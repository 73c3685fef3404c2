"""What a trainer does unasked that a step's memory or time depends on, as a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llamapar.describe.configfile import Values

from .citation import Source

EACH, LAST, LAST_IN_PIPELINE = "each", "last", "last in a pipeline"
"""When shared gradients are reduced to shards, in a step of several micro-batches.

After each one; after a stage's last one; or in a pipeline after the last one, and else after each one.
"""


@dataclass(frozen=True)
class Habits:
    """What a trainer does unless a run's own settings say otherwise.

    recompute: its mode of recomputation; "" if not known. cp_method: how attention works under CP.
    sp: whether it has sequence parallelism. overlaps_tp: TP's collectives run beside matmuls.
    kernels: of norms and RoPE, as `kernels` of `memory`.
    regather: under sequence parallelism, the backward gathers the inputs of column-parallel matmuls again
        instead of keeping them.
    silu_kept: the backward of SwiGLU keeps SiLU's output, as torch does (torch/nn/functional.py @v2.13.0),
        instead of computing it again.
    elementwise_kept: outputs of norms and SwiGLU's product are kept for the matmuls that read them, instead
        of being computed again.
    gradients_stay: gradients are buffers that persist between steps; else the first micro-batch of a step
        allocates them while activations are freed, for torch's optimizers free them
        (torch/optim/optimizer.py @v2.13.0).
    step_copies: how many copies of the size of its parameters the optimizer's step makes; torch's foreach
        makes one.
    loss: one of `cross_entropy.LOSSES`; `tp_loss` replaces it if tp > 1.
    selective: what "selective" recomputation recomputes: "matmuls", every second matmul and norms;
        "attention" alone, of which flash attention keeps nothing anyway; or "elementwise", all but matmuls
        and attention.
    grads_in_dtype: sums of gradients have the dtype of parameters, not float32.
    master_weights: float32 weights and states exist beside narrower parameters; else all have their dtype.
    step_gradients: memory that the optimizer's step makes of a rank's own gradients, as a formula of own,
        item, wide and zero; all other gradients and the reduction's buffers are freed by then.
    buckets: ZeRO stages under which torch's DDP keeps a micro-batch's gradients in dtype beside their sums.
    bucket: numbers in the buffers of a gradient reduction.
    overlaps: whether there are two such buffers below ZeRO 3 too; one is reduced while the other fills.
    live: most parameters that ZeRO 3 keeps gathered; 0 means those of two layers.
    merged_qkv: without GQA, Q stays a view of the merged Q, K and V, beside separate K and V (flash-attn's
        rotary works in place on Q).
    merged_v: without GQA, V stays a view of the merged Q, K and V, beside separate Q and K, unless a
        compiler splits them.
    transposes: with several sequences, the output of attention is transposed by a copy.
    repeats_kv: K and V are repeated for every query head before attention, which keeps the repeated ones.
    reduces_after: under ZeRO 1, one collective reduces whole gradients after the last backward, and one
        gathers parameters before the next step. The result is then copied out: for every tensor as many
        pieces as ranks share it. The value is the number of tensors in a layer, or 0 if it does not do so.
    gathers_alone: under ZeRO 3, how many tensors of a layer are gathered and reduced each by a collective of
        its own, which waits for all that runs before it. Its result is copied rank by rank, as above. 0 if a
        layer travels as one.
    reduces: when gradients are reduced under ZeRO 2 and 3: EACH, LAST or LAST_IN_PIPELINE.
    unreduced_in_dtype: until then they have the dtype of parameters, not that of the sums.
    sharded_copies: under ZeRO 3, shards of the parameters in their dtype stand beside those in float32, both
        cut from flat buffers; else the float32 shards, of whole rows, are the parameters.
    sources: of these choices, by field name.
    """

    recompute: str = ""
    cp_method: str = "all_gather"
    sp: bool = True
    overlaps_tp: bool = False
    kernels: str = "fused"
    regather: bool = False
    silu_kept: bool = True
    elementwise_kept: bool = True
    gradients_stay: bool = False
    step_copies: int = 0
    loss: str = "torch"
    tp_loss: str | None = None
    selective: str = "matmuls"
    grads_in_dtype: bool = False
    master_weights: bool = True
    step_gradients: str = ""
    buckets: tuple[int, ...] = ()
    bucket: int = 0
    overlaps: bool = True
    live: int = 0
    merged_qkv: bool = False
    merged_v: bool = False
    transposes: bool = False
    repeats_kv: bool = False
    reduces_after: int = 0
    gathers_alone: int = 0
    reduces: str = LAST_IN_PIPELINE
    unreduced_in_dtype: bool = False
    sharded_copies: bool = False
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False)

    def source(self, name: str) -> str:
        """The source of a choice, as text; "" without one."""
        return str(self.sources.get(name, ""))

    def reduces_once(self, pp: int) -> bool:
        """Whether a stage's gradients under ZeRO 2 and 3 are reduced once a step, after its last micro-batch.

        Else each micro-batch's gradients are reduced to shards at once.
        """
        return self.reduces == LAST or (self.reduces == LAST_IN_PIPELINE and pp > 1)

    def reductions(self, pp: int, zero: int) -> str:
        """The same in words, for a pipeline under ZeRO 2 or 3."""
        whole = "whole until a stage's last micro-batch, so they take the memory of ZeRO 1's"
        if self == USUAL:
            found = f"torch's pipelining keeps gradients {whole}; other trainers reduce each micro-batch's"
        elif self.reduces_once(pp):
            found = f"gradients stay {whole}"
        else:
            found = "gradients are reduced after every micro-batch, not once a step"
        if zero == 3:
            return f"{found}; parameters are gathered for every micro-batch"
        return found

    def under(self, recompute: str) -> tuple[Habits, str]:
        """These habits, with "selective" replaced by the mode that it really is for this trainer."""
        if recompute != "selective" or self.selective == "matmuls":
            return self, recompute
        # A compiler recomputes what is cheap by itself, so what counts is what it keeps: as "none" with
        # everything elementwise computed again.
        again = {"regather": True, "silu_kept": False, "elementwise_kept": False}
        return (replace(self, **Values(again)) if self.selective == "elementwise" else self), "none"


USUAL = Habits(gradients_stay=True, loss="vocab_parallel")
"""What is counted where no trainer is named: torch's own ways, and the vocabulary-parallel loss."""
