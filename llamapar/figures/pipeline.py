"""Timelines of pipeline schedules: a row for each rank, time to the right, and the chunks in flight below.

The timeline is one heat map of small integers, because 405B's schedule has 4,096 operations. A row has two
halves, so that kinds differ without colour: a forward fills both; the upper half of a backward is its input
gradients and the lower half its weight gradients. Empty cells are bubble.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from llamapar.place.pipeline import Moment, Schedule, Timeline, Timelines
from llamapar.records.tables import plural

from . import draw, style
from .chart import Chart
from .draw import Rows
from .style import Spec

HEIGHT, LINE_HEIGHT = 460, 8
"""Pixels of a timeline of eight ranks, and how much higher one is for each rank more."""

LEGEND_BELOW = 45
"""Pixels from the axis to the legend."""

ENTRY = 150
"""Pixels of a name of the legend: plotly's own count of what fits beside each other may cut the last."""

DRAWN = 32
"""Most ranks drawn: past it the first ones and the last."""

BYTES = 24_000
"""Of all cells together, a byte each: with base64 and the rest under 40 KB."""

FEWER = 4
"""Columns of a timeline to one of the chunks in flight, where there is no room for as many."""

NUMBERED = 72
"""Most digits that stand side by side in a row: boxes of as many shortest operations, times their digits."""

PEAKS = 8
"""Most ranks whose peak is written beside their chunks in flight."""

BUBBLE, FORWARD, INPUTS, WEIGHTS, BUSY = 0, 1, 3, 5, 7
"""What a half of a box shows; odd micro-batches take the number after each of the three in the middle."""

LOOKS = {
    BUBBLE: style.BANDS[0],
    FORWARD: "#9ADBC4",
    FORWARD + 1: "#7BCBB0",
    INPUTS: "#009E73",
    INPUTS + 1: "#007D5B",
    WEIGHTS: "#00614A",
    WEIGHTS + 1: "#004D3A",
    BUSY: "rgba(0,158,115,0.16)",
}
"""Shades of PP's green; those of neighbours alternate, so that boxes are seen."""

FLYING = ("rgba(128,128,128,0.08)", "#5E3C99")
"""No chunk in flight, and the most."""

HALVES = {"F": (FORWARD, FORWARD), "B": (INPUTS, WEIGHTS), "I": (INPUTS, BUSY), "W": (BUSY, WEIGHTS)}
"""Kind → what its box shows above and below."""

ASIDE = {"I": -0.25, "W": 0.25}
"""How far from its rank's middle a kind has its number."""

NAMES = {
    FORWARD: "forward: whole box",
    INPUTS: "input gradients: upper",
    WEIGHTS: "weight gradients: lower",
    BUBBLE: "bubble",
}


def picture(record: Schedule | Timeline | Timelines | Moment) -> tuple[Spec, str]:
    """A schedule is drawn with a forward of 1 and a backward of 2; a moment has a cursor."""
    if isinstance(record, Schedule):
        record = record.timeline()
    if isinstance(record, Moment):
        return _drawn([record.timeline], [record])
    if isinstance(record, Timelines):
        return _drawn(record.timelines, record.moments)
    return _drawn([record])


def _drawn(lines: Sequence[Timeline], moments: Sequence[Moment] = ()) -> tuple[Spec, str]:
    """moments: one for each timeline, or none."""
    # All timelines share one time axis, so that lengths can be compared by eye.
    end = max(line.end for line in lines) or 1.0
    rows = [Rows(line.schedule.pp, DRAWN) for line in lines]
    drawn = sum(len(each.drawn) for each in rows)
    step = min(map(_unit, lines))
    # Each rank takes two half rows above and one below; where the bytes do not suffice, first the lower
    # part gets coarser, and then all of it.
    fewer = FEWER if 3 * drawn * end / step > BYTES else 1
    step = max(step, (2 + 1 / fewer) * drawn * end / BYTES)
    data: list[Spec] = []
    axes: Spec = {}
    tall = 1 / len(lines)
    room = 0.99 if len(lines) == 1 else 0.93
    for i, (line, each) in enumerate(zip(lines, rows, strict=True)):
        low = 1 - (i + 1) * tall
        top = _axis("y", 2 * i)
        bottom = _axis("y", 2 * i + 1)
        axes[_axis("yaxis", 2 * i)] = _side(each, "rank", [low + 0.42 * tall, low + room * tall])
        few = list(range(0, len(each.drawn), draw.step(len(each.drawn), 4)))
        side = _side(each, "in flight", [low + 0.06 * tall, low + 0.34 * tall])
        axes[_axis("yaxis", 2 * i + 1)] = side | draw.ticks(few)
        data += [_boxes(line, each, step, top), _edges(each, line.end, top)]
        data += _numbers(line, each, top)
        data += _chunks(line, each, step * fewer, bottom)
    data += _legend()
    first = lines[0]
    height = HEIGHT * len(lines) + LINE_HEIGHT * sum(max(0, len(each.drawn) - 8) for each in rows)
    time = f"time; a forward takes {first.durations['F']:g}"
    bubbles = ", ".join(f"{line.schedule.title}\u00a0{line.bubble:.2%}" for line in lines)
    axes["annotations"] = [] if len(lines) == 1 else _names(lines, axes)
    if moments:
        cursor = max(moment.time for moment in moments)
        axes["shapes"] = [draw.rule("x", cursor, color=style.WARN)]
        for i, (moment, each) in enumerate(zip(moments, rows, strict=True)):
            axes["annotations"] += _cursor(moment, each, cursor, end, _axis("y", 2 * i))
    return Chart(
        kind="pipeline",
        title=first.title.replace("micro-", "micro\u2011")
        if len(lines) == 1
        else f"Bubble of compute: {bubbles}",
        note="; ".join(filter(None, [_note(first, len(lines) == 1), rows[0].left_out])),
        data=data,
        layout={
            "widest": "rank 00",
            "height": height,
            "legend_rows": 3,
            "legend": {
                "y": round(-LEGEND_BELOW / (height - style.TOP - style.BOTTOM), 4),
                "entrywidth": ENTRY,
            },
            "xaxis": draw.axis(time, [0, end], anchor=_axis("y", 2 * len(lines) - 1), showgrid=False),
            **axes,
        },
        head=_summary(lines, rows, moments),
    ).drawn()


