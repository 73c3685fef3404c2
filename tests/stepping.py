"""All ranks of a layout in this process, to step through a program by hand, as tests of programs do."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from llamapar.errors import whole
from llamapar.execution.body import inputs, of_micro_batch, parameters, wants
from llamapar.execution.capacity import require_room
from llamapar.execution.engines.local import LocalRanks, one_run
from llamapar.execution.execute import prepare
from llamapar.execution.run_options import RunOptions
from llamapar.spmd.compat import by_rank


class SteppedRanks(LocalRanks):
    """Ranks with the tensors that a program asks for, which show a tensor rank by rank."""

    tensors: dict[str, Any]

    def values(self, t: Tensor) -> dict[int, Tensor]:
        """rank → its own tensor."""
        return {r: own.detach() for r, own in (by_rank(t) or {}).items()}

    def shapes(self, t: Tensor) -> dict[int, tuple[int, ...]]:
        """rank → the shape of its own tensor."""
        return {r: tuple(own.shape) for r, own in self.values(t).items()}


def step_through(program: Any, model: Any, layout: Any, *, number: int = 0, **options: Any) -> SteppedRanks:
    """Ranks that hold what a program asks for: `with ranks:` around each line that computes.

    number: of the micro-batch whose tokens they hold. Other arguments as in `lp.run`.
    """
    task, _, _ = prepare(program, model, RunOptions.of(layout, **options))
    whole("number", number, 0, task.setting.micro_batches - 1)
    require_room(task, "local", "cpu")
    task = of_micro_batch(task, number)
    with one_run:
        ranks = SteppedRanks(task.setting)
    found = inputs(task, ranks.cut)
    own_weights = (
        {"weights": parameters(found)} if "weights" in [a.name for a in wants(task.program.function)] else {}
    )
    ranks.tensors = {**found, **own_weights}
    return ranks
