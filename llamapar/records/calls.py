"""The call that made a record: a line of code that can be copied, and arguments that can be changed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass

from llamapar.errors import LlamaparError, shown


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


def read_call(text: str) -> tuple[str, list[object], dict[str, object]]:
    """The function that a line of code calls, "lp.heads", and its arguments: by place, and by name.

    The line is read and never evaluated: an argument is a number, a text, True, False, None, a list, or
    again a call, as such a tuple. Raises LlamaparError for anything else.
    """
    try:
        return _call(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        why = "it is read as one call of a function of lp, whose arguments are plain values"
        raise LlamaparError(
            f"{shown(text)} cannot be read", why, ["lp.live('heads', 'llama3-8b', tp=2)"], "line"
        ) from None


def _call(node: ast.expr) -> tuple[str, list[object], dict[str, object]]:
    match node:
        case ast.Call(ast.Attribute(ast.Name("lp"), name), args, keywords):
            named = {str(each.arg): _value(each.value) for each in keywords}
            return f"lp.{name}", [_value(each) for each in args], named
    raise ValueError


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Call):
        return _call(node)
    value = ast.literal_eval(node)
    return list(value) if isinstance(value, tuple) else value
