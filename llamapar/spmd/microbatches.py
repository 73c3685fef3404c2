"""The parts of a pipeline step between its stages: schedule rows, micro-batches, and sums.

Each part is a function that is looked up when it is called, so that a fault can replace it.
"""

from __future__ import annotations

from torch import Tensor

from llamapar.place.orders import Action
from llamapar.place.pipeline import Schedule

from .setting import Setting


def row(schedule: Schedule, pp_rank: int) -> tuple[Action, ...]:
    """The operations of a PP rank, in order."""
    return schedule.ranks[pp_rank]


def rows(setting: Setting, number: int) -> slice:
    """The sequences of a dp way that form micro-batch `number`."""
    return slice(number * setting.micro_batch, (number + 1) * setting.micro_batch)


def of_step(name: str, step: int) -> str:
    """The name of tokens or targets in a step of a run, counted from 0: "tokens", "step1.tokens"."""
    if step:
        return f"step{step}.{name}"
    return name


def step_of(name: str) -> int:
    """The step in a name from `of_step`."""
    step = name.rpartition(".")[0].removeprefix("step")
    if step:
        return int(step)
    return 0


def tokens_of(tokens: Tensor, setting: Setting, number: int) -> Tensor:
    """A micro-batch's tokens: [batch, seq] → [micro-batch, seq]."""
    return tokens[rows(setting, number)]


def targets_of(targets: Tensor, setting: Setting, number: int) -> Tensor:
    """A micro-batch's targets: [batch, seq] → [micro-batch, seq]."""
    return targets[rows(setting, number)]


def objective(loss: Tensor, setting: Setting) -> Tensor:
    """A micro-batch's part of the mean loss: its own mean divided by the number of micro-batches."""
    # `loss` has one value a sequence, [micro_batch], and the gradients of all micro-batches are added up
    # later.
    return loss.sum() / setting.micro_batch / setting.micro_batches


def added(total: Tensor | None, own: Tensor, setting: Setting, number: int) -> Tensor:
    """The sum of a parameter's gradients, plus micro-batch `number`; in training in float32."""
    # bf16 has 8 bits of precision, so adding many micro-batches in it would lose the small ones.
    own = own.to(setting.sum_dtype)
    if total is None:
        return own
    return total + own


def both_ends(own: Tensor, other: Tensor) -> Tensor:
    """The gradient of a tied embedding: the sum of its gradients as embedding and as head."""
    return own + other
