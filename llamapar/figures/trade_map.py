"""Tokens traded for heads as a picture: what each CP rank holds before the all-to-all, and after it."""

from __future__ import annotations

from llamapar.place.head_map import Traded, TradeMap
from llamapar.records.tables import units

from . import draw, style
from .chart import Chart
from .draw import Rows
from .style import Spec

DRAWN = 32
"""Most CP ranks drawn."""


def picture(record: TradeMap) -> tuple[Spec, str]:
    """Positions across, query heads downwards: left stripes of tokens, right stripes of heads."""
    rows = Rows(record.sequence.cp, DRAWN, "CP rank")
    seq = record.sequence.seq_len
    ends = [0, seq]
    heads = len(record.before(0).q_heads)
    axes: Spec = {}
    data = []
    for side, of, domain in (("", record.before, [0, 0.46]), ("2", record.after, [0.54, 1])):
        axes[f"xaxis{side}"] = draw.positions("position", ends, domain=domain, showgrid=False)
        axes[f"yaxis{side}"] = draw.axis(
            "" if side else "query head", [heads, 0], anchor=f"x{side}", showgrid=False, nticks=8
        )
        data += [_stripes(of(r), r, record.sequence.cp, side) for r in rows.drawn]
    note = (
        f"left: every rank's own tokens, all {heads} heads; right: its heads, of every token it attends with"
    )

    def line(r: int) -> str:
        return f"CP rank {r}: {record.before(r)} → {record.after(r)}, {_keys(record.after(r))}"

    return Chart(
        kind="traded",
        title=record.title,
        note="; ".join(filter(None, [note, rows.left_out])),
        data=data,
        layout={"widest": str(heads), **axes},
        head=record.title,
        rows=rows,
        line=line,
    ).drawn()


def _keys(held: Traded) -> str:
    return units("KV head", held.kv_heads)


def _stripes(held: Traded, r: int, cp: int, side: str) -> Spec:
    """A rank's tokens and heads: a rectangle for each run of its tokens."""
    x: list[int | None] = []
    y: list[int | None] = []
    top = held.q_heads.start
    bottom = held.q_heads.stop
    for chunk in held.chunks:
        if x:  # a gap, so that no line joins two rectangles
            x.append(None)
            y.append(None)
        x += [chunk.start, chunk.stop, chunk.stop, chunk.start, chunk.start]
        y += [top, top, bottom, bottom, top]
    look = {"fill": "toself", "fillcolor": style.alternate("cp", r, cp), "line": {"width": 0}}
    words = f"CP rank {r}<br>{held}<br>{_keys(held)}"
    return draw.scatter(
        "lines",
        x,
        y,
        xaxis=f"x{side}",
        yaxis=f"y{side}",
        text=words,
        hoveron="fills",
        hoverinfo="text",
        **look,
    )
