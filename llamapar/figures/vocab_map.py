"""The vocabulary map as a picture: rows per TP rank, and the pad rows from near."""

from __future__ import annotations

from llamapar.place.vocab_map import RankVocab, VocabMap
from llamapar.records.tables import plural, units

from . import draw, style
from .chart import Chart
from .draw import Bar, Rows
from .style import Spec

PADDED_RANKS = 8
"""Most ranks that the panel of pad rows draws."""


def picture(record: VocabMap) -> tuple[Spec, str]:
    """A bar per rank, real rows and pad rows; right, the ranks that hold pad rows enlarged."""
    vocab, tp, rows = record.model.vocab_size, record.tp, Rows(record.tp)
    name, padded, where = style.name_of(record.model), _padded_ranks(record), ""
    data = _traces(rows.each(record.rank), tp)
    layout: Spec = {
        "widest": str(tp - 1),
        "warn": not record.ok,
        "yaxis": draw.downward(rows.axis("TP rank")),
        "xaxis": draw.positions("vocabulary row", [0, record.padded], domain=[0, 0.66 if padded else 1]),
    }
    note = f"{vocab:,} rows, none of them padding"
    if padded:
        note = f"{vocab:,} rows padded to {record.padded:,}"
        enlarged = list(enumerate(map(record.rank, padded)))
        data += _traces(enlarged, len(padded), showlegend=False, xaxis="x2", yaxis="y2")
        layout |= _enlarged(record, padded)
        more = f", {PADDED_RANKS} of them enlarged" if len(padded) == PADDED_RANKS else ""
        first = record.split.owner(vocab)
        where = f"pad rows are on {units('rank', range(first, padded[-1] + 1))}{more}"

    def line(r: int) -> str:
        rank = record.rank(r)
        pads = f", {plural(rank.pads, 'pad row')}" if rank.pads else ""
        return f"rank {rank.rank}: {units('row', rank.rows)} ({len(rank.rows)}){pads}"

    return Chart(
        kind="vocab",
        title=f"{name}: vocabulary over tp={tp}, {record.padding}",
        note=record.reason or note,
        data=data,
        layout=layout,
        head=f"{name}: vocabulary of {vocab} over tp={tp}, {record.padding}: "
        f"{plural(record.padded, 'row')}, {record.pad_rows:,} of them pads",
        rows=rows,
        line=line,
        remarks=[where, record.reason],
    ).drawn()


def _padded_ranks(record: VocabMap) -> list[int]:
    """The ranks that hold pad rows, the last ones where there are many; [] without padding."""
    if not record.pad_rows:
        return []
    first = record.split.owner(record.model.vocab_size)
    last = record.split.owner(record.padded - 1)
    return list(range(max(first, last - PADDED_RANKS + 1), last + 1))


def _traces(ranks: list[tuple[int, RankVocab]], n: int, **more: object) -> list[Spec]:
    """Real rows and pad rows, each one trace; every rank comes with its place."""
    real, pads = list[Bar](), list[Bar]()
    for place, rank in ranks:
        if len(rank.real):
            words = f"{units('token', rank.real)} · {plural(len(rank.real), 'row')}"
            real.append(Bar(place, rank.real.start, rank.real.stop, f"rank {rank.rank} · {words}"))
        if rank.pads:
            rows = rank.rows[len(rank.real) :]
            words = f"{units('pad row', rows)} · {plural(rank.pads, 'row')} without a token"
            pads.append(Bar(place, rows.start, rows.stop, f"rank {rank.rank} · {words}"))
    looks = (
        (real, {"color": style.COLOURS["tp"]}, "rows of tokens"),
        (pads, {"color": style.PAD, "pattern": style.PAD_PATTERN}, "pad rows"),
    )
    return [{**trace, "legendgroup": trace["name"]} for trace in draw.looks(looks, n, **more)]


def _enlarged(record: VocabMap, ranks: list[int]) -> Spec:
    """Axes and label of the second panel: the end of the vocabulary, as wide as its pad rows."""
    vocab, padded, n = record.model.vocab_size, record.padded, len(ranks)
    start = max(record.rank(ranks[0]).rows.start, vocab - record.pad_rows)
    spare = max(0, 3 - n) * 0.5  # a lone rank is not drawn as tall as the panel
    near = draw.axis("row, near the end", [start, padded], domain=[0.76, 1], anchor="y2", tickmode="array")
    near["tickvals"] = sorted({vocab, padded} if start < vocab else {start, padded})
    near["tickformat"] = draw.tick_format(padded)
    side = draw.axis("TP rank", [n - 0.5 + spare, -0.5 - spare], anchor="x2", showgrid=False)
    where = {"xref": "x2 domain", "yref": "y2 domain", "xanchor": "right", "yanchor": "bottom"}
    return {
        "xaxis2": near,
        "yaxis2": side | draw.ticks(list(range(n)), ranks),
        "annotations": [draw.label(plural(record.pad_rows, "pad row"), 1, 1, **where)],
    }
