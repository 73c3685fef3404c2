"""`lp.live`: one picture with its relevant knobs, and a ladder with the result of each value of one knob.

The page gets the whole ladder, each rung with its picture, so pointing, stepping and playing need no answer
from the kernel, which only follows the value. It computes a new ladder when another knob or a control
changes.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Unpack

import traitlets

from llamapar.describe.arguments import call_of, named_options
from llamapar.describe.keywords import LiveKeywords
from llamapar.describe.models import PRESETS, ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.options import Values
from llamapar.errors import LayoutError, LlamaparError, one_of
from llamapar.figures import View
from llamapar.late import offered
from llamapar.records.calls import Call
from llamapar.records.tables import Record

from .controls import knob_title, live_controls, rung_name
from .ladders import Rung, Subject, rung_at, same_value
from .ladders_of_jobs import JOBS
from .ladders_of_maps import MAPS
from .line import read_arguments
from .page import Undoing, source, style
from .traits import as_traits

SUBJECTS = MAPS | JOBS
"""Name → what can be shown live: the name of its function, or "block" for `lp.ranks` with a model."""

with suppress(LlamaparError):  # the course may be missing
    SUBJECTS |= offered("course", "SUBJECTS")


@dataclass(frozen=True)
class LiveState:
    """The state shown: the function's name, its arguments, and the knob of the ladder."""

    what: str
    values: Values
    knob: str

    @property
    def subject(self) -> Subject:
        return SUBJECTS[self.what]

    @cached_property
    def ladder(self) -> tuple[Rung, ...]:
        """All rungs. Raises LlamaparError if the controls allow none."""
        return self.subject.ladder(self.values, self.knob)

    @property
    def rung(self) -> Rung:
        """The rung that is shown."""
        return rung_at(self.ladder, self.values[self.knob])

    @property
    def synced(self) -> Values:
        """The traits: the values, and which knob the ladder is of."""
        return as_traits(self.values) | {"knob": self.knob}

    @property
    def value(self) -> Record | None:
        """The record; None if the function refuses."""
        return self.rung.record

    @property
    def status(self) -> str:
        return str(self.rung.call)

    @property
    def line(self) -> str:
        """The call of `lp.live` that opens the current state."""
        knob = f", knob={self.knob!r}" if self.knob != next(iter(self.subject.knobs)) else ""
        return f"lp.live({self.rung.call}{knob})"

    def change(self, changes: Values) -> LiveState:
        """With changed values, another "knob", or those of a record, "value". Raises LlamaparError if the
        function refuses.
        """
        changes = dict(changes)
        if "value" in changes:
            what, given = _read_record(changes.pop("value"))
            one_of("what", what, (self.what,))
            changes = given | changes
        knob = str(one_of("knob", changes.pop("knob", self.knob), self.subject.knobs))
        for name in changes:
            one_of("argument", name, self.values)
        values = {**self.values, **changes}
        if "rank" not in changes:
            values = self.subject.within(values)
        made = replace(self, values=values, knob=knob)
        alone = made.values == {**self.values, knob: values[knob]}
        there = alone and any(same_value(rung.value, values[knob]) for rung in self.ladder)
        if there and knob == self.knob:
            vars(made)["ladder"] = self.ladder  # a step on it: nothing is counted anew
        assert made.rung  # what the function refuses is refused here
        return made

    def traits(self, seq: int) -> Values:
        """The ladder, with payload number `seq`: the knobs, and the values of everything that can be set."""
        values = as_traits({name: self.values[name] for name in self.subject.opens})
        knobs = self.subject.knobs
        titles = [[name, knob_title(name), rung_name(name, values[name], True)] for name in knobs]
        shown = {"what": self.what, "knob": self.knob, "knobs": titles, "values": values, "line": self.line}
        shown["legend"] = self.subject.legend
        return {
            "schema": live_controls(values, knobs),
            "ladder": [rung.as_dict for rung in self.ladder],
            "payload": {"seq": seq, **shown},
        }

    @property
    def text(self) -> str:
        """The ladder and the picture in words."""
        lines = [self.status]
        for rung in self.ladder:
            line = f"{'>' if rung is self.rung else ' '} {rung.name}: {rung.gives}"
            if rung.problem:
                line += f" ✕ {rung.problem}"
            elif rung.doubt:
                line += f" ? {rung.doubt}"
            lines.append(line)
        if self.subject.legend:
            lines.append(f"  ({self.subject.legend})")
        words = dict.fromkeys((self.rung.says, self.rung.view.summary))
        return "\n".join([*lines, *words])


_shown: weakref.WeakSet[Live] = weakref.WeakSet()