def _axis(name: str, i: int) -> str:
    return name if i == 0 else f"{name}{i + 1}"


def _side(rows: Rows, title: str, domain: Sequence[float]) -> Spec:
    return draw.downward(rows.axis(title)) | {"domain": [round(place, 4) for place in domain]}


def _note(line: Timeline, idle: bool = True) -> str:
    """The assumptions, the other measure of the bubble, and the largest number of chunks in flight."""
    each = line.durations
    split = any(action.kind == "W" for row in line.schedule.ranks for action in row)
    said = [f"forward {each['F']:g}", f"backward {each['B']:g}"]
    if split:
        said.append(f"its halves {each['I']:g} and {each['W']:g}")
    if line.p2p:
        said.append(f"sending {line.p2p:g}")
    most = plural(max(line.schedule.in_flight), "chunk")
    more = f"; idle {line.idle_share:.2%} of the time; at most {most} in flight"
    return ", ".join(said) + more * idle


# -- cells -----------------------------------------------------------------------------------------


def _unit(line: Timeline) -> float:
    """A time that divides all durations, in thousandths of the shortest or more."""
    kinds = {action.kind for row in line.schedule.ranks for action in row}
    taken = [line.durations[kind] for kind in kinds] + [line.p2p]
    shortest = min((value for value in taken if value), default=1.0)
    # Column edges then fall on operations' edges. Durations without a small common part are drawn to an
    # eighth.
    for parts_of in range(1, 9):
        unit = shortest / parts_of
        if all(abs(value / unit - round(value / unit)) < 1e-6 for value in taken):
            return unit
    return shortest / 8


def _heatmap(values: list[bytes], step: float, high: float, axis: str, **more: object) -> Spec:
    """Columns of `step` from time 0; rows from the first rank, each of height `high`."""
    place = {"x0": step / 2, "dx": step, "y0": -0.5 + high / 2, "dy": high, "yaxis": axis}
    return {"type": "heatmap", "z": draw.packed(b"".join(values), len(values[0])), **place, **more}


def _boxes(line: Timeline, rows: Rows, step: float, axis: str) -> Spec:
    """The operation of each rank in the middle of each column, with two halves for each rank."""
    columns = max(1, round(line.end / step))
    values = []
    for rank in rows.drawn:
        upper = bytearray(columns)
        lower = bytearray(columns)
        for action, start, end in line.runs(rank):
            # Neighbouring micro-batches alternate in shade, or a row of forwards would be one bar.
            odd = action.micro_batch % 2
            first = round(start / step)
            past = round(end / step)
            above, below = (code + odd * (code != BUSY) for code in HALVES[action.kind])
            upper[first:past] = bytes([above]) * (past - first)
            lower[first:past] = bytes([below]) * (past - first)
        values += [bytes(upper[:columns]), bytes(lower[:columns])]
    n = len(LOOKS)
    # Two stops for each code make steps: plotly would otherwise blend one look into the next.
    scale = [[edge / n, LOOKS[code]] for code in LOOKS for edge in (code, code + 1)]
    hover = "rank %{y:.0f}, time %{x:.6~g}<extra></extra>"
    return _heatmap(values, step, 0.5, axis, colorscale=scale, zmin=-0.5, zmax=n - 0.5, hovertemplate=hover)


