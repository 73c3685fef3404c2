"""A function that makes a configuration, read from its source and never run.

The reader understands assignments of literals (`config.a.b = 8`), keyword arguments of nested calls
(`Config(training=TrainingConfig(steps=10))`), sums of whole numbers, names of module constants, and the
functions of these files that it starts from. Any other computed value is kept as its source, which sets no
fact.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from llamapar.errors import LlamaparError

from .documents import Document, Entry, Scalar
from .meter import Meter, numbered_matches
from .shell_words import arithmetic

UNREAD = "called, not in these files"
CHANGES = "given the configuration, not read"

_LONGEST = 10_000
"""Characters of a call in a text that is not Python."""

_SHOWN = 300
"""Characters of source in the place of a value."""

_CLOSING = 64
"""Closing parentheses of such a call that are tried as its end."""


def require_python(name: str, text: str) -> ast.Module:
    """The parsed source. Raises LlamaparError, with the line, for a text that is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as problem:
        where = f"{name}, line {getattr(problem, 'lineno', 0)}"
        raise LlamaparError(f"{where}: no Python: {str(problem)[:100]}", field="config") from None


def _tree(text: str, mode: str = "exec") -> ast.AST | None:
    """The parsed source; None for a text that is no Python."""
    with suppress(SyntaxError, RecursionError, MemoryError, ValueError):
        return ast.parse(text, mode=mode)
    return None


@lru_cache(maxsize=64)
def parsed(text: str) -> ast.Module:
    """The source; empty for a text that is no Python, which then holds no configuration."""
    tree = _tree(text)
    return tree if isinstance(tree, ast.Module) else ast.Module([], [])


def _functions(texts: Mapping[str, str]) -> dict[str, ast.FunctionDef]:
    """Function name → its source, of the files that are Python."""
    # The first file wins where two define a function of one name.
    nodes = (node for text in reversed([*texts.values()]) for node in parsed(text).body)
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}


def _constants(texts: Mapping[str, str]) -> dict[str, Scalar]:
    found = dict[str, Scalar]()
    for text in texts.values():
        for node in parsed(text).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name) and node.value:
                found[target.id] = _literal(node.value, {})
    return {name: value for name, value in found.items() if value is not None}


def _source(node: ast.AST) -> str:
    """The source of an expression; "…" for one that is nested too deeply to be written."""
    with suppress(RecursionError):
        return ast.unparse(node)
    return "…"


