"""Hypotheses from a view or a product that does not fit: which width does a rank hold, and why?"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

from llamapar.model import PRESETS

from .hypothesis import Hypothesis, found, over, times
from .known import Known, degrees, zoo
from .observations import Matmul, View
from .reading import Reading

_LOCAL = "other: global_dim_not_localized"


def explain_view(o: View, r: Reading, known: Known) -> Iterator[Hypothesis]:
    target = o.target
    if 0 in target:
        cause = "a rank was given 0 heads: tp is larger than the number of KV heads"
        yield found("kv_heads_lt_tp", 0.7, cause, needs="tp, n_kv_heads")
    elif target.count(-1) == 1 and len(target) > 1:
        yield from _torn(o, known)
    elif min(target) > 0 and math.prod(target) != o.numel:
        yield from _whole(o, known)


def _head_share(width: int, head_dim: int) -> str:
    return "half a head" if 2 * width == head_dim else f"{width / head_dim:.4g} heads"


def _torn(o: View, known: Known) -> Iterator[Hypothesis]:
    """view(batch, seq, -1, head_dim): the columns of a rank end inside a head."""
    head_dim, lead = o.target[-1], math.prod(o.target[:-2])
    usual = head_dim == known.get("head_dim") or head_dim in _head_dims()
    if o.target[-2] != -1 or len(o.target) < 3 or not usual or o.numel % lead:
        yield from _no_factor(o, known)
        return
    width = o.numel // lead
    if width % head_dim == 0:
        return
    share, at = _head_share(width, head_dim), f"{lead} × {width} = {o.numel}"
    sure = {"n_kv_heads": 0.9 if width < head_dim else 0.8, "n_heads": 0.55}
    for fact, category, word in (
        ("n_kv_heads", "kv_heads_lt_tp", "KV"),
        ("n_heads", "heads_not_divisible", "query"),
    ):
        given = bool(known.get("tp") or known.get(fact))
        cut = _cut(width, head_dim, fact, known)
        if cut is None:
            if not (known.get("tp") and known.get(fact)):
                cause = f"{width} columns hold no whole number of {word} heads of {head_dim}"
                yield found(category, sure[fact] - 0.3, cause, at, parallel=None, needs=f"tp, {fact}")
            continue
        n, tp = cut
        rounded = f" = {share}" if n * head_dim % tp == 0 else " rounded up"
        example = "" if given else "for example "
        yield found(
            category, sure[fact] + 0.05 * given,
            f"a rank holds {width} columns, {share} of {head_dim}: {example}{n} {word} heads over tp={tp}",
            at, f"{width} = {n}·{head_dim}/{tp}{rounded}", needs="" if given else f"tp, {fact}",
            facts={"tp": tp, fact: n},
        )  # fmt: skip


def _cut(width: int, head_dim: int, fact: str, known: Known) -> tuple[int, int] | None:
    """(heads, tp) such that ceil(heads·head_dim / tp) = width, the usual ones first."""
    given = known.get(fact)
    for heads in [given] if given else _usual(fact, head_dim):
        for tp in degrees(known):
            if -(-heads * head_dim // tp) == width and heads % tp:
                return heads, tp
    return None


@cache
def _head_dims() -> set[int]:
    return {m.head_dim for m in (*zoo().values(), *PRESETS.values())}


@cache
def _usual(fact: str, head_dim: int) -> list[int]:
    """Counts of heads of public models with this head_dim, the commonest first."""
    counts = Counter(getattr(m, fact) for m in zoo().values() if m.head_dim == head_dim)
    return [n for n, _ in counts.most_common()]


def _whole(o: View, known: Known) -> Iterator[Hypothesis]:
    """Every dim of the target is told."""
    wanted = math.prod(o.target)
    lead = math.prod(o.target[:-2]) if len(o.target) > 2 else o.target[0]
    if wanted % o.numel == 0:
        yield from _too_few(o, wanted // o.numel, lead, known)
    elif o.numel % wanted == 0:
        yield from _too_many(o, o.numel // wanted, known)
    if len(o.target) > 2 and o.numel % lead == 0:
        yield from _between(o.numel // lead, o.target[-2], o.target[-1], known)
    if 3 in o.target[-3:-1] and len(o.target) > 3:  # [batch, seq, n_heads, 3, head_dim] of a fused QKV
        heads, head_dim = math.prod(o.target[-3:-1]) // 3, o.target[-1]
        width, rest = divmod(o.numel, math.prod(o.target[:-3]) * head_dim)
        kv = (width - heads) // 2
        if not rest and 0 < kv < heads and heads + 2 * kv == width and heads % kv == 0:
            cause = f"{heads} query heads and 2·{kv} KV heads in one are read as 3·{heads}"
            equation = f"{o.numel} = {math.prod(o.target[:-3])}·({heads} + 2·{kv})·{head_dim}"
            yield found(
                "fused_qkv_layout", 0.75, cause, equation, parallel=None, needs="n_heads, n_kv_heads, tp"
            )
    theirs, ours = _weights().get(o.numel), _weights().get(wanted)
    if theirs and ours and theirs != ours:
        cause = f"a whole weight of {theirs} is reshaped with the sizes of {ours}, another model"
        yield found("fused_qkv_layout", 0.65, cause, f"{o.numel} elements, {wanted} expected", parallel=False)
    yield from _no_factor(o, known)


@cache
def _weights() -> dict[int, str]:
    """Elements of wq and of wk of the public models → model and shape."""
    sizes: dict[int, str] = {}
    for m in zoo().values():
        for rows in (m.q_dim, m.kv_dim):
            sizes.setdefault(rows * m.dim, f"{m.name} ({rows}×{m.dim})")
    return sizes


def _too_few(o: View, k: int, lead: int, known: Known) -> Iterator[Hypothesis]:
    """The tensor is 1/k of its target: a rank's slice under a whole dim, or KV heads read as query heads."""
    *_, heads, head_dim = o.target
    tp, solo = known.get("tp"), known.alone("tp")
    local = 0.15 if solo else 0.88 if tp == k else 0.2 if tp else 0.78 if known.get("world") == k else 0.5
    by_head = len(o.target) >= 4 or (len(o.target) == 3 and max(heads, head_dim) <= 256)
    if by_head and heads % k == 0:
        kv = heads // k
        own = (heads, kv, head_dim)
        seen = any((m.n_heads, m.n_kv_heads, m.head_dim) == own for m in known.models())
        proven, fits = known.get("n_kv_heads") == kv, known.fits(n_heads=heads, n_kv_heads=kv)
        if proven:
            score = 0.6 if tp == k else 0.9
        else:
            score = 0.84 if solo else 0.1 if not fits else 0.62 if seen else 0.45
        cause = (
            f"{kv} heads of {head_dim} are read as {heads}: the whole K or V of a grouped-query model, "
            "in code that expects as many KV heads as query heads"
        )
        numbers = f"{o.numel} = {lead}·{kv}·{head_dim}", over(heads, kv)
        blame = False if score > 0.8 else None
        ask = "" if proven or solo else "n_kv_heads, tp"
        yield found(
            "fused_qkv_layout", score, cause, *numbers, parallel=blame, needs=ask, facts={"n_kv_heads": kv}
        )
    cause = (
        f"the tensor is 1/{k} of its target: a rank's slice (tp={k}) is reshaped with the whole model's sizes"
    )
    numbers = over(math.prod(o.target), o.numel), over(heads if by_head else head_dim, k)
    blame, ask = (True if local > 0.6 else None), "" if tp == k else "tp, n_kv_heads"
    yield found(_LOCAL, local, cause, *numbers, parallel=blame, needs=ask, facts={"tp": k})


