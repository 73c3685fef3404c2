"""Published runs beside what the library says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import llamapar as lp

_STEPS = Path(__file__).with_name("published_steps.json")
"""Published runs as `lp.cost` is asked for them, written by benchmarks/cost_accuracy.py --course."""


def published_steps() -> lp.Calibration:
    """Published runs beside what `lp.cost` says, each named by its row; the benchmark's own rows."""

    def predicted(row: dict[str, Any]) -> lp.Cost:
        return lp.cost(lp.ModelConfig(**row["model"]), lp.Layout(**row["layout"]), **row["settings"])

    rows = json.loads(_STEPS.read_text(encoding="utf-8"))
    return lp.calibrate([(predicted(row), row["measured"]) for row in rows])
