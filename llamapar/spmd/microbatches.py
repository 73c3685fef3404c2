"""Between the stages of a pipeline: a rank's row of the schedule, its micro-batches, and what is added up.

Each is a function of its own that is looked up when it is called, so that a fault can take its place.
"""

from __future__ import annotations

from torch import Tensor

from llamapar.place.orders import Action
from llamapar.place.pipeline import Schedule

from .setting import Setting


def row(schedule: Schedule, pp_rank: int) -> tuple[Action, ...]:
    """What a PP rank does, in order."""
    return schedule.ranks[pp_rank]


def rows(setting: Setting, number: int) -> slice:
    """Which of a dp way's sequences are micro-batch `number`."""
    return slice(number * setting.micro_batch, (number + 1) * setting.micro_batch)


def of_step(name: str, step: int) -> str:
    """What tokens or targets are called in a step of a run, from 0: "tokens", "step1.tokens"."""
    return f"step{step}.{name}" if step else name


def step_of(name: str) -> int:
    """The step that `of_step` made the name for."""
    step = name.rpartition(".")[0].removeprefix("step")
    return int(step) if step else 0


def tokens_of(tokens: Tensor, setting: Setting, number: int) -> Tensor:
    """A micro-batch's tokens: [batch, seq] → [micro-batch, seq]."""
    return tokens[rows(setting, number)]


def targets_of(targets: Tensor, setting: Setting, number: int) -> Tensor:
    """A micro-batch's targets: [batch, seq] → [micro-batch, seq]."""
    return targets[rows(setting, number)]


def objective(loss: Tensor, setting: Setting) -> Tensor:
    """A micro-batch's part of the mean loss: its own mean over the number of micro-batches."""
    return loss.sum() / setting.micro_batch / setting.micro_batches


def added(total: Tensor | None, own: Tensor, setting: Setting, number: int) -> Tensor:
    """The sum of a parameter's gradients with that of micro-batch `number`; in training in float32."""
    own = own.to(setting.sum_dtype)
    return own if total is None else total + own


def both_ends(own: Tensor, other: Tensor) -> Tensor:
    """The gradient of a tied embedding: what it gave as embedding and what it gave as head."""
    return own + other
