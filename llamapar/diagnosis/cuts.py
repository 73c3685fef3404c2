"""Sizes and their parts on ranks: the whole, a shard, part of a unit, a gathered or a padded size.

Each size is a row of one table: the axes that cut it, and the category if their degree does not divide it.
Known facts fill the rows; sizes of public models fill the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from llamapar.describe.models import PRESETS, ModelConfig, public_models

from .hypothesis import WIDTH
from .known import PLAUSIBLE, Known, on_a_rank

HEADS = ("n_heads", "n_kv_heads")

_SIZES = (
    ("ffn_dim", WIDTH, ("tp",)),
    ("dim", WIDTH, ("tp",)),
    ("n_heads", "heads_not_divisible", ("tp", "cp")),
    ("n_kv_heads", "kv_heads_lt_tp", ("tp", "cp")),
    ("vocab_size", "vocab_not_divisible", ("tp",)),
    ("seq_len", "seq_not_divisible", ("cp", "tp", "2·cp")),
    ("n_layers", "layers_not_divisible_pp", ("pp",)),
    ("global_batch", "microbatch_divisibility", ("dp", "micro_batches")),
    ("vocab_size", "fsdp_uneven", ("dp",)),
    ("ffn_dim", "fsdp_uneven", ("dp",)),
    ("dim", "fsdp_uneven", ("dp",)),
)
"""The fact, the category where a degree does not divide it, and the axes that cut it. DP cuts
the rows of parameters under FSDP."""

CATEGORY = {fact: category for fact, category, *_ in reversed(_SIZES)}


@dataclass(frozen=True)
class SizeCut:
    """`count` units of a size over `degree` ranks of an axis. columns: of one unit."""

    fact: str
    category: str
    axis: str
    count: int
    degree: int
    columns: int = 1

    @property
    def even(self) -> bool:
        return self.count % self.degree == 0

    @property
    def whole(self) -> int:
        return self.count * self.columns

    @cached_property
    def shares(self) -> set[int]:
        """The possible shards, with units kept whole or split."""
        whole_units = {n * self.columns for n in on_a_rank(self.count, self.degree)}
        return {n for n in whole_units | {*on_a_rank(self.whole, self.degree)} if n > 0}

    @cached_property
    def gathered(self) -> set[int]:
        """The size of equal pieces after a gather; each CP rank has two of them, which may differ."""
        return {
            (a + b) * self.degree // 2
            for a in self.shares
            for b in (self.shares if self.axis == "2·cp" else {a})
        }

    @cached_property
    def _sizes(self) -> set[int]:
        return self.shares | self.gathered | {self.whole}

    def explains(self, a: int, b: int) -> bool:
        return a != b and {a, b} <= self._sizes

    def tears(self, a: int, b: int) -> bool:
        """Whether both are shards, or one is a shard and the other a unit that does not divide it."""
        return self.explains(a, b) or (b == self.columns > 1 and a in self.shares and a % b > 0)

    def __str__(self) -> str:
        return f"{self.fact or 'size'} {self.count} over {self.axis}={self.degree}"


# -- of known sizes and degrees --------------------------------------------------------------------


def cuts(known: Known) -> Iterator[SizeCut]:
    """Every cut of a known size by a known degree."""
    get = known.get
    cp = get("cp")
    batch = get("global_batch")
    micro = get("micro_batch")
    columns = get("head_dim")
    heads = get("n_heads")
    ranks = None
    if not any(map(get, ("tp", "cp", "pp", "dp"))):
        ranks = get("world")
    over = {axis: get(axis) or ranks or 1 for axis in ("tp", "cp", "pp", "dp")}
    over["2·cp"] = 2 * (cp or 0) or 1  # the head and the tail that balance the work of causal attention
    over["micro_batches"] = -(-(batch or 0) // (micro or batch or 1))  # the last one perhaps smaller
    for fact, category, axis in ((*row[:2], axis) for row in _SIZES for axis in row[2]):
        count = get(fact)
        degree = over[axis]
        if fact in HEADS and axis == "cp":  # as Ulysses deals them out
            degree = cp or 1
        if not count or degree == 1 or (fact == "n_kv_heads" and count == heads):  # Q is cut before
            continue
        if (fact, axis) == ("seq_len", "tp"):
            count = -(-count // (cp or 1))
        for unit in sorted({1, columns or 1}) if fact in HEADS else (1,):
            yield SizeCut(fact, category, axis, count, degree, unit)
    own = (batch or 0) // (get("dp") or 1)
    stages = get("pp") or 1
    if own and not micro and own % stages:  # as many micro-batches as stages, where nobody told
        yield SizeCut("a rank's batch of", "microbatch_divisibility", "pp", own, stages)


def uneven(known: Known) -> list[SizeCut]:
    """Each known size that a known degree does not divide, by its units."""
    every = (cut for cut in cuts(known) if cut.columns == 1 and cut.category != "fsdp_uneven")
    return [cut for cut in every if not cut.even]


_GROUP = 128
"""Columns of a quantisation group where none is given: the usual ones (AutoGPTQ's and AutoAWQ's default)."""


def quantised_groups(known: Known) -> list[SizeCut]:
    """The groups of a quantised FFN weight, by number and by columns."""
    width = known.get("ffn_dim")
    tp = known.get("tp") or 1
    group = known.get("quant_group") or _GROUP
    # The groups must be whole before the cut; otherwise TP is not to blame.
    torn = width and tp > 1 and width % group == 0 and width // group % tp
    named = f"ffn_dim in groups of {group},", "quant_group_vs_tp", "tp"
    return [SizeCut(*named, (width or 0) // group, tp, columns) for columns in (1, group) if torn]


# -- of sizes that are assumed ---------------------------------------------------------------------

_WIDTHS = ("dim", "ffn_dim", "n_heads", "vocab_size", "q_dim", "kv_dim")
_CUT = ("ffn_dim", "dim", "vocab_size")
LEAST = 16
"""A size of a public model, at least, that a number does not have by chance."""


@cache
def _public() -> dict[int, list[tuple[str, ModelConfig]]]:
    """Every size of the public models, with the models that have it."""
    rows: dict[int, list[tuple[str, ModelConfig]]] = {}
    for m in Known().models:
        for fact in _WIDTHS:
            rows.setdefault(int(getattr(m, fact)), []).append((fact, m))
    return rows


def given_as(n: int, known: Known) -> set[str]:
    """The names of the given sizes that equal a number."""
    return {fact for fact in (*_WIDTHS[:4], "seq_len") if known.get(fact) == n}


def widths(n: int, known: Known) -> set[str]:
    """The sizes that a number can be: given ones, the known model's, or those of possible public models."""
    given = given_as(n, known)
    if n < LEAST:
        return given
    if known.model is not None:
        return given | {fact for fact in _WIDTHS if getattr(known.model, fact) == n}
    rows = _public().get(n, ())
    return given | {f for f, m in rows if known.fits(**{name: getattr(m, name) for name in _WIDTHS[:4]})}


