"""`lp.watch` in the page's Python: the forward on a stand-in of torch, the rest from recordings.

What a person edits or breaks runs here, forward, by the library's own `watched`. The backward of a state, and
a pipeline, are shown where torch recorded them; the page says where it did not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Self

from films import FIRST, Films, first_values

from llamapar.describe.options import Values
from llamapar.errors import Choice, LlamaparError
from llamapar.panels.controls import Control
from llamapar.panels.watch_panel import Watch
from llamapar.panels.watch_state import WatchState
from llamapar.records.tables import Plain
from llamapar.records.trace import Tape

if TYPE_CHECKING:
    from llamapar.execution.body import Task

for engine in ("processes", "torchrun"):  # of processes, which a page has not
    sys.modules[f"llamapar.execution.engines.{engine}"] = ModuleType(engine)

IN_LAB = "JupyterLab runs it: make lab"
NO_BACKWARD = (
    "Forward only: the backward is a recording on this page, and there is none of this state. "
    "JupyterLab (make lab) runs both."
)
A_RECORDING = "This run is a recording; JupyterLab (make lab) runs it, and what you edit."
NO_LINE = "No line of the forward differs with this fault."


@dataclass(frozen=True)
class PageState(WatchState):
    """What is watched, in a Python without torch. recordings: of the page."""

    recordings: Films | None = field(default=None, compare=False, repr=False)
    has_makers = False
    value = None  # a recording is no tape

    def task(self, fault: str, text: str) -> Task:
        return replace(super().task(fault, text), backward=False)

    @property
    def is_recording(self) -> bool:
        """Whether the program is one that the page does not run."""
        return self.program.stage is not None

    def run(self, fault: str, source: str) -> Tape:
        if not self.is_recording:
            return super().run(fault, source)
        name = self.program.name
        if source:
            what = f"{name} cannot be edited on this page: it shows a recording of {name}"
            raise LlamaparError(what, f"its stages run on PyTorch; {IN_LAB}", field="source")
        degrees = " ".join(f"{axis}={self.values[axis]}" for axis in FIRST)
        what = f"no recording of {name} with {degrees} on this page"
        raise LlamaparError(what, IN_LAB, [Choice.of(**FIRST)], "program")

    def shoot(self, fault: str, source: str) -> Plain:
        key = self.key(fault, source)
        if key not in self.films and not source and self.recordings is not None:
            film = self.recordings.of(self, fault)
            if film is not None:
                self.films[key] = film
        return super().shoot(fault, source)

    def change(self, changes: Values) -> Self:
        program = self.programs.get(str(changes.get("program")))
        if program not in (None, self.program) and program.stage is not None:
            changes = {**FIRST, **changes}  # which is recorded
        made = super().change(changes)
        verdict = made.verdict if changes.get("case") else None
        if verdict and verdict["right"]:  # before anything is written
            what = f"{made.case.title}: this puzzle is judged by gradients, which the page does not compute"
            raise LlamaparError(what, IN_LAB, field="case")
        return made

    @property
    def has_backward(self) -> bool:
        return any(step["phase"] != "forward" for step in self.film["steps"])

    @property
    def schema(self) -> list[Control]:
        found = super().schema
        for control in found if not self.has_backward else ():
            if control["name"] == "phase":
                control["options"] = control["options"][:1]
        return found

    @property
    def says(self) -> str:
        words = super().says
        if self.is_recording:
            return f"{words} {A_RECORDING}".strip()
        if self.has_backward:
            return words
        if self.case and self.case.fault and not any(step["fault"] for step in self.film["steps"]):
            words = NO_LINE
        return f"{words} {NO_BACKWARD}".strip()

    def lights(self, tensor: int, rank: int, row: int, column: int) -> tuple[float, list[Plain]]:
        raise LlamaparError("which numbers made a number is not worked out on this page", IN_LAB)


class PageWatch(Watch):
    """`lp.watch` in a page."""


def blank(read: Callable[[str], bytes]) -> PageState:
    """With nothing chosen yet."""
    return replace(PageState.blank(), recordings=Films(read))


def first(read: Callable[[str], bytes]) -> PageState:
    """What the page opens with."""
    values = first_values()
    return replace(blank(read), values=values, clean=values).change({})
