"""Why two sizes differ that should be equal: a known cut, the kind of tensor, or an assumed cut.

Every place where sizes meet (a view, a product, a tensor in two shapes, a sum of parts) gets the same
questions in the same order. A cut becomes a likely cause only if its size and degree are known or stated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from llamapar.records.equations import Comparison, Equation, Product, Quotient, Stated

from .cuts import HEADS, LEAST, SizeCut, assumed, cuts, given_as, quantised_groups, relates, uneven, widths
from .hypothesis import LIKELY, LOCAL, POSSIBLE, WEAK, Hypothesis, Level, first, found
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
    known_cuts = list(cuts(it.known)) if it.meetings else []
    if it.name == LABELS:  # which count tokens or samples, whatever else has such a size
        known_cuts = [cut for cut in known_cuts if cut.fact in ("seq_len", "global_batch")]
    in_bytes = "nbytes" in it.r.low
    rows = [
        (cut, a, b)
        for a, b in it.meetings
        for cut in known_cuts
        if (cut.scales if in_bytes else cut.explains)(a, b) and not (cut.even and (named or cut.axis == "dp"))
    ]
    if not rows:
        yield from _groups(it)
        return
    of_file = it.dim == 0 and (it.name or it.r.loading or not it.r.code) and it.dims != 1
    if of_file and any(cut.even and cut.fact == "vocab_size" for cut, _, _ in rows):
        return  # the rows of an embedding, see `_vocabulary`
    batches = it.dims == 2 and it.shapes[0][0] <= BATCH
    # tokens are cut over tp by sequence parallelism alone; of [batch, …] they are the second dim
    rows.sort(key=lambda row: ((row[0].fact == "seq_len") ^ batches, max(row[1:]) < LEAST))
    even = [row for row in rows if row[0].even]
    # a slice beside the whole is none of two uneven shares, where a size that divides makes both
    odd = [row for row in rows if not row[0].even and not (even and row[0].whole in row[1:])]
    sure = not odd or len({cut.category for cut, _, _ in odd}) + bool(even) < 2
    for cut, a, b in odd:
        yield from _uneven(cut, a, b, LIKELY if sure else POSSIBLE, meet=alike)
    for cut, a, b in even:
        for h in a_slice(it, min(a, b), max(a, b), cut):
            yield h if sure else replace(h, level=min(h.level, POSSIBLE))


def _two_runs(it: DifferingSizes) -> Found:
    """Two shards of one size, cut for the two degrees of a change; a shard may be padded."""
    for axis, change in it.known.changes.items():
        few, many = sorted(int(n) if n.isdecimal() else 0 for n in change)
        small, big = it.small, it.big
        if few and small > many and 0 <= abs(small * many - big * few) < many:
            cause = f"{small} and {big} are shares of one size, cut for {axis}={many} and for {axis}={few}"
            numbers = Comparison(Product((small, many)), "≈", big * few)
            if it.dim or not (it.key in TABLES or "vocab_size" in widths(big, it.known)):  # see `tensors`
                yield found("checkpoint_tp_mismatch", LIKELY, cause, numbers)


_QUANTISED = re.compile(r"quant|gptq|\bawq|scales|zeros|group_?size")


def _groups(it: DifferingSizes) -> Found:
    """The columns of a rank are no whole number of quantisation groups."""
    spoken, o = it.known.get("quant_group") or _QUANTISED.search(it.r.whole), it.o
    meeting = list(it.meetings)
    if isinstance(o, ViewCall):  # view(rows, -1, group): a rank's columns and those of a group
        meeting.append((o.numel // abs(math.prod(o.target[:-2]) or 1), o.target[-1]))
    for a, b in meeting if spoken or it.r.loading else ():
        for cut in quantised_groups(it.known):
            if cut.tears(a, b):
                yield from _uneven(cut, a, b, LIKELY if spoken else POSSIBLE)


def _uneven(
    cut: SizeCut, a: int, b: int, level: Level, meet: bool = False, parallel: bool | None = True
) -> Found:
    """Two sizes are uneven shards of one; where tensors meet, one of them perhaps gathered."""
    gathered = meet and {a, b} & cut.gathered - {cut.whole} and cut.fact != "seq_len"
    numbers, facts = Quotient(cut.count, cut.degree), {cut.axis: cut.degree}
    cause = f"{a} and {b} are shares of {cut}, which does not divide"
    level = min(level, POSSIBLE) if gathered else level
    yield found(cut.category, level, cause, numbers, parallel=parallel, facts=facts)


# -- one is a slice of the other -------------------------------------------------------------------

_SHARDS = re.compile(r"shard|parallel|dtensor|mesh")
_MOST_HEADS, _NARROW, _USUAL = 256, 64, 64
"""At most: heads and columns of a head; an adapter's rank, as columns of a weight; a usual degree."""


