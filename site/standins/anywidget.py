"""What the panels need of anywidget, in a Python that has none: JSON to the page, messages from it.

`connect` says where messages go. Each is a line of JSON: {"to": the widget's id} and one of "opened" (its
class and whole state), "state" (what changed) or "content" (a message of the panel's own).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

_widgets: dict[str, AnyWidget] = {}
_numbers = count()
_post: Callable[[str], object] = lambda text: None  # noqa: E731


def connect(post: Callable[[str], object]) -> None:
    """Send what widgets say from now on to `post`."""
    global _post
    _post = post


@contextmanager
def silence() -> Iterator[None]:
    """While this lasts widgets say nothing."""
    global _post
    post, _post = _post, lambda text: None
    try:
        yield
    finally:
        _post = post


def rename(widget: AnyWidget, name: str) -> None:
    """Give a widget the name that the page has for it."""
    _widgets[name] = _widgets.pop(widget.model_id)
    widget.model_id = name


def receive(text: str) -> None:
    """A message of the page: {"to": a widget's id, and its "content", or the "state" that the page sets}."""
    message = json.loads(text)
    widget = _widgets[message["to"]]
    if "state" in message:
        widget.set_state(message["state"])
    else:
        widget.callback(None, message["content"], [])


class AnyWidget:
    """A widget whose page lives elsewhere."""

    traits_sent: tuple[str, ...] = ()
    _locked: Any = ()

    def __init__(self, **values: object) -> None:
        self.trait_values: dict[str, object] = dict(values)
        self.model_id = f"w{next(_numbers)}"
        _widgets[self.model_id] = self
        self._say(opened=type(self).__name__, state=self.get_state())

    def add_traits(self, **traits: object) -> None:
        self.__class__ = type(type(self).__name__, (type(self),), traits)

    def on_msg(self, callback: Callable[[object, object, list[bytes]], None]) -> None:
        self.callback = callback

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, object]:
        names = self.traits_sent if key is None else [key] if isinstance(key, str) else key
        return {name: getattr(self, name) for name in names}

    def send(self, content: object, buffers: list[bytes] | None = None) -> None:
        """Bytes do not travel: the page has plotly.js of its own."""
        self._say(content=content)

    def send_state(self, key: Any) -> None:
        if key:
            self._say(state=self.get_state(key))

    def set_state(self, sync_data: dict[str, object]) -> None:
        for name, value in sync_data.items():
            setattr(self, name, value)

    def notify_change(self, change: dict[str, Any]) -> None:
        if change["name"] in self.traits_sent and change["name"] not in self._locked:
            self.send_state(change["name"])

    @contextmanager
    def _lock_property(self, **values: object) -> Iterator[None]:
        """While this lasts, what the page sent is not sent back."""
        self._locked = values.keys()
        yield
        self._locked = set()

    def _say(self, **message: object) -> None:
        _post(json.dumps({"to": self.model_id, **message}))
