"""Traffic as a picture: a row for each phase of a step, in it a bar for each axis, as long as its bytes."""

from __future__ import annotations

from collections.abc import Mapping

from llamapar.count.wire import Traffic
from llamapar.describe.layout import AXES, SHARDING
from llamapar.records.tables import human
from llamapar.records.trace import PHASES

from . import draw, style
from .chart import Chart
from .draw import Bar, Rows
from .style import Spec

WRITTEN = 0.1
"""Share of the longest row from which a bar has its bytes written in it."""


def picture(record: Traffic) -> tuple[Spec, str]:
    """Bars one after another in the order of the axes; a bar names its collectives under the mouse."""
    phases = [phase for phase in PHASES if record.bytes(phase=phase)] or list(PHASES[:2])
    longest = max(record.bytes(phase=phase) for phase in phases)
    starts, data = dict.fromkeys(phases, 0), list[Spec]()
    for axis in (*AXES, SHARDING):
        made = list[Bar]()
        for row, phase in enumerate(phases):
            if size := record.bytes(axis, phase):
                first = starts[phase]
                starts[phase] += size
                made.append(Bar(row, first, first + size, _hover(record, axis, phase)))
        if made:
            data.append(
                draw.bars(
                    made,
                    len(phases),
                    {"color": style.COLOURS[axis.partition("-")[0]]},
                    text=[
                        human(int(b.stop - b.start)) if b.stop - b.start > WRITTEN * longest else ""
                        for b in made
                    ],
                    **draw.INSIDE,
                    **draw.legend(axis.upper()),
                )
            )
    axes = record.axes_in_words

    def line(row: int) -> str:
        own = {axis: n for (phase, axis), n in record.by_phase.items() if phase == phases[row]}
        return f"{phases[row]}: {_axes(own)}"

    return Chart(
        kind="traffic",
        title=record.title,
        note=axes or "nothing travels",
        data=data,
        layout={
            "widest": max(phases, key=len),
            "xaxis": draw.axis(
                "bytes that the rank sends", [0, 1.02 * longest or 1], tickformat="~s", ticksuffix="B"
            ),
            "yaxis": draw.named(phases),
        },
        rows=Rows(len(phases)),
        line=line,
        remarks=f"in all: {axes or 'nothing'}",
    ).drawn()


def _axes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {n:,} B" for axis, n in sizes.items())


def _hover(record: Traffic, axis: str, phase: str) -> str:
    lines = [
        f"{term.part}: {term.count:,} {term.kind} of {human(term.payload)}"
        for term in record.terms
        if (term.axis, term.phase) == (axis, phase)
    ]
    more = [f"and {len(lines) - 8} more"] if len(lines) > 8 else []
    return "<br>".join([f"{phase} · {axis.upper()} {human(record.bytes(axis, phase))}", *lines[:8], *more])
