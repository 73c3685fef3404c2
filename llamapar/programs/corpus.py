"""What training steps are trained on unless tokens are given."""

from __future__ import annotations

import torch
from torch import Tensor

from llamapar.spmd.microbatches import of_step
from llamapar.spmd.setting import Setting

CORPUS = """
A rank holds a part of every tensor. Columns go to one axis, the sequence to another, layers to a third,
and sentences to the last. What one rank sums, all ranks read. First forward, then backward, then the
gradients meet, the norm is taken once, the update is the same on every copy, and the next batch finds
equal weights everywhere.
"""
"""A token is a byte of it."""


def corpus(setting: Setting) -> dict[str, Tensor]:
    """Tokens and targets [global_batch, seq] of each step by name, which follow each other in CORPUS."""
    text = torch.tensor(list(CORPUS.encode())) % setting.model.vocab_size
    steps, done = (setting.training.steps, setting.training.done) if setting.training is not None else (0, 0)
    each, found = setting.global_batch * setting.seq_len, dict[str, Tensor]()
    for number in range(steps):
        for name, later in (("tokens", 0), ("targets", 1)):
            at = (torch.arange(each) + (done + number) * each + later) % len(text)
            found[of_step(name, number)] = text[at].view(setting.global_batch, setting.seq_len)
    return found
