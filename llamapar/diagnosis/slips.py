"""Why two sizes differ that should be equal: a known cut, the kind of tensor, or an assumed cut.

Every place where sizes meet (a view, a product, a tensor in two shapes, a sum of parts) gets the same
questions in the same order. A cut becomes a likely cause only if its size and degree are known or stated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from llamapar.records.equations import Comparison, Product, Quotient

from .cuts import HEADS, SizeCut, assumed, cuts, given_as, quantised_groups, uneven, widths
from .hypothesis import LIKELY, LOCAL, POSSIBLE, WEAK, Hypothesis, Level, found, likely_if
from .known import Known
from .meetings import BATCH, DifferingSizes
from .observations import LABELS, Matmul, Pair, ViewCall

Found = Iterator[Hypothesis]

# -- by cuts of known sizes and degrees ------------------------------------------------------------


def by_known_cuts(it: DifferingSizes) -> Found:
    """The cuts of known sizes by known degrees that explain both sizes of a place."""
    if "lora" in it.r.evident or it.key == "lora":
        return
    alike = isinstance(it.o, Pair | Matmul)
    if alike and (runs := list(_two_runs(it))):
        yield from runs
        return
    named = it.name not in ("", LABELS)  # an even shard of it, see `_weight`
    rows = [
        (cut, a, b)
        for a, b in it.meetings
        for cut in cuts(it.known)
        if cut.explains(a, b) and not (cut.even and (named or cut.axis == "dp"))
    ]
    if not rows:
        yield from _groups(it)
        return
    if it.dim == 0 and it.dims != 1 and any(cut.even and cut.fact == "vocab_size" for cut, _, _ in rows):
        return  # the rows of an embedding, see `_vocabulary`
    # Tokens are cut over tp by sequence parallelism alone; of [batch, …] they are the second dim.
    batches = it.dims == 2 and it.shapes[0][0] <= BATCH
    rows.sort(key=lambda row: (row[0].fact == "seq_len") ^ batches)
    even = [row for row in rows if row[0].even]
    # a slice beside the whole is none of two uneven shares, where a size that divides makes both
    odd = [row for row in rows if not row[0].even and not (even and row[0].whole in row[1:])]
    sure = not odd or len({cut.category for cut, _, _ in odd}) + bool(even) < 2
    for cut, a, b in odd:
        yield from _uneven(cut, a, b, likely_if(sure), meet=alike)
    for cut, a, b in even:
        for h in a_slice(it, min(a, b), max(a, b), cut):
            yield h if sure else replace(h, level=min(h.level, POSSIBLE))


def _two_runs(it: DifferingSizes) -> Found:
    """Two shards of one size, cut for the two degrees of a change; a shard may be padded."""
    for axis, change in it.known.changes.items():
        few, many = sorted(int(n) if n.isdecimal() else 0 for n in change)
        small = it.small
        big = it.big
        if few and small > many and abs(small * many - big * few) < many:
            cause = f"{small} and {big} are shares of one size, cut for {axis}={many} and for {axis}={few}"
            numbers = Comparison(Product((small, many)), "≈", big * few)
            if it.dim or not (it.key in TABLES or "vocab_size" in widths(big, it.known)):  # see `tensors`
                yield found("checkpoint_tp_mismatch", LIKELY, cause, numbers)


_QUANTISED = re.compile(r"quant|gptq|\bawq|scales|zeros|group_?size")


def _groups(it: DifferingSizes) -> Found:
    """The columns of a rank are no whole number of quantisation groups."""
    spoken = it.known.get("quant_group") or _QUANTISED.search(it.r.whole)
    o = it.o
    meeting = list(it.meetings)
    if isinstance(o, ViewCall):  # view(rows, -1, group): a rank's columns and those of a group
        meeting.append((o.numel // abs(math.prod(o.target[:-2]) or 1), o.target[-1]))
    for a, b in meeting if spoken or it.r.loading else ():
        for cut in quantised_groups(it.known):
            if cut.tears(a, b):
                yield from _uneven(cut, a, b, likely_if(spoken))


def _uneven(
    cut: SizeCut, a: int, b: int, level: Level, meet: bool = False, parallel: bool | None = True
) -> Found:
    """Two sizes are uneven shards of one; where tensors meet, one of them perhaps gathered."""
    gathered = meet and {a, b} & cut.gathered - {cut.whole} and cut.fact != "seq_len"
    numbers = Quotient(cut.count, cut.degree)
    facts = {cut.axis: cut.degree}
    cause = f"{a} and {b} are shares of {cut}, which does not divide"
    if gathered:
        level = min(level, POSSIBLE)
    yield found(cut.category, level, cause, numbers, parallel=parallel, facts=facts)


# -- one is a slice of the other -------------------------------------------------------------------

_SHARDS = re.compile(r"shard|parallel|dtensor|mesh")
_USUAL = 64
"""A usual degree, at most."""

_ADAPTER = 64
"""Rank of an adapter, at most."""

TABLES = ("tok_embeddings", "output")


def a_slice(
    it: DifferingSizes, small: int, big: int, cut: SizeCut | None = None, tokens: bool = False
) -> Found:
    """One of two sizes is 1/k of the other: a shard beside the whole, by a known or an assumed cut.

    tokens: whether the two are lengths of sequences.
    """
    k = cut.degree if cut else big // small
    known = it.known
    weight = bool(it.key) and not cut
    level, blame = (LIKELY, True) if cut else _degree(it, k, big, tokens)
    ours = [axis for axis in ("tp", "cp", "dp", "ep", "world") if known.get(axis) == k]
    if known.alone("tp") and not (cut or ours or it.r.loading):
        return  # One process holds the whole tensor, but a file may come from another run's cut.
    axis = cut.axis if cut else next(iter(ours), "tp")
    counted = tokens or (cut and cut.fact in ("seq_len", "global_batch"))
    category = LOCAL
    cause = f"{small} is 1/{k} of {big}: a rank's slice ({axis}={k}) meets the whole dim"
    if not (cut or ours or it.r.parallel or weight):  # Nothing here mentions a second process.
        cause = f"{small} is 1/{k} of {big}, as a rank's slice at {axis}={k} would be"
    if counted and axis == "cp" and it.r.positions:
        category = "position/rope"
    elif weight or (it.r.loading and not counted):
        category = "checkpoint_tp_mismatch"
        if cut:
            level = POSSIBLE
        cause = (
            f"{small} is 1/{k} of {big}: a shard of a checkpoint cut for {axis}={k} against the whole weight"
        )
    if isinstance(it.o, Matmul) and 1 < it.o.rest <= _ADAPTER:
        level = min(level, POSSIBLE)  # Of so few columns may be an adapter's weight that is not cut.
    needs = axis
    if tokens:
        needs = "cp, tp, seq_len"
    yield found(category, level, cause, Quotient(big, k), parallel=blame, needs=needs, facts={axis: k})


def _degree(it: DifferingSizes, k: int, big: int, tokens: bool) -> tuple[Level, bool | None]:
    """The level of a slice of a size that nobody gave, and whether a cut is to blame."""
    known = it.known
    view = isinstance(it.o, ViewCall)
    axes: tuple[str, ...] = ("tp", "world", "dp", "cp", "ep")
    if it.key:
        axes = ("tp",)
    ours = k in [known.get(axis) for axis in axes]
    usual = k & (k - 1) == 0 and k <= _USUAL and (it.key or widths(big, known))
    level = WEAK
    if ours:
        level = likely_if(view or tokens or it.key or given_as(big, known))
    elif tokens or (not known.get("tp") and (view or usual)):
        level = POSSIBLE
    spoken = level is POSSIBLE and not (view or tokens) and _SHARDS.search(it.r.low)
    return level, True if it.key or ours or spoken else None


def as_queries(it: DifferingSizes) -> Found:
    """KV heads in place of query heads, in code that does not support grouped queries."""
    o = it.o
    known = it.known
    tp = it.known.get("tp")
    asked = it.big
    there = it.small
    maybe = it.key in ("wk", "wv") and tp is None
    if isinstance(o, ViewCall) and len(o.target) > 3 and o.numel == it.small:
        asked, there = o.target[-2], o.target[-2] // it.ratio  # [batch, seq, heads, head_dim]
        maybe = known.fits(n_heads=asked, n_kv_heads=there) and asked % it.ratio == 0
    proven = (known.get("n_heads"), known.get("n_kv_heads")) == (asked, there) and tp != it.ratio
    if proven or maybe:
        cause = (
            f"{there} heads or rows are read as {asked}: the whole K or V of a grouped-query model, in code "
        )
        cause += "that expects as many KV heads as query heads"
        level, blame = (LIKELY, False) if proven else (POSSIBLE, None)
        yield found("fused_qkv_layout", level, cause, Quotient(it.big, it.small), parallel=blame)


# -- by cuts that are assumed ----------------------------------------------------------------------


def assumed_cut(it: DifferingSizes) -> Found:
    """Two lengths of a sequence, or two widths, one of which may be a shard of the other."""
    small = it.small
    big = it.big
    if small < 1 or "nbytes" in it.r.low:
        return
    tokens = it.name == LABELS or (it.dim == 1 and it.dims > 2 and not it.key)
    if it.ratio:
        yield from as_queries(it)
        yield from a_slice(it, small, big, tokens=tokens)
    elif tokens:
        cause = "parts of a sequence that the ranks do not divide, or two sequences"
        yield found("seq_not_divisible", POSSIBLE, f"{it.a} and {it.b}: {cause}", it.both, parallel=None)
    else:
        yield from _shares(it)


def _shares(it: DifferingSizes) -> Found:
    """Uneven shards of a width."""
    for cut in assumed(it.small, it.big, it.known):
        rows = cut.whole == it.small and it.dim == 0 and cut.axis == "dp"  # else they may be samples
        dealt = cut.whole > it.big and it.known.get(cut.axis) == cut.degree
        whole = cut.fact and cut.whole == it.big
        maybe = bool(rows or dealt or whole or _SHARDS.search(it.r.low))
        level = likely_if(rows and it.name)
        yield from _uneven(cut, it.a, it.b, level if maybe else WEAK, parallel=maybe or None)


# -- the known numbers alone -----------------------------------------------------------------------


def indivisible_sizes(known: Known) -> Found:
    """Every size among the known numbers that its degree does not divide."""
    world = known.get("world")
    axes = [known.get(axis) for axis in ("tp", "pp", "dp")]
    ranks = math.prod(n or 1 for n in (*axes, known.get("cp")))
    if world and all(axes) and world != ranks:
        cause = f"the degrees that are given multiply to {ranks}, not to {world}"
        yield found("world_size_product", POSSIBLE, cause, Comparison(ranks, "≠", world))
    groups = []
    if known.get("quant_group"):
        groups = quantised_groups(known)
    given = [
        cut for cut in uneven(known) if known.get(cut.axis.removeprefix("2·")) or cut.axis == "micro_batches"
    ]
    for cut in [*groups, *given]:
        few = cut.fact in HEADS and cut.count == (known.get("n_kv_heads") or cut.count) < cut.degree
        category = cut.category
        if few:
            category = "kv_heads_lt_tp"
        yield found(category, POSSIBLE, f"{cut} does not divide", Quotient(cut.count, cut.degree))
