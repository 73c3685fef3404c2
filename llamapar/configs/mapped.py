"""One reader for the formats of `formats.toml`: a row says which key is which fact, with its default.

A row's fields are read in its order, then what it refuses, then its oddities. The table explains its words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from llamapar.describe.configfile import Values
from llamapar.errors import LlamaparError
from llamapar.frameworks.settings import DIMS, Contradiction

from . import megatron, oddities, torchtitan
from .documents import UNREAD, Document, Entry
from .draft import (
    OFF,
    Draft,
    Origin,
    SettingsSource,
    as_list,
    scalar,
    stage,
    truth,
    whole_count,
)
from .files import Files
from .flags import Flags, is_known
from .formats import ROWS, bears, holds, settings_at
from .launch import take_world

ODDITIES = {**vars(oddities), **vars(torchtitan), **vars(megatron)}
"""Names that rows give → functions."""

_NOTHING = ""
"""The value of a setting that is given and sets no fact."""


# -- reading a fact --------------------------------------------------------------------------------


def _switch(value: object, spec: Values) -> object:
    held = truth(value)
    if held is None or held:
        return held and spec.get("on", True)
    return spec.get("off", _NOTHING if "on" in spec else False)


def _number(value: object, spec: Values) -> object:
    """A positive number; None for anything else."""
    try:
        found = float(str(value).replace("_", ""))
    except ValueError:
        return None
    # float() reads "nan" and "inf" too.
    if not 0 < found < math.inf:
        return None
    if found.is_integer():
        return int(found)
    return found


def _padding(value: object, spec: Values) -> object:
    rows = whole_count(value)
    if rows:
        return f"{rows}*tp"
    return None


def _within(value: object, spec: Values) -> object:
    text = scalar(str(value))
    return next((found for word, found in spec["within"].items() if word in text), spec.get("other"))


KINDS: dict[str, Callable[[object, Values], object]] = {
    "count": lambda value, spec: whole_count(value),
    "number": _number,
    "stage": lambda value, spec: stage(value),
    "switch": _switch,
    "text": lambda value, spec: scalar(str(value)).removeprefix(spec.get("strip", "")),
    "word": lambda value, spec: str(value),
    "on": lambda value, spec: spec["on"] if scalar(str(value)) not in OFF else spec["off"],
    "padding": _padding,
    "within": _within,
    "values": lambda value, spec: None,
    "elsewhere": lambda value, spec: value,
    "other": lambda value, spec: spec["other"],
}
"""What `as` says → how a value of a file becomes that of a fact; None for one that cannot be read."""


def _put(draft: Draft, field: str, value: object, origin: Origin, agrees: bool = False) -> None:
    old = draft.facts.get(field)
    if old is not None and old.value != value:
        # What a launch says of its GPUs counts before what a file says.
        if field in ("gpus", "gpus_per_node"):
            return
        if agrees:
            draft.contradictions.append(
                Contradiction(field, (old.value, value), f"{origin} against {old.origin}")
            )
        # A preset of which the file changes a dimension is that preset no more.
        if field in DIMS:
            draft.facts.pop("preset", None)
    draft.put(field, value, origin)


def _holds_where(source: SettingsSource, spec: Values) -> bool:
    return all(holds(source, one)[0] for one in as_list(spec.get("where", [])))


def _take(source: SettingsSource, field: str, spec: Values) -> None:
    """Set a fact as a row's field says."""
    draft = source.draft
    kind = spec.get("as", "count")
    if not _holds_where(source, spec):
        return
    if product := spec.get("product"):
        numbers = [source.count(key) for key in product]
        how = " · ".join(f"{key} {number}" for key, number in zip(product, numbers, strict=True))
        if all(numbers):
            total = math.prod(number for number in numbers if number)
            _put(draft, field, total, source.origin(source.get(product[0]), how))
        return
    keys = as_list(spec.get("key", []))
    entry = None
    if keys:
        entry = source.find(keys, kind == "within")
    if spec.get("else") and field in draft.facts:
        return
    text = ""
    if entry:
        text = scalar(entry.value)
    if entry is not None and entry.file and not is_known(entry):
        source.unreadable(field, entry)
        return
    if entry is not None and text in spec.get("values", {}):
        value = spec["values"][text]
    elif entry is None or entry.value is None or text in spec.get("absent", ()):
        _default(source, field, spec, keys, entry is not None)
        return
    elif kind in ("model", "hub"):
        oddities.named_model(source, entry, spec)
        return
    else:
        value = KINDS[kind](entry.value, spec)
    if kind == "elsewhere":
        draft.missing(field, f"{entry.path} {entry.value} says it, which is not among these files")
    elif value is None:
        source.unreadable(field, entry)
    elif value != _NOTHING:
        _put(draft, field, value, source.origin(entry), spec.get("agrees", False))


