"""Forwards from what is known: every size that a rank holds, and what slips make of it.

Where a size of the model or the job and the degree that cuts it are both given, nothing has to be guessed: a
rank holds the whole, a share, the last share or one that was rounded down, and gathers equal pieces to more
or fewer than the whole. Two sizes of a text that meet and are two of these are explained by that cut. Texts
of which size or degree is not known are left to the other readers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from llamapar.records.equations import Comparison, Product, Quotient

from .hypothesis import LIKELY, LOCAL, POSSIBLE, Hypothesis, Level, found
from .known import Known, on_a_rank
from .observations import AXES, LABELS, Matmul, Observation, Pair, Split, View
from .reading import Reading, Shape
from .weights import key_of, rounded_up
from .widths import explain_narrow, is_narrow

COLUMNS, TOKENS, SAMPLES = "columns", "tokens", "samples"
_ANY = frozenset((COLUMNS, TOKENS, SAMPLES))

_SIZES: tuple[tuple[str, str, str, str], ...] = (
    ("ffn_dim", "hidden_or_ffn_not_divisible", "tp", COLUMNS),
    ("dim", "hidden_or_ffn_not_divisible", "tp", COLUMNS),
    ("n_heads", "heads_not_divisible", "tp", COLUMNS),
    ("n_kv_heads", "kv_heads_lt_tp", "tp", COLUMNS),
    ("n_heads", "heads_not_divisible", "cp", COLUMNS),
    ("n_kv_heads", "kv_heads_lt_tp", "cp", COLUMNS),
    ("vocab_size", "vocab_not_divisible", "tp", COLUMNS),
    ("seq_len", "seq_not_divisible", "cp", TOKENS),
    ("seq_len", "seq_not_divisible", "tp", TOKENS),
    ("seq_len", "seq_not_divisible", "2·cp", TOKENS),
    ("n_layers", "layers_not_divisible_pp", "pp", SAMPLES),
    ("global_batch", "microbatch_divisibility", "dp", SAMPLES),
    ("global_batch", "microbatch_divisibility", "micro_batches", SAMPLES),
    ("vocab_size", "fsdp_uneven", "dp", COLUMNS),
    ("ffn_dim", "fsdp_uneven", "dp", COLUMNS),
    ("dim", "fsdp_uneven", "dp", COLUMNS),
)
"""What each axis cuts: the fact, the category where its degree does not divide it, and what it counts. DP
cuts the rows of parameters under FSDP."""

_CONCEPTS = {
    "ffn_dim": "ffn", "dim": "hidden", "n_heads": "heads", "n_kv_heads": "kv", "vocab_size": "vocab",
    "seq_len": "seq", "n_layers": "layers", "global_batch": "batch",
}  # fmt: skip
"""What a text calls these sizes."""

_HEADS = ("n_kv_heads", "n_heads")


@dataclass(frozen=True)
class Cut:
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

    @property
    def shares(self) -> set[int]:
        """What ranks hold, with units kept whole or parted."""
        whole_units = {n * self.columns for n in on_a_rank(self.count, self.degree)}
        return {n for n in whole_units | {*on_a_rank(self.whole, self.degree)} if n > 0}

    @property
    def gathered(self) -> set[int]:
        """What equal pieces are together."""
        return {share * self.degree for share in self.shares}

    def explains(self, a: int, b: int) -> bool:
        taken = {self.whole * self.degree} if self.whole in (a, b) and self.even else set()
        return a != b and {a, b} <= self.shares | self.gathered | taken | {self.whole}

    def tears(self, a: int, b: int) -> bool:
        """Whether both are shares, or one is and the other a unit that it holds no whole number of."""
        return self.explains(a, b) or (b == self.columns > 1 and a in self.shares and a % b > 0)

    def __str__(self) -> str:
        return f"{self.fact} {self.count} over {self.axis}={self.degree}"


def uneven(known: Known) -> list[Cut]:
    """Each known size that a known degree does not divide, by its units."""
    return [
        cut for cut, _ in cuts(known) if not cut.even and cut.columns == 1 and cut.category != "fsdp_uneven"
    ]


def cuts(known: Known) -> Iterator[tuple[Cut, str]]:
    """Every cut of a known size by a known degree, and what the size counts."""
    columns, heads, kv_heads = known.get("head_dim"), known.get("n_heads"), known.get("n_kv_heads")
    ranks = known.get("world") if not any(map(known.get, ("tp", "cp", "pp", "dp"))) else None
    for fact, category, axis, kind in _SIZES:
        count, degree = known.get(fact), known.get(axis) or ranks or 1
        if axis == "2·cp":  # the head and the tail that balance the work of causal attention
            degree = 2 * (known.get("cp") or 0) or 1
        if axis == "micro_batches":  # of a given size, the last one perhaps smaller
            degree = -(-(count or 0) // (known.get("micro_batch") or count or 1))
        if fact in _HEADS and axis == "cp":  # as Ulysses deals them out
            degree = known.get("cp") or 1
        if not count or degree == 1 or (fact == "n_kv_heads" and count == heads):  # Q is cut before
            continue
        if (fact, axis) == ("seq_len", "tp"):
            count = -(-count // (known.get("cp") or 1))
        yield Cut(fact, category, axis, count, degree), kind
        if fact in _HEADS and columns:
            yield Cut(fact, category, axis, count, degree, columns), kind
    batch, micro = known.get("global_batch"), known.get("micro_batch")
    own = batch // (known.get("dp") or 1) if batch else 0
    if micro and own % micro:
        yield (
            Cut("a rank's batch of", "microbatch_divisibility", "micro_batches", own, -(-own // micro)),
            SAMPLES,
        )
    tp = known.get("tp") or 1
    if columns and heads and tp > 1 and kv_heads in (None, heads):  # Q, K and V of each head in one
        yield Cut("n_heads", "heads_not_divisible", "tp", heads, tp, 3 * columns), COLUMNS
    if columns and heads and kv_heads and tp > 1 and heads % tp == kv_heads % tp == 0:
        yield Cut("n_heads + 2·n_kv_heads", "", "tp", heads + 2 * kv_heads, tp, columns), COLUMNS


_QUANTISED = re.compile(r"quant|gptq|\bawq|scales|zeros|group_?size")

_GROUP = 128
"""Columns of a quantisation group where none is given: the usual ones (AutoGPTQ's and AutoAWQ's default)."""


def groups(known: Known) -> Iterator[Cut]:
    """The groups of a quantised FFN weight, by their number and by their columns."""
    width, tp, group = known.get("ffn_dim"), known.get("tp") or 1, known.get("quant_group") or _GROUP
    if width and tp > 1 and width % group == 0 and width // group % tp:
        for columns in (1, group):
            yield Cut(
                f"ffn_dim in groups of {group},", "quant_group_vs_tp", "tp", width // group, tp, columns
            )


Meeting = tuple[int, int, frozenset[str]]
"""Two sizes that should be one, and what they may count."""


def meetings(o: Observation, known: Known) -> Iterator[Meeting]:
    """The two sizes of an observation that should be one."""
    if isinstance(o, Matmul):
        yield o.a, o.b, frozenset((COLUMNS,))
    elif isinstance(o, Split):
        yield o.total, sum(o.parts), _ANY
    elif isinstance(o, Pair):
        yield from _of_pair(o, known)
    elif isinstance(o, View) and o.target.count(-1) == 1:
        yield from _of_open_view(o, known)
    elif isinstance(o, View) and min(o.target) > 0:
        yield from _of_view(o.target, o.numel, known.get("head_dim"))


def _of_pair(o: Pair, known: Known) -> Iterator[Meeting]:
    small, big = sorted((o.a, o.b))
    seq = known.get("seq_len") or 0
    if o.name == LABELS:  # the batch and its tokens in one
        for samples in range(1, _BATCH + 1 if seq else 0):
            if small % samples == big % samples == 0:
                yield small // samples, big // samples, frozenset((TOKENS,))
        return
    shape = o.shapes[0] if o.shapes else ()
    kinds = _ANY
    if len(shape) > 2 and o.dim in (0, 1, len(shape) - 1):
        kinds = frozenset(((SAMPLES, TOKENS, COLUMNS)[min(o.dim, 2)],))
    elif len(shape) == 2 and o.dim == 1:
        kinds = frozenset((TOKENS, COLUMNS) if shape[0] <= _BATCH else (COLUMNS,))
    yield o.a, o.b, kinds


def _of_open_view(o: View, known: Known) -> Iterator[Meeting]:
    """Which size that a rank holds is there, where dims of the target do not divide the tensor?"""
    every = [*(cut for cut, _ in cuts(known)), *groups(known)]
    sizes = {n for cut in every for n in (*cut.shares, cut.whole)}
    there = sorted(size for size in sizes if o.numel % size == 0)
    dims, open_at = o.target, o.target.index(-1)
    for first, last in combinations(range(len(dims) + 1), 2):
        asked = math.prod(dims[first:last])
        if last - first < 3 and asked > 1 and o.numel % asked and asked != known.get("head_dim"):
            kinds = _ANY if first < open_at or not open_at or len(dims) == 2 else frozenset((COLUMNS,))
            yield from ((size, asked, kinds) for size in there if size != asked)


_BATCH = 64
"""Rows of [batch, tokens], at most; of a weight there are more."""


def _of_view(target: Shape, numel: int, head_dim: int | None) -> Iterator[Meeting]:
    """Which one dim of the target, or two that were one, would have to be another number?"""
    dims = len(target)
    heads = dims - 2 if dims > 3 or target[-1] == head_dim else dims - 1
    for first in range(dims):
        for last in {first + 1, min(first + 2, dims), max(first + 1, dims)}:
            asked = math.prod(target[first:last])
            there, rest = divmod(numel * asked, math.prod(target))
            kinds = {SAMPLES} if first == 0 else set()
            kinds |= {TOKENS} if first == min(1, heads - 1) else set()
            dealt = last - first == 2 and last == dims - 1  # heads by ranks, as an all-to-all deals them
            kinds |= {COLUMNS} if first >= heads or 0 < first < last == dims or dims < 3 or dealt else set()
            own = first == dims - 1 and asked == head_dim  # the size of a head, which nobody cuts
            if not rest and there != asked and not own:
                yield there, asked, _ANY if (dims, target[0]) == (3, 1) else frozenset(kinds)


def _of_two_runs(o: Pair | Matmul, known: Known) -> Iterator[Hypothesis]:
    """Two shares of one size, cut for the two degrees of a change; a share may be padded."""
    for axis, change in known.changes.items():
        few, many = sorted(int(n) if n.isdecimal() else 0 for n in change)
        small, big = sorted((o.a, o.b))
        if few and small > many and 0 <= abs(small * many - big * few) < many:
            cause = f"{small} and {big} are shares of one size, cut for {axis}={many} and for {axis}={few}"
            numbers = Comparison(Product((small, many)), "≈", big * few)
            table = isinstance(o, Pair) and not o.dim and key_of(o.name) in ("tok_embeddings", "output")
            category = "embed_checkpoint_shape" if table else "checkpoint_tp_mismatch"
            yield found(category, LIKELY, cause, numbers)


def _padded_shares(o: Observation, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Two paddings of the known vocabulary, whole or cut over the known degree."""
    vocab, tp = known.get("vocab_size"), known.get("tp") or 1
    if not (vocab and isinstance(o, Pair)) or "lora" in r.low:
        return
    for ranks in {1, tp}:
        small, big = sorted((o.a * ranks, o.b * ranks))
        if rounded_up(vocab, big, known) and (small == vocab or rounded_up(vocab, small, known)):
            cause = f"{o.a} and {o.b} are shares of a vocabulary of {vocab} padded to {small} and to {big}"
            cut, numbers = True if known.changes else None, Comparison(small, "≠", big)
            yield found("vocab_padding", LIKELY, cause, numbers, parallel=cut, needs="padding, tp")
            return