def a_slice(it: DifferingSizes, small: int, big: int, cut: SizeCut | None = None, tokens: str = "") -> Found:
    """One of two sizes is 1/k of the other: a shard beside the whole, by a known or an assumed cut.

    tokens: the number compared with a rank's tokens.
    """
    r, k, view, weight = (
        it.r,
        cut.degree if cut else big // small,
        isinstance(it.o, ViewCall),
        it.key and not cut,
    )
    level, blame = (LIKELY, True) if cut else _degree(it, k, big, bool(tokens))
    by = ("tp",) if it.key else ("tp", "cp", "dp", "ep", "world")
    ours = [axis for axis in by if it.known.get(axis) == k]
    if it.known.alone("tp") and not (cut or ours or it.r.loading):
        return  # One process holds the whole tensor, but a file may come from another run's cut.
    axis, needs = cut.axis if cut else next(iter(ours), "tp"), "cp, tp, seq_len" if tokens else "tp"
    numbers: tuple[Quotient, ...] = (Quotient(big, k),)
    counted = tokens or (cut and cut.fact in ("seq_len", "global_batch"))
    share = f"{small} is 1/{k} of {big}"
    rank = f"a rank's slice ({axis}={k})" + (f" of {cut.fact}" if cut and not view else "")
    category, cause = LOCAL, f"{share}: {rank} meets the whole dim"
    if not (cut or ours or r.parallel or weight):  # Nothing here mentions a second process.
        rank, cause = f"something cut by {k}", f"{share}, as a rank's slice at {axis}={k} would be"
    if counted and cut and cut.axis == "cp" and r.positions:
        category = "position/rope"
        cause = f"a rank's {small} tokens ({cut}) meet positions or tables of all {big}"
    elif weight or (r.loading and not counted and (cut or not view)):
        category, numbers = "checkpoint_tp_mismatch", (Quotient(big, small),)
        cause = f"{share}: a shard of a checkpoint cut for {axis}={k} against the whole weight"
        level = POSSIBLE if cut else level  # of a file, or of this run's tensor
    elif narrow := _narrow(it) if it.known.get("tp") == k else 0:
        of = f"a weight of {big} rows and {narrow} columns, as of an uncut adapter"
        yield found("lora_tp", POSSIBLE, f"{small} columns of a rank meet {of}", *numbers)
        level = POSSIBLE
    elif view:
        cause = f"the tensor is 1/{k} of its target: {rank} is reshaped with the whole model's sizes"
        if it.a == it.big:
            whole = f"a whole tensor is reshaped with one rank's sizes ({cut or f'tp={k}'})"
            cause = f"the tensor is {k} times its target: {whole}"
        both = (Quotient(it.big, it.small),) if it.small else ()  # a target of 0 elements has no ratio
        numbers = tuple(dict.fromkeys((*both, *numbers)))
    elif tokens:
        cause = f"{share}: a rank's tokens meet {tokens} of the whole sequence"
    yield found(category, level, cause, *numbers, parallel=blame, needs=needs, facts={axis: k})


