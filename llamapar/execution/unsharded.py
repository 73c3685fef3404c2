"""The reference: one process's result for a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .body import Results, Task, reference
from .recorder import Recorder
from .stepping import ProcessStep, reference_steps


class Unsharded(NamedTuple):
    """One process's outputs and gradients, for the first training step, and the training steps."""

    made: Results
    steps: tuple[ProcessStep, ...] = ()


def unsharded(task: Task, tick: Callable[[], None]) -> Unsharded:
    """The result of the program's reference. tick: called at each operation; an exception from it stops the
    work.
    """
    with Recorder(tick=tick):
        if task.setting.training is None:
            return Unsharded(reference(task))
        steps = tuple(reference_steps(task))
        return Unsharded(steps[0].made, steps)