def _literal(node: ast.expr, names: Mapping[str, Scalar]) -> Scalar:
    """A literal, a sum of whole numbers, a name's constant, or a dotted name as text; None for the rest."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (str, int, float, bool)) else None
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return arithmetic(_source(node))
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return _source(node)
    return None


def _value(node: ast.expr, names: Mapping[str, Scalar]) -> Scalar:
    """As `_literal`, but a computed value is its own source, so that no default counts in its place."""
    is_none = isinstance(node, ast.Constant) and node.value is None
    found = _literal(node, names)
    return _source(node)[:_SHOWN] if found is None and not is_none else found


def _path(node: ast.AST | None) -> list[str]:
    """config.a.b as ["config", "a", "b"]; [] for anything else."""
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _called(node: ast.AST | None) -> str:
    return (_path(node.func) or [""])[-1] if isinstance(node, ast.Call) else ""


@dataclass(frozen=True)
class ConfigurationClass:
    """What the configuring functions of a framework return.

    kind: the class that they construct or are annotated with, as a pattern. sections: the attributes that
    they set of a configuration that another function made, in files that name the package.
    """

    kind: str
    package: str
    sections: tuple[str, ...]

    def by(self, function: ast.FunctionDef, named: bool) -> bool:
        """Whether a function returns such a configuration; nothing else is evidence of one.

        named: whether its file names the package.
        """
        given, returned = function.args, _returned(function)
        if len(given.args) + len(given.posonlyargs) > len(given.defaults) or None in given.kw_defaults:
            return False  # It needs values that are not here.
        if self._is_class(function.returns) or any(map(self._is_class, returned)):
            return bool(returned)
        if not named:
            return False
        names = {path[0] for node in returned if len(path := _path(node)) == 1}
        assigned = (target for node in ast.walk(function) for target in getattr(node, "targets", ()))
        return any(
            len(path) > 1 and path[0] in names and path[1] in self.sections for path in map(_path, assigned)
        )

    def _is_class(self, node: ast.AST | None) -> bool:
        path = ".".join(_path(node.func if isinstance(node, ast.Call) else node))
        return re.search(rf"(?:^|\.){self.kind}$", path) is not None


def _returned(function: ast.FunctionDef) -> list[ast.expr]:
    """What a function returns, without the functions in it."""
    found, waiting = list[ast.expr](), list[ast.AST](function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            found.append(node.value)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)
    return found


class _Function:
    """A function's configuration, path by path; the functions it starts from come first."""

    def __init__(self, functions: dict[str, ast.FunctionDef], names: dict[str, Scalar], meter: Meter):
        self.functions, self.names, self.meter = functions, names, meter
        self.entries = dict[str, Entry]()
        self.seen = set[str]()

    def read(self, name: str) -> None:
        # A function that starts from itself, directly or round about, is read once.
        if name in self.seen:
            return
        self.seen.add(name)
        function, local = self.functions[name], ChainMap({}, self.names)
        returned = _returned(function)
        held = {path[0] for node in returned if len(path := _path(node)) == 1}
        for node in function.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node, local, held)
            elif isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                self._start(node.value, local)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                # A function that is given the configuration may change all of it.
                if held & {path[0] for given in node.value.args if (path := _path(given))}:
                    name = _called(node.value)
                    self.entries[f"{CHANGES}.{name}"] = Entry(name, CHANGES, node.lineno)
            else:
                self._guess(node, held)

    def _guess(self, node: ast.stmt, held: set[str]) -> None:
        """What a condition or a loop sets is unknown."""
        text = _source(node).partition("\n")[0][:_SHOWN]
        for inner in ast.walk(node):
            for target in (*getattr(inner, "targets", ()), getattr(inner, "target", None)):
                path = _path(target)
                if len(path) > 1 and path[0] in held:
                    key = ".".join(path[1:])
                    self.entries[key] = Entry(key, text, getattr(target, "lineno", 0))

    def _assign(self, node: ast.Assign, local: ChainMap[str, Scalar], held: set[str]) -> None:
        path = _path(node.targets[0])
        if not path:
            return
        key = ".".join(path[1:])
        if key and path[0] in held:
            self.entries[key] = Entry(key, _value(node.value, local), node.lineno)
            if isinstance(node.value, ast.Call):
                self.call(key, node.value, local)
        elif not key and path[0] in held and isinstance(node.value, ast.Call):
            self._start(node.value, local)
        elif not key:
            # Of model_registry("8B") the first text is the flavour.
            given = (a.value for a in getattr(node.value, "args", ()) if isinstance(a, ast.Constant))
            call = isinstance(node.value, ast.Call)
            first = next((value for value in given if isinstance(value, str)), None)
            local[path[0]] = first if call else _value(node.value, local)

    def _start(self, call: ast.Call, local: Mapping[str, Scalar]) -> None:
        """The call that makes the configuration: another function's, or the class itself."""
        name = _called(call)
        if name in self.functions:
            self.read(name)
        elif not name[:1].isupper():
            # It is elsewhere: noted, so that its values are unknown instead of defaults.
            self.entries[f"{UNREAD}.{name}"] = Entry(name, UNREAD, call.lineno)
        self.call("", call, local)

    def call(self, at: str, call: ast.Call, local: Mapping[str, Scalar]) -> None:
        """The keyword arguments of a call and of the calls in it."""
        waiting = [(at, call)]
        while waiting:
            path, node = waiting.pop()
            for keyword in node.keywords:
                if keyword.arg is None:
                    continue
                key = f"{path}.{keyword.arg}".lstrip(".")
                self.meter.spend(len(key))  # each key repeats those above it
                if isinstance(keyword.value, ast.Call):
                    # What a call is given by place tells what it makes: model_registry("8B").
                    source = _source(keyword.value if keyword.value.args else keyword.value.func)
                    self.entries[key] = Entry(key, source[:_SHOWN], keyword.value.lineno)
                    waiting.append((key, keyword.value))
                else:
                    self.entries[key] = Entry(key, _value(keyword.value, local), keyword.value.lineno)


