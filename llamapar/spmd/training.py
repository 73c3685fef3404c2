"""What a training step is, beside its forward and backward: how many, and AdamW's numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Training:
    """steps: how many are done in a run, after `done` that came before it. The rest are AdamW's numbers.

    lr, betas, eps, weight_decay as in arXiv:1711.05101; max_norm: of all gradients together. betas and
    weight_decay are those of Llama 2 (arXiv:2307.09288, section 2.2), which clips at 1.0 as well.
    """

    steps: int = 1
    done: int = 0
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_norm: float = 1.0
