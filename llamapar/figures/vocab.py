"""The vocabulary map as a picture: rows per TP rank, and the pad rows from near."""

from __future__ import annotations

from llamapar.place.vocab_map import RankVocab, VocabMap

from . import style
from .style import Bar, Spec, plural

PADDED_RANKS = 8
"""Most ranks that the panel of pad rows draws."""


def picture(record: VocabMap) -> tuple[Spec, str]:
    """A bar per rank, real rows and pad rows; right, the ranks that hold pad rows enlarged."""
    tp = record.tp
    ranks = [record.rank(r) for r in style.shown(tp)]
    rows = [style.row_of(r, tp) for r in style.shown(tp)]
    padded = _padded_ranks(record)
    data = _traces(ranks, rows, tp, legend=True)
    layout = style.layout(
        "vocab",
        f"{style.name_of(record.model)}: vocabulary over tp={tp}, {record.padding}",
        _note(record),
        widest=str(tp - 1),
        warn=not record.ok,
        yaxis=style.downward(style.rank_axis(tp, "TP rank")),
        xaxis={
            "title": {"text": "vocabulary row"},
            "range": [0, record.padded],
            "domain": [0, 0.66 if padded else 1],
            "nticks": 6,
            "tickformat": style.tick_format(record.padded),
        },
    )
    if padded:
        enlarged = [record.rank(r) for r in padded]
        near = _traces(enlarged, list(range(len(padded))), len(padded), legend=False)
        data += [{**trace, "xaxis": "x2", "yaxis": "y2"} for trace in near]
        layout.update(_enlarged(record, padded))
    return {"data": data, "layout": layout}, _summary(record)


def _padded_ranks(record: VocabMap) -> list[int]:
    """The ranks that hold pad rows, the last ones where there are many; [] without padding."""
    if not record.pad_rows:
        return []
    first = record.split.owner(record.model.vocab_size)
    last = record.split.owner(record.padded - 1)
    return list(range(max(first, last - PADDED_RANKS + 1), last + 1))


def _traces(ranks: list[RankVocab], rows: list[int], n: int, legend: bool) -> list[Spec]:
    """Real rows and pad rows, each one trace."""
    real = [
        Bar(
            row,
            held.real.start,
            held.real.stop,
            f"rank {held.rank} · {style.units('token', held.real)} · {plural(len(held.real), 'row')}",
        )
        for row, held in zip(rows, ranks, strict=True)
        if len(held.real)
    ]
    pads = [
        Bar(
            row,
            held.rows.stop - held.pads,
            held.rows.stop,
            f"rank {held.rank} · {style.units('pad row', held.rows[len(held.real) :])} · "
            f"{plural(held.pads, 'row')} without a token",
        )
        for row, held in zip(rows, ranks, strict=True)
        if held.pads
    ]
    looks = (
        (real, {"color": style.COLOURS["tp"]}, "rows of tokens"),
        (pads, {"color": style.PAD, "pattern": style.PAD_PATTERN}, "pad rows"),
    )
    return [
        style.bars(made, n, marker, name=name, legendgroup=name, showlegend=legend)
        for made, marker, name in looks
        if made
    ]


def _enlarged(record: VocabMap, ranks: list[int]) -> Spec:
    """Axes and label of the second panel: the end of the vocabulary, as wide as its pad rows."""
    vocab, padded, n = record.model.vocab_size, record.padded, len(ranks)
    start = max(record.rank(ranks[0]).rows.start, vocab - record.pad_rows)
    room = max(0, 3 - n) * 0.5  # a lone rank is not drawn as tall as the panel
    return {
        "xaxis2": {
            "title": {"text": "row, near the end"},
            "range": [start, padded],
            "domain": [0.76, 1],
            "anchor": "y2",
            "tickmode": "array",
            "tickvals": sorted({vocab, padded} if start < vocab else {start, padded}),
            "tickformat": style.tick_format(padded),
        },
        "yaxis2": {
            "title": {"text": "TP rank"},
            "range": [n - 0.5 + room, -0.5 - room],
            "anchor": "x2",
            "tickmode": "array",
            "tickvals": list(range(n)),
            "ticktext": [str(r) for r in ranks],
            "showgrid": False,
        },
        "annotations": [
            {
                "text": plural(record.pad_rows, "pad row"),
                "xref": "x2 domain",
                "yref": "y2 domain",
                "x": 1,
                "y": 1,
                "xanchor": "right",
                "yanchor": "bottom",
                "showarrow": False,
            }
        ],
    }


def _note(record: VocabMap) -> str:
    if record.reason:
        return record.reason
    if record.pad_rows:
        return f"{record.model.vocab_size:,} rows padded to {record.padded:,}"
    return f"{record.model.vocab_size:,} rows, none of them padding"


def _summary(record: VocabMap) -> str:
    lines = [
        f"{style.name_of(record.model)}: vocabulary of {record.model.vocab_size} over tp={record.tp}, "
        f"{record.padding}: {plural(record.padded, 'row')}, {record.pad_rows:,} of them pads"
    ]
    for r in style.listed(record.tp, 7):
        if r is None:
            lines.append("  …")
            continue
        held = record.rank(r)
        pads = f", {plural(held.pads, 'pad row')}" if held.pads else ""
        lines.append(f"  rank {r}: {style.units('row', held.rows)} ({len(held.rows)}){pads}")
    padded = _padded_ranks(record)
    if padded:
        more = f", {PADDED_RANKS} of them enlarged" if len(padded) == PADDED_RANKS else ""
        first = record.split.owner(record.model.vocab_size)
        lines.append(f"pad rows are on {style.units('rank', range(first, padded[-1] + 1))}{more}")
    lines += [line for line in (record.reason, style.not_shown(record.tp)) if line]
    return "\n".join(lines)
