"""The sequence map as a picture: each CP rank's share of the causal triangle, and its work."""

from __future__ import annotations

from llamapar.place.sequence_map import RankSequence, SequenceMap
from llamapar.records.tables import plural, span, units

from . import draw, style
from .chart import Chart
from .draw import Bar, Rows
from .style import Spec

DRAWN = 64
"""Most CP ranks drawn, each a polygon and a bar."""

OUTLINED = 32
"""Most documents whose triangles are outlined."""

JUDGED = 2**13
"""Most CP ranks of which all are weighed; past it only those drawn."""


def picture(record: SequenceMap) -> tuple[Spec, str]:
    """Left, the causal triangle in each rank's shade; right, each rank's work relative to the mean."""
    rows = Rows(record.cp, DRAWN)
    ranks = [record.rank(r) for r in rows.drawn]
    top = max(1.0, *(_ratio(record, rank) for rank in ranks))
    documents = _documents_and_step(record)
    if record.cp <= JUDGED:
        busiest = f"busiest rank {record.imbalance:.3f} × the mean work"
    else:
        most = max(_ratio(record, rank) for rank in ranks)
        busiest = f"busiest of {len(ranks)} ranks {most:.3f} × the mean work"

    def line(r: int) -> str:
        rank = record.rank(r)
        sizes = f"{plural(rank.tokens, 'token')}, {plural(rank.pairs, 'pair')}"
        return f"rank {rank.rank}: {_places(rank)}; {sizes}, {_ratio(record, rank):.3f} × the mean"

    sp = f"sequence parallelism shares a CP rank's tokens among {record.sp} TP ranks" if record.sp > 1 else ""
    mean = {**draw.rule("x", 1, "y2 domain", width=1.5, dash="dot", color=style.LINE), "xref": "x2"}
    spec, text = Chart(
        kind="sequence",
        title=f"Sequence of {record.seq_len:,} over cp={record.cp}, {record.chunking}",
        note="; ".join(filter(None, [documents, busiest, record.reason, rows.left_out])),
        data=[*(_share(record, rank) for rank in ranks if rank.meets), _work(record)],
        layout={
            "widest": f"{record.seq_len:,}"[:9],
            "warn": bool(record.reason),
            "xaxis": _positions("key position", [0, record.seq_len], [0, 0.56]),
            "yaxis": _positions("query position", [record.seq_len, 0], [0, 1]),
            "xaxis2": draw.axis(
                "causal pairs ÷ mean", [0, top * 1.08], domain=[0.68, 1], anchor="y2", nticks=5
            ),
            "yaxis2": {**draw.downward(rows.axis("CP rank")), "anchor": "x2"},
            "shapes": [mean, *_documents(record)],
        },
        head=[
            f"sequence of {record.seq_len} over cp={record.cp}, {record.chunking}: "
            f"{record.pairs:,} causal (query, key) pairs",
            documents,
            busiest,
        ],
        remarks=[*rows.listing(line, most=6), record.reason, sp, rows.left_out],
    ).drawn()
    # What all polygons share stands once, in the template; an outline would cover narrow ones.
    outline = {"width": 0.5 if record.cp <= 32 else 0, "color": "rgba(255,255,255,0.6)"}
    shared = {"mode": "lines", "fill": "toself", "hoveron": "fills", "line": outline}
    spec["layout"]["template"]["data"]["scatter"][0] |= shared
    return spec, text


def _positions(title: str, ends: list[int], domain: list[float]) -> Spec:
    n = max(ends)
    # Ticks at quarters fall on chunk borders, where plotly's own round numbers would not.
    quarters = {} if n % 4 else {"tick0": 0, "dtick": n // 4}
    return draw.positions(title, ends, domain=domain, **quarters)


def _documents(record: SequenceMap) -> list[Spec]:
    """The triangle of each document, if there are several and not too many."""
    if not record.documents or len(record.documents) > OUTLINED:
        return []
    line = {"width": 1, "color": style.LINE, "dash": "dot"}
    starts = [0, *record.ends[:-1]]
    corners = zip(starts, record.ends, strict=True)
    return [{"type": "path", "path": f"M{a},{a}L{a},{b}L{b},{b}Z", "line": line} for a, b in corners]


def _documents_and_step(record: SequenceMap) -> str:
    """Documents and the step of a ring, if there are any."""
    said = [f"{plural(len(record.documents), 'document')}"] if record.documents else []
    if record.ring_step is not None:
        whose = f"the keys of the rank {record.ring_step} before it" if record.ring_step else "its own keys"
        said.append(f"ring step {record.ring_step + 1} of {record.cp}: each rank meets {whose}")
    return "; ".join(said)


def _share(record: SequenceMap, rank: RankSequence) -> Spec:
    """A rank's queries with their keys: a polygon for each of its chunks and documents."""
    x: list[int | None] = []
    y: list[int | None] = []
    for queries, keys in rank.meets:
        # Queries above the first key see nothing. From there on the causal diagonal bounds the polygon,
        # until all keys are seen.
        top = max(queries.start, keys.start)
        corners = [(keys.start, top), (min(keys.stop, top), top)]
        if top < keys.stop < queries.stop:
            corners.append((keys.stop, keys.stop))
        corners += [(min(keys.stop, queries.stop), queries.stop), (keys.start, queries.stop), corners[0]]
        x += [None] * bool(x) + [at for at, _ in corners]
        y += [None] * bool(y) + [at for _, at in corners]
    return {  # a scatter trace, which is plotly's default
        "x": x,
        "y": y,
        "fillcolor": style.alternate("cp", rank.rank, record.cp),
        "text": f"rank {rank.rank} · {_places(rank)}",
    }


def _work(record: SequenceMap) -> Spec:
    made, shades = list[Bar](), list[str]()
    for place, rank in Rows(record.cp, DRAWN).each(record.rank):
        words = f"rank {rank.rank} · {plural(rank.pairs, 'causal pair')}"
        made.append(Bar(place, 0, _ratio(record, rank), words))
        shades.append(style.alternate("cp", rank.rank, record.cp))
    trace = draw.bars(made, record.cp, {"color": shades}, xaxis="x2", yaxis="y2")
    return {**trace, "base": 0, "hovertemplate": "%{hovertext}, %{x:.3f} × the mean<extra></extra>"}


def _ratio(record: SequenceMap, rank: RankSequence) -> float:
    """A rank's work divided by the mean over ranks."""
    return round(record.over_mean(rank), 6)


def _places(rank: RankSequence) -> str:
    chunks = [chunk for chunk in rank.chunks if len(chunk)]
    if len(chunks) == 1:
        return units("position", chunks[0])
    return f"positions {', '.join(map(span, chunks))}" if chunks else "no positions"
