"""`lp.live`: one picture with the knob that matters for it, and a ladder of what each value gives.

The whole ladder travels to the page, each rung with its picture, so that pointing, stepping and playing need
no answer from the kernel; the kernel only keeps up with the value. It makes a new ladder where the model or
another control changes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import traitlets

from llamapar.describe.arguments import keywords, named
from llamapar.describe.models import PRESETS, ModelConfig, ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.options import OPTIONS, Values, default
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.errors import LlamaparError, one_of, whole
from llamapar.figures import View
from llamapar.frameworks.settings import Settings
from llamapar.records.tables import Record

from .controls import live_controls
from .ladders import SUBJECTS, Map, Rung, Subject, subject, subject_of
from .page import Undoing, source


@dataclass(frozen=True)
class LiveState:
    """What is shown: the map's name, the model, the knob and the other arguments of its function."""

    what: str
    values: Values

    @property
    def subject(self) -> Subject:
        return subject(self.what)

    @cached_property
    def ladder(self) -> tuple[Rung, ...]:
        """All rungs. Raises LlamaparError where the controls allow none."""
        return self.subject.ladder(self.values)

    @property
    def rung(self) -> Rung:
        """The one that is shown."""
        return next(rung for rung in self.ladder if rung.value == self.values[self.subject.knob])

    @property
    def status(self) -> str:
        return self.rung.code

    def change(self, changes: Values) -> LiveState:
        """With some values changed. Raises LlamaparError, before anything changes, for an impossible one."""
        for name in changes:
            one_of("argument", name, self.values)
        made = replace(self, values={**self.values, **changes})
        whole(made.subject.knob, made.values[made.subject.knob])
        assert made.rung  # what the map refuses is refused here
        return made

    def load(self, model: ModelConfig) -> LiveState:
        """With another model."""
        return self.change({"model": model})

    def bring(self, settings: Settings) -> LiveState:
        """With the model of a run's own settings."""
        return self.load(settings.model_config())

    def traits(self, seq: int) -> Values:
        """The ladder, and its payload with number `seq`: the knob's name and the values."""
        values = {name: getattr(value, "name", value) for name, value in self.values.items()}
        return {
            "schema": live_controls(values),
            "ladder": [rung.as_dict() for rung in self.ladder],
            "payload": {"seq": seq, "what": self.what, "knob": self.subject.knob, "values": values},
        }

    @property
    def text(self) -> str:
        """The ladder and the picture in words."""
        knob, shown = self.subject.knob.upper(), self.rung
        rungs = [
            f"{'>' if rung is shown else ' '} {knob} {rung.value}: {rung.gives}"
            + (f" ✕ {rung.problem}" if rung.problem else "")
            for rung in self.ladder
        ]
        return "\n".join([shown.code, *rungs, shown.says, shown.view.summary])


_shown: weakref.WeakSet[Live] = weakref.WeakSet()
_together = threading.RLock()
"""One lock for all live pictures, for a move of one may move another."""


class Live(Undoing[LiveState]):
    """One picture with its knob. `set` moves it from code, `snapshot` is what it shows, as a static View.

    Pictures that show the same job move together: where another live picture has the same model and the same
    degree, it follows.
    """

    _esm = source("page.js", "live.js")
    _css = source("page.css", "live.css")
    schema = traitlets.List(traitlets.Dict()).tag(sync=True)
    ladder = traitlets.List(traitlets.Dict()).tag(sync=True)
    layout = None  # ipywidgets' own would have another id at each run, and so would the stored picture

    def __init__(self, state: LiveState) -> None:
        super().__init__(state)
        self._lock = _together
        _shown.add(self)

    @property
    def code(self) -> str:
        """The line of code that makes the record that is shown."""
        return self._state.rung.code

    @property
    def record(self) -> Map:
        """The record that is shown."""
        return self._state.subject.record(self._state.values)

    def snapshot(self) -> View:
        """The picture, and the ladder with all that it says as text."""
        return View(self._state.rung.view.spec, self._state.text)

    def _show(self, change: Callable[[LiveState], LiveState]) -> None:
        with self._lock:
            before = self._state
            super()._show(change)
            moved = {name: new for name, new in self._state.values.items() if before.values[name] != new}
            for other in list(_shown):
                if other is not self and moved:
                    other._follow_job(before.values, moved)

    def _follow_job(self, before: Values, moved: Values) -> None:
        """Take a change of another picture, if both showed the same job before it."""
        own = self._state
        shared = own.values.keys() & before.keys()
        changes = {name: new for name, new in moved.items() if name in shared}
        if not changes or any(own.values[name] != before[name] for name in shared):
            return
        try:
            state = own.change(changes)
        except LlamaparError:
            return  # what the other shows has no picture here
        super()._show(lambda _: state)


ARGUMENTS = {
    name: default(name) if name in OPTIONS else True
    for found in SUBJECTS.values()
    for name in (found.knob, *found.controls)
}
"""What `live` takes by name: the knob of each picture, and the other arguments of its function."""


@named(keywords(ARGUMENTS))
def live(what: str | Record, model: ModelLike | None = None, **arguments: object) -> Live:
    """A picture that moves: `lp.live("heads", "llama3.1-405b", tp=16)`.

    what: "heads", "vocab", "sequence" or "stages", the function whose record is drawn; or such a record.
    model: a preset, config or ModelConfig; "llama3-8b" unless given. arguments: the knob and what else the
    function takes, such as tp= and kv_replication=.

    The ladder above the picture shows what each value of the knob gives, and which value gives no whole
    share. Raises LlamaparError for what the function refuses.
    """
    name = subject_of(what) if isinstance(what, Record) else what
    found = subject(name)
    values: dict[str, object] = {"model": model} if found.of_model else {}
    values |= {found.knob: 1, **found.controls}
    if isinstance(what, Record):
        values = {field: getattr(what, field) for field in values}
        if isinstance(padding := values.get("padding"), Padding):
            values["padding"] = "none" if padding == NO_PADDING else padding.text
    if found.of_model:
        chosen = find_model(model or values["model"] or "llama3-8b")  # type: ignore[arg-type]
        values["model"] = chosen.name if PRESETS.get(chosen.name) == chosen else chosen
    elif model is not None:
        raise LlamaparError(f"{name} takes no model: it is the same for all", field="model")
    return Live(LiveState(name, values).change(arguments))