def is_vocabulary(n: int, known: Known) -> bool:
    public = n > 20000 and "vocab_size" in widths(n, Known())
    return n == known.get("vocab_size") or public or (60000 < n < 2**20 and n % 1024 > 0)


def assumed(small: int, big: int, known: Known) -> Iterator[SizeCut]:
    """The uneven cut of columns that explains both sizes, by the known degree or else a usual one.

    Either one size is the whole, or both are shards of an unknown whole.
    """
    given = [(axis, k) for axis in ("tp", "dp", "world") if (k := known.get(axis) or 1) > 1][:1]
    axis, degree = given[0] if given else ("tp", 0)
    padded = (k for k in PLAUSIBLE if big - small < k <= _MOST and big % k == 0)
    tried = [(big, degree or -(-big // small)), (small, degree or next(padded, 0))]
    if degree and (axis != "tp" or not (known.model or given_as(big, known))):
        tried.insert(0, ((degree - 1) * big + small, degree))
    for whole, k in tried:
        fact = next((fact for fact in _CUT if fact in widths(whole, known)), "")
        category = "fsdp_uneven"
        if axis == "tp":
            category = CATEGORY.get(fact, WIDTH)
        cut = SizeCut(fact, category, axis, whole, max(k, 1))
        exact = small in cut.shares if whole >= big else big in cut.gathered
        if (k <= small or axis == "dp") and not cut.even and exact and cut.explains(small, big):
            yield cut
            return


_MOST = 64
"""A degree, at most, that is thought of where none is known."""

# -- heads -----------------------------------------------------------------------------------------


@cache
def head_dims() -> set[int]:
    """The sizes of the public models' heads."""
    return {m.head_dim for m in (*public_models().values(), *PRESETS.values())}


def torn_head_cuts(width: int, head_dim: int, known: Known, repeats: int) -> list[tuple[SizeCut, bool]]:
    """The cuts of query heads and KV heads whose shard has this width, no whole number of heads.

    The usual cuts come first; the second result says whether nothing else can be meant. KV heads are to blame
    only if tp divides the query heads. repeats: query heads in a group that also holds its K and V.
    """
    counts = Counter((m.n_heads, m.n_kv_heads) for m in known.models if m.head_dim == head_dim)
    heads = known.get("n_heads")
    kv_heads = known.get("n_kv_heads")
    given = known.get("tp")
    if not counts and (heads or kv_heads):  # the numbers that are known, of no public model
        counts[heads or (kv_heads or 1) * (given or 1), kv_heads or heads or 1] = 1
    weights: Counter[SizeCut] = Counter()
    for (heads, kv_heads), common in counts.items():
        for fact, n in zip(HEADS[bool(repeats) :], (heads, kv_heads)[bool(repeats) :], strict=True):
            columns = head_dim * (repeats + 2 if repeats else 1)
            for tp in {given} if given else {-(-n * columns // width), n * columns // width} - {0}:
                cut = SizeCut(fact, CATEGORY[fact], "tp", n, tp or 1, columns)
                earliest = fact == "n_heads" or (heads % cut.degree == 0 and kv_heads < heads)
                meant = heads == repeats * kv_heads if repeats else not cut.even and earliest
                if meant and width in on_a_rank(cut.whole, cut.degree):
                    # Rank a degree by how usual it is.
                    weights[cut] += common * (16 if tp in (2, 4, 8, 16) else 2)
    best: dict[str, SizeCut] = {}
    # of equal stories the one of fewer ranks, and of KV heads, which a degree cuts first
    order = {cut: (-weights[cut], cut.degree, cut.fact == "n_heads") for cut in weights}
    for cut in sorted(order, key=order.__getitem__):
        best.setdefault(cut.fact, cut)
    alone = len(best) == 1 and (given is not None or known.model is not None)
    return [(cut, alone) for cut in best.values()]


# -- vocabularies, which are padded before they are cut --------------------------------------------

_PADS = (1, 32, 64, 128, 256, 512, 1024)
"""Multiples that vocabularies are padded to, in all or on each rank: vLLM's, ColossalAI's, Megatron's."""


def rounded_up(rows: int, padded: int, known: Known, tp: int = 1) -> bool:
    """Whether `padded` is `rows` rounded up to a usual multiple, for all ranks or each rank.

    There must be fewer pad rows than half of them.
    """
    changed = (int(n) for n in known.changes.get("tp", ()) if n.isdecimal())
    pads = padded - rows
    ranks = {1, tp, known.get("tp") or 1, *changed} - {0}
    return 0 < 2 * pads < rows and any(-rows % (n * k) == pads for n in _PADS for k in ranks)


def shard_of(rows: int, whole: int, known: Known) -> tuple[int, int] | None:
    """(tp, the size that is cut) such that `rows` is the shard; the size is whole or padded."""
    given = known.get("tp")
    tp = given or -(-whole // rows)
    if rows * tp != whole and (given or tp in PLAUSIBLE) and rounded_up(whole, rows * tp, known, tp):
        return tp, rows * tp
    if whole % rows == 0:
        return whole // rows, whole
    return None
