"""A function that makes a configuration, read from its source and never run.

The reader understands assignments of literals (`config.a.b = 8`), keyword arguments of nested calls
(`Config(training=TrainingConfig(steps=10))`), sums of whole numbers, names of module constants, and the
functions of these files that it starts from. Any other computed value is left out.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from llamapar.errors import LlamaparError

from .documents import Document, Entry, Scalar
from .shell_words import arithmetic

UNREAD = "called, not in these files"

_LONGEST = 10_000
"""Characters of a call in a text that is not Python."""

_SHOWN = 300
"""Characters of source in the place of a value."""

_CLOSING = 64
"""Closing parentheses of such a call that are tried as its end."""


def _parsed(name: str, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as problem:
        where = f"{name}, line {getattr(problem, 'lineno', 0)}"
        raise LlamaparError(f"{where}: no Python: {str(problem)[:100]}", field="config") from None


def _functions(texts: Mapping[str, str]) -> dict[str, tuple[str, ast.FunctionDef]]:
    """Function name → its file and source, of the files that are Python."""
    found = dict[str, tuple[str, ast.FunctionDef]]()
    # The first file wins where two define a function of one name.
    for name, text in reversed([*texts.items()]):
        for node in _parsed(name, text).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = name, node
    return found


def _constants(texts: Mapping[str, str]) -> dict[str, Scalar]:
    found = dict[str, Scalar]()
    for text in texts.values():
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = _literal(node.value, {})
                if value is not None:
                    found[node.targets[0].id] = value
    return found


def _literal(node: ast.expr, names: Mapping[str, Scalar]) -> Scalar:
    """A literal, a sum of whole numbers, a name's constant, or a dotted name as text; None for the rest."""
    if isinstance(node, ast.Constant):
        value = node.value
        return value if isinstance(value, (str, int, float, bool)) else None
    if isinstance(node, ast.BinOp):
        return arithmetic(ast.unparse(node))
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return ast.unparse(node)
    return None


def _path(node: ast.expr) -> list[str]:
    """config.a.b as ["config", "a", "b"]; [] for anything else."""
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _called(node: ast.expr) -> str:
    return (_path(node.func) or [""])[-1] if isinstance(node, ast.Call) else ""


class _Function:
    """A function's configuration, path by path; the functions it starts from come first."""

    def __init__(self, functions: dict[str, tuple[str, ast.FunctionDef]], names: Mapping[str, Scalar]):
        self.functions, self.names = functions, names
        self.entries = dict[str, Entry]()
        self.seen = set[str]()

    def read(self, name: str) -> None:
        if name in self.seen or name not in self.functions:
            return
        # A function that starts from itself, directly or round about, is read once.
        self.seen.add(name)
        local = dict(self.names)
        for node in self.functions[name][1].body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node, local)
            elif isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                self.call("", node.value, local)

    def _assign(self, node: ast.Assign, local: dict[str, Scalar]) -> None:
        path = _path(node.targets[0])
        if not path:
            return
        key = ".".join(path[1:])
        if isinstance(node.value, ast.Call):
            if not key:
                local[path[0]] = _argument(node.value)
                self._base(node.value)
            else:
                self.entries[key] = Entry(key, f"{ast.unparse(node.value)[:_SHOWN]}", node.lineno)
                self.call(key, node.value, local)
        elif isinstance(node.value, ast.Constant) and node.value.value is None and key:
            self.entries[key] = Entry(key, None, node.lineno)
        elif (value := _literal(node.value, local)) is not None:
            if key:
                self.entries[key] = Entry(key, value, node.lineno)
            else:
                local[path[0]] = value

    def _base(self, call: ast.Call) -> None:
        name = _called(call)
        if name in self.functions:
            self.read(name)
        # The base is elsewhere: noted, so that its values are unknown instead of defaults.
        elif name.endswith(("config", "_common")) or name.startswith(("llama3", "qwen3")):
            self.entries[f"{UNREAD}.{name}"] = Entry(name, UNREAD, call.lineno)

    def call(self, at: str, call: ast.Call, local: Mapping[str, Scalar]) -> None:
        """The keyword arguments of a call and of the calls in it."""
        waiting = [(at, call)]
        while waiting:
            path, node = waiting.pop()
            for keyword in node.keywords:
                if keyword.arg is None:
                    continue
                key = f"{path}.{keyword.arg}".lstrip(".")
                if isinstance(keyword.value, ast.Call):
                    self.entries.setdefault(key, Entry(key, _called(keyword.value), keyword.value.lineno))
                    self.entries[key] = Entry(key, ast.unparse(keyword.value.func), keyword.value.lineno)
                    waiting.append((key, keyword.value))
                elif (value := _literal(keyword.value, local)) is not None:
                    self.entries[key] = Entry(key, value, keyword.value.lineno)


