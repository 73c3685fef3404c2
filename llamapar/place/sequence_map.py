"""Which tokens each CP rank holds, and how much causal attention they cost it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import SequenceKeywords
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.options import offer
from llamapar.describe.splits import Split
from llamapar.errors import Choice, LayoutError, shown, whole
from llamapar.records.tables import Judged, cut, span
from llamapar.records.trace import causal_pairs

CHUNKINGS = ("head-tail", "contiguous")
"""head-tail: 2·cp chunks, rank r takes chunks r and 2·cp-1-r. contiguous: cp chunks in order.

Sources of head-tail: The Llama 3 Herd of Models, section 3.3.2; Megatron-LM
`_get_batch_on_this_cp_rank_per_sequence_balancing`.
"""

offer("chunking", CHUNKINGS)

MAX_CP = 2**16
"""The most CP ranks in a sequence map."""


MAX_DOCUMENTS = 2**12
"""The most documents that a sequence map distinguishes."""


def lengths(documents: object, seq_len: int) -> tuple[int, ...] | None:
    """Checked lengths of documents.

    Raises LayoutError unless each document has a token and together they are the sequence.
    """
    if documents is None:
        return None
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        raise LayoutError(
            f"documents={shown(documents)}: lengths in tokens are needed",
            "",
            [Choice.of(documents=(seq_len,))],
            "documents",
        )
    lengths = tuple(whole("length of a document", n) for n in documents)
    if sum(lengths) != seq_len:
        raise LayoutError(
            f"documents of {sum(lengths)} tokens in all for seq_len={seq_len}",
            "each is at least one token, and together they are the sequence",
            field="documents",
        )
    return lengths


def in_runs(chunks: Iterable[range]) -> tuple[range, ...]:
    """The chunks without empty ones, neighbours joined."""
    runs: list[range] = []
    for chunk in chunks:
        if runs and runs[-1].stop == chunk.start:
            runs[-1] = range(runs[-1].start, chunk.stop)
        elif chunk:
            runs.append(chunk)
    return tuple(runs)


@dataclass(frozen=True)
class RankSequence:
    """The tokens of one CP rank, and its causal work.

    chunks: positions, head chunk first. meets: (queries, keys) that the rank combines under the causal mask.
    pairs: the number of (query, key) pairs, which each layer and head attends to.
    """

    rank: int
    chunks: tuple[range, ...]
    meets: tuple[tuple[range, range], ...]

    @property
    def pairs(self) -> int:
        return sum(causal_pairs(queries, keys) for queries, keys in self.meets)

    @property
    def tokens(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)


@dataclass(frozen=True, repr=False)
class SequenceMap(Judged):
    """A sequence over CP, and over TP inside it under sequence parallelism."""

    seq_len: int
    cp: int
    chunking: str = "head-tail"
    sp: int = 1
    """TP ranks that share a CP rank's tokens of the residual stream: tp, or 1 without SP."""
    documents: tuple[int, ...] | None = None
    """Tokens of each document, which attends only to itself; None for one document."""
    ring_step: int | None = None
    """The step of the ring shown, from 0: rank r then meets the keys of rank (r - step) mod cp."""

    @checked_options
    def at(self, step: int) -> SequenceMap:
        """The map at one of a ring's cp steps. Raises LayoutError for a step that does not exist."""
        return replace(self, ring_step=whole("step", step, 0, self.cp - 1))

    @cached_property
    def ends(self) -> list[int]:
        """Where each document ends."""
        return list(accumulate(self.documents or (self.seq_len,)))

    @property
    def split(self) -> Split:
        """The sequence in chunks: 2·cp of them for head-tail, cp for contiguous."""
        return Split(self.seq_len, self.cp * (2 if self.chunking == "head-tail" else 1))

    def rank(self, r: int) -> RankSequence:
        """The tokens of CP rank r, and the keys that its queries meet."""
        r = whole("cp rank", r, 0, self.cp - 1)
        chunks = self._chunks(r)
        step = self.ring_step
        # Gathered keys are the whole sequence; in a ring they are one rank's chunks, which move on by one
        # rank a step.
        there = (range(self.seq_len),) if step is None else self._chunks((r - step) % self.cp)
        meets = [
            (queries, keys)
            for chunk in chunks
            # Causal within a document: keys from its first token to the last of these queries.
            for queries, first in self._by_document(chunk)
            for part in there
            if len(keys := range(max(first, part.start), min(queries.stop, part.stop)))
        ]
        return RankSequence(r, chunks, tuple(meets))

    def _chunks(self, r: int) -> tuple[range, ...]:
        if self.chunking == "head-tail":
            # A chunk's causal work grows with its position, so a chunk from each end gives all ranks the
            # same sum.
            return self.split[r], self.split[2 * self.cp - 1 - r]
        return (self.split[r],)

    def _by_document(self, chunk: range) -> Iterator[tuple[range, int]]:
        """A chunk's positions in each document, with the document's first position."""
        # The document that the chunk begins in; a chunk that starts at an end belongs to the next one.
        at = bisect_right(self.ends, chunk.start)
        start = 0
        if at:
            start = self.ends[at - 1]
        for end in self.ends[at:]:
            if start >= chunk.stop:
                return
            yield range(max(start, chunk.start), min(end, chunk.stop)), start
            start = end

    @cached_property
    def ranks(self) -> list[RankSequence]:
        return [self.rank(r) for r in range(self.cp)]

    @property
    def pairs(self) -> int:
        """(query, key) pairs of the whole causal mask: S(S+1)/2 for each document of S tokens."""
        return sum(causal_pairs(range(length)) for length in self.documents or (self.seq_len,))

    @cached_property
    def imbalance(self) -> float:
        """Work of the busiest CP rank over the mean: 1 if no rank waits for another."""
        plain = self.documents is None and self.ring_step is None
        # With 2^16 ranks the work of each takes long to count, and the plain cases need one or two of
        # them.
        busy: Iterable[RankSequence] = self.ranks
        if plain and self.chunking == "contiguous":  # the last full chunk, or what follows, has most work
            last = self.split.owner(self.seq_len - 1)
            busy = [self.rank(r) for r in (max(0, last - 1), last)]
        # Equal head-tail chunks give all ranks the same work, so one of them stands for all.
        elif plain and self.split.even:
            busy = [self.rank(0)]
        return max(self.over_mean(one) for one in busy)

    def over_mean(self, rank: RankSequence) -> float:
        """A rank's work over the mean of all ranks; at a step of a ring, over the mean of ranks and steps."""
        # A ring spreads each rank's work over cp steps, so one step's mean is a cp-th of the rank's.
        shares = self.cp
        if self.ring_step is not None:
            shares = self.cp**2
        return rank.pairs * shares / self.pairs

    @property
    def reason(self) -> str:
        """Why the cut is not even, in one line; empty if it is."""
        if self.cp > 1 and not self.split.even:
            return f"seq_len={self.seq_len} does not divide into {self.split.k} chunks"
        # CP divides here, so each of its ranks has the same number of tokens to cut over TP.
        if self.seq_len // self.cp % self.sp:
            return f"{self.seq_len // self.cp} tokens of a CP rank do not divide over tp={self.sp}"
        return ""

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        title = (
            f"sequence of {self.seq_len} over cp={self.cp}, {self.chunking}: {self.pairs} causal "
            f"(query, key) pairs, busiest rank {self.imbalance:.3f} x the mean"
        )
        rows: list[list[object]] = [
            [mine.rank, ", ".join(map(span, mine.chunks)), mine.tokens, mine.pairs]
            for mine in map(self.rank, cut(self.cp))
        ]
        foot = self.reason
        if not foot and self.sp > 1:
            foot = f"sequence parallelism leaves {self.seq_len // self.cp // self.sp} tokens to a TP rank"
        return title, ["cp rank", "positions", "tokens", "causal pairs"], rows, foot


@checked_options
def sequence(
    layout: LayoutLike | None = None,
    seq_len: int | None = None,
    **options: Unpack[SequenceKeywords],
) -> SequenceMap:
    """The tokens and causal work of each CP rank. Raises LayoutError for bad input.

    seq_len: tokens of the sequence. chunking: "head-tail" or "contiguous".
    documents: tokens of each document in the sequence, which attends only to itself; None for one document.
    """
    layout = Layout.of(layout)
    if layout.cp > MAX_CP:
        raise LayoutError(
            f"cp={layout.cp}: the sequence map lists at most {MAX_CP} ranks",
            "",
            [Choice.of(cp=MAX_CP)],
            "cp",
        )
    found = SequenceMap(whole("seq_len", seq_len), layout.cp, options["chunking"], layout.sp_ways)
    apart = lengths(options["documents"], found.seq_len)
    if apart and len(apart) > MAX_DOCUMENTS:
        raise LayoutError(
            f"{len(apart):,} documents: the sequence map tells at most {MAX_DOCUMENTS:,} apart",
            field="documents",
        )
    return replace(found, documents=apart)