def _too_many(o: View, k: int, known: Known) -> Iterator[Hypothesis]:
    """The tensor is k times its target: Q, K and V in one, or a whole tensor under a rank's sizes."""
    at, ours = over(o.numel, math.prod(o.target)), known.get("tp") == k
    if k == 3:
        cause = "the tensor is 3 times its target: Q, K and V in one"
        yield found("fused_qkv_layout", 0.6, cause, at, parallel=None, needs="n_heads, n_kv_heads")
    cause = f"the tensor is {k} times its target: a whole tensor is reshaped with one rank's sizes (tp={k})"
    yield found(
        _LOCAL,
        0.85 if ours else 0.5,
        cause,
        at,
        parallel=ours or None,
        needs="" if ours else "tp",
        facts={"tp": k},
    )


def _between(width: int, heads: int, head_dim: int, known: Known) -> Iterator[Hypothesis]:
    """The width of a token against heads·head_dim: rounded-down heads, or fused Q, K and V."""
    have = heads * head_dim
    if head_dim > 1 and have < width < have + head_dim:
        for fact, category in (("n_heads", "heads_not_divisible"), ("n_kv_heads", "kv_heads_lt_tp")):
            cut = _floored(width, heads, head_dim, fact, known)
            if cut:
                n, tp = cut
                cause = (
                    f"{n} heads over tp={tp} round down to {heads}, but the projection keeps {width} columns"
                )
                numbers = f"{n}//{tp} = {heads}", f"{n}·{head_dim}/{tp} → {width} ≠ {times(heads, head_dim)}"
                given = known.get(fact)
                few = 0.02 * (fact == "n_kv_heads" and heads <= 4)
                yield found(
                    category,
                    0.8 if given else 0.6 + few,
                    cause,
                    *numbers,
                    needs="" if given else f"tp, {fact}",
                    facts={"tp": tp},
                )
    kv, rest = divmod(width - have, 2 * head_dim)
    if head_dim > 1 and kv > 0 and rest == 0 and heads % kv == 0:
        cause = f"{width} columns are {heads} query heads and 2·{kv} KV heads in one; {heads} heads are read"
        equation = f"{width} = ({heads} + 2·{kv})·{head_dim}"
        yield found("fused_qkv_layout", 0.72, cause, equation, parallel=None, needs="n_heads, n_kv_heads, tp")


