"""The facts that readers find, each with its source; missing facts are unknown, with keys that would give
them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeVar

from llamapar.describe.configfile import Values
from llamapar.describe.layout import Layout
from llamapar.describe.modelnames import preset_name
from llamapar.describe.models import PRESETS, ModelConfig, public_models
from llamapar.frameworks.citation import Change
from llamapar.frameworks.settings import DIMS, JOB, LAYOUT, MODEL, Contradiction

from .documents import OVERRIDE, UNREAD, Document, Entry, Scalar
from .flags import Flags

_MODEL = frozenset((*ModelConfig.__dataclass_fields__, "preset", "hf"))
_LAYOUT = frozenset((*Layout.__dataclass_fields__, "dp_shard", "other_axes"))


def section_of(name: str) -> str:
    """The section of a field: the model, the layout, or, for any other, the job."""
    if name in _MODEL:
        return MODEL
    if name in _LAYOUT:
        return LAYOUT
    return JOB


OFF = ("false", "0", "none", "no", "off")
"""Words with which a switch that is given is off."""


@dataclass(frozen=True)
class Origin:
    """Source of a fact: a file and its line, or how the fact was derived."""

    file: str
    line: int = 0
    said: str = ""

    def __str__(self) -> str:
        if self.line == OVERRIDE:
            return f"your command {self.said}"
        place = self.file
        if self.line:
            place = f"{self.file}:{self.line}"
        return f"{place} {self.said}".strip()


@dataclass(frozen=True)
class Fact:
    value: object
    origin: Origin


def whole_count(value: object) -> int | None:
    """A whole number of at least one, in the forms of files: 8, "8", 1_000, 8.0; None for anything else."""
    # True is an int in Python, and a switch is no count.
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float):
        if value.is_integer() and 1 <= value < 2**53:
            return int(value)
        return None
    if isinstance(value, str):
        text = value.strip().replace("_", "")
        value = 0
        if re.fullmatch(r"[0-9]{1,15}", text):
            value = int(text)
    if isinstance(value, int) and 1 <= value < 10**15:
        return value
    return None


def count_of(entry: Entry | None) -> int | None:
    """The whole number of a setting; None where there is no setting, or no such number."""
    if entry is None:
        return None
    return whole_count(entry.value)


def truth(value: object) -> bool | None:
    """A boolean in the forms of files; None for anything else."""
    text = str(value).lower()
    if text in OFF:
        return False
    if text in ("true", "yes", "on", "1"):
        return True
    return None


def scalar(value: Scalar) -> str:
    """A value as text, lower case."""
    return str(value).strip().lower()


def stage(value: object) -> int | None:
    """A stage of ZeRO, 0 to 3; None for anything else."""
    text = str(value).strip()
    if text in ("0", "1", "2", "3"):
        return int(text)
    return None


@dataclass
class Draft:
    """The facts read so far."""

    framework: str
    facts: dict[str, Fact] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    not_covered: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    contradictions: list[Contradiction] = field(default_factory=list)
    covered: bool = True
    asked: set[tuple[str, str, int]] = field(default_factory=set)
    """What was read: file, key and line."""
    wanted: dict[str, None] = field(default_factory=dict)
    """Keys that were looked for and are not there, in that order."""
    defaulted: dict[str, str] = field(default_factory=dict)
    """Those of them for which a default counts → its field."""
    doubted: set[str] = field(default_factory=set)
    """Facts that a setting which nothing reads may say, so that nothing derives them."""
    training: bool = True
    before: Change | None = None
    """A change of the framework that came after the settings' version, if their form tells one."""
    fills: str = ""
    """The degree that takes what is left of the GPUs: "dp" or "dp_shard"; "" where all are said."""

    # -- facts

    def put(self, name: str, value: object, origin: Origin) -> None:
        """Set a fact; a later one replaces it, as on a command line."""
        # What is known is not unknown any more, whichever reader said so before.
        self.facts[name] = Fact(value, origin)
        self.unknown.pop(name, None)

    def get(self, name: str) -> object:
        fact = self.facts.get(name)
        if fact:
            return fact.value
        return None

    def number(self, name: str) -> int | None:
        """A known whole number."""
        value = self.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return None

    def missing(self, name: str, why: str) -> None:
        """Mark a field as unknown, whatever was read for it."""
        self.facts.pop(name, None)
        self.unknown[name] = why

    def derive(self, name: str, value: object, how: str) -> None:
        if name not in self.doubted:
            self.put(name, value, Origin("derived", 0, how))

    def unless_said(self, name: str, value: object, how: str) -> None:
        """Set a fact unless the field was mentioned, even by a word that could not be read."""
        if name not in self.facts and name not in self.unknown:
            self.derive(name, value, how)

    def refuse(self, what: str, origin: Origin | None = None, saves: str = "") -> None:
        """Record a setting that changes the model or the run and is not counted here.

        saves: how it takes less memory than is counted, as `saves` of `memory`.
        """
        text = what
        if origin:
            text = f"{what} ({origin})"
        if text not in self.not_covered:
            self.not_covered.append(text)
        held = self.get("saves") or ()
        if saves and isinstance(held, tuple) and saves not in held:
            self.put("saves", (*held, saves), origin or Origin("derived", 0, what))

    def take_model(self, text: str, origin: Origin) -> bool:
        """Set the dims of a public model by its published name; returns whether the name is known."""
        # An unknown name is kept as it is: it is still true that the run uses it.
        config = public(text)
        if config is None:
            self.put("hf" if "/" in text else "name", text, origin)
            return False
        key = "name"
        if config.name in PRESETS:
            key = "preset"
        self.put(key, config.name, origin)
        self.dims(config, Origin(origin.file, origin.line, f"the published config of {config.name}"))
        return True

    def dims(self, config: ModelConfig, origin: Origin) -> None:
        """Set every dimension of a model that is known by name."""
        for name in (*DIMS, "head_dim", "max_seq_len", "rope_theta", "tied"):
            self.put(name, getattr(config, name), origin)


