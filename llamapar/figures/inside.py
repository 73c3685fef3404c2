"""Inside a layer: steps downwards, a column for each rank; collectives connect the ranks of their group.

The right side shows the duration of each step. With a cursor, later steps are pale, and the note describes
the current step.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from llamapar.describe.layout import Coord
from llamapar.records.tables import human, three_digits
from llamapar.timing.inside import LayerStep, LayerSteps

from . import draw, style
from .chart import Chart
from .draw import Bar
from .style import Spec

DRAWN = 4
"""Most ranks drawn: two of each axis where both cut, four where one does."""

ROW = 38
"""Pixels of a step."""

ALONE = "#D9DEE8"
"""What a rank does alone: light on both pages, under dark words."""

TINTS = {"tp": "rgba(0,114,178,0.20)", "cp": "rgba(230,159,0,0.24)"}
"""Behind a collective, in its axis's colour."""

LATER = 0.25
"""Opacity of what comes after the cursor."""


def picture(record: LayerSteps) -> tuple[Spec, str]:
    """The pass that contains the cursor; the forward without one."""
    steps = record.of(record.phase)
    columns = _columns(record)
    first = steps[0][0]
    last = steps[-1][0]
    longest = max(step.seconds for _, step in steps) * 1e3
    data = [trace for late in (False, True) for trace in _traces(record, steps, columns, late)]
    names = [f"{n}  {step.name}" for n, step in steps]
    heads = [f"rank {record.layout.rank_of(*c)}<br>tp {c.tp}, cp {c.cp}" for c in columns]
    columns_side = draw.axis("", [-0.5, len(columns) - 0.5], domain=[0, 0.74], showgrid=False)
    steps_side = draw.axis("", [last + 0.5, first - 0.5], showgrid=False)
    note = _note(record)
    cursor = Spec()
    if record.cursor:
        line = {"width": 2, "color": style.LINE}
        ends = {"x0": 0, "x1": 1, "y0": record.cursor - 0.47, "y1": record.cursor + 0.47}
        cursor["shapes"] = [{"type": "rect", "xref": "paper", **ends, "line": line}]
    return Chart(
        kind="layer",
        title=record.title,
        note=note,
        data=data,
        layout={
            "widest": "x" * 14,
            "height": style.TOP + style.BOTTOM + ROW * len(steps),
            "uniformtext": {"mode": "hide", "minsize": 8},
            "meta": {"steps": len(record.steps)},
            "xaxis": columns_side | draw.ticks(range(len(columns)), heads),
            "xaxis2": draw.axis("ms, modelled", [0, draw.number(longest * 1.5)], domain=[0.78, 1], nticks=4),
            "yaxis": steps_side | draw.ticks([n for n, _ in steps], names),
            **cursor,
        },
        head=str(record),
        remarks=note,
    ).drawn()


