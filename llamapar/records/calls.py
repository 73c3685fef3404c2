"""The call that made a record: a line of code that can be copied, and arguments that can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass


@dataclass(frozen=True)
class Call:
    """A public function, and what it was given by name.

    function: how code names it, "lp.heads". needed: how many of the arguments, the first ones, stand without
    their names. The text of a call is its line of code.
    """

    function: str
    arguments: Mapping[str, object]
    needed: int = 0

    def __str__(self) -> str:
        words = [
            written(value) if i < self.needed else f"{name}={written(value)}"
            for i, (name, value) in enumerate(self.arguments.items())
        ]
        return f"{self.function}({', '.join(words)})"


def written(value: object) -> str:
    """A value as Python reads it back, where `lp` is this library; fields at their defaults are left out."""
    if not is_dataclass(value):
        return getattr(value, "__name__", repr(value))  # a program of one's own
    if isinstance(call := getattr(value, "call", None), Call):
        return str(call)
    said = [f for f in fields(value) if f.repr and getattr(value, f.name) != f.default]
    words = [f"{f.name}={written(getattr(value, f.name))}" for f in said]
    return f"lp.{type(value).__name__}({', '.join(words)})"