def _floored(width: int, heads: int, head_dim: int, fact: str, known: Known) -> tuple[int, int] | None:
    """(n, tp) such that n // tp = heads while ceil(n·head_dim / tp) = width."""
    given = known.get(fact)
    for tp in degrees(known):
        usual = _usual(fact, head_dim) or range(heads * tp, (heads + 1) * tp)
        for n in [given] if given else usual:
            if n // tp == heads and -(-n * head_dim // tp) == width:
                return n, tp
    return None


def _no_factor(o: View, known: Known) -> Iterator[Hypothesis]:
    """A dim of the target is a sequence that the ranks do not divide; or nothing that is known here."""
    seq = known.get("seq_len")
    for axis in ("cp", "tp"):
        k = known.get(axis) or 1
        if seq in o.target and seq and seq % k:
            yield found("seq_not_divisible", 0.7, f"{seq} tokens do not divide over {axis}={k}", over(seq, k))
    cause = "the tensor and the view differ by no whole factor of heads: compare batch and sequence"
    numbers = f"{math.prod(abs(n) for n in o.target)} against {o.numel}"
    yield found("other", 0.25, cause, numbers, parallel=None, needs="model, layout")


# -- two widths ------------------------------------------------------------------------------------

_SHARDS = re.compile(r"shard|parallel|reduction dim|dtensor|mesh")
PACKED = "a packed (quantised) weight is used as if it were plain"


def explain_matmul(o: Matmul, r: Reading, known: Known) -> Iterator[Hypothesis]:
    small, big = sorted((o.a, o.b))
    if small <= 1 or (o.rest == 1 and big % small):
        yield found("other", 0.6, PACKED, parallel=False)
    if small > 1:
        yield from explain_widths(small, big, r, known)


def is_width(n: int, known: Known) -> bool:
    """Whether a model, the known one or else a public one, has such a width or count of heads."""
    names = ("dim", "ffn_dim", "n_heads", "vocab_size", "q_dim", "kv_dim")
    own = n in [known.get(fact) for fact in (*names[:4], "seq_len")]
    return own or (n >= 16 and any(n in [getattr(m, name) for name in names] for m in known.models()))


def explain_widths(small: int, big: int, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Two widths that should agree, one of them perhaps a rank's part of the other."""
    tp, solo = known.get("tp"), known.alone("tp")
    k, rest = divmod(big, small)
    if rest:
        yield from _rounded(small, big, r, known)
        return
    heads = known.get("n_heads"), known.get("n_kv_heads")
    told = all(heads)
    if (
        heads == (big, small)
        if told
        else any((m.n_heads, m.n_kv_heads) == (big, small) for m in known.models())
    ):
        sure = 0.85 if told and tp != k else 0.6
        cause = f"{small} KV heads meet {big} query heads: code that does not repeat KV heads"
        blame = False if sure > 0.8 else None
        yield found("fused_qkv_layout", sure, cause, over(big, small), parallel=blame, needs="tp, n_kv_heads")
    usual = k & (k - 1) == 0 and k <= 64 and is_width(big, known)
    score = 0.85 if tp == k else 0.25 if tp else 0.75 if known.get("world") == k else 0.55 if usual else 0.35
    score = 0.15 if solo else score
    cause = f"{small} is 1/{k} of {big}: a rank's slice (tp={k}) meets a whole dim"
    blame = True if score > 0.7 or (score > 0.5 and _SHARDS.search(r.low)) else None
    yield found(
        _LOCAL, score, cause, over(big, k), parallel=blame, needs="" if tp == k else "tp", facts={"tp": k}
    )


def _rounded(small: int, big: int, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Uneven shards: one width is the other's share rounded up, or that share times tp."""
    shards, tp = bool(_SHARDS.search(r.low)), known.get("tp")
    ask = "" if tp else "tp"
    for k in degrees(known):
        if big % k and -(-big // k) == small:
            sure = shards or tp == k or is_width(big, known)
            score = 0.85 if tp == k else 0.7 if sure else 0.4
            cause = f"{small} is {big}/{k} rounded up: {big} columns do not divide over tp={k}"
            numbers = f"{over(big, k)} → {small}"
            yield found(
                "hidden_or_ffn_not_divisible",
                score,
                cause,
                numbers,
                parallel=sure or None,
                needs=ask,
                facts={"tp": k},
            )
            return
        if small % k and -(-small // k) * k == big:
            sure = shards or tp == k
            score = 0.82 if tp == k else 0.62 if shards else 0.4
            cause = f"{small} columns over tp={k} are taken for {big // k} on every rank"
            both = over(small, k), f"{times(big // k, k)} ≠ {small}"
            yield found(
                "hidden_or_ffn_not_divisible",
                score,
                cause,
                *both,
                parallel=sure or None,
                needs=ask,
                facts={"tp": k},
            )
            if shards:
                cause = f"local shards of {big // k} on {k} ranks are taken for {big} in all, not {small}"
                dtensor = re.search(r"dtensor|full_tensor|from_local|redistribute", r.low)
                yield found("fsdp_uneven", 0.72 if dtensor else 0.58, cause, both[1], needs=ask)
            return