def _columns(record: LayerSteps) -> list[Coord]:
    """The rank and its neighbours."""
    lay = record.layout
    here = record.layout.coord_of(record.rank)
    each = DRAWN // 2 if min(lay.tp, lay.cp) > 1 else DRAWN
    near = {}
    for axis in ("tp", "cp"):
        size = lay.size(axis)
        mine = getattr(here, axis)
        start = max(0, min(mine // each * each, size - each))
        near[axis] = range(start, min(start + each, size))
    return [here._replace(tp=tp, cp=cp) for cp in near["cp"] for tp in near["tp"]]


def _note(record: LayerSteps) -> str:
    if record.cursor:
        step = record.steps[record.cursor - 1]
        sent = f": {step.times} over {step.axis.upper()}" if step.sent else ""
        where, line = step.code
        quoted = f"; {where}  {line}" if where else ""
        return (
            f"step {record.cursor} of {len(record.steps)}, {step.name}{sent}; waits for {step.waits}{quoted}"
        )
    total = record.seconds(record.phase)
    waited = {
        axis: sum(step.seconds for _, step in record.of(record.phase) if step.axis == axis) / total
        for axis in ("tp", "cp")
    }
    waits = [f"{share:.0%} of it for {axis.upper()}" for axis, share in waited.items() if share]
    note = f"{three_digits(total * 1e3)} ms on {record.gpu}"
    if waits:
        note += f"; a rank waits {' and '.join(waits)}"
    return note


# -- traces ----------------------------------------------------------------------------------------


def _traces(
    record: LayerSteps, steps: list[tuple[int, LayerStep]], columns: list[Coord], late: bool
) -> Iterator[Spec]:
    """Boxes, collectives and times of the steps up to the cursor, or after it."""
    mine = [(n, step) for n, step in steps if (n > record.cursor > 0) == late]
    more: Spec = {"opacity": LATER} if late else {}
    for axis, colour in (("", ALONE), *TINTS.items()):
        these = [(n, step) for n, step in mine if step.axis == axis]
        if not these:
            continue
        wide = 1 if axis else 0.92
        bars = [
            Bar(n, i - wide / 2, i + wide / 2, _hover(record, step, column))
            for n, step in these
            for i, column in enumerate(columns)
        ]
        trace = draw.bars(bars, 1, {"color": colour}, **more)
        if axis:
            yield trace
            yield _arrows(these, columns, axis) | more
        else:
            words = [_words(step, column.tp) for _, step in these for column in columns]
            font = {"size": 11, "color": style.TEXT}
            yield trace | {"width": 0.84, "text": words, "textfont": font, **draw.INSIDE}
        yield _times(these, axis) | more


def _hover(record: LayerSteps, step: LayerStep, column: Coord) -> str:
    where, line = step.code
    rank = record.layout.rank_of(*column)
    said = [f"<b>{step.name}</b>, about {step.seconds * 1e3:.3g} ms"]
    if step.sent:
        group = record.layout.group(step.axis, rank)
        apart = group[1] - group[0]
        ends = f"ranks {group[0]} to {group[-1]}" + (f", {apart} apart" if apart > 1 else "")
        said.append(f"{step.times} over {step.axis.upper()}: {ends}")
        said.append(f"waits for {step.waits}")
    said.append(f"rank {rank} then holds {step.holds(column.tp)}")
    return "<br>".join([*said, *([where, escape(line, quote=False)] if where else [])])


def _words(step: LayerStep, tp: int) -> str:
    """The shape of a box's first result, without the batch."""
    shape = next(iter(step.shapes[tp].values()))
    tokens, *rest = (f"{n:,}" for n in shape[1:])
    return f"{tokens}<br>× {' × '.join(rest)}"


def _arrows(steps: list[tuple[int, LayerStep]], columns: list[Coord], axis: str) -> Spec:
    """From each drawn rank to the ranks of its group; in a ring only to the next."""
    x = list[float | None]()
    y = list[float | None]()
    sizes = list[int]()
    other = "cp" if axis == "tp" else "tp"
    for n, step in steps:
        for i, start in enumerate(columns):
            for k, end in enumerate(columns):
                near = step.kind != "ring" or getattr(end, axis) - getattr(start, axis) == 1
                if i != k and near and getattr(start, other) == getattr(end, other):
                    x += [i, k, None]
                    y += [n - 0.42, n + 0.42, None]
                    sizes += [0, 7, 0]
    marker: Spec = {"symbol": "arrow", "angleref": "previous", "size": sizes, "color": style.COLOURS[axis]}
    marker["line"] = {"width": 0}
    line = {"width": 1.5, "color": style.COLOURS[axis]}
    more = {"marker": marker, "line": line, "hoverinfo": "skip"}
    return draw.scatter("lines+markers", x, y, **more)


def _times(steps: list[tuple[int, LayerStep]], axis: str) -> Spec:
    """The duration of each step, and for a collective its bytes."""
    taken = [(n, step, step.seconds * 1e3) for n, step in steps]
    return draw.bars(
        [Bar(n, 0, ms, f"{step.name}: about {ms:.3g} ms") for n, step, ms in taken],
        1,
        {"color": style.COLOURS.get(axis, style.LINE)},
        width=0.6,
        xaxis="x2",
        text=[human(step.bytes) if step.sent else "" for _, step in steps],
        textposition="outside",
        cliponaxis=False,
    )