class Live(Undoing[LiveState]):
    """A picture with its knob. `set` moves it from code; `snapshot` is a static View of what it shows.

    Pictures of the same job move together: a live picture with the same model and the same degree follows.
    """

    _esm = source("page.js", "map.js", "live.js")
    _css = style("live.css")
    schema = traitlets.List(traitlets.Dict()).tag(sync=True)
    ladder = traitlets.List(traitlets.Dict()).tag(sync=True)

    def __init__(self, state: LiveState) -> None:
        super().__init__(state)
        self._follows = False
        _shown.add(self)

    @property
    def code(self) -> str:
        """The line of code that makes the record shown."""
        return self._state.status

    @property
    def record(self) -> Record | None:
        """The record shown; None if the function refuses."""
        return self._state.value

    def snapshot(self) -> View:
        """The picture, and the whole ladder as text."""
        return View(self._state.rung.view.spec, self._state.text)

    @property
    def line(self) -> str:
        """The line of code that reopens this picture, for `restore`."""
        return self._state.line

    def _read(self, line: str) -> LiveState:
        by_place, by_name = read_arguments(line, "lp.live", _makers())
        return initial_live(*by_place, **by_name)  # type: ignore[arg-type]

    def _differs(self, before: LiveState, after: LiveState) -> bool:
        return after.values != before.values  # another ladder of the same picture is no step

    def _tell(self, before: LiveState) -> None:
        super()._tell(before)
        if self._follows:
            return
        moved = {n: new for n, new in self._state.values.items() if before.values.get(n, new) != new}
        for other in list(_shown):
            if other is not self and moved:
                other._follow_job(before.values, moved)

    def _follow_job(self, before: Values, moved: Values) -> None:
        """Follow a change of another picture, if both showed the same job before it."""
        own = self._state
        pairs = {name: (value, before[name]) for name, value in own.values.items() if name in before}
        changes = {name: new for name, new in moved.items() if name in pairs}
        if not changes or any(mine != its and None not in (mine, its) for mine, its in pairs.values()):
            return
        try:
            state = own.change(changes)
        except LlamaparError:
            return  # what the other shows has no picture here
        self._follows = True  # and leads no third
        self._show(lambda _: state)
        self._follows = False


@named_options("live")
def live(
    what: str | Record,
    model: ModelLike | None = None,
    *,
    knob: str | None = None,
    **arguments: Unpack[LiveKeywords],
) -> Live:
    """A live picture with knobs: `lp.live("heads", "llama3.1-405b", tp=16)`, or `record.live()`.

    what: "heads", "vocab", "sequence", "stages", "ranks", "schedule", "memory", "zero", "cost", "traffic" or
    "inside", the function whose record is drawn; "block", a rank's part of layers, heads, tokens and batch;
    "collective", "overlap" or "roofline" of the course; or a record from one of them, with all its arguments.
    model: a preset, config or ModelConfig; the default is "llama3-8b". knob: whose ladder stands above the
    picture. arguments: other arguments of the function, such as tp= and seq_len=.

    The ladder shows the result of each value of the knob, and why a value does not work. Raises LlamaparError
    if the function refuses the arguments.
    """
    return Live(initial_live(what, model, knob=knob, **arguments))


def _makers() -> dict[str, Callable[..., Record]]:
    """The functions whose records can be live, by their names in code."""
    return {call_of(found.make, {}).function: found.make for found in SUBJECTS.values()}


def initial_live(
    what: str | Record | Call,
    model: ModelLike | None = None,
    *,
    knob: str | None = None,
    **arguments: Unpack[LiveKeywords],
) -> LiveState:
    """The initial state of `live`."""
    given: Values = {}
    if not isinstance(what, str):
        what, given = _read_record(what)
    found = SUBJECTS[one_of("what", what, SUBJECTS)]
    values = found.opens | given
    if "model" in found.opens:
        chosen = find_model(model or values["model"])
        values["model"] = chosen.name if PRESETS.get(chosen.name) == chosen else chosen
    elif model is not None:
        raise LlamaparError(f"{what} takes no model: it is the same for all", field="model")
    return LiveState(what, values, knob or next(iter(found.knobs))).change(Values(arguments))


def _read_record(shown: object) -> tuple[str, Values]:
    """The name of a record's picture, and its values. Raises LayoutError if it has no live picture."""
    call = shown.call if isinstance(shown, Record) else shown
    what = call.function.rpartition(".")[2] if isinstance(call, Call) else ""
    if what == "ranks" and isinstance(call, Call) and "model" in call.arguments:
        what = "block"
    if not isinstance(call, Call) or what not in SUBJECTS:
        why = f"live pictures are made by {', '.join(_makers())}"
        what = f"{type(shown).__name__} cannot be shown live"
        raise LayoutError(what, why, ["lp.live('heads', model, tp=8)"], "what")
    # What the call leaves out is the function's default, not the value that a picture opens with.
    usual = inspect.signature(SUBJECTS[what].make).parameters.values()
    opens = SUBJECTS[what].opens
    given = {one.name: one.default for one in usual if one.name in opens and one.default is not one.empty}
    return what, {**given, **call.arguments}
