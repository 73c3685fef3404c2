"""The call that made a record: a line of code to copy, with arguments that a live picture can change."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass

from llamapar.errors import LlamaparError, shown


@dataclass(frozen=True)
class Call:
    """A call of a public function with its arguments by name; its text is a line of code.

    function: its name in code, "lp.heads".
    needed: how many arguments, from the first on, the line of code passes by position.
    """

    function: str
    arguments: Mapping[str, object]
    needed: int = 0

    def __str__(self) -> str:
        words = [
            as_code(value) if i < self.needed else f"{name}={as_code(value)}"
            for i, (name, value) in enumerate(self.arguments.items())
        ]
        return f"{self.function}({', '.join(words)})"


def as_code(value: object) -> str:
    """A value as Python code, with `lp` for this library; fields at their defaults are left out."""
    if not is_dataclass(value):
        return getattr(value, "__name__", repr(value))  # a program of one's own
    if isinstance(call := getattr(value, "call", None), Call):
        return str(call)
    # Only what differs from the defaults, so that the line stays as short as a person would write it.
    said = [f for f in fields(value) if f.repr and getattr(value, f.name) != f.default]
    words = [f"{f.name}={as_code(getattr(value, f.name))}" for f in said]
    return f"lp.{type(value).__name__}({', '.join(words)})"


def read_call(text: str) -> tuple[str, list[object], dict[str, object]]:
    """Function name ("lp.heads"), positional and named arguments of a line of code.

    The line is parsed and never evaluated. An argument is a number, a text, True, False, None, a list, or
    another call, which becomes such a tuple itself. Raises LlamaparError for anything else.
    """
    try:
        return _call(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        why = "it is read as one call of a function of lp, whose arguments are plain values"
        raise LlamaparError(
            f"{shown(text)} cannot be read", why, ["lp.live('heads', 'llama3-8b', tp=2)"], "line"
        ) from None


def _call(node: ast.expr) -> tuple[str, list[object], dict[str, object]]:
    if not isinstance(node, ast.Call) or not (name := ast.unparse(node.func)).startswith("lp."):
        raise ValueError
    named = {str(each.arg): _value(each.value) for each in node.keywords}
    return name, [_value(each) for each in node.args], named


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Call):
        return _call(node)
    value = ast.literal_eval(node)
    if isinstance(value, tuple):
        return list(value)
    return value
