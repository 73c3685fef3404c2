"""Layouts from a search: each is a point, seconds of a step over the memory of its worst stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llamapar.count.terms import GIB
from llamapar.timing.plan import Plan
from llamapar.timing.ranking import Ranked

from . import draw, style
from .chart import Chart
from .style import Spec

NAMED = 5
"""Layouts that the summary names."""


class Mark(NamedTuple):
    """A layout of your own among them, in bytes and seconds."""

    name: str
    held: int
    seconds: float
    hover: str


def picture(record: Plan, marks: Sequence[Mark] = ()) -> tuple[Spec, str]:
    """Points, the Pareto frontier, and marks for your own layouts."""
    frontier = [_place(one) for one in record.frontier]
    line: Spec = {"color": style.LINE, "width": 1.5, "dash": "dot", "shape": "hv"}
    data = [
        draw.points(
            "lines",
            # From the smallest to the fastest: steps ("hv") then show what each GiB more can buy.
            reversed(frontier),
            line=line,
            hoverinfo="skip",
            **draw.legend("nothing is both faster and smaller"),
        ),
        draw.points(
            "markers",
            [_place(one) for one in record.layouts],
            marker={"size": 8, "color": style.COLOURS["tp"], "opacity": 0.75},
            hovertext=[_hover(one) for one in record.layouts],
            **draw.legend("a layout that passes"),
        ),
    ]
    for mark, (symbol, colour) in zip(marks, LOOKS, strict=False):
        look = {"symbol": symbol, "size": 16, "color": colour, "line": {"width": 1.5, "color": style.PAPER}}
        place = draw.number(mark.held / GIB), draw.number(mark.seconds)
        data.append(
            draw.points("markers", [place], marker=look, hovertext=[mark.hover], **draw.legend(mark.name))
        )
    there = record.gpu.hbm_bytes / GIB
    if record.layouts:
        note = f"the fastest {len(record.layouts):,} of {record.considered:,} layouts considered"
        note += f"{'' if record.complete else '; stopped, the best so far'}{record.unsure}"
    elif record.complete:
        note = f"none of {record.considered:,} layouts passes and fits"
    else:
        note = "stopped before any layout passed"
    best = [
        f"  {layout_label(one)}: {one.cost.step_seconds:.3g} s, {one.why}" for one in record.layouts[:NAMED]
    ]
    return Chart(
        kind="plan",
        title=f"{style.name_of(record.model)} on {record.gpus:,} {record.gpu.name}: time against memory",
        note=note,
        data=data,
        layout={
            "widest": "000.0",
            "legend_rows": 3,
            "xaxis": draw.axis("GiB of the worst stage", nticks=8),
            "yaxis": draw.axis("seconds of a step", nticks=7, rangemode="nonnegative"),
            "shapes": [draw.rule("x", draw.number(there), color=style.WARN)],
            "annotations": [draw.limit(f"{there:.1f} GiB there", draw.number(there), 1, yref="paper")],
        },
        head=note,
        remarks=[*best, *(f"{mark.name}: {mark.hover.replace('<br>', ', ')}" for mark in marks)],
    ).drawn()


LOOKS = (("star", style.WARN), ("diamond", style.COLOURS["dp"]))
"""Symbol and colour of the marks."""


def _place(one: Ranked) -> tuple[float, float]:
    return draw.number(one.memory_bytes / GIB), draw.number(one.cost.step_seconds)


def layout_label(one: Ranked) -> str:
    """A layout with the other choices of the search."""
    lay = one.layout
    job = one.job
    more = f", {lay.virtual_stages} virtual stages" if lay.virtual_stages > 1 else ""
    more += f", layers {job.layer_split}" if job.layer_split else ""
    return f"{lay}, micro-batch {job.micro_batch}, ZeRO {lay.zero}, recompute {job.recompute}{more}"


def _hover(one: Ranked) -> str:
    what = f"{one.cost.step_seconds:.3g} s, MFU {one.cost.mfu:.1%}, {one.gib} GiB: {one.outcome}"
    return f"{layout_label(one)}<br>{what}<br>{one.why}"
