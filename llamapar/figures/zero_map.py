"""ZeRO as a picture: of one tensor, its gradient and its optimizer state, the rows that each rank holds."""

from __future__ import annotations

from llamapar.count.zero_map import ZeroMap
from llamapar.place.shards import SHARED_FROM
from llamapar.records.tables import human, plural, units

from . import draw, style
from .chart import Chart
from .draw import Bar, Rows
from .style import Spec

DRAWN = 64
"""Most ranks drawn, three times each."""

GAP = 0.09
"""Part of the width between two panels."""


def picture(record: ZeroMap) -> tuple[Spec, str]:
    """Three panels, a bar for each rank in each: a slice where ZeRO shares, all rows where it does not."""
    rows = Rows(record.ways, DRAWN)
    data = list[Spec]()
    axes = Spec()
    wide = (1 - GAP * (len(SHARED_FROM) - 1)) / len(SHARED_FROM)
    for i, what in enumerate(SHARED_FROM):
        number = str(i + 1) if i else ""
        shares = record.cut.shards.cuts(what) and record.ways > 1
        bars = [_bar(record, what, place)._replace(row=rows.place(place)) for place in rows.drawn]
        marker: Spec = {"color": style.COLOURS["dp"]}
        if not shares:
            marker["pattern"] = style.COPY_PATTERN
        legend = draw.legend("a slice of its own" if shares else "the same on every rank")
        seen = {trace["name"] for trace in data}
        legend["showlegend"] = legend["name"] not in seen
        data.append(draw.bars(bars, rows.n, marker, xaxis=f"x{number}", legendgroup=legend["name"], **legend))
        low = i * (wide + GAP)
        domain = [draw.number(low), draw.number(low + wide)]
        axes[f"xaxis{number}"] = draw.positions(
            f"{what}<br>{human(record.held(what, 0))} in all", [0, record.count], domain=domain, nticks=3
        )

    def line(place: int) -> str:
        each = (f"{what} {units('row', record.rows(what, place))}" for what in SHARED_FROM)
        total = sum(record.held(what, place) for what in SHARED_FROM)
        return f"rank {record.rank_at(place)}: {', '.join(each)}; {total:,} B in all"

    travels = [f"{m.when} {m.times} {m.kind} over {m.axis}, {m.bytes:,} B" for m in record.moves]
    return Chart(
        kind="zero",
        title=f"{style.name_of(record.cut.model)}: {record.parameter.key} under ZeRO {record.layout.zero}",
        note=rows.left_out or f"rows of {record.parameter.name}, {plural(record.count, 'row')}",
        data=data,
        layout={
            "widest": str(rows.n - 1),
            "yaxis": draw.downward(rows.axis("place in the group")),
            "legend": {"y": -0.23},
            **axes,
        },
        head=f"{record.title}; rows of {record.parameter.name}",
        rows=rows,
        line=line,
        remarks=f"what travels in a step: {'; '.join(travels) or 'nothing'}",
    ).drawn()


def _bar(record: ZeroMap, what: str, place: int) -> Bar:
    held = record.rows(what, place)
    words = f"{units('row', held)} of {what} · {record.held(what, place):,} B in all"
    return Bar(place, held.start, held.stop, f"rank {record.rank_at(place)} · {words}")
