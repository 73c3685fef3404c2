"""The head map as a picture: query heads and KV heads against TP rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from llamapar.place.head_map import HeadMap, RankHeads

from . import style
from .style import Bar, Spec, plural

JUDGED = 1024
"""Most ranks of which all are judged; past it only those drawn."""


class Piece(NamedTuple):
    """Rows of one rank drawn as one bar: whole heads of a KV group, or a part of a head."""

    rows: range
    shade: int
    whole: bool


def picture(record: HeadMap) -> tuple[Spec, str]:
    """Rows of ranks, query heads left, KV heads right; shades alternate by KV group."""
    m, tp = record.model, record.tp
    ranks = [record.rank(r) for r in style.shown(tp)]
    told: set[str] = set()
    traces = [*_query_traces(record, ranks, told), *_kv_traces(record, ranks, told)]
    note, warn = _note(record, ranks)
    layout = style.layout(
        "heads",
        f"{style.name_of(m)}: query and KV heads over tp={tp}",
        note,
        widest=str(tp - 1),
        warn=warn,
        yaxis=style.downward(style.rank_axis(tp, "TP rank")),
        xaxis=_head_axis("query head (a shade is a KV group)", m.n_heads, m.group_size, [0, 0.68]),
        xaxis2={**_head_axis("KV head", m.n_kv_heads, 1, [0.74, 1]), "anchor": "y"},
    )
    return {"data": traces, "layout": layout}, _summary(record, ranks)


def _head_axis(title: str, n: int, group: int, domain: list[float]) -> Spec:
    """Heads left to right, a grid line where a group begins."""
    most = 8 if n <= 8 or group > 1 else 4
    tick = group * style.step(n // group, most) if n // group >= 4 else style.step(n, most)
    return {"title": {"text": title}, "range": [0, n], "domain": domain, "tick0": 0, "dtick": tick}


# -- bars --------------------------------------------------------------------------------------


def _pieces(rows: range, head_dim: int, group: int) -> Iterator[Piece]:
    """A rank's rows, parted where a head is cut and, with `group` > 0, where a KV group begins."""
    if not len(rows):
        return
    first, last = -(-rows.start // head_dim) * head_dim, rows.stop // head_dim * head_dim
    marks = {rows.start, rows.stop, *((first, last) if first <= last else ())}
    size = head_dim * group
    if size:
        marks.update(range(-(-rows.start // size) * size, rows.stop, size))
    points = sorted(marks)
    for start, stop in itertools.pairwise(points):
        whole = start % head_dim == 0 and stop % head_dim == 0
        yield Piece(range(start, stop), start // size % 2 if size else 0, whole)


def _bar(record: HeadMap, rank: int, piece: Piece, what: str, rows: str, more: str = "") -> Bar:
    width = record.model.head_dim
    start, stop = piece.rows.start, piece.rows.stop
    heads = range(start // width, -(-stop // width))
    words = f"{'' if piece.whole else 'a part of '}{style.units(what, heads)}"
    return Bar(
        style.row_of(rank, record.tp),
        style.number(start / width),
        style.number(stop / width),
        f"rank {rank} · {words} · {style.units(rows, piece.rows)}{more}",
    )


def _look(shade: int, kind: str) -> Spec:
    patterns = {"cut": style.CUT_PATTERN, "copy": style.COPY_PATTERN, "wrong": style.COPY_PATTERN}
    colour = style.WARN if kind == "wrong" else (style.COLOURS["tp"], style.TP_LIGHT)[shade]
    return {"color": colour, **({"pattern": patterns[kind]} if kind in patterns else {})}


_LEGEND = {
    "whole": "whole heads",
    "cut": "part of a head (cut)",
    "copy": "copy of a KV head",
    "wrong": "wrong KV head",
}


def _traces(n: int, made: dict[tuple[str, int], list[Bar]], axis: str, told: set[str]) -> Iterator[Spec]:
    """One trace per look, named in the legend once."""
    for (kind, shade), found in made.items():
        legend = {} if kind in told else {"name": _LEGEND[kind], "showlegend": True}
        told.add(kind)
        yield style.bars(found, n, _look(shade, kind), legendgroup=kind, xaxis=axis, **legend)


def _query_traces(record: HeadMap, ranks: list[RankHeads], told: set[str]) -> Iterator[Spec]:
    m = record.model
    group = m.group_size if m.n_kv_heads <= style.SHOWN else 0
    made: dict[tuple[str, int], list[Bar]] = {}
    for held in ranks:
        for piece in _pieces(held.q_rows, m.head_dim, group):
            bar = _bar(record, held.rank, piece, "query head", "wq row")
            made.setdefault(("whole" if piece.whole else "cut", piece.shade), []).append(bar)
    yield from _traces(record.tp, made, "x", told)


def _kv_traces(record: HeadMap, ranks: list[RankHeads], told: set[str]) -> Iterator[Spec]:
    m = record.model
    made: dict[tuple[str, int], list[Bar]] = {}
    needed: list[Bar] = []
    for held in ranks:
        wrong = _wrong(record, held)
        for piece in _pieces(held.kv_rows, m.head_dim, int(m.n_kv_heads <= style.SHOWN)):
            kind, more = "whole" if piece.whole else "cut", ""
            if record.replicas > 1:
                kind, more = "copy", f" · one of {record.replicas} copies"
            if wrong:
                kind, more = "wrong", f" · needs {style.units('KV head', record.kv_needed(held.rank))}"
            bar = _bar(record, held.rank, piece, "KV head", "wk, wv row", more)
            made.setdefault((kind, 0 if wrong else piece.shade), []).append(bar)
        if wrong:
            need = record.kv_needed(held.rank)
            needed.append(Bar(style.row_of(held.rank, record.tp), need.start, need.stop, ""))
    yield from _traces(record.tp, made, "x2", told)
    if needed:
        hollow = {"color": "rgba(0,0,0,0)", "line": {"width": 1.5, "color": style.WARN}}
        trace = style.bars(needed, record.tp, hollow, xaxis="x2", name="needed, not held", showlegend=True)
        yield {**trace, "hovertext": "the KV head that this rank's query heads read"}


# -- words -------------------------------------------------------------------------------------


def _wrong(record: HeadMap, held: RankHeads) -> bool:
    """Whether a rank holds a copy of a KV head that its query heads do not read."""
    tiled = record.replicas > 1 and not record.interleave
    return tiled and held.kv_heads != record.kv_needed(held.rank)


def _reason(record: HeadMap, ranks: list[RankHeads]) -> str:
    """The record's reason; of the drawn ranks alone where to judge all would take seconds."""
    if record.tp <= JUDGED or record.interleave or record.replicas == 1:
        return record.reason
    if record.model.n_heads % record.tp:
        return record.reason
    wrong = sum(_wrong(record, held) for held in ranks)
    return f"{wrong} of the {len(ranks)} ranks drawn hold a KV head that is not theirs" if wrong else ""


def _note(record: HeadMap, ranks: list[RankHeads]) -> tuple[str, bool]:
    """The line under the title, and whether it is a warning."""
    reason = _reason(record, ranks)
    if reason:
        return reason, True
    left_out = style.not_shown(record.tp)
    if left_out:
        return left_out, False
    if record.replicas > 1:
        return f"each KV head whole on {record.replicas} ranks", False
    return "every rank holds whole heads and the KV heads they need", False


def _summary(record: HeadMap, ranks: list[RankHeads]) -> str:
    m = record.model
    lines = [
        f"{style.name_of(m)}: {plural(m.n_heads, 'query head')} and {plural(m.n_kv_heads, 'KV head')} "
        f"over tp={record.tp}, {plural(m.group_size, 'query head')} to a KV head"
    ]
    for r in style.listed(record.tp, 7):
        lines.append("  …" if r is None else "  " + _line(record, record.rank(r)))
    if record.replicas > 1:
        lines.append(
            f"each KV head is held whole by {record.replicas} ranks; its gradient is the sum over them"
        )
    lines += [line for line in (_reason(record, ranks), style.not_shown(record.tp)) if line]
    return "\n".join(lines)


def _line(record: HeadMap, held: RankHeads) -> str:
    if not len(held.q_rows) and not len(held.kv_rows):
        return f"rank {held.rank}: nothing"
    cut_q = "" if held.q_whole or not len(held.q_rows) else " (cut)"
    cut_kv = "" if held.kv_whole or not len(held.kv_rows) else " (cut)"
    wrong = f", needs {style.units('KV head', record.kv_needed(held.rank))}" if _wrong(record, held) else ""
    return (
        f"rank {held.rank}: {style.units('query head', held.q_heads)}{cut_q}, "
        f"{style.units('wq row', held.q_rows)}; {style.units('KV head', held.kv_heads)}{cut_kv}{wrong}, "
        f"{style.units('wk and wv row', held.kv_rows)}"
    )
