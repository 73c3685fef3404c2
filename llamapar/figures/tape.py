"""A tape with numbers as a contact sheet: a row for each line of the program, a column for each rank."""

from __future__ import annotations

import math

from llamapar.errors import LayoutError
from llamapar.records.trace import Tape, TapeStep

from . import draw, style
from .chart import Chart
from .style import Spec

INK = ("#B35900", "#EFEFF3", "#4B3B8F")
"""Of numbers below, at and above 0: no axis has these colours."""

LEVELS = 15
"""Shades of ink on either side of 0."""

GAP = 3
"""Cells between two pictures."""

CELL = 3
"""Pixels of a cell's height, about."""


def picture(record: Tape) -> tuple[Spec, str]:
    """Each line's tensor on each rank, with its numbers as ink; a communicating line is labelled."""
    steps = [step for step in record.steps if step.values and not step.depth and step.phase == "forward"]
    if not steps:
        raise LayoutError(
            "this tape has shapes alone, which are no picture",
            "a tape of lp.watch has numbers",
            ["lp.watch('attention', tp=2).record"],
            "record",
        )
    shown = [step for step in steps if step.code != "argument"] or steps
    ranks = list(record.coords)
    sizes = {id(step): rows_and_columns(max(step.local.values(), key=math.prod)) for step in shown}
    wide = max(columns for _, columns in sizes.values()) + GAP
    z: list[list[int | None]] = []
    middles = []
    names = []
    for step in shown:
        top = len(z)
        z += _band(step, ranks, sizes[id(step)][0], wide)
        middles.append((top + len(z) - 1) / 2)
        names.append(f"{step.name} ({step.event.axis.upper()})" if step.event else step.name)
        z += [[None] * (wide * len(ranks))] * GAP
    wrong = next((f"{step.name} is {step.why}" for step in shown if step.fault), "")
    at = [wide * i + (wide - GAP - 1) / 2 for i in range(len(ranks))]
    heat = {
        "type": "heatmap",
        "z": z,
        "zmin": -LEVELS,
        "zmax": LEVELS,
        "colorscale": [[i / 2, ink] for i, ink in enumerate(INK)],
        "hoverinfo": "skip",
    }
    return Chart(
        kind="tape",
        title=f"{record.program}, {record.layout}, line by line",
        note=f"each column is a rank; {wrong}" if wrong else "each column is a rank",
        data=[heat],
        layout={
            "widest": max(names, key=len),
            "warn": bool(wrong),
            "height": max(300, CELL * len(z) + style.TOP + style.BOTTOM),
            "xaxis": draw.axis("rank", **draw.ticks(at, ranks), showgrid=False),
            "yaxis": draw.axis("", [len(z) - 0.5, -0.5], **draw.ticks(middles, names), showgrid=False),
        },
        remarks=[_line(step) for step in shown],
    ).drawn()


def rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """The picture of a tensor: rows are batch and sequence, columns are the other dims."""
    down = min(2, max(0, len(shape) - 1))
    return math.prod(shape[:down]), math.prod(shape[down:])


def _band(step: TapeStep, ranks: list[int], rows: int, wide: int) -> list[list[int | None]]:
    """Rows of cells: each rank's tensor; zeros are grey, so that its size is visible."""
    wide_values = {rank: t.double().nan_to_num(0, 0, 0) for rank, t in step.values.items()}
    largest = max((float(t.abs().max()) for t in wide_values.values() if t.numel()), default=0) or 1
    band: list[list[int | None]] = [[None] * (wide * len(ranks)) for _ in range(rows)]
    for i, rank in enumerate(ranks):
        if rank not in wide_values:
            continue
        levels = (wide_values[rank] / largest * LEVELS).round().int()
        own, columns = rows_and_columns(tuple(levels.shape))
        for row, numbers in enumerate(levels.reshape(own, columns).tolist()):
            band[row][wide * i : wide * i + columns] = numbers
    return band


def _line(step: TapeStep) -> str:
    """ "partial [1, 8, 48]: piece over CP, summand over TP", with the collective and the fault beside it."""
    held = ", ".join(f"{place.kind} over {axis.upper()}" for axis, place in step.places.items())
    shape = list(next(iter(step.local.values())))
    event = step.event
    sent = f"; {event.kind} over {event.axis.upper()}" if event else ""
    wrong = f"; {step.fault}: {step.why}" if step.fault else ""
    return f"  {step.name} {shape}: {held or 'one process'}{sent}{wrong}"
