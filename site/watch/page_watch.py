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

from films import FIRST, Films

from llamapar.describe.options import Values
from llamapar.errors import Choice, LlamaparError
from llamapar.panels.controls import Control
from llamapar.panels.watch_panel import Watch
from llamapar.panels.watch_state import WATCHED, WatchState, begun
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
        return super().change(changes)

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

    def traits(self, seq: int) -> Values:
        traits = super().traits(seq)
        payload, words = traits["payload"], []
        if self.is_recording:
            words = [payload["says"], A_RECORDING]
        elif not self.has_backward:
            unseen = self.values["fault"] and not any(step["fault"] for step in self.film["steps"])
            words = [NO_LINE if unseen else payload["says"], NO_BACKWARD]
        else:
            words = [payload["says"]]
        traits["payload"] = payload | {"says": " ".join(filter(None, words)), "makers": False}
        return traits

    def lights(self, tensor: int, rank: int, row: int, column: int) -> tuple[float, list[Plain]]:
        raise LlamaparError("which numbers made a number is not worked out on this page", IN_LAB)


class PageWatch(Watch):
    """Ranks that one watches in a page."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        first = begun(WATCHED[0], None, None)
        state = PageState(first.programs, None, first.values, first.clean, recordings=Films(read))
        super().__init__(state.change({}))
