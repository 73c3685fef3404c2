"""Files of settings as flat entries, each with its key's path and its line: TOML, JSON, YAML.

The standard library's parsers do not report lines, so a small scanner of our own finds them; the parsers
supply the values. Nothing is executed, and a file that is too large or too deep is refused by name.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from llamapar.errors import LlamaparError, shown

from .meter import Meter, numbered_matches

MOST_BYTES, MOST_ENTRIES, DEEPEST = 2_000_000, 50_000, 60

OVERRIDE = -1
"""The line of what a command line says over a file."""

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Entry:
    """A key with its value. path: the keys down to it, joined by dots; [n] is an index in a list."""

    path: str
    value: Scalar
    line: int


@dataclass(frozen=True)
class Document:
    """A file of settings. repeated: keys that occur twice, of which the last counts, with both lines.

    partial: a log that prints only some settings; the others need not be the defaults.
    """

    name: str
    entries: tuple[Entry, ...]
    repeated: tuple[tuple[Entry, Entry], ...] = ()
    partial: bool = False

    def __post_init__(self) -> None:
        # Later entries win, which is what makes overrides and repeated keys count.
        object.__setattr__(self, "_by_path", {entry.path: entry for entry in self.entries})

    def get(self, *paths: str) -> Entry | None:
        """The entry at the first existing path of `paths`."""
        by_path: dict[str, Entry] = getattr(self, "_by_path")  # noqa: B009  put there by the constructor
        return next((by_path[path] for path in paths if path in by_path), None)

    def under(self, path: str) -> Iterator[Entry]:
        """The entries below a path."""
        return (e for e in self.entries if e.path.startswith((f"{path}.", f"{path}[")))

    def overridden(self, entries: Iterable[Entry]) -> Document:
        """The document with a command line's entries, which win."""
        said = tuple(entries)
        return replace(self, entries=(*self.entries, *said)) if said else self


def _refused(name: str, what: str, line: int = 0) -> LlamaparError:
    where = f"{name}, line {line}" if line else name
    return LlamaparError(f"{where}: {what}", field="config")


def flat(name: str, value: object, lines: dict[str, int], meter: Meter) -> Iterator[Entry]:
    """Every scalar of nested mappings and lists, without recursion."""
    waiting: list[tuple[str, object, int]] = [("", value, 0)]
    count = 0
    while waiting:
        path, held, depth = waiting.pop()
        count += 1
        meter.spend(len(path) + 1)  # each path repeats the keys above it
        if depth > DEEPEST or count > MOST_ENTRIES:
            raise _refused(name, f"more than {MOST_ENTRIES:,} entries, or nested deeper than {DEEPEST}")
        if isinstance(held, dict):
            waiting += [
                (f"{path}.{key}".lstrip("."), inner, depth + 1) for key, inner in reversed(held.items())
            ]
        elif isinstance(held, list):
            waiting += [(f"{path}[{n}]", inner, depth + 1) for n, inner in reversed([*enumerate(held)])]
        elif held is None or isinstance(held, (str, int, float, bool)):
            yield Entry(path, held, lines.get(path, lines.get(path.partition("[")[0], 0)))
        else:
            yield Entry(path, str(held), lines.get(path, 0))


# -- TOML ------------------------------------------------------------------------------------------

_HEADER = re.compile(r"\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"))*)\s*=""")


_DEEP = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEEPEST}}}""")
"""A key of more parts than any setting has, for which tomllib needs time by their square."""


def read_toml(name: str, text: str, meter: Meter | None = None) -> Document:
    """A TOML file. Raises LlamaparError, with the line, if it is invalid."""
    if deep := _DEEP.search(text):
        line = text.count("\n", 0, deep.start()) + 1
        raise _refused(name, f"a key of more than {DEEPEST} parts", line)
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as problem:
        said = re.search(r"line (\d+)", str(problem))
        line = int(said.group(1)) if said else 0
        raise _refused(name, f"no TOML: {str(problem).partition(' (at')[0]}", line) from None
    lines, table, open_quotes = dict[str, int](), "", ""
    for number, row in enumerate(text.splitlines(), 1):
        if open_quotes:
            open_quotes = "" if open_quotes in row else open_quotes
            continue
        # This scanner only finds lines. A line that it misses costs an entry its number and never its
        # value.
        if match := _HEADER.match(row.strip()):
            table = re.sub(r"[\s\"']", "", match.group(1))
        elif match := _KEY.match(row):
            key = re.sub(r"[\s\"']", "", match.group(1))
            path = f"{table}.{key}".lstrip(".")
            lines.setdefault(path, number)
            # Inside a multi-line text a row that looks like a key is none.
            for quotes in ('"""', "'''"):
                open_quotes = quotes if row.count(quotes) % 2 else open_quotes
    return Document(name, tuple(flat(name, values, lines, meter or Meter(name, len(text)))))


# -- JSON ------------------------------------------------------------------------------------------

