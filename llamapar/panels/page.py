"""The shared part of panels: traits, page sources, plotly's bundle, and messages that each get one answer.

What a panel shows is a trait that reads the panel's state. Setting it moves the panel, as a message of the
page does, so `observe`, `link`, `jslink` and `interactive` reach all of it.

Python numbers what it shows: `payload["seq"]`, which no page ever increments. A page gives each message its
own id and waits for the answer with that id. An answer is never a payload, because traitlets does not send a
payload that equals the last one.
"""

from __future__ import annotations

import math
import numbers
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import anywidget
import traitlets
from ipywidgets import ValueWidget

from llamapar.describe.configfile import parse_object
from llamapar.describe.models import model as find_model
from llamapar.describe.options import Values
from llamapar.errors import LlamaparError, shown
from llamapar.figures import View, scenes
from llamapar.frameworks.settings import Settings
from llamapar.late import offered

from .bringing import settings_for_browser
from .ladders import same_value
from .runs import card
from .traits import TURN, Shown

EXACT = 2**53 - 1
"""Largest whole number that a browser holds exactly."""

DEEP = 16
"""Containers within containers that a page is sent; a panel's own are half as deep."""

BREATH = 0.003
"""Seconds that the kernel pauses once it has sent answers or a picture. The thread that writes them to the
socket needs the interpreter a few times, and a thread that computes gives it up only every 5 ms."""

A_PICTURE = "a still picture: live in JupyterLab"
A_STILL = "press Shift-Enter on this cell to move it"
"""What the still picture of a panel says of itself, a chart and a map."""


def source(*names: str) -> str:
    """The concatenated files beside this one."""
    return "".join((files(__package__) / name).read_text(encoding="utf-8") for name in names)


def style(*names: str) -> str:
    """The look of all panels, that of maps, and the files beside this one."""
    return source("page.css", *names) + scenes.STYLE


def for_browser(value: object, deep: int = DEEP) -> object:
    """`value` as JSON that a browser can represent exactly; as text if it cannot."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):  # a lone surrogate has no UTF-8
        return value.encode("utf-8", "backslashreplace").decode()
    if deep and isinstance(value, (list, tuple)):
        return [for_browser(item, deep - 1) for item in value]
    if deep and isinstance(value, dict):
        return {for_browser(str(name)): for_browser(item, deep - 1) for name, item in value.items()}
    # The plain types stand before the abstract ones, which take ten times as long to ask.
    if isinstance(value, (int, numbers.Integral)):
        number = int(value)
        return number if abs(number) <= EXACT else shown(number)
    if isinstance(value, (float, numbers.Real)):
        return float(value) if math.isfinite(value) else shown(float(value))
    return shown(value)


class Controls(Protocol):
    """The state of a panel's controls and its consequences: a frozen value."""

    @property
    def status(self) -> str: ...

    @property
    def synced(self) -> Values:
        """The traits that are set and observed by name."""
        ...

    @property
    def value(self) -> object:
        """What the panel gives: its job, its record, its answer; None if there is none."""
        ...

    def change(self, changes: Values) -> Self: ...

    def traits(self, seq: int) -> Values:
        """The traits for the page, in order; the payload has number `seq`."""
        ...


State = TypeVar("State", bound=Controls)
Item = TypeVar("Item")


def nth(name: str, index: int, items: Sequence[Item], why: str = "", count: str = "there are {}") -> Item:
    """The item that a button refers to. Raises LlamaparError if there is none."""
    if not 0 <= index < len(items):
        raise LlamaparError(f"{name}={shown(index)}: {count.format(len(items))}", why, field=name)
    return items[index]


