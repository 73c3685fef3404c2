"""The settings of a training step besides its forward and backward: number of steps, and AdamW's numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Training:
    """steps: number of steps in a run, after the `done` steps before it. The other fields are AdamW's
    numbers.

    lr, betas, eps, weight_decay as in arXiv:1711.05101; max_norm: upper bound of the norm of all gradients
    together. betas and weight_decay are those of Llama 2 (arXiv:2307.09288, section 2.2), which also clips at
    1.0.
    """

    steps: int = 1
    done: int = 0
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_norm: float = 1.0
