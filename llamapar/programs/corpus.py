"""The default training text of training steps."""

from __future__ import annotations

from collections import Counter
from functools import cache

import torch
from torch import Tensor

from llamapar.describe.splits import Split
from llamapar.spmd.microbatches import step_of
from llamapar.spmd.setting import Setting, short

CORPUS = """
A rank holds a part of every tensor. Columns go to one axis, the sequence to another, layers to a third,
and sentences to the last. What one rank sums, all ranks read. First forward, then backward, then the
gradients meet, the norm is taken once, the update is the same on every copy, and the next batch finds
equal weights everywhere.
"""
"""Each of its characters is a token."""


@cache
def token_ids(vocab_size: int) -> dict[str, int]:
    """Character of CORPUS → its row of the vocabulary.

    The rows lie at the ends of equal shards, of 2, 4, 8 and 16 ranks. So a short text looks up rows of every
    rank, first and last ones, and the ids stay the same when training goes on in another layout.
    """
    shards = [own for ranks in (2, 4, 8, 16) for own in Split(vocab_size, ranks) if len(own)]
    ends = [row for own in shards for row in (own[0], own[-1])]
    # Edges of shards first, so the most frequent characters look up the rows at which an off-by-one would
    # show.
    rows = list(dict.fromkeys([*ends, *range(vocab_size)]))
    characters = [character for character, _ in Counter(CORPUS).most_common()]
    return {character: rows[i % len(rows)] for i, character in enumerate(characters)}


def corpus(setting: Setting, name: str, device: str) -> Tensor:
    """Tokens or targets [global_batch, seq] of a step, by name; steps follow each other in CORPUS."""
    ids = token_ids(setting.model.vocab_size)
    text = torch.tensor([ids[character] for character in CORPUS], device=device)
    done = 0
    if setting.training is not None:
        done = setting.training.done
    each = setting.global_batch * setting.seq_len
    # Targets are the same text one character later. A run that goes on after `done` steps reads on where
    # it stopped, and past the end the text starts again.
    first = (done + step_of(name)) * each + (short(name) == "targets")
    at = (torch.arange(each, device=device) + first) % len(text)
    return text[at].view(setting.global_batch, setting.seq_len)