@lru_cache(maxsize=64)
def configurations(text: str, made: ConfigurationClass) -> tuple[str, ...]:
    """The functions of a source that return a configuration, in its order."""
    functions = (node for node in parsed(text).body if isinstance(node, ast.FunctionDef))
    named = made.package in text
    return tuple(dict.fromkeys(node.name for node in functions if made.by(node, named)))


def read_python(
    texts: Mapping[str, str], made: ConfigurationClass, named: Callable[[str], bool], meter: Meter
) -> Document | None:
    """The configuration from one function of these files; None without one.

    named: whether something else in the job names a function. Raises LlamaparError if several could be meant.
    """
    functions, first = _functions(texts), next(iter(texts), "")
    found = configurations(texts.get(first, ""), made)
    if not found:
        return None
    chosen = [*filter(named, found)]
    if not chosen:
        # A function that another one starts from is a base, and the run uses the other.
        calls = {_called(node) for name in found for node in ast.walk(functions[name])}
        chosen = [name for name in found if name not in calls]
    if len(chosen) != 1:
        what = f"{first} makes {len(found)} configurations: {', '.join(found[:8])}"
        choose = [f"{first}:{name}" for name in found[:3]]
        raise LlamaparError(what, "which one runs is not in the file", choose, "config")
    reader = _Function(functions, _constants(texts), meter)
    reader.read(chosen[0])
    return Document(f"{first}:{chosen[0]}", tuple(reader.entries.values()))


def keyword_literals(text: str, classes: tuple[str, ...], meter: Meter) -> dict[str, list[Entry]]:
    """Class → the keywords of its calls; keys of a nested dict are joined by dots.

    A computed value appears as its source, and so does a keyword with a different value in each call.
    """
    found = dict[str, list[dict[str, Entry]]]()
    for call in _calls(text, classes, meter):
        entries = dict[str, Entry]()
        for path, node in _keywords(call):
            meter.spend(len(path))
            entries[path] = Entry(path, _value(node, {}), node.lineno)
        found.setdefault(_called(call), []).append(entries)
    return {called: [*_joined(calls)] for called, calls in found.items()}


def _calls(text: str, classes: tuple[str, ...], meter: Meter) -> Iterator[ast.Call]:
    """The calls of some classes, in a text that is Python or has them in it."""
    tree = _tree(text)
    nodes = ast.walk(tree) if tree else _quoted(text, classes, meter)
    yield from (node for node in nodes if isinstance(node, ast.Call) and _called(node) in classes)


def _quoted(text: str, classes: tuple[str, ...], meter: Meter) -> Iterator[ast.AST]:
    """Calls in a text that is no Python, each the shortest text up to a parenthesis that parses as one."""
    for line, match in numbered_matches(re.compile(rf"\b(?:{'|'.join(classes)})\("), text):
        rest = text[match.start() : match.start() + _LONGEST]
        meter.spend(len(rest))
        for end in itertools.islice(re.finditer(r"\)", rest), _CLOSING):
            meter.spend(end.end())
            if isinstance(call := _tree(rest[: end.end()], "eval"), ast.Expression):
                yield ast.increment_lineno(call.body, line - 1)
                break


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
    found = dict[str, list[Entry]]()
    for path, entry in itertools.chain.from_iterable(call.items() for call in calls):
        found.setdefault(path, []).append(entry)
    for path, held in found.items():
        values = dict.fromkeys(str(entry.value) for entry in held)
        if len(held) < len(calls):
            values["nothing"] = None
        yield held[0] if len(values) == 1 else Entry(path, " or ".join(values), held[0].line)
