"""Memory over one rank's operations: the maximum of each, and below it the operation of the peak.

Parts have the colours of `memory`, and collectives the colours of their axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llamapar.records.curve import MemoryCurve
from llamapar.records.tables import readable_bytes, unit_of

from . import draw, memory, style
from .chart import Chart
from .draw import Rows
from .style import Spec

DRAWN = 96
"""Most bars of operations; of more operations, the highest of each stretch."""

POINTS = 240
"""Most points of the curve inside the peak's operation; of more, the highest of each stretch."""

MARKS = 160
"""Most collectives marked on it, evenly chosen."""

HOLDERS = {
    "parameters": ("parameters",),
    "gradients": ("gradients",),
    "optimizer": ("optimizer states", "master weights"),
    "activations": ("activations", "stage's input and output"),
    "logits and loss": ("activations: logits and loss",),
    "workspace": ("workspace", "messages", "inputs"),
}
"""Part of a bar, coloured as in `memory.PARTS` → the holders that belong to it; the longest name decides."""

ABOVE, BELOW = [0.6, 1.0], [0.0, 0.34]
"""Parts of the height: all operations, and the one of the peak."""


def picture(record: MemoryCurve) -> tuple[Spec, str]:
    """Stacked bars with the maximum of every operation, and the curve inside the operation of the peak."""
    unit, size = unit_of(record.peak_bytes)
    n, top = len(record.spans), draw.number(round(1.12 * record.peak_bytes / size, 4))
    wide = draw.step(n, DRAWN)
    numbered = draw.ticks(range(0, n, draw.step(n, 12)))
    order = draw.axis("operations of the rank, in order", [-0.5, n - 0.5], **numbered)

    def line(i: int) -> str:
        each = ", ".join(f"{part} {readable_bytes(n)}" for part, n in _by_part(record.holders[i]).items())
        return f"{record.spans[i].name}: {readable_bytes(record.spans[i].most)}: {each}"

    left_out = f"a bar is the highest of {wide} operations in a row, of {n:,}"
    return Chart(
        kind="curve",
        title=record.title,
        note=f"peak {readable_bytes(record.peak_bytes)} at {record.peak}",
        data=[*_operations(record, wide, size), *_inside(record, size)],
        layout={
            "height": 560,
            "widest": f"{top:,.0f}",
            "legend_rows": 3,
            "barmode": "stack",
            "xaxis": order | {"anchor": "y", "showgrid": False},
            "yaxis": draw.axis(unit, [0, top], nticks=6, domain=ABOVE),
            "xaxis2": draw.axis(
                "tensors that come and go, inside the operation of the peak", anchor="y2", nticks=6
            ),
            "yaxis2": draw.axis(unit, nticks=4, domain=BELOW, anchor="x2"),
            "legend": {"traceorder": "normal"},
        },
        rows=Rows(n, most=n),  # no operation is left out: one that has no bar is behind a higher one's
        line=line,
        remarks=[record.sentence, left_out if wide > 1 else ""],
    ).drawn()


def _by_part(holders: Mapping[str, int]) -> dict[str, int]:
    """Bytes of each part, in the order of HOLDERS; empty parts are left out."""
    sums = dict.fromkeys(HOLDERS, 0)
    for holder, n in holders.items():
        # Of the names that a holder begins with the longest one counts.
        fits = [
            (len(name), part) for part, names in HOLDERS.items() for name in names if holder.startswith(name)
        ]
        sums[max(fits)[1] if fits else "workspace"] += n
    return {part: n for part, n in sums.items() if n}


def _highest(heights: Sequence[int], most: int) -> list[int]:
    """The position of the maximum in each stretch, at most `most` of them, in order."""
    n, long = len(heights), draw.step(len(heights), most)
    return [max(range(at, min(at + long, n)), key=heights.__getitem__) for at in range(0, n, long)]


def _operations(record: MemoryCurve, wide: int, size: int) -> Iterator[Spec]:
    """A trace for each part that an operation holds; a bar is the highest of `wide` operations in a row."""
    drawn = _highest([span.most for span in record.spans], DRAWN)
    held = [_by_part(record.holders[i]) for i in drawn]
    names = [record.spans[i].name for i in drawn]
    middles = [draw.number(i // wide * wide + (wide - 1) / 2) for i in drawn]
    for part in HOLDERS:
        sums = [each.get(part, 0) for each in held]
        if any(sums):
            heights = [draw.number(round(n / size, 4)) for n in sums]
            hover = [f"{name} · {part} {readable_bytes(n)}" for name, n in zip(names, sums, strict=True)]
            width = wide * draw.bar_width(len(held))
            marker = {"color": memory.PARTS[part][0]}
            yield draw.columns(middles, heights, width, marker, hovertext=hover, **draw.legend(part))


def _inside(record: MemoryCurve, size: int) -> Iterator[Spec]:
    """The curve inside the operation of the peak, with a mark at the start of each collective."""
    if not record.spans:
        return
    span = record.spans[record.peak_at]
    points = [span.before, *(span.before + point for point in span.profile.points)]
    shown = _highest(points, POINTS)
    heights = [draw.number(round(points[i] / size, 4)) for i in shown]
    line = {"width": 1.5, "color": style.LINE}
    second = {"xaxis": "x2", "yaxis": "y2"}
    yield draw.scatter("lines", shown, heights, line=line, hoverinfo="skip", **second)
    events = span.profile.events
    chosen = events[:: draw.step(len(events), MARKS)]
    for axis, colour in style.COLOURS.items():
        own = [(at, event) for at, event in chosen if event.axis == axis]
        if own:
            yield draw.scatter(
                "markers",
                [at for at, _ in own],
                [draw.number(round(points[at] / size, 4)) for at, _ in own],
                marker={"size": 6, "color": colour},
                hovertext=[f"{e.kind} over {e.axis} · {readable_bytes(e.payload)}" for _, e in own],
                **draw.legend(f"collective over {axis}"),
                **second,
            )
