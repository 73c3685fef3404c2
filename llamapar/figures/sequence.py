"""The sequence map as a picture: each CP rank's share of the causal triangle, and its work."""

from __future__ import annotations

from llamapar.place.sequence_map import RankSequence, SequenceMap
from llamapar.records.tables import span

from . import style
from .style import Bar, Spec, plural

DRAWN = 64
"""Most CP ranks drawn, each a polygon and a bar."""

JUDGED = 2**13
"""Most CP ranks of which all are weighed; past it only those drawn."""


def picture(record: SequenceMap) -> tuple[Spec, str]:
    """Left the causal triangle in each rank's shade, right its work relative to the mean."""
    ranks = [record.rank(r) for r in style.shown(record.cp, DRAWN)]
    note = [_busiest(record, ranks), record.reason, style.not_shown(record.cp, DRAWN)]
    data = [*(_share(record, held) for held in ranks if held.tokens), _work(record, ranks)]
    top = max(1.0, *(_ratio(record, held) for held in ranks))
    layout = style.layout(
        "sequence",
        f"Sequence of {record.seq_len:,} over cp={record.cp}, {record.chunking}",
        "; ".join(filter(None, note)),
        widest=f"{record.seq_len:,}"[:9],
        warn=bool(record.reason),
        xaxis=_positions("key position", [0, record.seq_len], [0, 0.56]),
        yaxis=_positions("query position", [record.seq_len, 0], [0, 1]),
        xaxis2={
            "title": {"text": "causal pairs ÷ mean"},
            "range": [0, top * 1.08],
            "domain": [0.68, 1],
            "anchor": "y2",
            "nticks": 5,
        },
        yaxis2={
            **style.downward(style.rank_axis(record.cp, "CP rank", DRAWN)),
            "anchor": "x2",
        },
        shapes=[_mean_line()],
    )
    layout["template"]["data"]["scatter"][0] |= _polygon(record.cp)
    return {"data": data, "layout": layout}, _summary(record, ranks)


def _polygon(cp: int) -> Spec:
    """What the polygons share; no outline where it would cover them."""
    line = {"width": 0.5 if cp <= 32 else 0, "color": "rgba(255,255,255,0.6)"}
    return {"mode": "lines", "fill": "toself", "hoveron": "fills", "line": line}


def _positions(title: str, ends: list[int], domain: list[float]) -> Spec:
    n = max(ends)
    axis: Spec = {"title": {"text": title}, "range": ends, "domain": domain}
    axis |= {"tickformat": style.tick_format(n), "nticks": 6}
    return axis if n % 4 else {**axis, "tick0": 0, "dtick": n // 4}


def _share(record: SequenceMap, held: RankSequence) -> Spec:
    """A rank's queries with the keys that each may see: a trapezoid for each of its chunks."""
    x: list[int] = []
    y: list[int] = []
    for chunk in held.chunks:
        if len(chunk):
            x += [0, chunk.start, chunk.stop, 0]
            y += [chunk.start, chunk.start, chunk.stop, chunk.stop]
    return {  # a scatter trace, which is plotly's default
        "x": x,
        "y": y,
        "fillcolor": style.ramp("cp", held.rank, record.cp),
        "text": f"rank {held.rank} · {_places(held)}",
    }


def _work(record: SequenceMap, ranks: list[RankSequence]) -> Spec:
    made = [
        Bar(
            style.row_of(held.rank, record.cp, DRAWN),
            0,
            _ratio(record, held),
            f"rank {held.rank} · {plural(held.pairs, 'causal pair')}",
        )
        for held in ranks
    ]
    shades = [style.ramp("cp", held.rank, record.cp) for held in ranks]
    trace = style.bars(made, record.cp, {"color": shades}, xaxis="x2", yaxis="y2")
    return {**trace, "base": 0, "hovertemplate": "%{hovertext}, %{x:.3f} × the mean<extra></extra>"}


def _ratio(record: SequenceMap, held: RankSequence) -> float:
    """A rank's work over the mean of all."""
    return round(held.pairs * record.cp / record.pairs, 6)


def _mean_line() -> Spec:
    line = {"width": 1.5, "dash": "dot", "color": style.LINE}
    ends = {"x0": 1, "x1": 1, "y0": 0, "y1": 1}
    return {"type": "line", "xref": "x2", "yref": "y2 domain", "line": line, **ends}


def _places(held: RankSequence) -> str:
    held_by = [chunk for chunk in held.chunks if len(chunk)]
    if len(held_by) == 1:
        return style.units("position", held_by[0])
    return f"positions {', '.join(map(span, held_by))}" if held_by else "no positions"


def _busiest(record: SequenceMap, ranks: list[RankSequence]) -> str:
    if record.cp <= JUDGED:
        return f"busiest rank {record.imbalance:.3f} × the mean work"
    most = max(_ratio(record, held) for held in ranks)
    return f"busiest of {len(ranks)} ranks {most:.3f} × the mean work"


def _summary(record: SequenceMap, ranks: list[RankSequence]) -> str:
    lines = [
        f"sequence of {record.seq_len} over cp={record.cp}, {record.chunking}: "
        f"{record.pairs:,} causal (query, key) pairs",
        _busiest(record, ranks),
    ]
    for r in style.listed(record.cp, 6):
        if r is None:
            lines.append("  …")
            continue
        held = record.rank(r)
        lines.append(
            f"  rank {r}: {_places(held)}; {plural(held.tokens, 'token')}, "
            f"{plural(held.pairs, 'pair')}, {_ratio(record, held):.3f} × the mean"
        )
    sp = f"sequence parallelism shares a CP rank's tokens among {record.sp} TP ranks" if record.sp > 1 else ""
    lines += [line for line in (record.reason, sp, style.not_shown(record.cp, DRAWN)) if line]
    return "\n".join(lines)
