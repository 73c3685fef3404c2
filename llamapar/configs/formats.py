"""The rows of `formats.toml`: by which marks files are recognised, and how a row's keys find settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from llamapar.describe.configfile import Values

from .documents import UNREAD, Document, Entry
from .draft import OFF, SettingsSource, as_list, scalar, whole_count
from .files import Files
from .flags import Flags

ROWS: list[Values] = tomllib.loads(Path(__file__).with_name("formats.toml").read_text("utf-8"))["format"]
"""The formats, in the order in which they are tried."""


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
    return files.calls(*mark["calls"]) if "calls" in mark else None


def _arguments(document: Document, section: str) -> Flags:
    """A section of a file as the arguments of a command; its false stands for a switch that is not given."""
    held = (entry for entry in document.under(section) if entry.value is not False)
    given = (Entry(entry.path.partition(".")[2], entry.value, entry.line) for entry in held)
    return Flags(document.name, tuple(given))


def bears(files: Files, mark: Values) -> bool:
    """Whether the files bear a mark: all that it says holds."""
    found = settings_at(files, mark)
    if found is None and mark.keys() & {"keys", "flags", "calls"}:
        return False
    if found is not None and (beside := mark.get("beside")):
        also = files.flags(*beside) if "flags" in mark else found.get(*beside)
        if also is None:
            return False
    if found is not None and sum(found.get(key) is not None for key in mark.get("two", ())) == 1:
        return False
    sources = [text for name, text in files.texts.items() if name.endswith(".py")]
    if "text" in mark and not any(re.search(mark["text"], text) for text in sources):
        return False
    patterns = as_list(mark.get("command", []))
    return all(any(re.search(each, line) for line in files.command_lines()) for each in patterns)


def holds(source: SettingsSource, condition: Values) -> tuple[bool, Entry | None]:
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
