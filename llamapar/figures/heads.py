"""The head map as a picture: query heads and KV heads against TP rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from llamapar.place.head_map import HeadMap, RankHeads
from llamapar.records.tables import plural, units

from . import parts, style
from .parts import Bar, Rows
from .style import Spec

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
    ranks = [record.rank(r) for r in Rows(tp).drawn]
    named: set[str] = set()
    traces = [*_query_traces(record, ranks, named), *_kv_traces(record, ranks, named)]
    note, warn = _note(record, ranks)
    layout = style.layout(
        "heads",
        f"{style.name_of(m)}: query and KV heads over tp={tp}",
        note,
        widest=str(tp - 1),
        warn=warn,
        yaxis=parts.downward(Rows(tp).axis("TP rank")),
        xaxis=_head_axis("query head (a shade is a KV group)", m.n_heads, m.group_size, [0, 0.68]),
        xaxis2={**_head_axis("KV head", m.n_kv_heads, 1, [0.74, 1]), "anchor": "y"},
    )
    return {"data": traces, "layout": layout}, _summary(record, ranks)


def _head_axis(title: str, n: int, group: int, domain: list[float]) -> Spec:
    """Heads left to right, a grid line where a group begins."""
    most = 8 if n <= 8 or group > 1 else 4
    tick = group * parts.step(n // group, most) if n // group >= 4 else parts.step(n, most)
    return parts.axis(title, [0, n], domain=domain, tick0=0, dtick=tick)


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
    words = f"{'' if piece.whole else 'a part of '}{units(what, heads)}"
    return Bar(
        Rows(record.tp).place(rank),
        parts.number(start / width),
        parts.number(stop / width),
        f"rank {rank} · {words} · {units(rows, piece.rows)}{more}",
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


def _traces(n: int, made: dict[tuple[str, int], list[Bar]], axis: str, named: set[str]) -> Iterator[Spec]:
    """One trace per look, named in the legend once."""
    for (kind, shade), found in made.items():
        legend = {} if kind in named else parts.legend(_LEGEND[kind])
        named.add(kind)
        yield parts.bars(found, n, _look(shade, kind), legendgroup=kind, xaxis=axis, **legend)


def _query_traces(record: HeadMap, ranks: list[RankHeads], named: set[str]) -> Iterator[Spec]:
    m = record.model
    group = m.group_size if m.n_kv_heads <= parts.SHOWN else 0
    made: dict[tuple[str, int], list[Bar]] = {}
    for rank in ranks:
        for piece in _pieces(rank.q_rows, m.head_dim, group):
            bar = _bar(record, rank.rank, piece, "query head", "wq row")
            made.setdefault(("whole" if piece.whole else "cut", piece.shade), []).append(bar)
    yield from _traces(record.tp, made, "x", named)


def _kv_traces(record: HeadMap, ranks: list[RankHeads], named: set[str]) -> Iterator[Spec]:
    m = record.model
    made: dict[tuple[str, int], list[Bar]] = {}
    needed: list[Bar] = []
    for rank in ranks:
        wrong = _wrong(record, rank)
        for piece in _pieces(rank.kv_rows, m.head_dim, int(m.n_kv_heads <= parts.SHOWN)):
            kind, more = "whole" if piece.whole else "cut", ""
            if record.replicas > 1:
                kind, more = "copy", f" · one of {record.replicas} copies"
            if wrong:
                kind, more = "wrong", f" · needs {units('KV head', record.kv_needed(rank.rank))}"
            bar = _bar(record, rank.rank, piece, "KV head", "wk, wv row", more)
            made.setdefault((kind, 0 if wrong else piece.shade), []).append(bar)
        if wrong:
            need = record.kv_needed(rank.rank)
            needed.append(Bar(Rows(record.tp).place(rank.rank), need.start, need.stop, ""))
    yield from _traces(record.tp, made, "x2", named)
    if needed:
        trace = parts.missing(needed, record.tp, "needed, not held", xaxis="x2")
        yield {**trace, "hovertext": "the KV head that this rank's query heads read"}


# -- words -------------------------------------------------------------------------------------


def _wrong(record: HeadMap, rank: RankHeads) -> bool:
    """Whether a rank holds a copy of a KV head that its query heads do not read."""
    tiled = record.replicas > 1 and not record.interleave
    return tiled and rank.kv_heads != record.kv_needed(rank.rank)


def _reason(record: HeadMap, ranks: list[RankHeads]) -> str:
    """The record's reason; of the drawn ranks alone where to judge all would take seconds."""
    if record.tp <= JUDGED or record.interleave or record.replicas == 1:
        return record.reason
    if record.model.n_heads % record.tp:
        return record.reason
    wrong = sum(_wrong(record, rank) for rank in ranks)
    return f"{wrong} of the {len(ranks)} ranks drawn hold a KV head that is not theirs" if wrong else ""


def _note(record: HeadMap, ranks: list[RankHeads]) -> tuple[str, bool]:
    """The line under the title, and whether it is a warning."""
    reason = _reason(record, ranks)
    if reason:
        return reason, True
    if left_out := Rows(record.tp).left_out:
        return left_out, False
    if record.replicas > 1:
        return f"each KV head whole on {record.replicas} ranks", False
    return "every rank holds whole heads and the KV heads they need", False


def _summary(record: HeadMap, ranks: list[RankHeads]) -> str:
    m, rows = record.model, Rows(record.tp)
    copies = f"each KV head is held whole by {record.replicas} ranks; its gradient is the sum over them"
    return parts.lines(
        f"{style.name_of(m)}: {plural(m.n_heads, 'query head')} and {plural(m.n_kv_heads, 'KV head')} "
        f"over tp={record.tp}, {plural(m.group_size, 'query head')} to a KV head",
        rows.listing(lambda r: _line(record, record.rank(r))),
        copies if record.replicas > 1 else "",
        _reason(record, ranks),
        rows.left_out,
    )


def _line(record: HeadMap, rank: RankHeads) -> str:
    if not len(rank.q_rows) and not len(rank.kv_rows):
        return f"rank {rank.rank}: nothing"
    cut_q = "" if rank.q_whole or not len(rank.q_rows) else " (cut)"
    cut_kv = "" if rank.kv_whole or not len(rank.kv_rows) else " (cut)"
    wrong = f", needs {units('KV head', record.kv_needed(rank.rank))}" if _wrong(record, rank) else ""
    return (
        f"rank {rank.rank}: {units('query head', rank.q_heads)}{cut_q}, "
        f"{units('wq row', rank.q_rows)}; {units('KV head', rank.kv_heads)}{cut_kv}{wrong}, "
        f"{units('wk and wv row', rank.kv_rows)}"
    )
