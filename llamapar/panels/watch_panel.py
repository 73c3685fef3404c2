"""`lp.watch`: a program line by line on every rank, with the numbers that each rank has.

The page gets a state's film whole, so that stepping and playing ask nobody. What is edited runs again in this
process, in a namespace of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import traitlets

from llamapar.describe.arguments import DEGREES, keywords, named
from llamapar.describe.layout import LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.options import Values
from llamapar.errors import one_of, whole
from llamapar.figures import View, view
from llamapar.records.trace import Tape

from .page import Undoing, source
from .watch_state import DEGREE_NAMES, OPTIONS, WatchState, begun

if TYPE_CHECKING:  # torch is there when something is watched, and not before
    from llamapar.programs import ProgramLike


class Watch(Undoing[WatchState]):
    """Ranks that are watched. `set` changes what runs, `snapshot` says in words what each line does."""

    _esm = source("page.js", "pictures.js", "tiles.js", "editor.js", "watch.js")
    _css = source("page.css", "watch.css")
    schema = traitlets.List(traitlets.Dict()).tag(sync=True)
    film = traitlets.Dict().tag(sync=True)
    layout = None  # ipywidgets' own would have another id at each run

    @property
    def code(self) -> str:
        """The line of code that shows the same, but for an edited source."""
        return self._state.code

    @property
    def record(self) -> Tape:
        """What the ranks did: each line's tensors with their numbers."""
        return self._state.tape

    def snapshot(self) -> View:
        """Every line on every rank as one sheet, and what each line does as text."""
        return View(view(self._state.tape).spec, self._state.summary)

    def _press(self, kind: str, content: Values, current: bool) -> None:
        if kind == "cell" and current:
            names = ("step", "tensor", "rank", "row", "column")
            place = {name: whole(name, content[name], 0) for name in names}
            value, lights = self._state.lights(**{name: place[name] for name in names[1:]})
            self.send({"kind": "lights", **place, "value": value, "lights": lights})
        else:
            super()._press(kind, content, current)


@named([*DEGREES, *keywords({**OPTIONS, "data": "teaching", "fault": None})])
def watch(
    program: ProgramLike, model: ModelLike | None = None, layout: LayoutLike | None = None, **options: object
) -> Watch:
    """Ranks that one watches, line by line: `lp.watch("attention", tp=2, cp=2)`.

    program: "attention", "mlp", "block", "embedding", "loss"; "llama" or "step", which pp cuts into
    stages; or a function (mesh, setting, …tensors by name…) of your own. model: whose KV heads are kept, in a
    model small enough to be drawn. layout: or its degrees as keywords, at most 16 ranks.
    data: "teaching", in which each head draws a letter of its own, or "random". fault: a name of
    `lp.programs.FAULTS`, broken on purpose. kv_replication=, cp_method= and chunking= are those of `lp.run`.

    The source is a text box: what is edited runs again on every rank. Raises LlamaparError for what cannot
    be run.
    """
    from llamapar.programs import FAULTS

    state = begun(program, model, layout, **options)
    fault = options.get("fault")
    if fault and (layout is not None or DEGREE_NAMES & options.keys()):  # on the ranks that were asked for
        needs = FAULTS[one_of("fault", fault, FAULTS)].needs
        values = {**state.values, **{n: needs[n] for n in OPTIONS if n in needs}, "fault": fault}
        state = replace(state, values=values)
    return Watch(state.change({"fault": fault} if fault else {}))
