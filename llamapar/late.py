"""Names imported at first use: the public ones, a later room's, and what optional rooms offer.

A room imports only rooms above it. Sometimes it needs a later room while it runs: a finding asks the search
for its fixes, a record opens its live picture. Then it asks here by name, as the command does for the public
function that a row of its table names. So `import llamapar` reads almost nothing, and a test allows exactly
the names of these tables.

An optional room may be missing. This module knows what each is for and nothing of its insides: a room says
in its own `OFFERS` what the doors get from it. Who asks for a missing room is told how to get it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import LlamaparError

_IMPORT = re.compile(r"^from \.([\w.]*) import (\w+) as \w+$", re.M)


def _public() -> dict[str, str]:
    """The public names as the package's stub imports them for type checkers."""
    stub = Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
    return {name: module for module, name in sorted(_IMPORT.findall(stub), key=itemgetter(1))}


PUBLIC = _public()
"""Public name → its module under llamapar; "" for a name that is itself a module."""

RESULTS: Mapping[str, str] = {
    "Action": "place.orders",
    "Checkpoint": "checkpoint",
    "Clinic": "panels.clinic_panel",
    "Coord": "describe.layout",
    "Cost": "timing.cost",
    "Explorer": "panels.explorer_panel",
    "FfnMap": "place",
    "Finding": "rules.report",
    "HeadMap": "place",
    "Incident": "course.incidents",
    "Inspection": "checkpoint",
    "LayerSteps": "timing.inside",
    "Level": "diagnosis",
    "Live": "panels.live_panel",
    "Loading": "nodes.loading",
    "LossCurve": "records.losses",
    "Memory": "count",
    "Moment": "place.pipeline",
    "Plan": "timing.plan",
    "PublishedJob": "describe.jobs",
    "RankGrid": "place",
    "Ranked": "timing.ranking",
    "Reasons": "timing.reasons",
    "Reconciliation": "count",
    "Recording": "execution.recorder",
    "Replay": "course.incidents",
    "Result": "execution.result",
    "SequenceMap": "place",
    "Shrunk": "execution.shrinking",
    "StageMap": "place",
    "Tape": "records.trace",
    "Timeline": "place.pipeline",
    "Timelines": "place.pipeline",
    "Trace": "records.trace",
    "TradeMap": "place",
    "Traffic": "count.wire",
    "Verification": "checkpoint",
    "VocabMap": "place",
    "Watch": "panels.watch_panel",
    "ZeroMap": "count.zero_map",
}
"""Type that only the library constructs → the module under llamapar from which a user imports it."""

INSIDE: Mapping[str, str] = {
    "find_fixes": "timing.fixes",
    "times_longer": "timing.change",
}
"""Name that a room looks up in a later room → its module."""


OPTIONAL: Mapping[str, str] = {
    "checkpoint": "inspects, reshards and verifies checkpoints",
    "configs": "reads the settings of a run",
    "course": "has the lessons of the course and the incidents that they replay",
    "hangs": "reads the flight records of a run that hangs",
}
"""Optional room → what it does, for whoever asks for it where it is missing."""


def late(name: str) -> Any:
    """The object of that name, imported at its first use.

    Raises KeyError for a name that is in no table, and LlamaparError for one of a missing room.
    """
    if name in INSIDE:
        return getattr(import_module(f"llamapar.{INSIDE[name]}"), name)
    if PUBLIC[name]:
        return getattr(imported(PUBLIC[name]), name)
    return imported(name)


def offered(room: str, name: str) -> Any:
    """What an optional room offers under that name; its `OFFERS` says in which of its modules it stands.

    Raises LlamaparError for a missing room.
    """
    return getattr(imported(f"{room}.{imported(room).OFFERS[name]}"), name)


def imported(module: str) -> ModuleType:
    """A module under llamapar, by its dotted name. Raises LlamaparError for one of a missing room."""
    try:
        return import_module(f"llamapar.{module}")
    except ModuleNotFoundError as problem:
        top, _, missing = str(problem.name).partition(".")
        room = missing.partition(".")[0]
        if top != "llamapar" or room not in OPTIONAL:
            raise
        # Without --force-reinstall pip finds the package there, and does nothing.
        again = "pip install --force-reinstall --no-deps llamapar"
        what = f"llamapar.{room} is missing from this installation"
        raise LlamaparError(what, f"it {OPTIONAL[room]}", [again]) from None
