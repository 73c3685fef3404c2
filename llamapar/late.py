"""The table of names imported at first use: the public ones, and those a room needs of a later one.

A room imports only rooms above it, and no core room imports a satellite. Sometimes it needs a later room
while it runs: `explain` reads a hang's records, a panel writes settings to copy. Then it asks here by name,
as the command does for the public function that a row of its table names.
So `import llamapar` reads almost nothing, and all exceptions to the import order are in one table. A test
allows exactly these.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

PUBLIC: Mapping[str, str] = {
    "AXES": "describe.layout",
    "Action": "place.orders",
    "Cancelled": "execution.replies",
    "Checkpoint": "checkpoint",
    "CheckpointError": "checkpoint",
    "Clinic": "panels.clinic_panel",
    "Coord": "describe.layout",
    "Cost": "timing.cost",
    "Debugged": "diagnosis.debugging",
    "Diagnosis": "diagnosis",
    "DryRun": "execution.dry_run",
    "Explanation": "diagnosis",
    "Explorer": "panels.explorer_panel",
    "FRAMEWORKS": "frameworks",
    "FfnMap": "place",
    "Finding": "rules.report",
    "HeadMap": "place",
    "Incident": "course.incidents",
    "Inspection": "checkpoint",
    "JOBS": "describe.jobs",
    "Job": "describe.job",
    "LayerSteps": "timing.inside",
    "Layout": "describe.layout",
    "LayoutError": "errors",
    "LayoutLike": "describe.layout",
    "Level": "diagnosis",
    "Live": "panels.live_panel",
    "LlamaparError": "errors",
    "Loading": "nodes.loading",
    "LossCurve": "records.losses",
    "Memory": "count",
    "ModelConfig": "describe.models",
    "ModelError": "errors",
    "ModelLike": "describe.models",
    "ModuleResult": "execution.module_result",
    "Moment": "place.pipeline",
    "PRESETS": "describe.models",
    "Padding": "describe.splits",
    "PeerError": "execution.replies",
    "Plan": "timing.plan",
    "PublishedJob": "describe.jobs",
    "RankFailure": "execution.replies",
    "RankGrid": "place",
    "Ranked": "timing.ranking",
    "Reasons": "course.reasons",
    "Reconciliation": "count",
    "Recording": "execution.recorder",
    "Replay": "course.incidents",
    "Report": "rules.report",
    "RopeScaling": "describe.rope",
    "RunResult": "execution.run_result",
    "Schedule": "place.pipeline",
    "SequenceMap": "place",
    "Settings": "frameworks.settings",
    "Shrunk": "execution.shrinking",
    "StageMap": "place",
    "Tape": "records.trace",
    "Timeline": "place.pipeline",
    "Timelines": "place.pipeline",
    "Trace": "records.trace",
    "TradeMap": "place",
    "Traffic": "count.wire",
    "Verification": "checkpoint",
    "View": "figures",
    "VocabMap": "place",
    "Watch": "panels.watch_panel",
    "ZeroMap": "count.zero_map",
    "check": "rules.report",
    "checkpoint": "",
    "clinic": "panels.clinic_panel",
    "cost": "timing.cost",
    "debug": "diagnosis.debugging",
    "explain": "diagnosis",
    "explorer": "panels.explorer_panel",
    "ffn": "place",
    "heads": "place",
    "incidents": "course.incidents",
    "inside": "timing.inside",
    "live": "panels.live_panel",
    "loading": "nodes.loading",
    "memory": "count",
    "model": "describe.models",
    "plan": "timing.plan",
    "programs": "",
    "ranks": "place",
    "read_settings": "configs.reader",
    "reasons": "course.reasons",
    "reconcile": "count",
    "record": "execution.recorder",
    "require": "rules.report",
    "run": "execution.execute",
    "schedule": "place.schedule",
    "sequence": "place",
    "shrink": "execution.shrinking",
    "stages": "place",
    "tape": "execution.execute",
    "traffic": "count.wire",
    "view": "figures",
    "vocab": "place",
    "watch": "panels.watch_panel",
    "watch_errors": "diagnosis.error_hook",
    "zero": "count.zero_map",
}
"""Public name → its module under llamapar; "" for a name that is itself a module."""

INSIDE: Mapping[str, str] = {
    "COURSE_COMMANDS": "course.course_commands",
    "EXPORTS": "configs.export",
    "WatchdogLines": "hangs.watchdog",
    "as_cli": "configs.export",
    "cell_on_ranks": "execution.cell_result",
    "explain_dumps": "hangs.answer",
    "explain_log": "hangs.answer",
    "fake_world": "spmd.compat",
    "find_fixes": "timing.fixes",
    "judge_incomplete": "configs.incomplete",
    "lesson": "course.lessons",
    "loading_picture": "nodes.drawing:picture",
    "make_mesh": "spmd.compat",
    "open_course": "course.opening",
    "overflow_lines": "nodes.loading",
    "settings_of_texts": "configs.reader",
    "times_longer": "timing.change",
}
"""Name that a room looks up in a later room → its module; after a colon its name there, if that differs."""


def late(name: str) -> Any:
    """The object of that name, imported at its first use. Raises KeyError for a name that is in no table."""
    module, _, inside = (INSIDE.get(name) or PUBLIC[name]).partition(":")
    if not module:
        return import_module(f"llamapar.{name}")
    return getattr(import_module(f"llamapar.{module}"), inside or name)
