"""What a rank sends: a row for each phase of a step, in it a bar for each axis, as long as its bytes.

One picture for both records of it: `Traffic`, which formulas predict, and `Trace`, which a run measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from llamapar.count.wire import Traffic
from llamapar.describe.layout import AXES, SHARDING
from llamapar.records.tables import human
from llamapar.records.trace import PHASES, Trace, collectives_in_words

from . import draw, style
from .chart import Chart
from .draw import Bar, Rows
from .style import Spec

WRITTEN = 0.1
"""Share of the longest row from which a bar has its bytes written in it."""

LISTED = 8
"""Kinds of collectives that a bar names under the mouse."""


def picture(record: Traffic) -> tuple[Spec, str]:
    """Bars one after another in the order of the axes; a bar names its collectives under the mouse."""
    phases = _phases(record)

    def line(row: int) -> str:
        own = {axis: n for (phase, axis), n in record.by_phase.items() if phase == phases[row]}
        return f"{phases[row]}: {', '.join(f'{axis} {n:,} B' for axis, n in own.items())}"

    chart = _chart(record, record.title)
    foot = f"in all: {record.axes_in_words or 'nothing'}"
    return replace(chart, rows=Rows(len(phases)), line=line, remarks=foot).drawn()


def trace(record: Trace) -> tuple[Spec, str]:
    """The same of a run's collectives; the text counts them by axis and phase."""
    sent = f"{record.rank}: {collectives_in_words(record.events)}, {record.bytes():,} bytes sent"
    chart = _chart(record, f"Rank {sent}")
    return replace(chart, head=f"rank {sent}", remarks=_totals(record)).drawn()


def _chart(record: Traffic | Trace, title: str) -> Chart:
    """The bars, without the text beside them."""
    phases = _phases(record)
    longest = max(record.bytes(phase=phase) for phase in phases)
    starts = dict.fromkeys(phases, 0)
    data = list[Spec]()
    for axis in sorted(record.by_axis, key=_order):
        made = list[Bar]()
        for row, phase in enumerate(phases):
            if size := record.bytes(axis, phase):
                first = starts[phase]
                starts[phase] += size
                made.append(Bar(row, first, first + size, _hover(record, axis, phase)))
        sizes = [int(bar.stop - bar.start) for bar in made]
        words = [human(size) if size > WRITTEN * longest else "" for size in sizes]
        marker = {"color": style.COLOURS.get(axis.partition("-")[0], style.PAD)}
        more = draw.legend(style.escaped([_title(axis)]))
        if made:
            data.append(draw.bars(made, len(phases), marker, text=words, **draw.INSIDE, **more))
    sent = draw.axis("bytes that the rank sends", [0, 1.02 * longest or 1], tickformat="~s", ticksuffix="B")
    return Chart(
        kind="traffic",
        title=title,
        note=record.axes_in_words or "nothing travels",
        data=data,
        layout={"widest": max(phases, key=len), "xaxis": sent, "yaxis": draw.named(phases)},
    )


def _phases(record: Traffic | Trace) -> list[str]:
    """The phases in which the rank sends anything; two of them where it sends nothing."""
    return [phase for phase in PHASES if record.bytes(phase=phase)] or list(PHASES[:2])


def _order(axis: str) -> int:
    """The mesh axes first, and axes of other names after them."""
    known = (*AXES, SHARDING)
    return known.index(axis) if axis in known else len(known)


def _title(axis: str) -> str:
    return axis.upper() if _order(axis) <= len(AXES) else axis


def _hover(record: Traffic | Trace, axis: str, phase: str) -> str:
    if isinstance(record, Traffic):
        terms = [term for term in record.terms if (term.axis, term.phase) == (axis, phase)]
        lines = [f"{term.part}: {term.count:,} {term.kind} of {human(term.payload)}" for term in terms]
    else:
        events = [event for event in record.events if (event.axis, event.phase) == (axis, phase)]
        counted = Counter((event.kind, event.payload) for event in events)
        lines = [f"{n:,} {kind} of {human(payload)}" for (kind, payload), n in counted.items()]
    more = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    head = f"{phase} · {_title(axis)} {human(record.bytes(axis, phase))}"
    return style.escaped([head, *lines[:LISTED], *more])


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
