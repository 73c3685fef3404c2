"""The head map as a picture: query heads and KV heads against TP rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from llamapar.place.head_map import HeadMap, RankHeads
from llamapar.records.tables import plural, units

from . import parts, style
from .parts import Bar, Rows
from .style import Spec

JUDGED = 1024
"""Most ranks of which all are judged; past it only those drawn."""

Looks = dict[tuple[str, int], list[Bar]]
"""Kind (a key of _LEGEND) and shade → the bars that look so."""


class Share(NamedTuple):
    """Rows that a rank holds of query heads or of KV heads.

    kind: a key of _LEGEND; "" where a bar is a whole head or a part of one. more: what a bar says besides.
    """

    rank: int
    rows: range
    kind: str = ""
    more: str = ""


def picture(record: HeadMap) -> tuple[Spec, str]:
    """Rows of ranks, query heads left, KV heads right; shades alternate by KV group."""
    m, rows = record.model, Rows(record.tp)
    ranks = [record.rank(r) for r in rows.drawn]
    reason = _reason(record, ranks)
    layout = style.layout(
        "heads",
        f"{style.name_of(m)}: query and KV heads over tp={record.tp}",
        reason or rows.left_out or _whole(record),
        widest=str(record.tp - 1),
        warn=bool(reason),
        yaxis=parts.downward(rows.axis("TP rank")),
        xaxis=_head_axis("query head (a shade is a KV group)", m.n_heads, m.group_size, [0, 0.68]),
        xaxis2={**_head_axis("KV head", m.n_kv_heads, 1, [0.74, 1]), "anchor": "y"},
    )
    return {"data": [*_traces(record, ranks)], "layout": layout}, _summary(record, reason)


def _head_axis(title: str, n: int, group: int, domain: list[float]) -> Spec:
    """Heads left to right, a grid line where a group begins."""
    most = 8 if n <= 8 or group > 1 else 4
    tick = group * parts.step(n // group, most) if n // group >= 4 else parts.step(n, most)
    return parts.axis(title, [0, n], domain=domain, tick0=0, dtick=tick)


# -- bars --------------------------------------------------------------------------------------


def _pieces(rows: range, head_dim: int, size: int) -> Iterator[tuple[int, int]]:
    """A rank's rows, parted where a head is cut and, with `size` > 0, where a KV group of so many begins."""
    if not len(rows):
        return
    first, last = -(-rows.start // head_dim) * head_dim, rows.stop // head_dim * head_dim
    marks = {rows.start, rows.stop, *((first, last) if first <= last else ())}
    if size:
        marks.update(range(-(-rows.start // size) * size, rows.stop, size))
    yield from itertools.pairwise(sorted(marks))


def _bars(record: HeadMap, shares: Iterable[Share], group: int, head: str, row: str) -> Looks:
    """Bars by their looks; `group` heads have one shade, 0 for all. head, row: how they are called."""
    width = record.model.head_dim
    size = width * group
    made: Looks = {}
    for rank, rows, kind, more in shares:
        for start, stop in _pieces(rows, width, size):
            whole = start % width == 0 and stop % width == 0
            heads = units(head, range(start // width, -(-stop // width)))
            what = f"{'' if whole else 'a part of '}{heads} · {units(row, range(start, stop))}{more}"
            ends = parts.number(start / width), parts.number(stop / width)
            shade = start // size % 2 if size and kind != "wrong" else 0
            bar = Bar(Rows(record.tp).place(rank), *ends, f"rank {rank} · {what}")
            made.setdefault((kind or ("whole" if whole else "cut"), shade), []).append(bar)
    return made


def _look(kind: str, shade: int) -> Spec:
    patterns = {"cut": style.CUT_PATTERN, "copy": style.COPY_PATTERN, "wrong": style.COPY_PATTERN}
    colour = style.WARN if kind == "wrong" else (style.COLOURS["tp"], style.TP_LIGHT)[shade]
    return {"color": colour, **({"pattern": patterns[kind]} if kind in patterns else {})}


_LEGEND = {
    "whole": "whole heads",
    "cut": "part of a head (cut)",
    "copy": "copy of a KV head",
    "wrong": "wrong KV head",
}


def _traces(record: HeadMap, ranks: list[RankHeads]) -> Iterator[Spec]:
    """One trace per look, named in the legend once; what a rank lacks is drawn hollow."""
    m, tp, shaded = record.model, record.tp, record.model.n_kv_heads <= parts.SHOWN
    queries = [Share(rank.rank, rank.q_rows) for rank in ranks]
    keys = [Share(rank.rank, rank.kv_rows, *_copy(record, rank)) for rank in ranks]
    sides = {
        "x": _bars(record, queries, m.group_size if shaded else 0, "query head", "wq row"),
        "x2": _bars(record, keys, int(shaded), "KV head", "wk, wv row"),
    }
    named: set[str] = set()
    for axis, made in sides.items():
        for (kind, shade), bars in made.items():
            legend = {} if kind in named else parts.legend(_LEGEND[kind])
            named.add(kind)
            yield parts.bars(bars, tp, _look(kind, shade), legendgroup=kind, xaxis=axis, **legend)
    needed = [(rank.rank, record.kv_needed(rank.rank)) for rank in ranks if record.is_wrong(rank)]
    if needed:
        hollow = [Bar(Rows(tp).place(rank), heads.start, heads.stop, "") for rank, heads in needed]
        trace = parts.missing(hollow, tp, "needed, not held", xaxis="x2")
        yield {**trace, "hovertext": "the KV head that this rank's query heads read"}


# -- words -------------------------------------------------------------------------------------


def _copy(record: HeadMap, rank: RankHeads) -> tuple[str, str]:
    """The kind of a rank's KV heads where they are copies, and what is said of them."""
    if record.is_wrong(rank):
        return "wrong", f" · {_needs(record, rank)}"
    return ("copy", f" · one of {record.replicas} copies") if record.replicas > 1 else ("", "")


def _needs(record: HeadMap, rank: RankHeads) -> str:
    return f"needs {units('KV head', record.kv_needed(rank.rank))}"


def _reason(record: HeadMap, ranks: list[RankHeads]) -> str:
    """The record's reason; of the drawn ranks alone where to judge all would take seconds."""
    if record.tp <= JUDGED or not record.tiled or record.model.n_heads % record.tp:
        return record.reason
    wrong = sum(map(record.is_wrong, ranks))
    return f"{wrong} of the {len(ranks)} ranks drawn hold a KV head that is not theirs" if wrong else ""


def _whole(record: HeadMap) -> str:
    if record.replicas > 1:
        return f"each KV head whole on {record.replicas} ranks"
    return "every rank holds whole heads and the KV heads they need"


def _summary(record: HeadMap, reason: str) -> str:
    m, rows = record.model, Rows(record.tp)
    copies = f"each KV head is held whole by {record.replicas} ranks; its gradient is the sum over them"
    return parts.lines(
        f"{style.name_of(m)}: {plural(m.n_heads, 'query head')} and {plural(m.n_kv_heads, 'KV head')} "
        f"over tp={record.tp}, {plural(m.group_size, 'query head')} to a KV head",
        rows.listing(lambda r: _line(record, record.rank(r))),
        copies if record.replicas > 1 else "",
        reason,
        rows.left_out,
    )


def _line(record: HeadMap, rank: RankHeads) -> str:
    if not len(rank.q_rows) and not len(rank.kv_rows):
        return f"rank {rank.rank}: nothing"
    cut_q = "" if rank.q_whole or not len(rank.q_rows) else " (cut)"
    cut_kv = "" if rank.kv_whole or not len(rank.kv_rows) else " (cut)"
    needs = f", {_needs(record, rank)}" if record.is_wrong(rank) else ""
    return (
        f"rank {rank.rank}: {units('query head', rank.q_heads)}{cut_q}, "
        f"{units('wq row', rank.q_rows)}; {units('KV head', rank.kv_heads)}{cut_kv}{needs}, "
        f"{units('wk and wv row', rank.kv_rows)}"
    )
