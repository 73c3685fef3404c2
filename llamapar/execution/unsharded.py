"""The reference: one process's result for a task, computed while the ranks of a run work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from .body import Results, Task, reference
from .replies import Cancelled
from .stepping import ProcessStep, reference_steps
from .ticking import Ticking

POLL = 0.02  # seconds between two looks at whether the run is to be stopped


class Unsharded(NamedTuple):
    """One process's outputs and gradients, for the first training step, and the training steps."""

    made: Results
    steps: tuple[ProcessStep, ...] = ()


def unsharded(task: Task, tick: Callable[[], None]) -> Unsharded:
    """The result of the program's reference. tick: called at each operation; an exception from it stops the
    work.
    """
    with Ticking(tick):
        if task.setting.training is None:
            return Unsharded(reference(task))
        steps = tuple(reference_steps(task))
        return Unsharded(steps[0].made, steps)


class Meanwhile:
    """The reference in its own thread: starts with the block, and is abandoned if the block ends early."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._left = False
        self._found: Unsharded | BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Meanwhile:
        if self.task.program.reference is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._left = True
        if self._thread.ident is not None:
            self._thread.join()

    def wait(self, tick: Callable[[], None]) -> Unsharded:
        """The reference's result, or its error. tick: called during the wait."""
        while self._thread.is_alive():
            tick()
            self._thread.join(POLL)
        assert self._found is not None
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found

    def _work(self) -> None:
        try:
            self._found = unsharded(self.task, self._tick)
        except BaseException as error:  # told where it is asked for
            self._found = error

    def _tick(self) -> None:
        if self._left:
            raise Cancelled("the run has ended")
