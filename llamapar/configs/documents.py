"""Files of settings as flat entries, each with its key's path and its line: TOML, JSON, YAML.

The standard library's parsers do not report lines, so a small scanner of our own finds them; the parsers
supply the values. Nothing is executed, and a file that is too large or too deep is refused by name.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from llamapar.errors import LlamaparError, install

from .meter import Meter, numbered_matches

MOST_BYTES = 2_000_000
MOST_ENTRIES = 50_000
DEEPEST = 60

OVERRIDE = -1
"""The line of what a command line says over a file."""

UNREAD = "not in these files"
"""The value that stands for what a file changes, under its name, where that is not among the files."""

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Entry:
    """A key with its value. path: the keys down to it, joined by dots; [n] is an index in a list.

    file: where it stands, if that is not the document that it is in.
    """

    path: str
    value: Scalar
    line: int
    file: str = ""


@dataclass(frozen=True)
class Document:
    """A file of settings. repeated: keys that occur twice, of which the last counts, with both lines."""

    name: str
    entries: tuple[Entry, ...]
    repeated: tuple[tuple[Entry, Entry], ...] = ()

    @cached_property
    def by_path(self) -> dict[str, Entry]:
        """Path → its entry. Later entries win, which is what makes overrides and repeated keys count."""
        return {entry.path: entry for entry in self.entries}

    def get(self, *paths: str) -> Entry | None:
        """The entry at the first existing path of `paths`."""
        return next((self.by_path[path] for path in paths if path in self.by_path), None)

    def under(self, path: str) -> Iterator[Entry]:
        """The entries below a path."""
        return (e for e in self.entries if e.path.startswith((f"{path}.", f"{path}[")))

    def overridden(self, entries: Iterable[Entry]) -> Document:
        """The document with a command line's entries, which win."""
        return replace(self, entries=(*self.entries, *entries))


def _refused(name: str, what: str, line: int = 0) -> LlamaparError:
    where = name
    if line:
        where = f"{name}, line {line}"
    return LlamaparError(f"{where}: {what}", field="config")


def _leaves(
    name: str, root: object, inner: Callable[[object], list[tuple[str, object]] | None], meter: Meter
) -> Iterator[tuple[str, object, tuple[str, ...]]]:
    """Each value of nested mappings and lists, without recursion: its path, itself, the paths above it.

    inner: what a mapping or a list has in it, by the ends of their paths; None for a value.
    """
    waiting: list[tuple[str, object, tuple[str, ...]]] = [("", root, ())]
    count = 0
    while waiting:
        path, held, above = waiting.pop()
        count += 1
        meter.spend(len(path) + len(above) + 1)
        if len(above) > DEEPEST or count > MOST_ENTRIES:
            raise _refused(name, f"more than {MOST_ENTRIES:,} entries, or nested deeper than {DEEPEST}")
        parts = inner(held)
        if parts is None:
            yield path, held, above
        else:
            meter.spend(len(path) * len(parts))  # each path repeats the keys above it
            inside = (*above, path)
            waiting += [(f"{path}{end}".lstrip("."), value, inside) for end, value in reversed(parts)]


class _Pairs(list[tuple[str, object]]):
    """An object of JSON, with the keys that occur twice."""


def _inner(value: object) -> list[tuple[str, object]] | None:
    if isinstance(value, (dict, _Pairs)):
        return [(f".{key}", held) for key, held in (value.items() if isinstance(value, dict) else value)]
    if isinstance(value, list):
        return [(f"[{n}]", held) for n, held in enumerate(value)]
    return None


def _plain(value: object) -> Scalar:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def flat(name: str, value: object, lines: Mapping[str, int], meter: Meter) -> Iterator[Entry]:
    """Every scalar of nested mappings and lists."""
    for path, held, _ in _leaves(name, value, _inner, meter):
        yield Entry(path, _plain(held), lines.get(path, lines.get(path.partition("[")[0], 0)))


def _of_last(name: str, entries: Iterable[tuple[Entry, tuple[str, ...]]]) -> Document:
    """The document of entries, each with the paths above it, the last of each key."""
    found = dict[str, Entry]()
    repeated = list[tuple[Entry, Entry]]()
    below = dict[str, list[str]]()  # the path of a mapping or a list → those of the values in it
    for entry, above in entries:
        # A mapping that comes after a scalar of the same key replaces it, and the other way round.
        replaced = (entry.path, *above, *below.pop(entry.path, ()))
        repeated += [(found.pop(path), entry) for path in replaced if path in found]
        for path in above:
            below.setdefault(path, []).append(entry.path)
        found[entry.path] = entry
    return Document(name, tuple(found.values()), tuple(repeated))


def _invalid(name: str, kind: str, problem: Exception) -> LlamaparError:
    """What a parser says of a text, in our words."""
    said = re.search(r"line (\d+)", str(problem))
    what = re.split(r" \(at|: line", str(problem))[0]
    return _refused(name, f"no {kind}: {what}", int(said[1]) if said else 0)


# -- TOML ------------------------------------------------------------------------------------------

_HEADER = re.compile(r"\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"))*)\s*=""")


_DEEP = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEEPEST}}}""")
"""A key of more parts than any setting has, for which tomllib needs time by their square."""