class Page(anywidget.AnyWidget, ValueWidget, Generic[State]):
    """A widget whose page sends each change, and gets all its consequences in one `payload`."""

    value = Shown()
    given_by = ""
    """Why `value` cannot be set; empty where it can."""

    description = ""
    """The name that `ipywidgets.interactive` gives a widget."""

    payload = traitlets.Dict().tag(sync=True)
    told = traitlets.Dict().tag(sync=True)
    """What a run's own files said."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._breath = 0.0
        self._names = tuple(state.synced)
        self.add_traits(**{name: Shown().tag(sync=True) for name in self._names})
        super().__init__(**state.traits(0))
        self.on_msg(self._receive)
        self._follow()

    def _show(self, change: Callable[[State], State]) -> None:
        """Apply a change and show its result; if anything raises, everything stays as it was."""
        with TURN:
            before = self._state
            state = change(before)
            traits = state.traits(self.payload["seq"] + 1)
            self._state = state
            self._remember(before)
            for name, value in traits.items():
                setattr(self, name, value)
                time.sleep(self._breath)
            self._follow()
            self._tell(before)

    def _tell(self, before: State) -> None:
        """Tell observers, and what is linked in the browser, how the state differs from `before`."""
        now = self._state
        moved = [(name, before.synced.get(name), new) for name, new in now.synced.items()]
        if before.value is not now.value and self._differs(before, now):
            moved.append(("value", before.value, now.value))
        for name, old, new in moved:
            if name == "value" or not same_value(old, new):
                change = traitlets.Bunch(name=name, old=old, new=new, owner=self, type="change")
                TURN.later.append(partial(self.notify_change, change))

    def _differs(self, before: State, after: State) -> bool:
        """Whether more than the view differs."""
        return before != after

    def value_of(self, name: str) -> object:
        """What the panel shows under a trait's name."""
        return self._state.value if name == "value" else self._state.synced[name]

    def move(self, changes: Values) -> None:
        """Change the controls. Raises LlamaparError for what cannot be shown, and nothing changes."""
        self._show(lambda state: state.change(changes))

    def take(self, traits: Values) -> None:
        """Set traits. Values that are there already are no move. Raises LlamaparError."""
        changes = {n: value for n, value in traits.items() if not same_value(self.value_of(n), value)}
        if "value" in changes and self.given_by:
            raise LlamaparError(
                f"the value of {type(self).__name__} cannot be set", self.given_by, field="value"
            )
        if changes:
            self.move(changes)

    def set(self, **values: object) -> None:
        """Change several controls at once. Raises LlamaparError for what cannot be shown."""
        self.move(values)

    def set_state(self, sync_data: Values) -> None:
        """Take what the browser set, as a link there does. A refused value springs back, with its reason."""
        own = {name: value for name, value in sync_data.items() if name in self._names}
        with self._lock_property(**own):  # else a slider that is dragged gets its older values back
            try:
                self.take(own)
            except LlamaparError as refused:
                self.send_state([*own])
                self.send({"kind": "refused", "problem": card(refused, self._names)})
        super().set_state({name: value for name, value in sync_data.items() if name not in own})

    def _remember(self, before: State) -> None:
        """Keep what can be undone."""

    def _follow(self) -> None:
        """Work to do after the page has its payload."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self._state.status}"

    def get_state(self, key: object = None, drop_defaults: bool = False) -> dict[str, object]:
        """Traits as plain values; ipywidgets takes everything it sends from here."""
        return {name: for_browser(value) for name, value in super().get_state(key, drop_defaults).items()}

    def send(self, content: object, buffers: list[bytes] | None = None) -> None:
        """Send one of the panel's own messages, as plain values."""
        super().send(for_browser(content), buffers)

    def snapshot(self) -> View:
        """The panel as it is now: its picture, and the rest as text."""
        raise NotImplementedError

    def _now(self) -> View:
        """The snapshot that is available without waiting."""
        return self.snapshot()

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, object], dict[str, object]]:
        """The widget, and its static form: its text, and its figure if it has one.

        The metadata tells the server that saves the notebook (jupyter/saving.py) which forms to keep.
        """
        data, metadata = super()._repr_mimebundle_() or ({}, {})
        now = self._now()
        data["text/plain"] = now.summary
        if now.is_drawn:
            data |= still(now)._repr_mimebundle_()
        return {kind: for_browser(value) for kind, value in data.items()}, metadata | {"llamapar": "panel"}

    def _answer(self, kind: str, content: Values) -> None:
        """Do what a message requests, or raise. A button of an older payload does nothing."""
        if kind == "plotly":
            self.send({"kind": "plotly"}, buffers=[_plotly_js()])
        elif kind == "set":
            self.move(dict(content["changes"]))
        elif kind == "load":
            model = find_model(parse_object(str(content["text"]), shown(content["name"])))
            self.move({"model": model})
        elif kind == "settings":
            self.bring(offered("configs", "settings_of_texts")(content["files"]))
        else:
            self._press(kind, content, content["seq"] == self.payload["seq"])

    def bring(self, settings: Settings) -> None:
        """Load a run's own files, and report what they say."""
        problem: LlamaparError | None = None
        try:
            settings.model_config()
        except LlamaparError as missing:
            problem = missing
        self.move({"settings": settings})
        self.told = settings_for_browser(settings, problem)

    def _press(self, kind: str, content: Values, current: bool) -> None:
        """Act on one of the panel's own buttons. current: whether the page showed the current state."""
        raise NotImplementedError

    def _receive(self, _: object, content: object, __: object) -> None:
        """Handle a message from the browser: names and values are checked like any other input.

        Every message gets exactly one answer, with the problem if there was one.
        """
        message = content if isinstance(content, dict) else {}
        problem: LlamaparError | None = None
        with TURN:
            self._breath = BREATH
            try:
                self._answer(str(message["kind"]), message)
            except LlamaparError as refused:
                problem = refused
            except (Exception, KeyboardInterrupt) as fault:  # Ours too: the page goes on.
                problem = _unforeseen(message, fault)
            finally:
                self._breath = 0.0
                told = card(problem, self._names)
                self.send({"kind": "answered", "id": message.get("id"), "problem": told})


