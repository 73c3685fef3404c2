"""Settings in Python, read from the source and never run: the keywords of calls of some classes.

A value is a literal, or a name that is assigned one literal. Any other value is kept as its source, which
sets no fact. A function that changes what another one made is a program, and is not followed.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache

from .documents import Entry, Scalar
from .meter import Meter, numbered_matches

UNREAD = "called, not in these files"

_LONGEST = 10_000
"""Characters of a call in a text that is not Python."""

_SHOWN = 300
"""Characters of source in the place of a value."""

_CLOSING = 64
"""Closing parentheses of such a call that are tried as its end."""


def _parse(text: str) -> ast.Module | None:
    """The source; None for a text that is no Python."""
    with suppress(SyntaxError, RecursionError, MemoryError, ValueError):
        return ast.parse(text)
    return None


_parsed = lru_cache(maxsize=64)(_parse)
"""The source of a whole file, which several readers ask for."""


def _source(node: ast.AST) -> str:
    """The source of an expression; "…" for one that is nested too deeply to be written."""
    with suppress(RecursionError):
        return ast.unparse(node)[:_SHOWN]
    return "…"


def _value(node: ast.expr, names: Mapping[str, Scalar]) -> Scalar:
    """A literal, what a name is assigned, or the source, so that no default counts in its place."""
    with suppress(ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
        literal = ast.literal_eval(node)
        if literal is None or isinstance(literal, (str, int, float, bool)):
            return literal
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else _source(node)


def _assigned(tree: ast.AST) -> dict[str, Scalar]:
    """Name → the one value that it is assigned in a source."""
    found = dict[str, set[Scalar]]()
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                found.setdefault(target.id, set()).add(_value(value, {}))
    return {name: next(iter(values)) for name, values in found.items() if len(values) == 1}


def _called(node: ast.AST, classes: tuple[str, ...]) -> str:
    """The class of `classes` that a node calls, by the end of its dotted name; "" for another node."""
    name = f".{_source(node.func)}" if isinstance(node, ast.Call) else ""
    return next((one for one in classes if name.endswith(f".{one}")), "")


def _keywords(node: ast.AST, names: Mapping[str, Scalar], meter: Meter) -> Iterator[Entry]:
    """The keywords of a call, and of the calls in it, by the names' path."""
    waiting = [("", node)]
    while waiting:
        path, node = waiting.pop()
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            key = f"{path}.{keyword.arg}".lstrip(".")
            meter.spend(len(key))  # each key repeats those above it
            if keyword.arg is not None:
                yield Entry(key, _value(keyword.value, names), keyword.value.lineno)
                waiting.append((key, keyword.value))


def keyword_literals(text: str, classes: tuple[str, ...], meter: Meter) -> dict[str, list[Entry]]:
    """Class → the keywords of its calls.

    A computed value appears as its source, and so does a keyword with a different value in each call.
    """
    tree = _parsed(text)
    nodes = _quoted(text, classes, meter)
    names = dict[str, Scalar]()
    if tree is not None:
        nodes = ast.walk(tree)
        names = _assigned(tree)
    found = dict[str, list[dict[str, Entry]]]()
    for node in nodes:
        if called := _called(node, classes):
            entries = {entry.path: entry for entry in _keywords(node, names, meter)}
            found.setdefault(called, []).append(entries)
    return {called: [*_joined(calls)] for called, calls in found.items()}


def _quoted(text: str, classes: tuple[str, ...], meter: Meter) -> Iterator[ast.AST]:
    """Calls in a text that is no Python, each the shortest text up to a parenthesis that parses as one."""
    for line, match in numbered_matches(re.compile(rf"\b(?:{'|'.join(classes)})\("), text):
        rest = text[match.start() : match.start() + _LONGEST]
        meter.spend(len(rest))
        for end in itertools.islice(re.finditer(r"\)", rest), _CLOSING):
            meter.spend(end.end())
            if tree := _parse(rest[: end.end()]):  # a tree of its own, for its lines are moved
                yield from ast.walk(ast.increment_lineno(tree, line - 1))
                break


def _joined(calls: list[dict[str, Entry]]) -> Iterator[Entry]:
    """The merged keywords of several calls, because the source does not say which one runs."""
    found = dict[str, list[Entry]]()
    for path, entry in itertools.chain.from_iterable(call.items() for call in calls):
        found.setdefault(path, []).append(entry)
    for path, held in found.items():
        values = dict.fromkeys(str(entry.value) for entry in held)
        if len(held) < len(calls):
            values["nothing"] = None
        yield held[0] if len(values) == 1 else Entry(path, " or ".join(values), held[0].line)
