"""What the panels need of traitlets, in a Python that has none: attributes that are sent when they change."""

from __future__ import annotations

from typing import Any


class TraitError(Exception):
    """A value that a trait refuses."""


class Bunch(dict[str, Any]):
    """What changed."""


class TraitType:
    """An attribute with a default; its owner's `notify_change` is called where another value is set."""

    empty: object = None
    sent = False

    def __init__(self, default: object = None) -> None:
        self.default = self.empty if default is None else default

    def tag(self, *, sync: bool) -> TraitType:
        self.sent = sync
        return self

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        if self.sent:
            owner.traits_sent = (*getattr(owner, "traits_sent", ()), name)  # type: ignore[attr-defined]

    def get(self, widget: Any, owner: type | None = None) -> Any:
        return widget.trait_values.get(self.name, self.default)

    def set(self, widget: Any, value: object) -> None:
        old = self.get(widget)
        if value != old:
            widget.trait_values[self.name] = value
            widget.notify_change(Bunch(name=self.name, old=old, new=value, owner=widget, type="change"))

    def __get__(self, widget: Any, owner: type) -> Any:
        return self if widget is None else self.get(widget, owner)

    def __set__(self, widget: Any, value: object) -> None:
        self.set(widget, value)


class Dict(TraitType):
    empty: object = {}


class List(TraitType):
    empty: object = []


class Int(TraitType):
    empty: object = 0


class Unicode(TraitType):
    empty: object = ""
