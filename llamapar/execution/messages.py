"""The messages between the ranks of a pipeline: name, sender, time and shape of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from llamapar.place.orders import Action
from llamapar.place.pipeline import Schedule
from llamapar.spmd import microbatches
from llamapar.spmd.setting import TIED, Setting

ACTIVATIONS = "activations"
GRADIENTS = "gradients"
EMBEDDING = "the embedding's gradient"
SQUARES = "the sum of squares of gradients"


class Message(NamedTuple):
    """A message between stages: activations downwards, gradients upwards, a tied embedding's gradient.

    SQUARES goes from each PP rank to every other; the other's first stage receives it.
    """

    what: str
    stage: int  # that takes it
    micro_batch: int
    source: int
    to: int

    @property
    def name(self) -> str:
        """In words: "gradients of micro-batch 2 for stage 0"."""
        of = "" if self.what in (EMBEDDING, SQUARES) else f" of micro-batch {self.micro_batch}"
        return f"{self.what}{of} for stage {self.stage}"


class Post(NamedTuple):
    """A message with its tensor."""

    message: Message
    content: Tensor


def awaited_message(schedule: Schedule, action: Action) -> Message | None:
    """The message from another stage that an operation needs first; None if it needs none."""
    kind, stage, number = action
    if kind == "W":
        return None
    what, source = (ACTIVATIONS, stage - 1) if kind == "F" else (GRADIENTS, stage + 1)
    if source not in range(schedule.stages):
        return None
    return Message(what, stage, number, schedule.rank_of(source), schedule.rank_of(stage))


def sent_message(schedule: Schedule, action: Action) -> Message | None:
    """The message that an operation produces for another stage; None if it produces none."""
    to = action.stage + 1 if action.kind == "F" else action.stage - 1
    if to in range(schedule.stages):
        return awaited_message(schedule, action._replace(stage=to))
    return None


def ends(setting: Setting, pp_rank: int) -> list[Message]:
    """The gradients of a tied embedding that a PP rank sends to the other end of the pipeline."""
    assert setting.schedule is not None
    last = setting.layout.stages - 1
    first_rank = setting.schedule.rank_of(0)
    last_rank = setting.schedule.rank_of(last)
    if not setting.model.tied or first_rank == last_rank:
        return []
    there = Message(EMBEDDING, last, 0, first_rank, last_rank)
    back = Message(EMBEDDING, 0, 0, last_rank, first_rank)
    return [message for message in (there, back) if message.source == pp_rank]


def squares_to(setting: Setting, pp_rank: int) -> list[Message]:
    """The messages of a PP rank to the others for the norm of all gradients."""
    others = range(setting.layout.pp if setting.training is not None else 0)
    return [Message(SQUARES, to, 0, pp_rank, to) for to in others if to != pp_rank]


def posts(setting: Setting, pp_rank: int) -> list[Message]:
    """Everything that a PP rank sends, in order."""
    assert setting.schedule is not None
    schedule = setting.schedule
    found = [sent_message(schedule, action) for action in microbatches.row(schedule, pp_rank)]
    sent = [m for m in (*found, *ends(setting, pp_rank)) if m is not None and m.source != m.to]
    steps = 1
    if setting.training is not None:
        steps = setting.training.steps
    return [*sent, *squares_to(setting, pp_rank)] * steps


def dtype_of(setting: Setting, message: Message) -> torch.dtype:
    """The dtype of a message: the run's dtype between stages; gradient sums can be wider."""
    if message.what in (ACTIVATIONS, GRADIENTS):
        return setting.torch_dtype
    return setting.sum_dtype


def shape_of(setting: Setting, message: Message, coord: Mapping[str, int]) -> tuple[int, ...]:
    """The shape that a rank at `coord` receives: [micro-batch, seq(/tp), dim], or its piece of an
    embedding.
    """
    if message.what == SQUARES:
        return (1,)
    if message.what == EMBEDDING:
        embedding = next(p for p in setting.model.parameters() if p.name == TIED)
        return setting.local_shape(embedding, coord["tp"])
    tokens = setting.sequence.rank(coord["cp"]).tokens
    if setting.sp:
        tokens = len(setting.tokens(tokens, coord["tp"]))
    return setting.micro_batch, tokens, setting.model.dim