def _chunks(line: Timeline, rows: Rows, step: float, axis: str) -> list[Spec]:
    """The largest number of chunks in flight in each column, and each rank's peak in words."""
    columns = max(1, ceil(line.end / step - 1e-6))
    most = max(line.schedule.in_flight) or 1
    # A cell is one byte, so counts past 255 are shown in multiples.
    scale = max(1, -(-most // 255))
    values = []
    for rank in rows.drawn:
        now = bytearray(columns)
        for count, (action, start, end) in zip(line.schedule.flying(rank), line.runs(rank), strict=True):
            first = min(int(start / step + 1e-6), columns - 1)
            past = min(int(end / step - 1e-6) + 1, columns)
            for column in range(first, past):
                now[column] = max(now[column], count // scale)
            # Between operations a rank still holds its chunks, so the count stays until the next one
            # changes it.
            after = count - (action.kind in "BW")
            now[past:] = bytes([after // scale]) * (columns - past)
        values.append(bytes(now))
    unit = "chunks" if scale == 1 else f"times {scale} chunks"
    hover = f"rank %{{y:.0f}}, time %{{x:.6~g}}: %{{z}} {unit} in flight<extra></extra>"
    look = {"colorscale": [[0, FLYING[0]], [1, FLYING[1]]], "zmin": 0, "zmax": most // scale}
    cells = _heatmap(values, step, 1, axis, hovertemplate=hover, **look)
    if len(rows.drawn) > PEAKS:
        return [cells]
    peaks = [str(line.schedule.in_flight[rank]) for rank in rows.drawn]
    words = draw.scatter("text", [line.end] * len(peaks), rows.places, text=peaks, yaxis=axis)
    return [cells, words | {"textposition": "middle left", "textfont": {"size": 10}, "hoverinfo": "skip"}]


def _edges(rows: Rows, end: float, axis: str) -> Spec:
    """Lines between ranks."""
    edges = [place + 0.5 for place in rows.places[:-1]]
    x = [at for _ in edges for at in (0, end, None)]
    y = [at for edge in edges for at in (edge, edge, None)]
    line = {"width": 1, "color": style.LINE}
    return draw.scatter("lines", x, y, yaxis=axis, line=line, hoverinfo="skip")


def _numbers(line: Timeline, rows: Rows, axis: str) -> list[Spec]:
    """Micro-batch numbers where they fit, dark on forwards and white on the rest."""
    digits = len(str(line.schedule.micro_batches - 1))
    shortest = min((value for value in line.durations.values() if value), default=1.0)
    if line.end / shortest * digits > NUMBERED:
        return []
    found = []
    for forward, colour in ((True, style.TEXT), (False, "#FFFFFF")):
        x = list[float]()
        y = list[float]()
        numbers = list[int]()
        names = list[str]()
        for rank in rows.drawn:
            for action, start, end in line.runs(rank):
                if (action.kind == "F") == forward:
                    x.append(draw.number((start + end) / 2))
                    y.append(rows.place(rank) + ASIDE.get(action.kind, 0))
                    numbers.append(action.micro_batch)
                    names.append(str(action))
        made = draw.scatter("text", x, y, text=numbers, customdata=names, yaxis=axis)
        made["hovertemplate"] = "%{customdata} (stage, kind, micro-batch)<extra></extra>"
        found.append(made | {"textfont": {"size": 10, "color": colour}})
    return found


# -- words -----------------------------------------------------------------------------------------


def _legend() -> list[Spec]:
    """A square for each look: a point beyond the axis, because an empty trace has no legend entry."""
    made = []
    for code, name in NAMES.items():
        marker = {
            "symbol": "square",
            "size": 11,
            "color": LOOKS[code],
            "line": {"width": 1, "color": style.LINE},
        }
        made.append(draw.scatter("markers", [0], [-9], marker=marker, **draw.legend(name)))
    return made


def _names(lines: Sequence[Timeline], axes: Spec) -> list[Spec]:
    """The name above each of several timelines."""
    found = []
    for i, line in enumerate(lines):
        top = axes[_axis("yaxis", 2 * i)]["domain"][1]
        place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
        found.append(draw.label(line.title, 0, top, font={"size": 11}, **place))
    return found


def _cursor(moment: Moment, rows: Rows, time: float, end: float, axis: str) -> list[Spec]:
    """The operation, or the wait, of each rank beside the cursor."""
    side = "left" if time < end / 2 else "right"
    look = {
        "yref": axis,
        "xanchor": side,
        "bgcolor": "rgba(51,51,51,0.88)",
        "font": {"size": 11, "color": "#FFFFFF"},
    }
    found = []
    for rank in rows.drawn if len(rows.drawn) <= 16 else []:
        words = " ".join(filter(None, moment.doing(rank)))
        found.append(draw.label(words, time, rows.place(rank), borderpad=0, **look))
    return found


def _summary(lines: Sequence[Timeline], rows: Sequence[Rows], moments: Sequence[Moment]) -> str:
    """Exact numbers for each rank."""
    found = []
    for line, each in zip(lines, rows, strict=True):
        idle = line.idle

        def of(rank: int, line: Timeline = line, idle: Sequence[float] = idle) -> str:
            stages = ", ".join(map(str, line.schedule.stages_of(rank)))
            many = plural(line.schedule.in_flight[rank], "chunk")
            return (
                f"rank {rank}: stage {stages}; idle {idle[rank]:g} of {line.end:g}; at most {many} in flight"
            )

        found.append(draw.lines(line.title, f"  {_note(line)}", each.listing(of)))
    return "\n".join([*found, *map(str, moments)])
