"""`lp.run(..., mutants=True)`: which slips a run would have noticed, tried on its own inputs and layout.

A run that equals its reference proves as much as its inputs can show. So each fault of `lp.programs.FAULTS`
is put into the program in turn, and the broken program is compared as the right one was. Left out are faults
whose function the program never calls, and those that can change nothing in this layout. All ranks run in
this process, whatever the engine of the run: what they compute is the same in each.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from llamapar.errors import Choice, LlamaparError
from llamapar.programs import FAULTS, breaking
from llamapar.records.noticed import Mutants

from .against_reference import compared
from .body import Task
from .engines import local
from .replies import Cancelled, RankFailure
from .result import Result
from .unsharded import Unsharded, unsharded

SECONDS = 60.0
"""What trying all faults of a run may take; those that are left then are listed as not tried."""


def mutants(task: Task, device: str, cancelled: Callable[[], bool]) -> Mutants:
    """Try every fault that can change the task's run. The task itself equals its reference.

    Raises LlamaparError if the program does not run with all ranks in one process; Cancelled.
    """
    end = time.monotonic() + SECONDS

    def asked_to_stop() -> None:
        if cancelled():
            raise Cancelled("trying the faults was cancelled")

    def tick() -> None:
        asked_to_stop()
        if time.monotonic() > end:
            raise Cancelled("no time for more faults")

    with breaking.called() as met:
        alone = unsharded(task, asked_to_stop)
        errors = [r.error for r in local.run(task, device, asked_to_stop) if r.error]
    if errors:
        raise LlamaparError(
            f"mutants: with all ranks in one process {task.program.name} raises {type(errors[0]).__name__}",
            str(errors[0]),
            [Choice.of("without them", mutants=False)],
            "mutants",
        )
    noticed: dict[str, str] = {}
    unseen: dict[str, str] = {}
    left = [name for name, fault in FAULTS.items() if name in met and fault.applies(task.setting)]
    exact: tuple[Task, Unsharded] | None = None
    while left:
        try:
            if what := _difference(task.broken(left[0]), device, alone, tick):
                noticed[left.pop(0)] = what
                continue
            why = "nothing that is compared changes, with these inputs"
            if task.setting.dtype != "float64":
                if exact is None:
                    wide = task.in_float64()
                    exact = wide, unsharded(wide, tick)
                if what := _difference(exact[0].broken(left[0]), device, exact[1], tick):
                    why = f"{task.setting.dtype} rounds as much; in float64 {what} differs"
            unseen[left.pop(0)] = why
        except Cancelled:
            if cancelled():
                raise
            break
    return Mutants(noticed, unseen, tuple(left))


def _difference(task: Task, device: str, alone: Unsharded, tick: Callable[[], None]) -> str:
    """What a broken run differs in first, or what a rank raises; "" if it equals the reference."""
    try:
        made = Result(task.program.name, task, "local", device, tuple(local.run(task, device, tick)))
    except RankFailure as failure:
        return str(failure.what)
    return made.where if made.errors else compared(made, alone, tick).where
