"""Which tokens each CP rank holds, and how much causal attention they cost it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from llamapar.describe.arguments import named
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.options import offer
from llamapar.describe.splits import Split
from llamapar.errors import Choice, LayoutError, one_of, whole
from llamapar.records.tables import Record, cut, span
from llamapar.records.trace import causal_pairs

CHUNKINGS = ("head-tail", "contiguous")
"""head-tail: 2·cp chunks, rank r takes r and 2·cp-1-r (The Llama 3 Herd of Models, section 3.3.2;
Megatron-LM `_get_batch_on_this_cp_rank_per_sequence_balancing`). contiguous: cp chunks in order."""

offer("chunking", CHUNKINGS)

MAX_CP = 2**16
"""Most CP ranks that a sequence map lists."""


@dataclass(frozen=True)
class RankSequence:
    """Tokens of one CP rank.

    chunks: positions, head chunk first. pairs: (query, key) pairs of the causal mask that its queries
    make; each layer and head attends that many.
    """

    rank: int
    chunks: tuple[range, ...]
    pairs: int

    @property
    def tokens(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)


@dataclass(frozen=True, repr=False)
class SequenceMap(Record):
    """A sequence over CP (and over TP inside it, under sequence parallelism)."""

    seq_len: int
    cp: int
    chunking: str = "head-tail"
    sp: int = 1
    """TP ranks that share a CP rank's tokens of the residual stream: tp, or 1 without SP."""

    @property
    def split(self) -> Split:
        """The sequence in chunks: 2·cp of them for head-tail, cp for contiguous."""
        return Split(self.seq_len, self.cp * (2 if self.chunking == "head-tail" else 1))

    def rank(self, r: int) -> RankSequence:
        """What CP rank r holds."""
        r = whole("cp rank", r, 0, self.cp - 1)
        if self.chunking == "head-tail":
            chunks: tuple[range, ...] = (self.split[r], self.split[2 * self.cp - 1 - r])
        else:
            chunks = (self.split[r],)
        return RankSequence(r, chunks, sum(causal_pairs(chunk) for chunk in chunks))

    @cached_property
    def ranks(self) -> list[RankSequence]:
        return [self.rank(r) for r in range(self.cp)]

    @property
    def pairs(self) -> int:
        """(query, key) pairs of the whole causal mask: S(S+1)/2."""
        return causal_pairs(range(self.seq_len))

    @cached_property
    def imbalance(self) -> float:
        """Work of the busiest CP rank over the mean: 1 when all wait for nobody."""
        busy: Iterable[RankSequence] = self.ranks
        if self.chunking == "contiguous":  # work grows with position: the last full chunk, or what follows
            last = self.split.owner(self.seq_len - 1)
            busy = [self.rank(r) for r in (max(0, last - 1), last)]
        elif self.split.even:
            busy = [self.rank(0)]
        return max(one.pairs for one in busy) * self.cp / self.pairs

    @property
    def ok(self) -> bool:
        return not self.reason

    @property
    def reason(self) -> str:
        """Why the cut is not even, in one line; empty where it is."""
        if self.cp > 1 and not self.split.even:
            return f"seq_len={self.seq_len} does not divide into {self.split.k} chunks"
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


@named()
def sequence(layout: LayoutLike, seq_len: int, *, chunking: str = "head-tail") -> SequenceMap:
    """Tokens and causal work per CP rank. chunking: "head-tail" or "contiguous"."""
    layout = Layout.of(layout)
    if layout.cp > MAX_CP:
        raise LayoutError(
            f"cp={layout.cp}: the sequence map lists at most {MAX_CP} ranks",
            "",
            [Choice.of(cp=MAX_CP)],
            "cp",
        )
    one_of("chunking", chunking, CHUNKINGS)
    return SequenceMap(whole("seq_len", seq_len), layout.cp, chunking, layout.tp if layout.sp else 1)