def read_toml(name: str, text: str, meter: Meter) -> Document:
    """A TOML file. Raises LlamaparError, with the line, if it is invalid."""
    if deep := _DEEP.search(text):
        raise _refused(name, f"a key of more than {DEEPEST} parts", text.count("\n", 0, deep.start()) + 1)
    try:
        values = tomllib.loads(text)
    except (RecursionError, ValueError) as problem:
        raise _invalid(name, "TOML", problem) from None
    lines = dict[str, int]()
    table = ""
    open_quotes = ""
    for number, row in enumerate(text.splitlines(), 1):
        if open_quotes:
            if open_quotes in row:
                open_quotes = ""
            continue
        # This scanner only finds lines. A line that it misses costs an entry its number and never its
        # value.
        if match := _HEADER.match(row.strip()):
            table = re.sub(r"[\s\"']", "", match.group(1))
        elif match := _KEY.match(row):
            key = re.sub(r"[\s\"']", "", match.group(1))
            meter.spend(len(table) + len(key))
            lines.setdefault(f"{table}.{key}".lstrip("."), number)
            # Inside a multi-line text a row that looks like a key is none.
            for quotes in ('"""', "'''"):
                if row.count(quotes) % 2:
                    open_quotes = quotes
    return Document(name, tuple(flat(name, values, lines, meter)))


# -- JSON ------------------------------------------------------------------------------------------

_JSON = re.compile(r'"(?:[^"\\]|\\.)*"(\s*:)?|[^\s{}\[\],:"]+')
"""A text, with a colon behind it if it is a key, or another value."""


def read_json(name: str, text: str, meter: Meter) -> Document:
    """A JSON file; if a key occurs twice the last one counts, as everywhere, and both are reported."""
    try:
        values = json.loads(text, object_pairs_hook=_Pairs)
    except (RecursionError, ValueError) as problem:
        raise _invalid(name, "JSON", problem) from None
    lines = (line for line, match in numbered_matches(_JSON, text) if not match[1])
    held = _leaves(name, values, _inner, meter)
    found = zip(held, lines, strict=True)
    return _of_last(name, ((Entry(path, _plain(value), line), above) for (path, value, above), line in found))


# -- YAML ------------------------------------------------------------------------------------------


def read_yaml(name: str, text: str, meter: Meter) -> Document:
    """A YAML file as PyYAML reads it (YAML 1.1: 1e-4 is text, on and yes are true).

    Raises LlamaparError if it is invalid, if aliases would multiply its size, or without PyYAML.
    """
    try:
        import yaml
    except ImportError:
        why = "reading YAML needs PyYAML, which is not installed"
        raise LlamaparError(f"{name} cannot be read", why, [install("settings")], "config") from None
    try:
        loader = yaml.SafeLoader(text)
        return _from_node(name, loader.get_single_node(), loader, meter)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        at = getattr(problem, "position", 0)
        said = getattr(problem, "problem", None) or str(problem).partition("\n")[0]
        line = mark.line if mark else text.count("\n", 0, at)
        raise _refused(name, f"no YAML: {said}", line + 1) from None
    except LlamaparError:
        raise
    # A date or a number that Python cannot hold, or a value that is not of the type that its tag says.
    except (ValueError, LookupError, AttributeError) as problem:
        raise _refused(name, f"no YAML: {str(problem)[:100]}") from None


MOST_DIGITS = 100
"""Characters of a number. PyYAML reads `1:30` to the base 60, in time by the square of its digits."""


def _from_node(name: str, root: object, loader: object, meter: Meter) -> Document:
    import yaml

    def inner(node: object) -> list[tuple[str, object]] | None:
        if isinstance(node, yaml.MappingNode):
            # A key that is a list or a mapping is no setting's.
            keys = [key.value if isinstance(key, yaml.ScalarNode) else "?" for key, _ in node.value]
            return [(f".{key}", held) for key, (_, held) in zip(keys, node.value, strict=True)]
        if isinstance(node, yaml.SequenceNode):
            return [(f"[{n}]", each) for n, each in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return None
        return []

    def entry(path: str, node: object) -> Entry:
        assert isinstance(node, yaml.ScalarNode)
        tag = node.tag
        text = node.value
        meter.spend(len(text))
        value: object = f"{tag} {text}" if tag.startswith("!") else text  # as !include, a program's own tag
        if not tag.startswith("!") and len(text) <= MOST_DIGITS:
            value = loader.construct_object(node)  # type: ignore[attr-defined]
        return Entry(path, _plain(value), node.start_mark.line + 1)

    # An alias is the same node again, so a few lines of YAML can stand for millions of entries.
    leaves = _leaves(name, root, inner, meter)
    return _of_last(name, ((entry(path, node), above) for path, node, above in leaves))


READERS = {"toml": read_toml, "json": read_json, "conf": read_json, "yaml": read_yaml, "yml": read_yaml}
"""The ending of a file's name → the reader of its format."""


def read_document(name: str, text: str, meter: Meter) -> Document:
    """A file of settings, parsed by the ending of its name."""
    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise _refused(name, f"more than {MOST_BYTES:,} bytes")
    return READERS[name.rpartition(".")[2].lower()](name, text, meter)
