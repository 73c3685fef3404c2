"""What the panels need of traitlets, in a Python that has none: attributes that are sent when they change."""

from __future__ import annotations

from typing import Any


class Trait:
    """An attribute with a default; `owner._send_trait(name)` is called where another value is set."""

    empty: object = None

    def __init__(self, default: object = None) -> None:
        self.default = self.empty if default is None else default

    def tag(self, *, sync: bool) -> Trait:
        """All of the panels' traits are sent."""
        assert sync
        return self

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        owner.traits_sent = (*getattr(owner, "traits_sent", ()), name)  # type: ignore[attr-defined]

    def __get__(self, widget: Any, owner: type) -> Any:
        return self if widget is None else widget.trait_values.get(self.name, self.default)

    def __set__(self, widget: Any, value: object) -> None:
        if value != self.__get__(widget, type(widget)):
            widget.trait_values[self.name] = value
            widget._send_trait(self.name)


class Dict(Trait):
    empty: object = {}


class List(Trait):
    empty: object = []


class Int(Trait):
    empty: object = 0


class Unicode(Trait):
    empty: object = ""
