"""The rows of `formats.toml`: by which marks files are recognised, and how a row's keys find settings."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from llamapar.describe.configfile import Values

from .documents import Document, Entry
from .draft import Draft, SettingsSource, scalar, whole_count
from .files import Files
from .flags import Flags
from .python_source import UNREAD, ConfigurationClass

ROWS: list[Values] = tomllib.loads(Path(__file__).with_name("formats.toml").read_text("utf-8"))["format"]
"""The formats, in the order in which they are tried."""


def _maker(mark: Values) -> ConfigurationClass:
    kind, package, *sections = mark["makes"]
    return ConfigurationClass(kind, package, tuple(sections))


MAKERS = tuple(_maker(mark) for row in ROWS for mark in row["recognised"] if "makes" in mark)
"""What the configuring functions of Python files return."""

_T = TypeVar("_T")

OFF = ("false", "0", "none", "no")
"""Words with which a switch that is given is off."""


def as_list(value: _T | list[_T]) -> list[_T]:
    """What a row says once or several times, as a list."""
    return value if isinstance(value, list) else [value]


def settings_at(files: Files, mark: Values) -> Document | None:
    """The file, command or call that a mark describes."""
    if keys := mark.get("keys"):
        found = files.with_key(*keys)
        if found is not None and "arguments" in mark:
            return _arguments(found, mark["arguments"])
        if found is not None and "base" in mark:
            return found.overridden([Entry(mark["base"], UNREAD, 0)])
        if found is not None and mark.get("merged"):
            # The last value of a key counts.
            entries = (entry for document in files.documents.values() for entry in document.entries)
            return Document(found.name, tuple(entries))
        return found
    if "flags" in mark:
        return files.flags(*mark["flags"])
    if "makes" in mark:
        return files.configuration(_maker(mark))
    return files.calls(*mark["calls"]) if "calls" in mark else None


def _arguments(document: Document, section: str) -> Flags:
    """A section of a file as the arguments of a command; its false stands for a switch that is not given."""
    held = (entry for entry in document.under(section) if entry.value is not False)
    given = (Entry(entry.path.partition(".")[2], entry.value, entry.line) for entry in held)
    return Flags(document.name, tuple(given))


def bears(files: Files, mark: Values) -> bool:
    """Whether the files bear a mark: all that it says holds."""
    found = settings_at(files, mark)
    if found is None and mark.keys() & {"keys", "flags", "calls", "makes"}:
        return False
    if found is not None and (beside := mark.get("beside")):
        also = files.flags(*beside) if "flags" in mark else found.get(*beside)
        if also is None:
            return False
    if found is not None and sum(found.get(key) is not None for key in mark.get("two", ())) == 1:
        return False
    patterns = as_list(mark.get("command", []))
    return all(any(re.search(each, line) for line in files.command_lines()) for each in patterns)


@dataclass(frozen=True)
class RowSource(SettingsSource):
    """Settings under the names of a row: in a command under its --names, if it has any."""

    row: Values = field(default_factory=Values)

    def look(self, *keys: str) -> Entry | None:
        """The entry under the first existing key, which a file may spell otherwise than the row."""
        dashed = [key.replace("_", "-") for key in keys] if self.row.get("dashed") else []
        entry = self.held.get(*keys, *(key.replace("-", "_") for key in keys), *dashed)
        return _resolved(self.held, entry) if self.row.get("references") and entry is not None else entry

    def unread_calls(self, kind: str) -> list[Entry]:
        """The calls of a Python file that are not read, each under its name. kind: UNREAD or CHANGES."""
        return [entry for entry in self.held.entries if entry.value == kind]

    @property
    def base(self) -> str:
        """The configuration that this one changes and that is not among the files; "" without one."""
        return next((entry.path for entry in self.unread_calls(UNREAD)), "")

    def find(self, keys: str | list[str], whole: bool = False) -> Entry | None:
        """The entry under the first existing key. whole: a section or a list counts too, as its words."""
        own = [name.removeprefix("--") for name in as_list(keys) if name.startswith("--")]
        bare = [name for name in as_list(keys) if not name.startswith("--")]
        names = own if own and isinstance(self.held, Flags) else bare
        entry = self.get(*names) if names else None
        if entry is None and whole:
            parts = [part for name in names for part in self.held.under(name) if part.value is not None]
            # The words of a list are read; of a section only that it is there.
            self.draft.asked |= {(self.name, p.path, p.line) for p in parts if p.path.endswith("]")}
            if parts:
                words = " ".join(str(part.value) for part in parts)
                return Entry(parts[0].path, words, parts[0].line)
        return entry


def settings_source(row: Values, held: Document, draft: Draft) -> RowSource:
    """The settings of a file or a command as a row names them."""
    for base, says in row.get("bases", {}).items():
        # What changes a known base stands on top of it, and the base is not missing any more.
        if (unread := held.get(base)) and unread.value == UNREAD:
            below = [Entry(path, value, 0) for path, value in says.items()]
            held = Document(held.name, (*below, *(entry for entry in held.entries if entry is not unread)))
    return RowSource(held, draft, row.get("by", ""), row)


def holds(source: RowSource, condition: Values) -> tuple[bool, Entry | None]:
    """Whether a setting is as a condition says, and the setting."""
    entry = source.find(condition["key"], whole=True)
    value = entry.value if entry and entry.value is not None else condition.get("default")
    text = "" if value is None else scalar(value)
    if "over" in condition:
        return (whole_count(value) or 0) > condition["over"], entry
    if "not" in condition:
        return value is not None and text not in condition["not"], entry
    if "matches" in condition:
        return re.search(condition["matches"], text) is not None, entry
    on = text not in ("", *OFF)
    return on is not condition.get("off", False), entry


def _resolved(document: Document, entry: Entry) -> Entry:
    """An entry with OmegaConf's references and products resolved, as far as numbers go."""
    text, parent = str(entry.value), entry.path.rpartition(".")[0]
    if "${" not in text:
        return entry

    def number(reference: str) -> str:
        found = document.get(f"{parent}{reference}" if reference.startswith(".") else reference)
        return str(whole_count(found.value)) if found and whole_count(found.value) else "?"

    # References first, so that a product finds numbers in their place.
    text = re.sub(r"\$\{(\.?[a-z_][\w.]*)\}", lambda match: number(match[1]), text)
    if match := re.fullmatch(r"\$\{multiply:\s*(\d+)\s*,\s*(\d+)\s*\}", text):
        text = str(int(match[1]) * int(match[2]))
    return Entry(entry.path, text, entry.line)