_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def read_json(name: str, text: str, meter: Meter | None = None) -> Document:
    """A JSON file; if a key occurs twice the last one counts, as everywhere, and both are reported."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as problem:
        said = re.search(r"line (\d+)", str(problem))
        line = int(said.group(1)) if said else 0
        raise _refused(name, f"no JSON: {str(problem).partition(': line')[0]}", line) from None
    found, repeated = dict[str, Entry](), list[tuple[Entry, Entry]]()
    meter, keys = meter or Meter(name, len(text)), list[str | int]()
    key_next = list[bool]()  # of each open bracket, whether a key comes
    for line, match in numbered_matches(_JSON, text):
        token = match.group()
        if token in "{[":
            # `keys` is the way down to here: a text in an object, a number in a list.
            keys.append("" if token == "{" else 0)
            key_next.append(token == "{")
            if len(keys) > DEEPEST:
                raise _refused(name, f"nested deeper than {DEEPEST}", line)
        elif token in "}]":
            keys.pop()
            key_next.pop()
        elif token == ",":
            if isinstance(keys[-1], int):
                keys[-1] += 1
            else:
                key_next[-1] = True
        elif token == ":":
            key_next[-1] = False
        elif key_next and key_next[-1]:
            keys[-1] = str(json.loads(token))
        else:
            entry = Entry(_path(keys), json.loads(token), line)
            meter.spend(len(entry.path) + 1)
            if entry.path in found:
                repeated.append((found.pop(entry.path), entry))
            found[entry.path] = entry
            if len(found) > MOST_ENTRIES:
                raise _refused(name, f"more than {MOST_ENTRIES:,} entries")
    return Document(name, tuple(found.values()), tuple(repeated))


def _path(keys: list[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


# -- YAML ------------------------------------------------------------------------------------------


def read_yaml(name: str, text: str, meter: Meter | None = None) -> Document:
    """A YAML file as PyYAML reads it (YAML 1.1: 1e-4 is text, on and yes are true).

    Raises LlamaparError if it is invalid, if aliases would multiply its size, or without PyYAML.
    """
    try:
        import yaml
    except ImportError:
        why = "reading YAML needs PyYAML, which is not installed"
        raise LlamaparError(f"{name} cannot be read", why, ["pip install pyyaml"], "config") from None
    try:
        loader = yaml.SafeLoader(text)
        return _from_node(name, loader.get_single_node(), loader, meter or Meter(name, len(text)))
    except yaml.reader.ReaderError as problem:
        said = f"the character #x{problem.character:04x}: {problem.reason}"
        raise _refused(name, f"no YAML: {said}", text.count("\n", 0, problem.position) + 1) from None
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        said = getattr(problem, "problem", None) or str(problem)
        raise _refused(name, f"no YAML: {said}", mark.line + 1 if mark else 0) from None
    except LlamaparError:
        raise
    # A date or a number that Python cannot hold, or a value that is not of the type that its tag says.
    except (ValueError, LookupError, AttributeError) as problem:
        raise _refused(name, f"no YAML: {str(problem)[:100]}") from None


MOST_DIGITS = 100
"""Characters of a number. PyYAML reads `1:30` to the base 60, in time by the square of its digits."""


def _from_node(name: str, root: object, loader: object, meter: Meter) -> Document:
    import yaml

    found, repeated = dict[str, Entry](), list[tuple[Entry, Entry]]()
    below = dict[str, list[str]]()  # the paths of mappings and lists → those of the values in them
    # An alias is the same node again, so a few lines of YAML can stand for millions; entries are counted
    # and not nodes.
    waiting: list[tuple[str, object, tuple[str, ...]]] = [("", root, ())] if root is not None else []
    count = 0
    while waiting:
        path, node, above = waiting.pop()
        count += 1
        meter.spend(len(path) + len(above) + 1)
        if count > MOST_ENTRIES or len(above) > DEEPEST:
            raise _refused(name, f"more than {MOST_ENTRIES:,} entries, or nested deeper than {DEEPEST}")
        inside = (*above, path) if path else above
        if isinstance(node, yaml.MappingNode):
            for key, inner in reversed(node.value):
                # A key that is a list or a mapping is no setting's.
                key = key.value if isinstance(key, yaml.ScalarNode) else "?"
                waiting.append((f"{path}.{key}"[:500].lstrip("."), inner, inside))
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(f"{path}[{n}]", inner, inside) for n, inner in reversed([*enumerate(node.value)])]
        elif isinstance(node, yaml.ScalarNode):
            meter.spend(len(node.value))
            own = node.tag.startswith("!")  # of the program that reads the file, as !include
            value: object = f"{node.tag} {node.value}" if own else node.value
            if not own and len(node.value) <= MOST_DIGITS:
                value = loader.construct_object(node)  # type: ignore[attr-defined]
            held = value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
            entry = Entry(path, held, node.start_mark.line + 1)
            # A mapping that comes after a scalar of the same key replaces it, and the other way round.
            replaced = [p for p in (path, *above, *below.pop(path, ())) if p in found]
            repeated += [(found.pop(p), entry) for p in dict.fromkeys(replaced)]
            for parent in above:
                below.setdefault(parent, []).append(path)
            found[path] = entry
    return Document(name, tuple(found.values()), tuple(repeated))


def read_document(name: str, text: str, meter: Meter | None = None) -> Document:
    """A file of settings, parsed by its suffix or, without one, by its content."""
    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise _refused(name, f"more than {MOST_BYTES:,} bytes")
    ending = name.rpartition(".")[2].lower()
    if ending == "toml":
        return read_toml(name, text, meter)
    if ending in ("json", "conf"):
        return read_json(name, text, meter)
    if ending in ("yaml", "yml"):
        return read_yaml(name, text, meter)
    raise LlamaparError(f"{shown(name)} is no TOML, JSON or YAML", field="config")