def _degree(it: DifferingSizes, k: int, big: int, tokens: bool) -> tuple[Level, bool | None]:
    """The level of a slice of a size that nobody gave, and whether a cut is to blame."""
    known, tp, weight, view = it.known, it.known.get("tp"), bool(it.key), isinstance(it.o, ViewCall)
    others = first((tokens, ("cp",)), (weight, ()), otherwise=("world", "dp", "cp", "ep"))
    ours = tp == k or (not (view and tp) and k in [known.get(axis) for axis in others])
    stated = LIKELY if view or tokens or weight or given_as(big, known) else POSSIBLE
    double = k & (k - 1) == 0 and k <= _USUAL and (weight or widths(big, known))
    level = first(
        (tokens, LIKELY if ours else POSSIBLE), (known.alone("tp"), WEAK), (ours, stated), (tp, WEAK),
        (view or double, POSSIBLE), otherwise=WEAK,
    )  # fmt: skip
    own = known.model is not None and not widths(big // k, known)  # else KV heads may meet query heads
    given = own and level is POSSIBLE and not tp and not known.alone("tp") and widths(big, known)
    spoken = given or (level is POSSIBLE and not (view or tokens) and _SHARDS.search(it.r.low))
    if weight:
        return level, None if it.key in KV_WEIGHTS and tp is None else True
    return level, True if (ours and level > WEAK) or spoken else None


KV_WEIGHTS, TABLES = ("wk", "wv"), ("tok_embeddings", "output")


def _narrow(it: DifferingSizes) -> int:
    """Columns of the longer of two multiplied tensors, if they are few enough to be an adapter's."""
    o = it.o
    few = isinstance(o, Matmul) and o.b > o.a and 1 < o.rest <= _NARROW and o.rest != it.known.get("dim")
    return o.rest if isinstance(o, Matmul) and few else 0


def as_queries(it: DifferingSizes) -> Found:
    """KV heads in place of query heads, in code that does not support grouped queries."""
    o, known, k, tp, weight = it.o, it.known, it.ratio, it.known.get("tp"), it.key in KV_WEIGHTS
    heads, kv_heads = known.get("n_heads") or 0, known.get("n_kv_heads") or 0
    what, maybe = f"{kv_heads} heads are read as {heads}", weight and tp is None
    numbers: list[Equation] = [Quotient(it.big, it.small or 1)]
    proven = k > 1 and heads == k * kv_heads > 0
    if isinstance(o, ViewCall) and k > 1:
        heads, size = (1, *o.target)[-2:]
        by_head = len(o.target) > 3 or (len(o.target) == 3 and max(heads, size) <= _MOST_HEADS)
        if o.numel == it.big or not by_head or heads % k:
            return
        proven = kv_heads == heads // k
        maybe = known.alone("tp") or known.fits(n_heads=heads, n_kv_heads=heads // k)
        what = f"{heads // k} heads of {size} are read as {heads}"
        rows = it.small // (heads // k * size)
        numbers = [Stated(f"{it.small} = {rows}·{heads // k}·{size}"), Quotient(heads, heads // k)]
    elif weight:
        what = f"{it.key} of {it.small} and {it.big} rows"
    elif (heads, kv_heads) != (it.big, it.small) or tp == k:
        return
    if proven or (k > 1 and maybe):
        why = (
            "the whole K or V of a grouped-query model, in code that expects as many KV heads as query heads"
        )
        sure = (proven and tp != k) or (not proven and known.alone("tp"))
        level, blame = (LIKELY, False) if sure else (POSSIBLE, None)
        yield found("fused_qkv_layout", level, f"{what}: {why}", *numbers, parallel=blame)


# -- by cuts that are assumed ----------------------------------------------------------------------

_WEIGHT = re.compile(r"fsdp|fully_shard|dtensor|unshard|param|weight")
_NEAR, _WIDEST = 1024, 2**21
"""Of a degree, so that parts of one size are nearer; of a dim, and not the number of a weight's elements."""


def assumed_cut(it: DifferingSizes) -> Found:
    """Two lengths of a sequence, or two widths, one of which may be a shard of the other."""
    small, big = it.small, it.big
    if small < 1 or "nbytes" in it.r.low:
        return
    if it.name == LABELS or (it.dim == 1 and it.dims > 2 and not it.key):
        if it.ratio:
            yield from a_slice(it, small, big, tokens=it.name if it.name == LABELS else "another tensor")
            return
        cause = "parts of a sequence that the ranks do not divide, or two sequences"
        yield found("seq_not_divisible", POSSIBLE, f"{it.a} and {it.b}: {cause}", it.both, parallel=None)
        return
    if it.ratio:
        yield from as_queries(it)
        yield from a_slice(it, small, big)
    else:
        yield from list(_shares(it)) or _unrelated(it)
    if isinstance(it.o, Pair) and small > 1:
        cause = f"{it.a} and {it.b} differ by no factor that a split would leave"
        if it.ratio:
            cause = f"two tensors or two models, one {it.ratio} times as wide as the other, and no cut"
        blame = None if it.ratio else False
        yield found("other", WEAK, cause, Quotient(big, small), parallel=blame, needs="model, layout")


def _shares(it: DifferingSizes) -> Found:
    """Uneven shards of a width."""
    small, big, known, spoken = it.small, it.big, it.known, bool(_SHARDS.search(it.r.low))
    for cut in assumed(small, big, known):
        padded = cut.whole == small
        rows = padded and it.dim == 0 and cut.axis == "dp"  # else they may be samples
        sure = rows and (it.name or _WEIGHT.search(f"{it.r.low} {it.r.line}"))
        torn = cut.whole not in (small, big)
        dealt = torn and known.get(cut.axis) == cut.degree
        maybe = bool(rows or dealt or spoken or (cut.fact and not (padded or torn)))
        level = first((sure, LIKELY), (maybe or torn, POSSIBLE), otherwise=WEAK)
        yield from _uneven(cut, it.a, it.b, level, parallel=maybe or None)


def _unrelated(it: DifferingSizes) -> Found:
    """No degree converts one of the two sizes into the other.

    Uneven shards of one width differ by less than the degree, so distant sizes are no such pair either.
    """
    small, big = it.small, it.big
    near = big - small < min(_NEAR, small)
    if not (_SHARDS.search(it.r.low) or near or big > _WIDEST or relates(small, big, it.known)):
        cause = f"no usual degree cuts {big} into {small}, nor one width into both: no cut relates them"
        yield found("other", POSSIBLE, cause, Quotient(big, small), parallel=False, needs="model, layout")


# -- the known numbers alone -----------------------------------------------------------------------


def indivisible_sizes(known: Known) -> Found:
    """Every size among the known numbers that its degree does not divide."""
    world, axes = known.get("world"), [known.get(axis) for axis in ("tp", "pp", "dp")]
    ranks = math.prod(n or 1 for n in (*axes, known.get("cp")))
    if world and all(axes) and world != ranks:
        cause = f"the degrees that are given multiply to {ranks}, not to {world}"
        yield found("world_size_product", POSSIBLE, cause, Comparison(ranks, "≠", world))
    groups = quantised_groups(known) if known.get("quant_group") else []
    given = [
        cut for cut in uneven(known) if known.get(cut.axis.removeprefix("2·")) or cut.axis == "micro_batches"
    ]
    for cut in [*groups, *given]:
        few = cut.fact in HEADS and cut.count == (known.get("n_kv_heads") or cut.count) < cut.degree
        category = "kv_heads_lt_tp" if few else cut.category
        yield found(category, POSSIBLE, f"{cut} does not divide", Quotient(cut.count, cut.degree))
