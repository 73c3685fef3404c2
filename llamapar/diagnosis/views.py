"""Hypotheses from a view or a product that does not fit: which width does a rank hold, and why?"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

from llamapar.describe.models import PRESETS, public_models
from llamapar.records.equations import Comparison, Equation, Product, Quotient, Sizes, Stated

from .hypothesis import LIKELY, LOCAL, POSSIBLE, WEAK, Hypothesis, Level, first, found
from .known import Known, on_a_rank
from .observations import Split, View
from .reading import Reading
from .tokens import explain_cut


def explain_view(o: View, r: Reading, known: Known) -> Iterator[Hypothesis]:
    target = o.target
    if "lora" in r.evident:  # see topics
        return
    if _RANKS.search(_RESHAPED.split(r.line, maxsplit=1)[0]):  # it is the list of ranks that is reshaped
        cause = f"{o.numel} ranks do not make a grid of {' x '.join(map(str, target))}"
        yield found("world_size_product", LIKELY, cause, Comparison(Product(target), "≠", o.numel))
    elif 0 in target and target.index(0) == 1 and len(target) > 3:
        cause = "a rank was given 0 tokens: the sequence is cut into more parts than it fills"
        yield found("seq_not_divisible", LIKELY, cause, needs="seq_len, tp, cp")
    elif 0 in target:
        cause = "a rank was given 0 heads: tp is larger than the number of KV heads"
        heads = target.index(0) > 1  # [batch, seq, heads, head_dim]; else it may be any row
        yield found("kv_heads_lt_tp", LIKELY if heads else POSSIBLE, cause, needs="tp, n_kv_heads")
    elif target.count(-1) == 1 and len(target) > 1:
        yield from _torn(o, r, known)
    elif min(target) > 0 and math.prod(target) != o.numel:
        yield from _whole(o, r, known)


_RANKS = re.compile(r"devices|world|\branks?\b|mesh")
_RESHAPED = re.compile(r"\.(?:view|reshape|unflatten)\(")


def _head_share(width: int, head_dim: int) -> str:
    return "half a head" if 2 * width == head_dim else f"{width / head_dim:.4g} heads"


_HEADS = {"n_kv_heads": ("kv_heads_lt_tp", "KV"), "n_heads": ("heads_not_divisible", "query")}


def _torn(o: View, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """view(batch, seq, -1, head_dim): the columns of a rank end inside a head."""
    head_dim, lead = o.target[-1], math.prod(o.target[:-2])
    usual = head_dim == known.get("head_dim") or head_dim in _head_dims()
    if len(o.target) > 3 and o.target[-3] == -1 and o.target[-2] > 2 and usual:
        yield from _torn_group(o, known)
        return
    if o.target[-2] != -1 or len(o.target) < 3 or not usual or o.numel % lead:
        yield from _no_factor(o, r, known)
        return
    width = o.numel // lead
    at = Stated(f"{lead} × {width} = {o.numel}")
    cuts = list(explain_columns(width, head_dim, r, known, at))
    yield from cuts
    for fact, (category, word) in _HEADS.items() if not cuts else ():
        cause = f"{width} columns hold no whole number of {word} heads of {head_dim}"
        yield found(category, POSSIBLE, cause, at, parallel=None, needs=f"tp, {fact}")


def explain_columns(
    width: int, head_dim: int, r: Reading, known: Known, *numbers: Equation
) -> Iterator[Hypothesis]:
    """The columns of a rank, which are no whole number of heads: of which heads, over which tp?"""
    for fact, level, n, tp in _cuts(width, head_dim, r, known):
        category, word = _HEADS[fact]
        example = "" if known.get("tp") or known.get(fact) else "for example "
        share, whole = _head_share(width, head_dim), n * head_dim % tp == 0
        rounded = " rounded down" if width == n * head_dim // tp else " rounded up"
        ends = f" = {share}" if whole else rounded
        yield found(
            category, level,
            f"a rank holds {width} columns, {share} of {head_dim}: {example}{n} {word} heads over tp={tp}",
            *numbers, Stated(f"{width} = {n}·{head_dim}/{tp}{ends}"), needs=f"tp, {fact}",
            facts={"tp": tp, fact: n},
        )  # fmt: skip


def is_head_dim(n: int) -> bool:
    """Whether a public model has heads of this size."""
    return n > 8 and n in _head_dims()  # the smallest preset's would make heads of every count


def _torn_group(o: View, known: Known) -> Iterator[Hypothesis]:
    """view(batch, seq, -1, n_rep + 2, head_dim): Q, K and V in one, a rank's part ends inside a group."""
    lead, n_rep, head_dim = math.prod(o.target[:-3]), o.target[-2] - 2, o.target[-1]
    group = o.target[-2] * head_dim
    width = o.numel // lead
    at = Stated(f"{lead} × {width} = {o.numel}")
    for heads, kv_heads, _ in sorted(_pairs_of(head_dim, known), key=lambda pair: -pair[2]):
        for tp in {-(-kv_heads * group // width), kv_heads * group // width} - {0}:
            ends = on_a_rank(kv_heads * group, tp)[:2]
            if heads == n_rep * kv_heads and width in ends and known.fits(tp=tp):
                share = f"{width / group:.4g} of a KV head's group"
                cause = f"a rank holds {width} columns of Q, K and V in one, {share}: {kv_heads} over tp={tp}"
                numbers = (
                    Stated(f"{group} = ({n_rep} + 2)·{head_dim}"),
                    Stated(f"{width} = {kv_heads}·{group}/{tp}"),
                )
                facts = {"tp": tp, "n_kv_heads": kv_heads}
                yield found("kv_heads_lt_tp", LIKELY, cause, at, *numbers, facts=facts)
                return
    cause = f"{width} columns of Q, K and V in one are no whole number of groups of {group}"
    yield found("kv_heads_lt_tp", POSSIBLE, cause, at, needs="tp, n_kv_heads")


def explain_split(o: Split, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Q, K and V in one tensor come apart in other widths than a rank holds."""
    numbers = Stated(f"{' + '.join(map(str, o.parts))} = {sum(o.parts)} ≠ {o.total}")
    if len(o.parts) == 3 and o.parts[1] == o.parts[2] and o.total > o.parts[0]:
        columns, rest = divmod(o.total - o.parts[0], 2)
        if not rest and columns < o.parts[1] and is_head_dim(o.parts[1]):
            share = _head_share(columns, o.parts[1])
            cause = f"a rank holds {columns} columns of K and of V, {share} of {o.parts[1]}"
            yield found("kv_heads_lt_tp", LIKELY, cause, numbers, needs="tp, n_kv_heads")
            return
    cause = "Q, K and V (or gate and up) in one tensor have other widths than the code cuts"
    yield found("fused_qkv_layout", POSSIBLE, cause, numbers, parallel=None)


_KEY = re.compile(r"\b(?:x?[kv]|w[kv]|[kv]_proj|keys?|values?)\b|\b(?:key|value)_|(?<!q)kv|n_rep")
_QUERY = re.compile(r"\b(?:x?q|wq|q_proj|quer(?:y|ies))\b|\bquery_")


def side(r: Reading) -> str:
    """The heads that the failing line of the code is about: "n_kv_heads", "n_heads" or "" for both."""
    for line in reversed(r.code):
        for text in (line.partition(" = ")[0], line):
            kv, query = _KEY.search(text), _QUERY.search(text)
            if bool(kv) != bool(query):
                return "n_kv_heads" if kv else "n_heads"
    return ""


def _cuts(
    width: int, head_dim: int, r: Reading, known: Known, floor: int = 0
) -> list[tuple[str, Level, int, int]]:
    """(which heads, how likely, n, tp) of the models whose first tensor to fail has this width on a rank.

    Q comes before K: KV heads are to blame only where tp divides the query heads. floor: heads that the
    code rounds down to.
    """
    weights: Counter[tuple[str, int, int]] = Counter()
    spoken, tps = side(r), [tp] if (tp := known.get("tp")) else []
    for heads, kv_heads, common in _pairs_of(head_dim, known):
        for fact, n in (("n_heads", heads), ("n_kv_heads", kv_heads)):
            for tp in tps or {-(-n * head_dim // width), n * head_dim // width} - {0}:
                ends = on_a_rank(n * head_dim, tp)
                earliest = fact == "n_heads" or spoken == fact or (heads % tp == 0 and kv_heads < heads)
                if width in ends and n % tp and earliest and floor in (0, n // tp):
                    weights[fact, n, tp] += common * _likely(tp)
    given = known.get("tp") is not None or known.model is not None
    alone = len({fact for fact, _, _ in weights}) == 1
    best: dict[str, tuple[str, Level, int, int]] = {}
    for fact, n, tp in sorted(weights, key=lambda key: (key[0] != spoken, -weights[key])):
        best.setdefault(fact, (fact, LIKELY if fact == spoken or (given and alone) else POSSIBLE, n, tp))
    return list(best.values())


def _pairs_of(head_dim: int, known: Known) -> list[tuple[int, int, int]]:
    """(query heads, KV heads, how many models have them) of the models with this head_dim."""
    counts = Counter((m.n_heads, m.n_kv_heads) for m in known.models() if m.head_dim == head_dim)
    if not counts:  # the numbers that are known, of no public model
        heads, kv_heads = known.get("n_heads"), known.get("n_kv_heads")
        if heads or kv_heads:
            counts[heads or (kv_heads or 1) * (known.get("tp") or 1), kv_heads or heads or 1] = 1
    return [(*pair, n) for pair, n in counts.items()]


def _likely(tp: int) -> int:
    """How usual a degree is, beside others."""
    return 16 if tp in (2, 4, 8, 16) else 2


@cache
def _head_dims() -> set[int]:
    return {m.head_dim for m in (*public_models().values(), *PRESETS.values())}


def _whole(o: View, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Every dim of the target is told."""
    wanted = math.prod(o.target)
    lead = math.prod(o.target[:-2]) if len(o.target) > 2 else o.target[0]
    if wanted % o.numel == 0:
        yield from _too_few(o, wanted // o.numel, lead, known)
    elif o.numel % wanted == 0:
        yield from _too_many(o, o.numel // wanted, known)
    if len(o.target) > 2 and o.numel % lead == 0:
        yield from _between(o.numel // lead, o.target[-2], o.target[-1], r, known)
    yield from _in_one(o)
    theirs, ours = _weights().get(o.numel), _weights().get(wanted)
    if theirs and ours and theirs != ours and o.target[-1] >= 512:  # a weight's last dim, not a head
        cause = f"a whole weight of {theirs} is reshaped with the sizes of {ours}, another model"
        yield found("fused_qkv_layout", POSSIBLE, cause, Sizes(o.numel, wanted), parallel=False)
    yield from _no_factor(o, r, known)


def _in_one(o: View) -> Iterator[Hypothesis]:
    """Query heads and fewer KV heads in one tensor, read as the query heads alone or as three times them."""
    thirds = 3 in o.target[-3:-1] and len(o.target) > 3  # [batch, seq, n_heads, 3, head_dim]
    asked, head_dim = math.prod(o.target[-3:-1]) if thirds else o.target[-2], o.target[-1]
    heads = asked // 3 if thirds else asked
    there, rest = divmod(o.numel * asked, math.prod(o.target))
    kv, odd = divmod(there - heads, 2)
    if head_dim > 1 and not (rest or odd) and 0 < kv < heads and heads % kv == 0:
        cause = f"{heads} query heads and 2·{kv} KV heads in one are read as {asked}"
        equation = Stated(f"{there * head_dim} = ({heads} + 2·{kv})·{head_dim}")
        needs = "n_heads, n_kv_heads, tp"
        yield found("fused_qkv_layout", LIKELY, cause, equation, parallel=None, needs=needs)


@cache
def _weights() -> dict[int, str]:
    """Elements of wq and of wk of the public models → model and shape."""
    sizes: dict[int, str] = {}
    for m in public_models().values():
        for rows in (m.q_dim, m.kv_dim):
            sizes.setdefault(rows * m.dim, f"{m.name} ({rows}×{m.dim})")
    return sizes


def _too_few(o: View, k: int, lead: int, known: Known) -> Iterator[Hypothesis]:
    """The tensor is 1/k of its target: a rank's slice under a whole dim, or KV heads read as query heads."""
    *_, heads, head_dim = o.target
    tp, solo = known.get("tp"), known.alone("tp")
    alike = k in (known.get("world"), known.get("dp"))
    local = first((solo, WEAK), (tp == k, LIKELY), (tp, WEAK), (alike, LIKELY), otherwise=POSSIBLE)
    by_head = len(o.target) >= 4 or (len(o.target) == 3 and max(heads, head_dim) <= 256)
    kv = heads // k
    proven = known.get("n_kv_heads") == kv
    if by_head and heads % k == 0 and (proven or solo or known.fits(n_heads=heads, n_kv_heads=kv)):
        certain = tp != k if proven else solo
        score = LIKELY if certain else POSSIBLE
        cause = (
            f"{kv} heads of {head_dim} are read as {heads}: the whole K or V of a grouped-query model, "
            "in code that expects as many KV heads as query heads"
        )
        numbers = Stated(f"{o.numel} = {lead}·{kv}·{head_dim}"), Quotient(heads, kv)
        blame = False if score == LIKELY else None
        yield found("fused_qkv_layout", score, cause, *numbers, parallel=blame, facts={"n_kv_heads": kv})
    cause = (
        f"the tensor is 1/{k} of its target: a rank's slice (tp={k}) is reshaped with the whole model's sizes"
    )
    factors = Quotient(math.prod(o.target), o.numel), Quotient(heads if by_head else head_dim, k)
    blame = True if local == LIKELY else None
    yield found(LOCAL, local, cause, *factors, parallel=blame, facts={"tp": k})


def _too_many(o: View, k: int, known: Known) -> Iterator[Hypothesis]:
    """The tensor is k times its target: Q, K and V in one, or a whole tensor under a rank's sizes."""
    at, ours = Quotient(o.numel, math.prod(o.target)), known.get("tp") == k
    if k == 3:
        cause = "the tensor is 3 times its target: Q, K and V in one"
        yield found("fused_qkv_layout", POSSIBLE, cause, at, parallel=None, needs="n_heads, n_kv_heads")
    cause = f"the tensor is {k} times its target: a whole tensor is reshaped with one rank's sizes (tp={k})"
    yield found(LOCAL, LIKELY if ours else POSSIBLE, cause, at, parallel=ours or None, facts={"tp": k})


def _between(width: int, heads: int, head_dim: int, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """The width of a token against heads·head_dim: rounded-down heads, or fused Q, K and V."""
    have = heads * head_dim
    if head_dim > 1 and have < width < have + head_dim:
        for fact, level, n, tp in _cuts(width, head_dim, r, known, heads):
            cause = f"{n} heads over tp={tp} round down to {heads}, but the projection keeps {width} columns"
            read = Stated(f"{n}·{head_dim}/{tp} → {width} ≠ {Product((heads, head_dim))}")
            numbers = Quotient(n, tp, floor=True), read
            needs = f"tp, {fact}"
            yield found(_HEADS[fact][0], level, cause, *numbers, needs=needs, facts={"tp": tp})


def _no_factor(o: View, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """A dim of the target is a sequence that the ranks do not divide; or nothing that is known here."""
    yield from explain_cut(o, r, known)
    cause = "the tensor and the view differ by no whole factor of heads: compare batch and sequence"
    numbers = Stated(f"{math.prod(abs(n) for n in o.target)} against {o.numel}")
    yield found("other", WEAK, cause, numbers, parallel=None, needs="model, layout")
