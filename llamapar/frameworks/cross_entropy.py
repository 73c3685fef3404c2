"""Implementations of cross-entropy, as data: what the backward keeps, and the memory at the peak."""

from __future__ import annotations

from llamapar.describe.options import offer

LOSSES = {
    "vocab_parallel": (
        "0",
        "logits * wide",
        "nanotron parallel/tensor_parallel/functional.py: float32 logits, and their exponentials beside them",
    ),
    "in_place": (
        "0",
        "logits * item",
        "Megatron-LM core/tensor_parallel/cross_entropy.py: exponentials in place of the float32 logits",
    ),
    "torch": (
        "0",
        "2 * logits * wide",
        "torch.nn.functional.cross_entropy: log-softmax, its gradient and its own",
    ),
    "narrow": (
        "logits * (item - wide)",
        "2 * logits * item",
        "torch.nn.functional.cross_entropy of logits that stay in dtype, as in litgpt",
    ),
    "held": (
        "logits * wide",
        "2 * logits * wide",
        "torchtitan train.py before e29b6b4d4: a variable of the loop holds the float32 logits through the "
        "backward, beside log-softmax's",
    ),
    "loss_parallel": (
        "0",
        "3 * logits * wide",
        "torch/distributed/tensor/parallel/loss.py: three temporaries more",
    ),
    "compiled": (
        "logits * (item - wide)",
        "logits * item",
        "torch.compile of float() and cross_entropy: one kernel, logits and their gradient in dtype",
    ),
    "pieces": (
        "0",
        "logits * item",
        "torchtune modules/loss/ce_chunked_output_loss.py: logits in dtype, log-softmax in float32 by pieces",
    ),
    "chunked": ("- logits * wide", "0", "a fused or chunked loss, as Liger's: logits are never whole"),
}
"""Cross-entropy → bytes that the backward keeps beyond float32 logits, bytes besides at its peak, source."""

offer("loss", LOSSES)
