"""Predictions beside measured runs: the error of each, the largest on top."""

from __future__ import annotations

import statistics

from llamapar.timing.calibrate import Calibration

from . import draw, style
from .chart import Chart
from .style import Spec

ROW = 14
"""Pixels of a run."""


def picture(record: Calibration) -> tuple[Spec, str]:
    """A bar for each run, from its measured time to the predicted time, in percent."""
    rows = sorted(
        zip(record.errors, record.costs, record.measured, strict=True), key=lambda row: -abs(row[0])
    )
    names = [style.name_of(cost.model) for _, cost, _ in rows]
    hover = [f"{cost.step_seconds:.3g} s predicted, {seconds:.3g} s measured" for _, cost, seconds in rows]
    bars: Spec = {
        "type": "bar",
        "orientation": "h",
        "x": [draw.number(100 * error) for error, _, _ in rows],
        "y": list(range(len(rows))),
        "marker": {"color": [style.COLOURS["tp"] if row[0] < 0 else style.COLOURS["dp"] for row in rows]},
        "hovertext": hover,
        "hoverinfo": "text",
        "showlegend": False,
    }
    half = statistics.median(abs(error) for error, _, _ in rows)
    return Chart(
        kind="calibration",
        title=f"predicted over measured step time, {len(rows)} runs",
        note=f"half of them are nearer than {half:.1%}; left of zero a step was predicted too fast",
        data=[bars],
        layout={
            "widest": max(names, key=len),
            "height": style.HEIGHT - 200 + ROW * len(rows),
            "xaxis": draw.axis("percent off"),
            "yaxis": draw.named(names, tickfont={"size": 9}),
        },
        remarks=[f"  {error:+7.1%}  {name}" for name, (error, _, _) in zip(names, rows, strict=True)],
    ).drawn()
