"""The vocabulary map: the whole vocabulary above, and in each rank's column what it has of it."""

from __future__ import annotations

from llamapar.place.vocab_map import RankVocab, VocabMap
from llamapar.records.tables import plural, units

from . import draw, style
from .draw import Rows
from .scenes import Drawing, Ends, Scene, middle

WHOLE, ROWS, HEIGHT = (8, 36), (112, 200), 209
"""Where the lanes stand, in pixels from the top, and the whole."""

CARD, NUMBER = 82, 100
"""Where the ranks' columns begin, and their numbers stand."""

LEAST = 0.12
"""Part of a column that pad rows fill at least: they are seen, however few they are."""


def picture(record: VocabMap) -> tuple[Scene, str]:
    """The scene, and the same as text."""
    drawing = Drawing("vocab", record.tp, HEIGHT)
    ranks = [record.rank(r) for r in drawing.drawn]
    most = max(len(rank.rows) for rank in ranks)
    for i, rank in enumerate(ranks):
        _rows(record, rank, most, drawing.column(i, CARD, NUMBER), drawing)
    lanes: list[list[object]] = [
        [middle(WHOLE), "whole", f"{record.padded:,}"],
        [NUMBER, "TP rank", ""],
        [middle(ROWS), "rows", f"{most:,}"],
    ]
    legend = [["tp0", "rows of tokens"]]
    if record.pad_rows:
        legend.append(["pad", f"{plural(record.pad_rows, 'pad row')}, not to scale"])
    made = drawing.scene(
        vocab_in_words(record), not record.ok, lanes, lambda r: f"TP {_line(record.rank(r))}", legend
    )
    return made, _summary(record)


def _rows(record: VocabMap, rank: RankVocab, most: int, inside: Ends, drawing: Drawing) -> None:
    """A rank's rows of tokens and its pad rows, above in the whole and below in its column."""
    scale = (inside[1] - inside[0]) / max(1, most)
    pads = range(rank.real.stop, rank.rows.stop) if rank.real else rank.rows
    # Pads are drawn from the right, and take what they need from the tokens beside them.
    end = inside[0] + len(rank.rows) * scale
    pad_wide = max(len(pads) * scale, LEAST * (inside[1] - inside[0])) if pads else 0
    split = max(inside[0], end - pad_wide)
    for rows, x, look in ((rank.real, (inside[0], split), f"tp{rank.rank % 2}"), (pads, (split, end), "pad")):
        if not len(rows):
            continue
        part = rows.start / record.padded, rows.stop / record.padded
        drawing.box("whole", part, part, WHOLE, look)
        drawing.held("rows", part, WHOLE, x, ROWS, look)
        if look != "pad":
            drawing.label(x, ROWS[0] + 20, f"{rows.start:,}", look)
            drawing.label(x, ROWS[1] - 10, f"{rows.stop - 1:,}", look)


# -- words -------------------------------------------------------------------------------------


def vocab_in_words(record: VocabMap) -> str:
    """What each rank holds, in a sentence or two."""
    first = record.rank(0)
    last = record.rank(record.tp - 1)
    if not record.ok:
        return (
            f"{record.padded:,} rows do not divide by {record.tp}: rank 0 holds {len(first.rows):,} rows and "
            f"the last rank {len(last.rows):,}."
        )
    said = f"Each rank holds {len(first.rows):,} rows of the embedding"
    if record.pad_rows:
        return f"{said}. {plural(record.pad_rows, 'row')} at the end stand for no token."
    return f"{said}."


def _line(rank: RankVocab) -> str:
    pads = f", {plural(rank.pads, 'pad row')}" if rank.pads else ""
    return f"rank {rank.rank}: {units('row', rank.rows)} ({len(rank.rows):,}){pads}"


def _summary(record: VocabMap) -> str:
    name = style.name_of(record.model)
    rows = Rows(record.tp)
    where = ""
    if record.pad_rows:
        first, last = (record.split.owner(row) for row in (record.model.vocab_size, record.padded - 1))
        where = f"pad rows are on {units('rank', range(first, last + 1))}"
    return draw.lines(
        f"{name}: vocabulary of {record.model.vocab_size:,} over tp={record.tp}, {record.padding}: "
        f"{plural(record.padded, 'row')}, {record.pad_rows:,} of them pads",
        rows.listing(lambda r: _line(record.rank(r))),
        where,
        record.reason,
        rows.left_out,
    )
