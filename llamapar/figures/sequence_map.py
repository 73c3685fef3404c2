"""The sequence map: who holds which tokens, how far back each of them looks, and the work of each CP rank.

Above, tokens run to the right and the tokens that they look back at upwards: the causal triangle, whose area
is work. Each part has its rank's shade. Under it, in each rank's column, its chunks and its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llamapar.place.sequence_map import RankSequence, SequenceMap, in_runs
from llamapar.records.tables import plural, span, units

from . import draw
from .draw import Rows
from .scenes import Drawing, Ends, Scene, middle, within
from .wording import sentence

PAIRS, CHUNKS, WORK, HEIGHT = (4, 88), (128, 158), (166, 200), 209
"""Where the lanes stand, in pixels from the top, and the whole."""

CARD, NUMBER = 104, 121
"""Where the ranks' columns begin, and their numbers stand."""

DRAWN = 64
"""Most CP ranks drawn."""

PIECES = 512
"""Most pieces of the triangle that are drawn; with more, as of very many documents, the first ones."""

JUDGED = 2**13
"""Most CP ranks of which all are weighed; past it only those drawn."""

Trapezoid = tuple[Ends, float, float, float]
"""The tokens from and to, as fractions; then pixels: the upper edge left and right, and the lower edge."""


def picture(record: SequenceMap) -> tuple[Scene, str]:
    """The scene, and the same as text."""
    drawing = Drawing("sequence", record.cp, HEIGHT, DRAWN)
    ranks = [record.rank(r) for r in drawing.drawn]
    most_work = max([1.0, *(_ratio(record, rank) for rank in ranks)])
    most_tokens = max([rank.tokens for rank in ranks]) or 1
    pieces = 0
    for i, rank in enumerate(ranks):
        look = f"cp{rank.rank % 2}"
        n = len(ranks)
        inside = drawing.column(i, CARD, NUMBER)
        for queries, keys in rank.meets:
            for x, left, right, base in _trapezoids(queries, keys, record.seq_len):
                pieces += 1
                if pieces <= PIECES:
                    drawing.slope("pairs", x, left, (x, base), right, look, keys.start)
        at = inside[0]
        for chunk in in_runs(rank.chunks):
            part = chunk.start / record.seq_len, chunk.stop / record.seq_len
            x = at, at + (inside[1] - inside[0]) * len(chunk) / most_tokens
            at = x[1]
            drawing.held("chunks", part, PAIRS, x, CHUNKS, look)
            drawing.label(x, middle(CHUNKS) + 4, f"{chunk.start:,}", look)
        ratio = _ratio(record, rank)
        x = within(inside, 0, ratio / most_work)
        drawing.box("work", (i / n, (i + 1) / n), x, WORK, look)
        drawing.label(x, middle(WORK) + 4, f"{ratio:.2f}", look)
    lanes: list[list[object]] = [
        [middle(PAIRS), "look back", f"{record.seq_len:,}"],
        [NUMBER, "CP rank", ""],
        [middle(CHUNKS), "tokens", ""],
        [middle(WORK), "work", "÷ mean"],
    ]
    legend = [["cp0", "even ranks"], ["cp1", "odd ranks"]]
    summary = _summary(record, ranks)
    if pieces > PIECES:
        legend.append(["rest", f"the first {PIECES} of {pieces:,} pieces"])
    made = drawing.scene(
        tokens_in_words(record), bool(record.reason), lanes, lambda r: f"CP {_line(record, r)}", legend
    )
    return made, summary


def _trapezoids(queries: range, keys: range, seq_len: int) -> Iterator[Trapezoid]:
    """What queries see of keys under the causal mask: a slope, and a level part once all keys are seen."""

    def pixel(key: int) -> float:
        return PAIRS[1] - (PAIRS[1] - PAIRS[0]) * key / seq_len

    first = max(queries.start, keys.start)  # queries above the first key see nothing
    level = min(max(first, keys.stop), queries.stop)
    for start, stop in ((first, level), (level, queries.stop)):
        if start < stop:
            ends = pixel(min(start, keys.stop)), pixel(min(stop, keys.stop))
            yield (start / seq_len, stop / seq_len), *ends, pixel(keys.start)


# -- words -------------------------------------------------------------------------------------


def tokens_in_words(record: SequenceMap) -> str:
    """Which tokens rank 0 holds, and who waits, in a sentence or two."""
    if record.reason:
        return sentence(record.reason)
    if record.cp == 1:
        return f"One rank holds all {record.seq_len:,} tokens."
    chunks = " and ".join(span(chunk) for chunk in record.rank(0).chunks)
    said = f"CP rank 0 holds tokens {chunks}."
    busiest = _busiest(record)
    if busiest <= 1.005:  # which is printed as 1.00
        return f"{said} All ranks have the same work: nobody waits."
    return f"{said} The busiest rank has {busiest:.2f} times the mean work: the others wait for it."


def _busiest(record: SequenceMap) -> float:
    """Work of the busiest rank over the mean; of very many ranks, among those that are drawn."""
    if record.cp <= JUDGED:
        return record.imbalance
    return max(_ratio(record, record.rank(r)) for r in Rows(record.cp, DRAWN).drawn)


def _summary(record: SequenceMap, ranks: Sequence[RankSequence]) -> str:
    rows = Rows(record.cp, DRAWN)
    whose = "busiest rank" if record.cp <= JUDGED else f"busiest of {len(ranks)} ranks"
    sp = f"sequence parallelism shares a CP rank's tokens among {record.sp} TP ranks" if record.sp > 1 else ""
    return draw.lines(
        f"sequence of {record.seq_len:,} over cp={record.cp}, {record.chunking}: "
        f"{record.pairs:,} causal (query, key) pairs",
        _documents_and_step(record),
        f"{whose} {_busiest(record):.3f} × the mean work",
        rows.listing(lambda r: _line(record, r), most=6),
        record.reason,
        sp,
        rows.left_out,
    )


def _line(record: SequenceMap, r: int) -> str:
    rank = record.rank(r)
    sizes = f"{plural(rank.tokens, 'token')}, {plural(rank.pairs, 'pair')}"
    return f"rank {rank.rank}: {_places(rank)}; {sizes}, {_ratio(record, rank):.3f} × the mean"


def _documents_and_step(record: SequenceMap) -> str:
    """Documents and the step of a ring, if there are any."""
    said = [f"{plural(len(record.documents), 'document')}"] if record.documents else []
    if record.ring_step is not None:
        whose = f"the keys of the rank {record.ring_step} before it" if record.ring_step else "its own keys"
        said.append(f"ring step {record.ring_step + 1} of {record.cp}: each rank meets {whose}")
    return "; ".join(said)


def _ratio(record: SequenceMap, rank: RankSequence) -> float:
    """A rank's work divided by the mean over ranks."""
    return round(record.over_mean(rank), 6)


def _places(rank: RankSequence) -> str:
    chunks = in_runs(rank.chunks)
    if len(chunks) == 1:
        return units("position", chunks[0])
    if chunks:
        return f"positions {', '.join(map(span, chunks))}"
    return "no positions"