def _default(source: SettingsSource, field: str, spec: Values, keys: list[str], given: bool) -> None:
    draft = source.draft
    needs = spec.get("needs")
    rest_is_open = source.base
    if rest_is_open and not given and keys and field not in draft.facts:
        draft.missing(field, f"{source.base} may say it, which is not in these files")
        return
    if needs and not any(name in draft.facts for name in needs):
        return
    if "default" in spec and not keys:
        draft.derive(field, spec["default"], spec["why"])
    elif "default" in spec:
        _put(draft, field, spec["default"], source.origin(None, spec.get("why", "")))
        draft.defaulted.update(dict.fromkeys(keys, field))
    elif "missing" in spec:
        draft.missing(field, spec["missing"])
    elif spec.get("fills"):
        draft.fills = field
    elif other := draft.number(spec.get("like", "")):
        parts = source.count(spec["over"]) if "over" in spec else 1
        if parts and other % parts == 0:
            how = spec["why"].format(value=other, over=parts)
            draft.unless_said(field, other * spec.get("times", 1) // parts, how)


def _refuse(source: SettingsSource, spec: Values) -> None:
    """Record a setting that is not counted here, if it is as the row says."""
    draft = source.draft
    said, entry = holds(source, spec)
    if not said or not _holds_where(source, spec):
        return
    value = entry.value if entry is not None else spec.get("default")
    what = spec["what"].format(value=value, key=entry.path if entry else spec["key"])
    draft.refuse(what, source.origin(entry), spec.get("saves", ""))
    if not spec.get("covered", True):
        draft.covered = False
    if spec.get("drops"):
        oddities.drop_model(draft)


def _compare(source: SettingsSource, other: Values) -> None:
    """Refuse the signs of a model that is no Llama; it is never counted as one."""
    draft = source.draft
    if "dim" not in draft.facts or ("unless" in other and source.get(other["unless"])):
        return
    many = 0
    for sign in other["signs"]:
        said, entry = holds(source, sign)
        if said and _holds_where(source, sign):
            value = entry.value if entry is not None else sign.get("default", "")
            draft.refuse(sign["what"].format(value=scalar(value)))
            many += 1
    # One sign may be a fork's setting of another name.
    draft.covered = draft.covered and many < 2


# -- reading a row ---------------------------------------------------------------------------------


def _fields(row: Values) -> Iterator[tuple[str, Values]]:
    """Each fact with its specification; a list of texts is one specification, with several keys."""
    for field, specs in row.get("fields", {}).items():
        several = isinstance(specs, list) and isinstance(specs[0], dict)
        for spec in specs if several else [specs]:
            yield field, spec if isinstance(spec, dict) else {"key": spec}


def _read_settings(row: Values, files: Files, draft: Draft, found: Document) -> None:
    line = None
    if not isinstance(found, Flags):
        line = files.line
    source = SettingsSource(found, draft, row, line)
    files.used.extend(read for read in (found, line) if read is not None)
    for field, spec in _fields(row):
        _take(source, field, spec)
    for key, why in row.get("ignored", {}).items():
        if (entry := source.find(key)) is not None:
            draft.ignored.append(f"{key} ({source.name}:{entry.line}): {why}")
    for spec in row.get("refuse", ()):
        _refuse(source, spec)
    if "other_model" in row:
        _compare(source, row["other_model"])
    for name in row.get("oddities", ()):
        ODDITIES[name](source, files)
    for title in row.get("beside", ()):
        _read_beside(title, files, draft)


def _read_beside(title: str, files: Files, draft: Draft) -> None:
    """Read the file of another format that a run has beside its own."""
    row = next(row for row in ROWS if row["title"] == title)
    for mark in row["recognised"]:
        if "keys" in mark and bears(files, mark) and (found := settings_at(files, mark)):
            _read_settings(row, files, draft, found)
            return


def read_row(row: Values, files: Files, draft: Draft) -> None:
    """Fill the draft from the files as the row says."""
    if row.get("launch", True):
        # The last script with a number of GPUs counts.
        for name, script in files.scripts.items():
            take_world(draft, name, script)
    # Some trainers take the nodes, and the ranks of each, from variables.
    names = row.get("variables", ())
    launch = SettingsSource(files.environment(*names), draft)
    numbers = [number for name in names if (number := launch.count(name))]
    if names and len(numbers) == len(names):
        per_node = launch.get(names[-1])
        draft.put("gpus", math.prod(numbers), launch.origin(per_node, " · ".join(names)))
        draft.put("gpus_per_node", numbers[-1], launch.origin(per_node))
    draft.training = row.get("training", True)
    marks = row.get("settings") or row["recognised"]
    found = next((held for mark in marks if (held := settings_at(files, mark))), None)
    for title in row.get("before", ()):
        _read_beside(title, files, draft)
    if row.get("named") and not (found in files.documents.values() or ("unseen" in row and found is None)):
        # Without the file that a command names only its own arguments count.
        below = found or Document("the launch", ())
        if found is None or files.absent:
            found = below.overridden([Entry(files.absent or "the file that the launch names", UNREAD, 0)])
    if found is not None:
        _read_settings(row, files, draft, found)
    elif "unseen" in row:
        draft.unknown |= row["unseen"]
    else:
        return
    for field, (value, why) in row.get("fixed", {}).items():
        draft.unless_said(field, value, why)
    for field, why in row.get("unknown", {}).items():
        if field not in draft.facts:
            draft.unknown.setdefault(field, why)


def refuse_row(row: Values, files: Files, draft: Draft) -> None:
    """Raise the LlamaparError that names a trainer whose settings nothing reads."""
    name = next(iter(files.texts))
    why = "no reader: its files name what it trains in ways that nothing here follows"
    choose = ["the layout by --tp, --cp, --pp and --dp"]
    raise LlamaparError(f"{name}: settings of {row['title']}, which are not read", why, choose, "config")


READERS = {"row": read_row, "nobody": refuse_row}
"""What a row's `reader` says → the function that reads it."""