def _argument(call: ast.Call) -> Scalar:
    """The first literal argument of a call: of model_registry("8B") it is the flavour."""
    return next(
        (a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)), None
    )


def roots(texts: Mapping[str, str]) -> Iterator[str]:
    """The functions of the first file that return a configuration and are no base of another one there."""
    functions = _functions(texts)
    first = next(iter(texts), "")
    own = {name: node for name, (file, node) in functions.items() if file == first}
    # A function that another one starts from is a base, and the run uses the other.
    called = {_called(n) for node in own.values() for n in ast.walk(node) if isinstance(n, ast.Call)}
    yield from (
        name for name in own if name not in called and any(isinstance(n, ast.Return) for n in own[name].body)
    )


def read_python(texts: Mapping[str, str]) -> Document | None:
    """The configuration from the only configuring function of these files; None without one.

    Raises LlamaparError if several functions could be meant.
    """
    found = [*roots(texts)]
    if not found:
        return None
    first = next(iter(texts))
    if len(found) > 1:
        what = f"{first} makes {len(found)} configurations: {', '.join(found[:8])}"
        raise LlamaparError(what, "which one runs is not in the file", ["the function's own text"], "config")
    reader = _Function(_functions(texts), _constants(texts))
    reader.read(found[0])
    return Document(f"{first}:{found[0]}", tuple(reader.entries.values()))


def call_entries(source: str) -> Iterator[Entry]:
    """The keyword literals of a call and of those in it, by their names' path; none of bad source."""
    try:
        call = ast.parse(source, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return
    if isinstance(call, ast.Call):
        reader = _Function({}, {})
        reader.call("", call, {})
        yield from reader.entries.values()


def keyword_literals(name: str, text: str, classes: tuple[str, ...]) -> dict[str, Document]:
    """Class → the keywords of its calls; keys of a nested dict are joined by dots.

    A computed value appears as its source, and so does a keyword with a different value in each call.
    """
    found = dict[str, list[dict[str, Entry]]]()
    for call in _calls(text, classes):
        entries = dict[str, Entry]()
        for path, node in _keywords(call):
            value = _literal(node, {})
            is_none = isinstance(node, ast.Constant) and node.value is None
            computed = None if is_none else ast.unparse(node)[:_SHOWN]
            entries[path] = Entry(path, computed if value is None else value, node.lineno)
        found.setdefault(_called(call), []).append(entries)
    return {called: Document(name, tuple(_joined(calls))) for called, calls in found.items()}


def _calls(text: str, classes: tuple[str, ...]) -> Iterator[ast.Call]:
    """The calls of some classes, in a text that is Python or has them in it."""
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        starts = re.finditer(rf"\b(?:{'|'.join(classes)})\(", text)
        nodes = [node for match in starts for node in _quoted(text, match.start())]
    yield from (node for node in nodes if isinstance(node, ast.Call) and _called(node) in classes)


def _quoted(text: str, start: int) -> Iterator[ast.AST]:
    """The call that begins there: the shortest text up to a parenthesis that parses as one."""
    rest = text[start : start + _LONGEST]
    for end in itertools.islice(re.finditer(r"\)", rest), _CLOSING):
        with suppress(SyntaxError, RecursionError, MemoryError, ValueError):
            call = ast.parse(rest[: end.end()], mode="eval").body
            yield ast.increment_lineno(call, text.count("\n", 0, start))
            return


def _keywords(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    for keyword in call.keywords:
        if keyword.arg and isinstance(keyword.value, ast.Dict):
            for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield f"{keyword.arg}.{key.value}", value
        elif keyword.arg:
            yield keyword.arg, keyword.value


def _joined(calls: list[dict[str, Entry]]) -> Iterator[Entry]:
    """The merged keywords of several calls, because the source does not say which one runs."""
    for path in dict.fromkeys(path for call in calls for path in call):
        held = [call.get(path) for call in calls]
        values = dict.fromkeys("nothing" if entry is None else str(entry.value) for entry in held)
        first = next(entry for entry in held if entry)
        yield first if len(values) == 1 else Entry(path, " or ".join(values), first.line)
