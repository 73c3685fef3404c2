"""Tapes of watched programs as plain data: by torch in a test's process, by the page's stand-in in another.

`python -P watch_tapes.py` reads cases as JSON and writes what each came to.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from typing import Any


def told(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a case's tape, without a backward: {program, layout, data, fault, source, options}."""
    from llamapar.execution.watching import watch_task, watched

    def task(**broken: Any) -> Any:
        how = {"data": case.get("data", "teaching"), "options": case.get("options")}
        return replace(
            watch_task(case["program"], None, dict(case["layout"]), **how, **broken), backward=False
        )

    right = watched(task())
    fault, source = case.get("fault"), case.get("source", "")
    tape = watched(task(fault=fault, source=source), right) if fault or source else right
    return [_plain(step) for step in tape.steps]


def _plain(step: Any) -> dict[str, Any]:
    events = {
        rank: [[e.kind, e.axis, list(e.group), list(e.shape), e.dtype, e.payload, e.phase] for e in sent]
        for rank, sent in step.events.items()
    }
    at = {rank: [[[r.start, r.stop] for r in dim] for dim in own] for rank, own in step.at.items()}
    found = {
        "line": [step.where, step.code, step.name, step.depth, step.phase, list(step.reads)],
        "shape": list(step.global_shape or ()),
        "places": {axis: [place.kind, place.dim] for axis, place in step.places.items()},
        "at": at,
        "events": events,
        "error": step.error,
        "fault": [step.fault, step.why],
        "values": {rank: [list(t.shape), t.double().reshape(-1).tolist()] for rank, t in step.values.items()},
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


if __name__ == "__main__":
    import torch

    importlib.import_module("page_watch")
    assert torch.__version__.endswith("+page"), "this is torch itself"
    print(json.dumps([told(case) for case in json.load(sys.stdin)]))
