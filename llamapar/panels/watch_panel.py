"""`lp.watch`: a program line by line on every rank, with the numbers of each rank.

The panel is a page around a WatchState, which has everything that is shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, Unpack

import traitlets

from llamapar.describe.arguments import named_options
from llamapar.describe.keywords import WatchKeywords
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.options import LAYOUT as DEGREES
from llamapar.describe.options import Values
from llamapar.errors import Choice, LlamaparError, one_of, whole
from llamapar.figures import NO_FIGURE, View
from llamapar.records.trace import Tape

from .line import read_arguments
from .page import Undoing, source
from .recorded_state import RecordedState
from .traits import TURN
from .watch_state import LAYOUT, OPTIONS, WATCHED, WatchState, known_programs, usual

if TYPE_CHECKING:  # torch is there when something is watched, and not before
    from llamapar.programs import ProgramLike

State = TypeVar("State", bound=WatchState)


class Watch(Undoing[WatchState]):
    """Ranks under observation. `set` changes what runs; `snapshot` says in words what each line does."""

    _esm = source("page.js", "pictures.js", "tiles.js", "editor.js", "watch.js")
    _css = source("page.css", "watch.css")
    schema = traitlets.List(traitlets.Dict()).tag(sync=True)
    film = traitlets.Dict().tag(sync=True)
    given_by = "a tape is of a program on its ranks: set those"

    @property
    def code(self) -> str:
        """The line of code that shows the same, except for an edited source."""
        return self._state.code

    line = code

    def _read(self, line: str) -> WatchState:
        by_place, by_name = read_arguments(line, "lp.watch")
        return initial_watch(self._state, *by_place, **by_name)  # type: ignore[arg-type]

    @property
    def record(self) -> Tape:
        """The tape of the ranks: each line's tensors with their numbers."""
        return self._state.tape

    def move(self, changes: Values) -> None:
        if changes.keys() <= {"step", "phase"}:  # the page has the whole film, and gets no other payload
            with TURN:
                before = self._state
                self._state = before.change(changes)
                self._tell(before)
        else:
            super().move(changes)

    def snapshot(self) -> View:
        """What each line does as text; its numbers are `record`."""
        return View(NO_FIGURE, self._state.summary)

    def _press(self, kind: str, content: Values, current: bool) -> None:
        if kind == "cell" and current:
            names = ("step", "tensor", "rank", "row", "column")
            place = {name: whole(name, content[name], 0) for name in names}
            value, lights = self._state.lights(**{name: place[name] for name in names[1:]})
            self.send({"kind": "lights", **place, "value": value, "lights": lights})
        else:
            super()._press(kind, content, current)


@named_options("watch")
def watch(
    program: ProgramLike,
    model: ModelLike | None = None,
    layout: LayoutLike | None = None,
    **options: Unpack[WatchKeywords],
) -> Watch:
    """Watch a program line by line on every rank: `lp.watch("attention", tp=2, cp=2)`.

    program: "attention", "mlp", "block", "embedding", "loss"; "llama" or "step", which pp cuts into stages;
    or a function (mesh, setting, …tensors by name…) of your own; or `ranks`, what `%%ranks` leaves. model:
    supplies the KV heads for a model small enough to be drawn. layout: or its degrees as keywords, at most 16
    ranks. data: "teaching", in which each head draws its own letter, or "random". case: a name of
    `lp.programs.CASES`: a fault of `lp.programs.FAULTS`, broken on purpose; a puzzle, in which you write a
    line; or an incident.
    kv_replication=, cp_method=, chunking=, documents= and global_batch= are those of `lp.run`.

    The source is a text box: an edited source runs again on every rank. Raises LlamaparError for a program
    that cannot run.
    """
    if tape := _recorded(program):
        blank = RecordedState(**vars(WatchState.blank()), recorded=tape)
        return Watch(blank.change({"phase": "forward"}))
    return Watch(initial_watch(WatchState.blank(), program, model, layout, **options))


def _recorded(program: object) -> Tape | None:
    """The tape of a cell of `%%ranks`; None of a program."""
    if isinstance(program, str):
        return None
    from llamapar.execution.result import Result

    return program.tape if isinstance(program, Result) and program.cell else None


@named_options("watch")
def initial_watch(
    state: State,
    program: ProgramLike,
    model: ModelLike | None = None,
    layout: LayoutLike | None = None,
    **options: Unpack[WatchKeywords],
) -> State:
    """The initial state of `watch`, of the same class as `state`."""
    from llamapar.programs import program as find_program
    from llamapar.programs.cases import BREAK, CASES

    chosen = find_program(program)
    given = Values(options)
    degrees = {name: given[name] for name in DEGREES if name in given}
    laid = Layout.of(layout, **(degrees if layout is not None or degrees else _OPENS))
    values = usual() | {name: getattr(laid, name) for name in LAYOUT}
    ours = {name: known_programs()[name] for name in WATCHED}
    programs = ours if chosen in ours.values() else {chosen.name: chosen, **ours}
    values |= {name: given[name] for name in (*OPTIONS, "data") if name in given}
    values |= {"program": chosen.name, "model": model}
    state = replace(state, programs=programs, values=values, clean=values, problem=None, before=None)
    name = given.get("case")
    if not name:
        return state.change({})
    case = CASES[one_of("case", name, CASES)]
    if case.group != BREAK and case.program != chosen.name:
        what = f"case={name!r} is of program {case.program!r}, not of {chosen.name!r}"
        raise LlamaparError(
            what, "it shows in that program alone", [Choice((("program", case.program),))], "case"
        )
    if layout is None and not degrees:
        return state.change({"case": name})
    needs = {n: v for n, v in case.needs.items() if n in OPTIONS and n not in given}
    values |= needs | {"case": name, "model": model or case.model}  # on the ranks that were asked for
    return replace(state, values=values).change({"case": name})


_OPENS = {"tp": 2, "cp": 2}
"""Where nothing is said of a layout."""
