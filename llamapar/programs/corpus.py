"""The default training text of training steps."""

from __future__ import annotations

import torch
from torch import Tensor

from llamapar.spmd.microbatches import step_of
from llamapar.spmd.setting import Setting, short

CORPUS = """
A rank holds a part of every tensor. Columns go to one axis, the sequence to another, layers to a third,
and sentences to the last. What one rank sums, all ranks read. First forward, then backward, then the
gradients meet, the norm is taken once, the update is the same on every copy, and the next batch finds
equal weights everywhere.
"""
"""A token is a byte of it."""


def corpus(setting: Setting, name: str, device: str = "cpu") -> Tensor:
    """Tokens or targets [global_batch, seq] of a step, by name; steps follow each other in CORPUS."""
    text = torch.tensor(list(CORPUS.encode()), device=device) % setting.model.vocab_size
    done = setting.training.done if setting.training is not None else 0
    each = setting.global_batch * setting.seq_len
    first = (done + step_of(name)) * each + (short(name) == "targets")
    at = (torch.arange(each, device=device) + first) % len(text)
    return text[at].view(setting.global_batch, setting.seq_len)