MOST_STEPS = 200
"""That can be undone."""


class Undoing(Page[State]):
    """A page whose changes can be undone."""

    past = traitlets.Int().tag(sync=True)
    """Changes that can be taken back."""

    future = traitlets.Int().tag(sync=True)
    """Those that were taken back and can be done again."""

    def __init__(self, state: State) -> None:
        self._past: list[State] = []
        self._future: list[State] = []
        super().__init__(state)

    def restore(self, line: str) -> None:
        """Show the state in a line of code from `line`. Raises LlamaparError."""
        self._show(lambda _: self._read(line))

    def _read(self, line: str) -> State:
        raise NotImplementedError

    def undo(self) -> None:
        """Undo the last change."""
        self._step(self._past, self._future)

    def redo(self) -> None:
        """Redo the last undone change."""
        self._step(self._future, self._past)

    def _step(self, back: list[State], forth: list[State]) -> None:
        with TURN:
            if back:
                forth.append(self._state)
                state = self._again(back.pop())
                self._show(lambda _: state)

    def _again(self, state: State) -> State:
        """A state of before as it is shown again."""
        return state

    def _remember(self, before: State) -> None:
        again = any(kept and kept[-1] is before for kept in (self._past, self._future))
        if not again and self._differs(before, self._state):
            self._past = [*self._past[1 - MOST_STEPS :], before]
            self._future = []

    def _follow(self) -> None:
        self.past = len(self._past)
        self.future = len(self._future)

    def _press(self, kind: str, content: Values, current: bool) -> None:
        if kind == "undo":
            self.undo()
        elif kind == "redo":
            self.redo()
        elif kind == "restore":
            self.restore(str(content["text"]))


def _unforeseen(message: Values, fault: BaseException) -> LlamaparError:
    at = traceback.extract_tb(fault.__traceback__)[-1]
    where = f"{Path(at.filename).name}, line {at.lineno}"
    what = f"not done: {type(fault).__name__}: {shown(str(fault), 200)}"
    return LlamaparError(what, f"raised in {where}, for {shown(message, 200)}; the panel goes on")


def still(now: View) -> View:
    """The same figure, marked as a static picture."""
    if now.is_map:
        return View({**now.spec, "rest": A_STILL}, now.summary)
    layout = now.spec["layout"]
    says = {"text": f"<i>{A_PICTURE}</i>", "showarrow": False, "yshift": 6}
    corner = {"xref": "paper", "yref": "paper", "x": 1, "y": 1, "xanchor": "right", "yanchor": "bottom"}
    annotations = [*layout.get("annotations", []), says | corner]
    return View({**now.spec, "layout": {**layout, "annotations": annotations}}, now.summary)


_WRAPPED = b'"use strict";var Plotly=(', b"window.Plotly = Plotly;\nreturn Plotly;"
"""How what plotly's bundle wraps into functions begins, and what stands behind it."""


def _plotly_js() -> bytes:
    """plotly's bundle without its wrapper functions, which a browser would skip first and then parse again.

    Unwrapped it runs in half the time; `Plotly` is then a global of the page, as the bundle makes it.
    """
    bundle = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    start, end = map(bundle.find, _WRAPPED)
    return bundle[start:end] if 0 <= start < end else bundle
