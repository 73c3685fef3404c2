"""Traits that read what a panel shows, and the turn in which panels move."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import traitlets

from llamapar.describe.options import Values
from llamapar.errors import LlamaparError


class Panel(Protocol):
    """What a trait needs of its panel."""

    def value_of(self, name: str) -> object: ...

    def take(self, traits: Values) -> None: ...


class _Turn:
    """A lock around a move. Panels that move each other share it, so no two of them wait for each other.

    JupyterLab's messages come in a thread of their own, beside the cells'. Observers may wait for a cell, so
    they are called once the lock is free.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self.later: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        later: list[Callable[[], None]] = []
        if not self._depth:
            later, self.later = self.later, later
        self._lock.release()
        with ExitStack() as stack:  # an observer that raises keeps nothing from the others
            for call in reversed(later):
                stack.callback(call)


TURN = _Turn()


class Shown(traitlets.TraitType):  # type: ignore[type-arg]
    """A trait that reads what a panel shows. Setting it moves the panel, or raises TraitError."""

    default_value = None

    def get(self, obj: Panel, cls: object = None) -> object:  # type: ignore[override]
        return obj.value_of(str(self.name))

    def set(self, obj: Panel, value: object) -> None:  # type: ignore[override]
        try:
            obj.take({str(self.name): value})
        except LlamaparError as refused:
            raise traitlets.TraitError(str(refused)) from None


def as_traits(values: Values) -> Values:
    """Values as traits: a model, and whatever else is no number or text, is its name."""
    return {
        n: v if isinstance(v, str | float | int | None) else getattr(v, "name", str(v))
        for n, v in values.items()
    }