_LEAST = 16
"""A size, at least, that two numbers of a text do not have by chance."""

_MOST = 8
"""Sizes of a text that are tried in pairs, the largest ones."""


def explain_spoken(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """A text of no relation that is read here: two of its sizes are what a known cut makes."""
    spoken = {n for shape, _ in r.shapes for n in shape} | {*r.values, *(t.number or 0 for t in r.terms)}
    sizes = sorted((n for n in spoken if n >= _LEAST), reverse=True)[:_MOST]
    for big, small in combinations(sizes, 2):
        if told := explain_forwards(Pair(small, big), r, known):
            yield from (replace(h, level=min(h.level, POSSIBLE)) for h in told)
            return


def unfit(r: Reading, known: Known, spoken: bool) -> Iterator[Hypothesis]:
    """What is wrong with the known numbers themselves: every size that its degree does not divide. spoken:
    of ranks; else only what the text, or the line of code that failed, speaks of by an axis or a size."""
    world, axes = known.get("world"), [known.get(axis) for axis in ("tp", "pp", "dp")]
    ranks = math.prod(n or 1 for n in (*axes, known.get("cp")))
    if world and all(axes) and world != ranks:
        cause = f"the degrees that are given multiply to {ranks}, not to {world}"
        yield found("world_size_product", POSSIBLE, cause, Comparison(ranks, "≠", world))
    quantised = _QUANTISED.search(r.whole)
    for cut in [*(groups(known) if quantised else ()), *uneven(known)]:
        if not (spoken or r.evident & {*AXES, "world", _CONCEPTS.get(cut.fact)}):
            continue
        few = cut.fact in _HEADS and cut.count == (known.get("n_kv_heads") or cut.count) < cut.degree
        category = "kv_heads_lt_tp" if few else cut.category
        yield found(category, POSSIBLE, f"{cut} does not divide", Quotient(cut.count, cut.degree))


def explain_forwards(o: Observation, r: Reading, known: Known) -> list[Hypothesis]:
    """The cuts of known sizes by known degrees of which both sizes of an observation come."""
    if "lora" in r.evident or (isinstance(o, Pair) and key_of(o.name) == "lora"):
        return []
    if isinstance(o, Pair | Matmul) and (runs := list(_of_two_runs(o, known))):
        return runs
    named = isinstance(o, Pair) and o.name not in ("", LABELS)  # an even shard of it, see `weights`
    met = list(meetings(o, known))
    known_cuts = list(cuts(known)) if met else []
    every = [
        (cut, a, b, kind in kinds)
        for a, b, kinds in met
        for cut, kind in known_cuts
        if cut.explains(a, b) and not (cut.even and (named or cut.axis == "dp"))
    ]
    place = isinstance(o, Pair) and not any(there for *_, there in every)  # else a dim of another order
    rows = [(cut, a, b) for cut, a, b, there in every if there or place]
    if not rows and (padded := list(_padded_shares(o, r, known))):
        return padded
    spoken = known.get("quant_group") or _QUANTISED.search(r.whole)
    if not rows and (spoken or r.loading):
        level = LIKELY if spoken else POSSIBLE
        meeting = [(a, b) for a, b, kinds in met if COLUMNS in kinds]
        if isinstance(o, View):  # view(rows, -1, group): a rank's columns and those of a group
            meeting.append((o.numel // abs(math.prod(o.target[:-2])), o.target[-1]))
        quantised = [(cut, a, b) for a, b in meeting for cut in groups(known) if cut.tears(a, b)]
        return [h for cut, a, b in quantised for h in _uneven(cut, a, b, level, meet=False)]
    table = (
        isinstance(o, Pair)
        and o.dim == 0
        and (o.name or r.loading or not r.code)
        and not (o.shapes and len(o.shapes[0]) == 1)
    )
    if table and any(cut.even and cut.fact == "vocab_size" for cut, _, _ in rows):
        return []  # the rows of an embedding, see `weights`
    batches = isinstance(o, Pair) and o.shapes and len(o.shapes[0]) == 2 and o.shapes[0][0] <= _BATCH
    # tokens are cut over tp by sequence parallelism alone; of [batch, …] they are the second dim
    rows.sort(key=lambda row: (row[0].fact == "seq_len") ^ bool(batches))
    even = [row for row in rows if row[0].even]
    # a slice beside the whole is none of two uneven shares, where a size that divides makes both
    uneven = [row for row in rows if not row[0].even and not (even and row[0].whole in row[1:])]
    alike = len({cut.category for cut, _, _ in uneven}) + bool(even) < 2
    told = [h for cut, a, b in even for h in _even(cut, min(a, b), max(a, b), o, r, known)]
    if uneven:
        level, meet = LIKELY if alike else POSSIBLE, isinstance(o, Pair | Matmul)
        told = [replace(h, level=min(h.level, level)) for h in told]
        told = [h for cut, a, b in uneven for h in _uneven(cut, a, b, level, meet)] + told
    return told


def _uneven(cut: Cut, a: int, b: int, level: Level, meet: bool) -> Iterator[Hypothesis]:
    gathered = meet and {a, b} & cut.gathered - {cut.whole} and cut.fact != "seq_len"
    cause = f"{a} and {b} are shares of {cut}, which does not divide"
    numbers = Quotient(cut.count, cut.degree)
    yield found(cut.category, POSSIBLE if gathered else level, cause, numbers)
    if gathered:
        cause = f"equal pieces of {cut} make {max(a, b)} in all, or they were padded to it"
        yield found("fsdp_uneven", POSSIBLE, cause, numbers)


def _even(
    cut: Cut, small: int, big: int, o: Observation | None, r: Reading, known: Known
) -> Iterator[Hypothesis]:
    k, part, numbers = cut.degree, f"a rank's slice ({cut.axis}={cut.degree})", Quotient(big, cut.degree)
    tokens = cut.fact in ("seq_len", "global_batch")
    if tokens and cut.axis == "cp" and r.positions:
        cause = f"a rank's {small} tokens ({cut}) meet positions or tables of all {big}"
        yield found("position/rope", LIKELY, cause, numbers)
        return
    if r.loading and not tokens:
        cause = f"{small} is one of {k} shards of {big} ({cut}): a shard meets the whole weight"
        level = LIKELY if r.read else POSSIBLE  # else a mere copy: of a file, or of a tensor of this run
        yield found("checkpoint_tp_mismatch", level, cause, numbers)
        return
    if isinstance(o, Matmul) and is_narrow(o, known) and cut.fact != "dim":
        yield from explain_narrow(small, big, o.rest)
        return
    facts = {cut.axis: k}
    if not isinstance(o, View):
        cause = f"{small} is 1/{k} of {big}: {part} of {cut.fact} meets the whole dim"
        yield found(LOCAL, LIKELY, cause, numbers, facts=facts)
        return
    wanted = math.prod(o.target)
    if wanted > o.numel:
        cause = f"the tensor is 1/{k} of its target: {part} is reshaped with the whole model's sizes"
    else:
        cause = (
            f"the tensor is {k} times its target: a whole tensor is reshaped with one rank's sizes ({cut})"
        )
    ratio = Quotient(max(wanted, o.numel), min(wanted, o.numel))
    yield found(LOCAL, LIKELY, cause, ratio, numbers, facts=facts)
