"""A trace as a picture: a rank's collectives in order, a lane for each mesh axis, heights by bytes sent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from llamapar.describe.layout import SHARDING
from llamapar.records.tables import human
from llamapar.records.trace import CollectiveEvent, Trace, collectives_in_words, some

from . import draw, style
from .chart import Chart
from .draw import Rows
from .style import Spec

DRAWN = 128
"""Most collectives drawn: past it the first ones and the last."""

LABELLED = 40
"""Most collectives that have their kind written over them."""

LANES = 4
"""Most lanes; of more axes, the last lane takes the rest."""

BANDS = 9
"""Most phases marked, one after another."""

SHORT = {
    "all_reduce": "AR",
    "all_gather": "AG",
    "reduce_scatter": "RS",
    "all_to_all": "A2A",
    "broadcast": "B",
}
"""Kind → what is written over its bar."""

TALL = 0.92
"""Part of the height that the lanes take; the names of the phases stand in the rest."""


COLOURS = {**style.COLOURS, SHARDING: style.COLOURS["dp"]}
"""Of the axes that have one."""


class _Lane(NamedTuple):
    """One axis or several, with the (place, event) of each bar."""

    name: str
    colour: str
    bars: list[tuple[int, CollectiveEvent]]
    several: bool = False


def picture(record: Trace) -> tuple[Spec, str]:
    """Collectives from left to right, under the names of their phases; all lanes share one scale."""
    rows = Rows(len(record.events), DRAWN, "collective")
    n, drawn = rows.n, rows.each(record.events.__getitem__)
    lanes = _lanes(record, drawn)
    top = max((e.sent for _, e in drawn), default=0) or 1
    scales: Spec = {_axis("yaxis", i): _scale(lane, i, len(lanes), top) for i, lane in enumerate(lanes)}
    place: Spec = {"xref": "paper", "yref": "paper", "font": {"size": 14}}
    nothing = draw.label(f"rank {record.rank} took part in no collective", 0.5, 0.5, **place)
    # Collectives are numbered from 0, as in the trace's text.
    order = rows._replace(n=max(1, n)).axis(f"collectives of rank {record.rank}, in order")
    if n <= LABELLED:  # what is written over the bars, in words
        kinds = [kind for kind in SHORT if any(e.kind == kind for _, e in drawn)]
        said = [f"{SHORT[kind]} {kind.replace('_', '-')}" for kind in kinds]
    else:  # bars too many and too low to be compared; of one axis the title says it
        totals = [f"{_title(axis)} {human(record.bytes(axis))}" for axis in record.by_axis]
        said = totals if len(totals) > 1 else []
    counted = f"{collectives_in_words(record.events)}, {record.bytes():,} bytes sent"
    return Chart(
        kind="trace",
        title=f"Rank {record.rank}: {counted}",
        note=rows.left_out or ", ".join(said),
        data=[_bars(lane, i, n <= LABELLED) for i, lane in enumerate(lanes)],
        layout={
            "widest": "000 kB",
            "hovermode": "x",
            "shapes": _bands(drawn),
            "annotations": _names(drawn) if drawn else [nothing],
            "xaxis": {
                **order,
                "showgrid": False,
                "visible": bool(drawn),
                "anchor": _axis("y", max(0, len(lanes) - 1)),
            },
            **(scales or {"yaxis": {"visible": False}}),
        },
        head=f"rank {record.rank}: {counted}",
        remarks=[*_totals(record), rows.left_out],
    ).drawn()


def _title(axis: str) -> str:
    return axis.upper() if axis in COLOURS else axis


def _axis(name: str, i: int) -> str:
    return name if i == 0 else f"{name}{i + 1}"


def _lanes(record: Trace, drawn: list[tuple[int, CollectiveEvent]]) -> list[_Lane]:
    """A lane for each axis: TP, CP, PP and DP first."""
    known = [axis for axis in COLOURS if axis in record.by_axis]
    axes = [*known, *(axis for axis in record.by_axis if axis not in known)]
    own = axes if len(axes) <= LANES else axes[: LANES - 1]
    made = {axis: _Lane(_title(axis), COLOURS.get(axis, style.PAD), []) for axis in own}
    rest = _Lane("others", style.PAD, [], several=True)
    for x, event in drawn:
        made.get(event.axis, rest).bars.append((x, event))
    return [*made.values(), *([] if own == axes else [rest])]


def _scale(lane: _Lane, i: int, n: int, top: int) -> Spec:
    gap = 0.1 if n > 1 else 0
    tall = (TALL - gap * (n - 1)) / n
    low = (n - 1 - i) * (tall + gap)
    domain, most = [draw.number(low), draw.number(low + tall)], 4 if n > 1 else 7
    more = {"domain": domain, "tickformat": "~s", "nticks": most, "rangemode": "tozero"}
    if n > 3:  # too low for more than the name: the unit stands at the numbers
        return draw.axis(lane.name, [0, top * 1.3], **more, ticksuffix="B")
    return draw.axis(f"{lane.name}, bytes", [0, top * 1.3], **more)


def _bars(lane: _Lane, i: int, labelled: bool) -> Spec:
    x, y = [x for x, _ in lane.bars], [e.sent for _, e in lane.bars]
    marker = {"color": lane.colour, "line": {"width": 1, "color": lane.colour}}  # seen however low
    hover = [_hover(e, lane.several) for _, e in lane.bars]
    made = draw.columns(x, y, 0.82, marker, yaxis=_axis("y", i), hovertext=hover)
    if labelled:
        made |= {"text": [SHORT.get(e.kind, e.kind) for _, e in lane.bars], "textposition": "outside"}
        made |= {"textangle": 0, "textfont": {"size": 10}, "cliponaxis": False}
    return made


def _hover(event: CollectiveEvent, with_axis: bool) -> str:
    axis = f" over {event.axis}" if with_axis else ""
    what = f"{event.kind}{axis}, {event.phase} · {list(event.shape)} {event.dtype}"
    return f"{what} · payload {event.payload:,} B, sends {event.sent:,} B · {some(event.group)}"


# -- phases ------------------------------------------------------------------------------------


def _runs(drawn: list[tuple[int, CollectiveEvent]]) -> list[tuple[str, int, int]]:
    """(phase, first place, last place) of each stretch of one phase; [] if there are too many."""
    found = []
    for phase, group in groupby(drawn, key=lambda bar: bar[1].phase):
        places = [x for x, _ in group]
        found.append((phase, places[0], places[-1]))
    return found if len(found) <= BANDS else []


def _bands(drawn: list[tuple[int, CollectiveEvent]]) -> list[Spec]:
    """A band behind every second phase."""
    shape = {"type": "rect", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    return [
        {**shape, "x0": first - 0.5, "x1": last + 0.5, "line": {"width": 0}, "fillcolor": style.BANDS[0]}
        for i, (_, first, last) in enumerate(_runs(drawn))
        if i % 2 == 0
    ]


def _names(drawn: list[tuple[int, CollectiveEvent]]) -> list[Spec]:
    """The name of each phase that has room for it."""
    place = {"xref": "x", "yref": "paper", "yanchor": "top", "font": {"size": 12}}
    return [
        draw.label(phase, (first + last) / 2, 1, **place)
        for phase, first, last in _runs(drawn)
        if (last - first + 1) >= 0.09 * (drawn[-1][0] + 1)
    ]


# -- text --------------------------------------------------------------------------------------


def _totals(record: Trace) -> Iterator[str]:
    """Exact totals by axis and phase, a line for each axis."""
    for axis in record.by_axis:
        each = []
        for phase in dict.fromkeys(e.phase for e in record.events):
            kinds = [e.kind for e in record.events if (e.axis, e.phase) == (axis, phase)]
            if kinds:
                counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
                each.append(f"{phase} {record.bytes(axis, phase):,} ({counts})")
        yield f"  {_title(axis)}: {record.bytes(axis):,} bytes: {'; '.join(each)}"
