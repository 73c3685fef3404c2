"""All ranks of a layout in this process, to step through a program by hand, as tests of programs do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.errors import whole
from llamapar.execution.body import Task, inputs, parameters, uncut, unpiped, wants
from llamapar.execution.capacity import require_room
from llamapar.execution.engines.local import LocalRanks, one_run
from llamapar.execution.execute import prepare
from llamapar.execution.run_options import RunOptions
from llamapar.spmd.compat import by_rank
from llamapar.spmd.setting import Setting


class SteppedRanks(LocalRanks):
    """Ranks with the tensors that a program asks for, which show a tensor rank by rank."""

    tensors: dict[str, Any]

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting.of_one_stage, setting.part)
        self.setting = setting

    def values(self, t: Tensor) -> dict[int, Tensor]:
        """rank → its own tensor."""
        return {r: own.detach() for r, own in (by_rank(t) or {}).items()}

    def shapes(self, t: Tensor) -> dict[int, tuple[int, ...]]:
        """rank → the shape of its own tensor."""
        return {r: tuple(own.shape) for r, own in self.values(t).items()}


def of_micro_batch(task: Task, number: int) -> Task:
    """The same of micro-batch `number`, with the tokens that each dp way has in it in a run."""
    setting, alone = task.setting, unpiped(task)
    if setting.schedule is None:
        return task
    cut = (setting.layout.dp, setting.micro_batches, setting.micro_batch)
    whole = inputs(task, uncut, wanted=("tokens", "targets"))
    own = {name: t.unflatten(0, cut)[:, number].flatten(0, 1) for name, t in whole.items()}
    return replace(alone, given={**alone.given, **own})


def step_through(program: Any, model: Any, layout: Any, *, number: int = 0, **options: Any) -> SteppedRanks:
    """Ranks that hold what a program asks for: `with ranks:` around each line that computes.

    number: of the micro-batch whose tokens they hold. Other arguments as in `lp.run`.
    """
    task, _, _ = prepare(program, model, RunOptions(Layout.of(layout), **options))
    whole("number", number, 0, task.setting.micro_batches - 1)
    require_room(task, "local")
    task = of_micro_batch(task, number)
    with one_run:
        ranks = SteppedRanks(task.setting)
    found = inputs(task, ranks.cut)
    own_weights = (
        {"weights": parameters(found)} if "weights" in [a.name for a in wants(task.program.function)] else {}
    )
    ranks.tensors = {**found, **own_weights}
    return ranks
