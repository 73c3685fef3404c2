"""Published runs beside what the library says of them."""

from __future__ import annotations

import json
from pathlib import Path

import llamapar as lp


def published_steps() -> lp.Calibration:
    """Published runs beside what `lp.cost` says, each named by its row; the benchmark's own rows.

    benchmarks/cost_accuracy.py --course writes them.
    """
    rows = json.loads(Path(__file__).with_name("published_steps.json").read_text(encoding="utf-8"))
    predicted = [
        lp.cost(lp.ModelConfig(**row["model"]), lp.Layout(**row["layout"]), **row["settings"]) for row in rows
    ]
    return lp.calibrate([(cost, row["measured"]) for cost, row in zip(predicted, rows, strict=True)])
