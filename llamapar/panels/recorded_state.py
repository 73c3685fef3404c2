"""What `lp.watch` shows of a tape that was recorded elsewhere, as a cell of `%%ranks`. Nothing runs again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from llamapar.describe.options import Values
from llamapar.errors import LlamaparError
from llamapar.records.tables import Plain, plural
from llamapar.records.trace import Tape

from .controls import Control
from .film import film, view_of
from .watch_state import WatchState


@dataclass(frozen=True)
class RecordedState(WatchState):
    """A state around a tape."""

    recorded: Tape | None = None

    has_makers = False

    @property
    def tape(self) -> Tape:
        assert self.recorded is not None
        return self.recorded

    value = tape

    @cached_property
    def film(self) -> Plain:
        return film(self.tape) | {"blocks": {}}

    @property
    def own(self) -> str:
        return self.tape.source.rstrip("\n")

    @property
    def status(self) -> str:
        steps = plural(len(self.film["steps"]), "step")
        ranks = plural(self.tape.world, "rank")
        return f"a cell, {self.tape.layout}: {steps}, {ranks}"

    @property
    def code(self) -> str:
        return "lp.watch(ranks)"

    @property
    def schema(self) -> list[Control]:
        return []

    def change(self, changes: Values) -> Self:
        if changes.keys() <= {"step", "phase"}:
            view = view_of(self.film["steps"], {}, changes, changes.get("phase", "forward"))
            return replace(self, values={**self.values, **view})
        what = "what ranks did in a cell cannot be changed here"
        why = "its numbers were recorded"
        raise LlamaparError(what, why, ["another %%ranks cell, and lp.watch(ranks)"])

    def lights(self, tensor: int, rank: int, row: int, column: int) -> tuple[float, list[Plain]]:
        raise LlamaparError("which numbers made a number is not worked out of a cell", "nothing runs again")