_T = TypeVar("_T")


def as_list(value: _T | list[_T]) -> list[_T]:
    """What a row says once or several times, as a list."""
    if isinstance(value, list):
        return value
    return [value]


@dataclass(frozen=True)
class SettingsSource:
    """A file of settings, or a command's arguments, as it is read into a draft under the names of a row.

    line: the launch's arguments, which win over a file. Arguments have the row's --names, if it has any.
    """

    held: Document
    draft: Draft
    row: Values = field(default_factory=Values)
    line: Document | None = None

    @property
    def name(self) -> str:
        return self.held.name

    def get(self, *keys: str) -> Entry | None:
        """The entry under the first existing key of `keys`, which a file may spell otherwise than the row."""
        own = [name.removeprefix("--") for name in keys if name.startswith("--")]
        keys = tuple(name for name in keys if not name.startswith("--"))
        if own and isinstance(self.held, Flags):
            keys = tuple(own)
        said = None
        if self.line is not None:
            said = self.line.get(*own, *keys)
        entry = self.held.get(*keys, *(key.replace("-", "_") for key in keys))
        for read in (entry, said):
            if read is not None:
                self.draft.asked.add((read.file or self.name, read.path, read.line))
        if said is not None:
            return said
        if entry is None:
            # Noted because a key that nobody found may stand misspelt among those that nobody read.
            self.draft.wanted.update(dict.fromkeys(keys))
            return None
        if self.row.get("references"):
            return _resolved(self.held, entry)
        return entry

    def origin(self, entry: Entry | None, said: str = "") -> Origin:
        """Source of a value: file and line, or the framework whose default applies."""
        if entry is None:
            return Origin(self.row.get("by") or self.draft.framework, 0, said or "default")
        return Origin(entry.file or self.name, entry.line, said or entry.path)

    def count(self, *keys: str) -> int | None:
        """A whole number of at least one; None if the keys are absent."""
        return count_of(self.get(*keys))

    def on(self, *keys: str) -> bool:
        """Whether an argument's switch is present, and not set to false."""
        entry = self.get(*keys)
        return entry is not None and str(entry.value).lower() not in OFF

    def text(self, key: str) -> str:
        """A value as lower-case text; "" if the keys are absent."""
        entry = self.get(key)
        if entry is None or entry.value is None:
            return ""
        return scalar(entry.value)

    def take(self, field: str, *keys: str, default: object = None) -> None:
        """Set a count as a fact, or the framework's default.

        If the entry has no valid count (text that only a run resolves, a number below one), the field is
        unknown.
        """
        entry = self.get(*keys)
        value = count_of(entry)
        if value is not None:
            self.draft.put(field, value, self.origin(entry))
        elif entry is not None and entry.value is not None:
            self.unreadable(field, entry)
        elif default is not None:
            self.draft.put(field, default, self.origin(None))
            self.draft.defaulted.update(dict.fromkeys(keys, field))

    def put(self, field: str, value: object, key: str) -> None:
        """Set a fact that follows from a key, or from its default."""
        entry = self.get(key)
        if entry is None:
            self.draft.defaulted[key] = field
        self.draft.put(field, value, self.origin(entry))

    def unreadable(self, field: str, entry: Entry) -> None:
        """Mark a field whose value cannot be read as unknown, so that no default applies."""
        self.draft.missing(field, f"{entry.path} is {entry.value!r} ({entry.file or self.name}:{entry.line})")

    def unsettled(self, field: str, *keys: str) -> bool:
        """Whether only a run tells an argument; the field that follows from it is then unknown."""
        entries = [entry for key in keys if (entry := self.get(key)) is not None and "$" in str(entry.value)]
        for entry in entries[:1]:
            self.unreadable(field, entry)
        return bool(entries)

    @property
    def base(self) -> str:
        """The configuration that this one changes and that is not among the files; "" without one."""
        return next((entry.path for entry in self.held.entries if entry.value == UNREAD), "")

    def find(self, keys: str | list[str], whole: bool = False) -> Entry | None:
        """The entry under the first existing key. whole: a section or a list counts too, as its words."""
        names = as_list(keys)
        entry = self.get(*names)
        if entry is None and whole:
            parts = [part for name in names for part in self.held.under(name) if part.value is not None]
            # The words of a list are read; of a section only that it is there.
            self.draft.asked |= {(self.name, p.path, p.line) for p in parts if p.path.endswith("]")}
            if parts:
                words = " ".join(str(part.value) for part in parts)
                return Entry(parts[0].path, words, parts[0].line)
        return entry


def _resolved(document: Document, entry: Entry) -> Entry:
    """An entry with OmegaConf's references and products resolved, as far as numbers go."""
    text = str(entry.value)
    parent = entry.path.rpartition(".")[0]
    if "${" not in text:
        return entry

    def number(reference: str) -> str:
        found = document.get(f"{parent}{reference}" if reference.startswith(".") else reference)
        if found and whole_count(found.value):
            return str(whole_count(found.value))
        return "?"

    # References first, so that a product finds numbers in their place.
    text = re.sub(r"\$\{(\.?[a-z_][\w.]*)\}", lambda match: number(match[1]), text)
    if match := re.fullmatch(r"\$\{multiply:\s*(\d+)\s*,\s*(\d+)\s*\}", text):
        text = str(int(match[1]) * int(match[2]))
    return Entry(entry.path, text, entry.line)


def public(text: str) -> ModelConfig | None:
    """The public model for a name or the last part of a path; None if the table has none."""
    last = text.strip().rstrip("/").rpartition("/")[2]
    # The whole name first, then a path's last part, as of a folder on a disk.
    for name in (preset_name(text), preset_name(last), last.lower()):
        if name in PRESETS and name != "tiny":
            return PRESETS[name]
    return public_models().get(last.lower())
