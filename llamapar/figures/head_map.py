"""The head map: in each rank's column its query heads, under them its KV heads, and who reads what.

A shade is a KV group. A KV head that TP cuts has torn edges, and threads to the ranks that read it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from llamapar.place.head_map import HeadMap, RankHeads
from llamapar.records.tables import plural, share, units

from . import draw, style
from .draw import Rows
from .scenes import TORN, Drawing, Ends, Scene, middle, within
from .wording import number_in_words

QUERY, KEY_VALUE, HEIGHT = (32, 88), (150, 200), 209
"""Where the lanes stand, in pixels from the top, and the whole."""

NUMBER = 17
"""Where the numbers of ranks stand."""

SINGLE = 256
"""Most query heads that are drawn one by one; of more, one band for each KV group."""

FEW = 3
"""Most threads from a rank to the other parts of a KV head that it reads."""

JUDGED = 1024
"""Most ranks of which all are judged; past it only those drawn."""

Held = dict[int, list[tuple[int, Ends]]]
"""KV head → (rank, where its part stands) for each rank that is drawn and holds some of it."""


def picture(record: HeadMap) -> tuple[Scene, str]:
    """The scene, and the same as text."""
    drawing = Drawing("heads", record.tp, HEIGHT)
    ranks = [record.rank(r) for r in drawing.drawn]
    held = _keys(record, ranks, drawing)
    _queries(record, ranks, drawing, held)
    m = record.model
    copies = f"{m.n_kv_heads} × {record.replicas}" if record.replicas > 1 else plural(m.n_kv_heads, "head")
    lanes: list[list[object]] = [
        [NUMBER, "TP rank", ""],
        [middle(QUERY), "query", plural(m.n_heads, "head")],
        [middle(KEY_VALUE), "KV", copies],
    ]
    legend = [["tp0", "one KV group"], ["tp1", "the next"]]
    if record.replicas > 1:
        legend.append(["tp0 copy", "copy of a KV head"])
    if any(look == "wrong" for *_, look in drawing.shapes):
        legend.append(["wrong", "a KV head that the rank does not read"])
    if any("far" in look for *_, look in drawing.links):
        legend.append(["far", "needed from another rank"])
    made = drawing.scene(
        heads_in_words(record),
        bool(_reason(record)),
        lanes,
        lambda r: f"TP {_line(record, record.rank(r))}",
        legend,
    )
    return made, _summary(record)


def _pieces(rows: range, size: int) -> Iterator[tuple[int, int]]:
    """A rank's rows, split at the boundaries of heads of `size` rows."""
    if len(rows):
        # The first boundary at or after the rank's first row, then one a head.
        inner = range(-(-rows.start // size) * size, rows.stop, size)
        yield from itertools.pairwise(sorted({rows.start, rows.stop, *inner}))


def _keys(record: HeadMap, ranks: Sequence[RankHeads], drawing: Drawing) -> Held:
    """Draws the columns and their KV heads; returns who holds which."""
    m = record.model
    width = record.model.head_dim
    # As many heads wide as the rank that holds most, so that a head is as wide on every rank; a part of one
    # fills half a column, or among many ranks the whole.
    most = max([len(rank.kv_rows) / width for rank in ranks]) or 1
    if len(ranks) <= TORN:
        most = max(1, most)
    size = width if m.n_kv_heads <= draw.SHOWN else m.kv_dim
    held: Held = {}
    for i, rank in enumerate(ranks):
        left, right = drawing.card(i, (0, HEIGHT - 1), NUMBER)
        head_wide = (right - left) / most
        copy = rank.rank % record.replicas if record.interleave else rank.rank // m.n_kv_heads
        for start, stop in _pieces(rank.kv_rows, size):
            head = start // width
            at = left + (start - rank.kv_rows.start) / width * head_wide
            x = within((at, at + (stop - start) / width * head_wide), 0.14, 0.86)
            shade = f"tp{head % 2}"
            look = shade if record.replicas == 1 else f"{shade} copy"
            if record.is_wrong(rank):
                look = "wrong"
            drawing.box("kv", (start / m.kv_dim, stop / m.kv_dim), x, KEY_VALUE, look, copy)
            if size == width:
                drawing.label(x, middle(KEY_VALUE) + 4, f"{head}", look)
                held.setdefault(head, []).append((i, x))
            drawing.tear(x, (start, stop), width, KEY_VALUE)
    return held


def _queries(record: HeadMap, ranks: Sequence[RankHeads], drawing: Drawing, held: Held) -> None:
    """Draws the query heads, and from those of each KV group bands to the KV head that they read."""
    m = record.model
    width = record.model.head_dim
    group_rows = width * m.group_size
    size = width
    if m.n_heads > SINGLE:
        size = group_rows if m.n_kv_heads <= draw.SHOWN else m.q_dim
    most = max([len(rank.q_rows) for rank in ranks]) or 1
    for i, rank in enumerate(ranks):
        first = rank.q_rows.start
        for start, stop in _pieces(rank.q_rows, size):
            x = within(drawing.columns[i], (start - first) / most, (stop - first) / most)
            drawing.box("q", (start / m.q_dim, stop / m.q_dim), x, QUERY, f"tp{start // group_rows % 2}")
            drawing.tear(x, (start, stop), width, QUERY)
        for head in record.kv_needed(rank.rank) if held else ():
            rows = max(rank.q_rows.start, head * group_rows), min(rank.q_rows.stop, (head + 1) * group_rows)
            part = (rows[0] / m.q_dim, rows[1] / m.q_dim)
            x = within(drawing.columns[i], (rows[0] - first) / most, (rows[1] - first) / most)
            holders = held.get(head, [])
            own = [to for j, to in holders if j == i]
            for to in own:
                drawing.link(part, x, QUERY[1] + 3, to, KEY_VALUE[0] - 3)
            # Another copy is read where the rank's own is a wrong one; of the parts of a head all are, but
            # of many the nearest stand for the others.
            most_threads = FEW if len(ranks) <= TORN else 1
            if record.replicas > 1:
                most_threads = 0 if own else 1
            others = sorted((abs(j - i), j, to) for j, to in holders if j != i)[:most_threads]
            for _, j, to in others:
                thread = min(0.006, 0.1 * (x[1] - x[0]))
                high, low = ((at - thread, at + thread) for at in (middle(x), middle(to)))
                drawing.link(part, high, QUERY[1] + 3, low, KEY_VALUE[0] - 3, "link far", j - i)


# -- words -------------------------------------------------------------------------------------


def gives(record: HeadMap) -> str:
    """A rank's part, in a few words: "2 KV heads", "half a KV head", "a copy, 1 of 2"."""
    ranks = [record.rank(r) for r in Rows(record.tp).drawn]  # the first has most rows, and the last fewest
    if record.model.n_heads % record.tp:
        return _part_of_heads([rank.q_rows for rank in ranks], "wq", record, "query head")
    if record.replicas > 1:
        return f"a copy, 1 of {record.replicas}"
    return _part_of_heads([rank.kv_rows for rank in ranks], "wk", record, "KV head")


def _part_of_heads(rows: Sequence[range], weight: str, record: HeadMap, word: str) -> str:
    """A rank's part: "2 KV heads", "half a KV head"; or "169 to 171 rows of wk (128 a head)" if unequal."""
    width = record.model.head_dim
    least = min(map(len, rows))
    most = max(map(len, rows))
    if least == most:
        return share(most, width, word)
    return f"{least:,} to {most:,} rows of {weight} ({width} a head)"


def heads_in_words(record: HeadMap) -> str:
    """What the cut does, in a sentence or two."""
    m = record.model
    tp = record.tp
    if m.n_heads % tp:
        return f"TP {tp} does not divide the {m.n_heads} query heads: a rank would hold {gives(record)}."
    queries = number_in_words(m.n_heads // tp, "query head")
    if record.tiled and _reason(record):
        return f"The copies are tiled: {_reason(record)}, and every shape is right."
    if record.replicas > 1:
        return (
            f"Each KV head is stored on {record.replicas} ranks, beside the query heads that read it. The "
            f"gradient of a KV head is the sum over its {record.replicas} copies."
        )
    if m.n_kv_heads % tp:
        torn = len(record.cut_kv_heads)
        which = "each" if torn == m.n_kv_heads else f"{torn}"
        return (
            f"TP {tp} cuts through {which} of the {m.n_kv_heads} KV heads. A rank has {queries} and "
            f"{gives(record)}."
        )
    if tp == 1:
        return f"One rank holds all {m.n_heads} query heads and all {m.n_kv_heads} KV heads."
    return (
        f"Each of the {tp} ranks holds {queries} and the {number_in_words(m.n_kv_heads // tp, 'KV head')} "
        "that they read: attention needs no other rank."
    )


def _needs(record: HeadMap, rank: RankHeads) -> str:
    return f"needs {units('KV head', record.kv_needed(rank.rank))}"


def _reason(record: HeadMap) -> str:
    """The record's reason; for the drawn ranks only, if all ranks would take seconds."""
    if record.tp <= JUDGED or not record.tiled or record.model.n_heads % record.tp:
        return record.reason
    drawn = Rows(record.tp).drawn
    wrong = sum(record.is_wrong(record.rank(r)) for r in drawn)
    if wrong:
        return f"{wrong} of the {len(drawn)} ranks drawn hold a KV head that is not theirs"
    return ""


def _summary(record: HeadMap) -> str:
    m = record.model
    rows = Rows(record.tp)
    copies = f"each KV head is held whole by {record.replicas} ranks; its gradient is the sum over them"
    return draw.lines(
        f"{style.name_of(m)}: {plural(m.n_heads, 'query head')} and {plural(m.n_kv_heads, 'KV head')} "
        f"over tp={record.tp}, {plural(m.group_size, 'query head')} to a KV head",
        rows.listing(lambda r: _line(record, record.rank(r))),
        copies if record.replicas > 1 else "",
        _reason(record),
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
