"""Which query and KV heads each TP rank holds, and where a cut runs through the middle of one."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple, Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.cp_methods import CpMethod
from llamapar.describe.keywords import HeadsKeywords
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.splits import Split, kv_copies
from llamapar.errors import Choice, LayoutError
from llamapar.records.tables import Judged, Record, cut, span

from .sequence_map import SequenceMap, in_runs


@dataclass(frozen=True)
class RankHeads:
    """What one TP rank holds.

    q_rows, kv_rows: rows of the whole model's wq, and of its wk (or wv).
    q_heads, kv_heads: heads of which the rank holds any row. q_whole, kv_whole: it holds whole heads only.
    """

    rank: int
    q_rows: range
    kv_rows: range
    q_heads: range
    kv_heads: range
    q_whole: bool
    kv_whole: bool


@dataclass(frozen=True, repr=False)
class HeadMap(Judged):
    """Heads over TP: wq, wk and wv cut by rows with torch's chunk rule, or KV heads held in copies.

    kv_replication: past n_kv_heads, each KV head is held whole by tp / n_kv_heads ranks.
    interleave: copies are on neighbouring ranks (0,0,1,1,…), as they must be; False tiles them
        (0,1,…,0,1,…). That passes every shape check and gives most ranks a KV head that is not theirs.
    """

    model: ModelConfig
    tp: int
    kv_replication: bool = False
    interleave: bool = True

    @property
    def replicas(self) -> int:
        """TP ranks that hold each KV head; more than 1 only if heads are replicated."""
        if self.kv_replication:
            return kv_copies(self.model.n_kv_heads, self.tp)
        return 1

    def rank(self, r: int) -> RankHeads:
        """The heads and rows of TP rank r."""
        m = self.model
        q_rows = Split(m.q_dim, self.tp)[r]
        if self.replicas > 1:
            # Query heads are dealt out in order, so ranks next to each other read the same KV head.
            head = r % m.n_kv_heads
            if self.interleave:
                head = r // self.replicas
            kv_rows = range(head * m.head_dim, (head + 1) * m.head_dim)
        else:
            kv_rows = Split(m.kv_dim, self.tp)[r]
        q_heads, q_whole = self._heads(q_rows)
        kv_heads, kv_whole = self._heads(kv_rows)
        return RankHeads(r, q_rows, kv_rows, q_heads, kv_heads, q_whole, kv_whole)

    def _heads(self, rows: range) -> tuple[range, bool]:
        width = self.model.head_dim
        # Rounded outwards: a head of which the rank holds one row counts as one that it holds.
        first = rows.start // width
        past = -(-rows.stop // width)
        if not len(rows):
            return range(0), False
        return range(first, past), rows.start % width == 0 and rows.stop % width == 0

    @property
    def ranks(self) -> list[RankHeads]:
        return [self.rank(r) for r in range(self.tp)]

    @property
    def reason(self) -> str:
        """Why the cut does not work, in one line; empty if it does."""
        m = self.model
        tp = self.tp
        if m.n_heads % tp:
            return f"tp={tp} does not divide n_heads={m.n_heads}"
        if self.replicas == 1 and m.n_kv_heads % tp:
            return f"tp={tp} does not divide n_kv_heads={m.n_kv_heads}"
        if self.wrong_ranks:
            return f"{len(self.wrong_ranks)} of {tp} ranks hold a KV head that is not theirs"
        return ""

    def kv_needed(self, r: int) -> range:
        """KV heads that the query heads of TP rank r read."""
        q = self.rank(r).q_heads
        size = self.model.group_size
        # Query heads 0..size-1 read KV head 0, the next `size` KV head 1: the grouping of GQA.
        if len(q):
            return range(q.start // size, (q.stop - 1) // size + 1)
        return range(0)

    @property
    def tiled(self) -> bool:
        """Whether copies of KV heads are tiled, rather than on neighbouring ranks."""
        return self.replicas > 1 and not self.interleave

    def is_wrong(self, rank: RankHeads) -> bool:
        """Whether a rank holds a copy of a KV head that its query heads do not read."""
        # Only tiling can be wrong: a plain cut, and neighbouring copies, follow the order of the query
        # heads.
        return self.tiled and rank.kv_heads != self.kv_needed(rank.rank)

    @property
    def wrong_ranks(self) -> list[int]:
        """Ranks that hold whole heads, but not the KV heads that their query heads need."""
        if self.tiled:
            return [rank.rank for rank in self.ranks if self.is_wrong(rank)]
        return []

    @property
    def cut_kv_heads(self) -> list[int]:
        """KV heads whose rows lie on several ranks, in order; [] where each is held whole."""
        width = self.model.head_dim
        # A rank without rows starts at the end, which cuts nothing.
        starts = [rank.kv_rows.start for rank in self.ranks]
        return sorted({start // width for start in starts if start % width})

    def shared(self) -> dict[int, list[int]]:
        """KV head → the TP ranks with a copy, over which gradients must be summed; {} without copies."""
        if self.replicas == 1:
            return {}
        holders: dict[int, list[int]] = {}
        for r in range(self.tp):
            holders.setdefault(self.rank(r).kv_heads[0], []).append(r)
        return dict(sorted(holders.items()))

    def require(self, method: CpMethod) -> None:
        """Raises LayoutError if TP cuts through a head, or if CP ranks cannot trade the heads."""
        m = self.model
        tp = self.tp
        if self.reason:
            # The largest degree that divides both the given tp and the KV heads.
            near = [Choice.of(tp=gcd(tp, m.n_kv_heads))]
            if not self.kv_replication and kv_copies(m.n_kv_heads, tp) > 1:
                near.append(Choice.of(kv_replication=True))
            raise LayoutError(self.reason, "a rank computes with whole heads", near, "tp")
        if reason := method.refusal(m, tp, self.kv_replication):
            ring = Choice((("cp_method", "ring"),), bare=True)
            raise LayoutError(reason, "each rank attends with whole heads", [ring], "cp_method")

    @checked_options
    def traded(self, sequence: SequenceMap, cp_method: str = "ulysses") -> TradeMap:
        """What the CP ranks of TP rank 0 hold before the all-to-all of Ulysses, and after it.

        Raises LayoutError if the heads of a TP rank cannot be traded.
        """
        method = CpMethod.of(cp_method, sequence.cp)
        self.require(method)
        return TradeMap(self, sequence, method)

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        m = self.model
        title = (
            f"{m.name} heads over tp={self.tp}: {m.n_heads} query heads, {m.n_kv_heads} KV heads, "
            f"{m.group_size} query heads to a KV head, head_dim {m.head_dim}"
        )
        rows: list[list[object]] = []
        for r in cut(self.tp):
            mine = self.rank(r)
            queries = span(mine.q_heads) + (" (cut)" if mine.q_heads and not mine.q_whole else "")
            keys = span(mine.kv_heads) + (" (cut)" if mine.kv_heads and not mine.kv_whole else "")
            rows.append([r, queries, span(mine.q_rows), keys, span(mine.kv_rows)])
        foot = self.reason
        if not foot and self.replicas > 1:
            foot = f"each KV head on {self.replicas} ranks; its gradient is the sum over them"
        return title, ["tp rank", "query heads", "wq rows", "KV heads", "wk, wv rows"], rows, foot


class Traded(NamedTuple):
    """Positions, query heads and KV heads that a CP rank holds."""

    chunks: tuple[range, ...]
    q_heads: range
    kv_heads: range

    def __str__(self) -> str:
        """In words: "positions 0..1, 14..15 of query heads 0..7"."""
        return f"positions {', '.join(map(span, self.chunks))} of query heads {span(self.q_heads)}"


@dataclass(frozen=True, repr=False)
class TradeMap(Record):
    """Tokens traded for heads over CP: each rank's queries before an all-to-all, and after it.

    heads: over TP, of which rank 0's are shown. Its CP ranks hold the same ones before.
    """

    heads: HeadMap
    sequence: SequenceMap
    method: CpMethod

    def before(self, r: int) -> Traded:
        """What CP rank r holds as it projects its own tokens: all heads of some tokens."""
        mine = self.heads.rank(0)
        return Traded(self.sequence.rank(r).chunks, mine.q_heads, mine.kv_heads)

    def after(self, r: int) -> Traded:
        """What CP rank r attends with: some heads of all tokens of the ranks that trade with it."""
        _, q_heads, kv_heads = self.before(r)
        among = self.method.heads
        copies = self.method.copies(len(kv_heads))
        group = r // among * among
        place = r % among
        chunks = [chunk for n in range(group, group + among) for chunk in self.sequence.rank(n).chunks]
        q = len(q_heads) // among
        kv = len(kv_heads) * copies // among
        return Traded(
            in_runs(sorted(chunks, key=lambda chunk: chunk.start)),
            q_heads[place * q : (place + 1) * q],
            kv_heads[place * kv // copies : ((place + 1) * kv - 1) // copies + 1],
        )

    @property
    def title(self) -> str:
        """One line: who trades what."""
        of = f"{self.heads.model.name}, tp={self.heads.tp} cp={self.sequence.cp}"
        title = f"Tokens traded for heads: {of}"
        if self.method.ring > 1:
            title += f" in groups of {self.method.heads}, and a ring of {self.method.ring}"
        return title

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        for r in cut(self.sequence.cp):
            held = self.before(r)
            got = self.after(r)
            both = [", ".join(map(span, one.chunks)) for one in (held, got)]
            rows.append([r, both[0], span(held.q_heads), both[1], span(got.q_heads), span(got.kv_heads)])
        head = ["cp rank", "positions before", "query heads", "positions after", "query heads", "KV heads"]
        note = ""
        if self.method.ring == 1:
            note = "attention then works as if there were no CP"
        return self.title, head, rows, note


@checked_options
def heads(
    model: ModelLike,
    layout: LayoutLike | None = None,
    **options: Unpack[HeadsKeywords],
) -> HeadMap:
    """The query and KV heads of each TP rank. Never refuses a layout: a cut head is shown as cut.

    kv_replication, interleave: as in HeadMap. Raises LayoutError only for bad input.
    """
    tp = Layout.of(layout).tp
    return HeadMap(find_model(model), tp, options["kv_replication"], options["interleave"])
