"""The head map: query heads, and under them the KV heads that they read, with the cuts of TP.

Both lanes share one axis, counted in query heads: KV head j lies under the query heads that read it. This
shows a cut through a KV head; a copy of a KV head lies under the query heads of its own rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from llamapar.place.head_map import HeadMap, RankHeads
from llamapar.records.tables import plural, units

from . import draw, style
from .draw import Bar, Rows
from .style import Spec

QUERY, KEY_VALUE = 0, 1
"""The lanes, top to bottom; the numbers of ranks stand above them, those of KV heads below."""

_RANKS, _KV_HEADS = -0.66, 1.66

_STILL = 1e-6
"""Vertical step between bars of one lane. It should be 0, which plotly takes for 1; a list of y is longer."""

NUMBERED = 16
"""Most ranks, or KV heads, that are numbered."""

JUDGED = 1024
"""Most ranks of which all are judged; past it only those drawn."""

HEIGHT = 300


class _Look(NamedTuple):
    """The look of bars: their lane, a key of _LEGEND, and one of two shades."""

    lane: int
    kind: str
    shade: int


def picture(record: HeadMap) -> tuple[Spec, str]:
    """Query heads above KV heads, with alternating shades for KV groups, and a line at each new rank."""
    m = record.model
    ranks = [record.rank(r) for r in range(min(record.tp, draw.SHOWN))]
    end = max((rank.q_rows.stop for rank in ranks), default=0) / m.head_dim or m.n_heads
    reason = _reason(record, ranks)
    rest = f"drawn are the first {len(ranks)} of {plural(record.tp, 'rank')}" * (record.tp > len(ranks))
    lanes = {_RANKS: "TP rank", QUERY: "query", KEY_VALUE: "key, value", _KV_HEADS: "KV head"}
    layout = style.layout(
        "heads",
        f"{style.name_of(m)}: query and KV heads over tp={record.tp}",
        "; ".join(filter(None, (reason, rest))) or _whole(record),
        widest="key, value",
        warn=bool(reason),
        height=HEIGHT,
        legend={"y": -0.36},  # of a plot that is lower than others
        yaxis=draw.axis("", [2.05, -1], showgrid=False, **draw.ticks(list(lanes), list(lanes.values()))),
        xaxis=_head_axis("query head (a shade is a KV group)", end, m.group_size),
    )
    data = [*_heads(record, ranks), *_numbers(record, ranks), *_cuts(record, ranks)]
    return {"data": data, "layout": layout}, _summary(record, reason)


def _head_axis(title: str, end: float, group: int) -> Spec:
    """Query heads from left to right, with a tick at the start of each group."""
    groups = int(end) // group
    size = group * draw.step(groups, 8) if groups >= 4 else draw.step(max(1, int(end)), 8)
    return draw.axis(title, [0, end], tick0=0, dtick=size, showgrid=False)


# -- bars ------------------------------------------------------------------------------------------


def _pieces(rows: range, size: int) -> Iterator[tuple[int, int]]:
    """A rank's rows, split at the boundaries of heads of `size` rows."""
    if len(rows):
        # The first boundary at or after the rank's first row, then one a head.
        inner = range(-(-rows.start // size) * size, rows.stop, size)
        yield from itertools.pairwise(sorted({rows.start, rows.stop, *inner}))


def _heads(record: HeadMap, ranks: list[RankHeads]) -> Iterator[Spec]:
    """One trace for each look, with one entry in the legend."""
    made: dict[_Look, list[Bar]] = {}
    for rank in ranks:
        for look, bar in itertools.chain(_queries(record, rank), _keys(record, rank)):
            made.setdefault(look, []).append(bar)
    named: set[str] = set()
    for look, bars in made.items():
        legend = {} if look.kind in named else draw.legend(_LEGEND[look.kind])
        named.add(look.kind)
        trace = draw.bars(bars, 2, _marker(look), legendgroup=look.kind, y0=look.lane, dy=_STILL, **legend)
        del trace["y"]  # all bars of a look lie in one lane
        yield trace


def _queries(record: HeadMap, rank: RankHeads) -> Iterator[tuple[_Look, Bar]]:
    """The query heads of a rank; if there are too many, one bar for each KV group."""
    m, width = record.model, record.model.head_dim
    groups = m.group_size if m.n_kv_heads <= draw.SHOWN else m.n_heads
    size = width * (1 if m.n_heads <= draw.SHOWN else groups)
    for start, stop in _pieces(rank.q_rows, size):
        whole = start % width == 0 and stop % width == 0
        look = _Look(QUERY, "whole" if whole else "cut", start // width // m.group_size % 2)
        heads = units("query head", range(start // width, -(-stop // width)))
        yield look, _bar(rank, look, start / width, stop / width, heads, units("wq row", range(start, stop)))


def _keys(record: HeadMap, rank: RankHeads) -> Iterator[tuple[_Look, Bar]]:
    """The KV heads of a rank; a copy lies under the rank's own query heads, whether they read it or not."""
    m, width = record.model, record.model.head_dim
    if record.replicas > 1:
        if not len(rank.q_rows):
            return
        wrong = record.is_wrong(rank)
        look = _Look(KEY_VALUE, "wrong" if wrong else "copy", 0 if wrong else rank.kv_heads.start % 2)
        more = f" · {_needs(record, rank)}" if wrong else f" · one of {record.replicas} copies"
        rows = units("wk, wv row", rank.kv_rows) + more
        ends = rank.q_rows.start / width, rank.q_rows.stop / width
        yield look, _bar(rank, look, *ends, units("KV head", rank.kv_heads), rows)
        return
    for start, stop in _pieces(rank.kv_rows, width * (1 if m.n_kv_heads <= draw.SHOWN else m.n_kv_heads)):
        whole = start % width == 0 and stop % width == 0
        look = _Look(KEY_VALUE, "whole" if whole else "cut", start // width % 2)
        heads = units("KV head", range(start // width, -(-stop // width)))
        ends = start * m.group_size / width, stop * m.group_size / width
        yield look, _bar(rank, look, *ends, heads, units("wk, wv row", range(start, stop)))


def _bar(rank: RankHeads, look: _Look, start: float, stop: float, heads: str, rows: str) -> Bar:
    part = "a part of " if look.kind == "cut" else ""
    return Bar(look.lane, draw.number(start), draw.number(stop), f"rank {rank.rank} · {part}{heads} · {rows}")


def _marker(look: _Look) -> Spec:
    patterns = {"cut": style.CUT_PATTERN, "copy": style.COPY_PATTERN, "wrong": style.COPY_PATTERN}
    colour = style.WARN if look.kind == "wrong" else (style.COLOURS["tp"], style.TP_LIGHT)[look.shade]
    pattern = {"pattern": patterns[look.kind]} if look.kind in patterns else {}
    return {"color": colour, "line": {"width": 0.7, "color": "rgba(255,255,255,0.7)"}, **pattern}


_LEGEND = {
    "whole": "whole heads",
    "cut": "part of a head (cut)",
    "copy": "copy of a KV head",
    "wrong": "wrong KV head",
}


# -- numbers and cuts ------------------------------------------------------------------------------


def _numbers(record: HeadMap, ranks: list[RankHeads]) -> Iterator[Spec]:
    """The number of each rank above its query heads, and of each KV head below it, where there is room."""
    m = record.model
    middles = [(rank.q_rows.start + rank.q_rows.stop) / 2 / m.head_dim for rank in ranks]
    held = [rank for rank in ranks if len(rank.q_rows)]
    above = [(middles[rank.rank], rank.rank) for rank in held]
    if record.replicas > 1:
        below = [(middles[rank.rank], rank.kv_heads.start) for rank in held if rank.kv_heads]
    else:
        heads = {head for rank in ranks for head in rank.kv_heads}
        below = [((head + 0.5) * m.group_size, head) for head in sorted(heads)]
    for y, numbers in ((_RANKS, above), (_KV_HEADS, below)):
        some = numbers[:: draw.step(len(numbers), NUMBERED)]
        x = [draw.number(place) for place, _ in some]
        texts = [str(number) for _, number in some]
        yield draw.scatter("text", x, [y] * len(some), text=texts, textfont={"size": 11}, hoverinfo="skip")


def _cuts(record: HeadMap, ranks: list[RankHeads]) -> Iterator[Spec]:
    """A line in each lane at each new rank; a thick coloured one where it cuts a head."""
    width, group = record.model.head_dim, record.model.group_size
    copied = record.replicas > 1
    ends = {QUERY: [rank.q_rows.stop for rank in ranks[:-1]]}
    ends[KEY_VALUE] = [rank.kv_rows.stop * group for rank in ranks[:-1]] if not copied else ends[QUERY]
    named = False
    for lane, stops in ends.items():
        whole = group * width if lane == KEY_VALUE and not copied else width
        for torn in (False, True):
            places = sorted({stop for stop in stops if bool(stop % whole) == torn})
            if (lane == KEY_VALUE and copied and torn) or not places:
                continue
            yield _lines([draw.number(stop / width) for stop in places], lane, torn, torn and not named)
            named = named or torn


def _lines(places: list[float], lane: int, torn: bool, named: bool) -> Spec:
    """Vertical lines through a lane, as error bars, because these keep the lane's height at any picture
    size.
    """
    colour, thickness = (style.WARN, 3) if torn else (style.LINE, 1.5)
    line = {"type": "constant", "value": 0.5, "width": 0, "thickness": thickness, "color": colour}
    mark = {"symbol": "line-ns-open", "size": 12, "color": colour, "line": {"width": thickness}}
    legend = draw.legend("cut through a head") if named else {}
    spec = {"type": "scatter", "mode": "markers", "x": places, "y0": lane, "dy": _STILL, "error_y": line}
    return spec | {"marker": mark, "hoverinfo": "skip", **legend}


# -- words -------------------------------------------------------------------------------------


def _needs(record: HeadMap, rank: RankHeads) -> str:
    return f"needs {units('KV head', record.kv_needed(rank.rank))}"


def _reason(record: HeadMap, ranks: list[RankHeads]) -> str:
    """The record's reason; for the drawn ranks only, if all ranks would take seconds."""
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
    return draw.lines(
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
