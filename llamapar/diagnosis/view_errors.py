"""Views and splits that do not fit a tensor: which heads or tokens are cut?"""

from __future__ import annotations

import math
import re

from llamapar.records.equations import Comparison, Equation, Product, Quotient, Stated

from .cuts import CATEGORY, HEADS, is_head_dim, torn_head_cuts
from .hypothesis import LIKELY, POSSIBLE, WEAK, WIDTH, found
from .meetings import DifferingSizes
from .observations import ViewCall
from .slips import Found, a_slice, as_queries
from .vocabulary import categories_of

_RANKS = re.compile(r"devices|world|\branks?\b|mesh")
_RESHAPED = re.compile(r"\.(?:view|reshape|unflatten)\(")
_WORD = {"n_kv_heads": "KV", "n_heads": "query"}


def explain_view(it: DifferingSizes) -> Found:
    """Hypotheses for a view whose shape does not fit the tensor."""
    o = it.o
    if not isinstance(o, ViewCall) or "lora" in it.r.evident:  # an adapter's sizes are no heads
        return
    target = o.target
    # This view reshapes the list of ranks, not a tensor.
    if _RANKS.search(_RESHAPED.split(it.r.line, maxsplit=1)[0]):
        cause = f"{o.numel} ranks do not make a grid of {' x '.join(map(str, target))}"
        yield found("world_size_product", LIKELY, cause, Comparison(Product(target), "≠", o.numel))
    elif 0 in target:  # [batch, seq, heads, head_dim]; else it may be any row
        cause = "a rank was given 0 heads: tp is larger than the number of KV heads"
        level = LIKELY if target.index(0) > 1 else POSSIBLE
        yield found("kv_heads_lt_tp", level, cause, Comparison(0, "≠", o.numel) if o.numel else None)
    elif target.count(-1) == 1 and len(target) > 1:
        yield from list(_torn(it, o)) or _parts(it, o)
    elif min(target) > 0 and o.numel != math.prod(target):
        yield from as_queries(it)
        yield from a_slice(it, it.small, it.big) if it.ratio else ()
        yield from _floored(it, (1, *target), o.numel)
        yield from _parts(it, o)


def _torn(it: DifferingSizes, o: ViewCall) -> Found:
    """view(batch, seq, -1, head_dim): the columns of a rank end inside a head, or inside a group of Q, K and
    V heads.
    """
    *lead, last = o.target
    repeats = lead[-1] - 2 if len(lead) > 2 and lead[-2] == -1 and lead[-1] > 2 else 0
    rows = math.prod(lead[:-2] if repeats else lead[:-1])
    width, rest = divmod(o.numel, rows)
    usual = last == it.known.get("head_dim") or is_head_dim(last, least=1)
    if not (usual and width) or (not repeats and (rest or lead[-1] != -1 or len(lead) < 2)):
        return
    at = Stated(f"{rows} × {width} = {o.numel}")
    heads = list(_explain_columns(it, width, last, at, repeats=repeats))
    yield from heads
    for fact in () if heads else HEADS[bool(repeats) :]:
        cause = f"{width} columns hold no whole number of {_WORD[fact]} heads of {last}"
        yield found(CATEGORY[fact], POSSIBLE, cause, at, parallel=repeats > 0 or None)


def _explain_columns(
    it: DifferingSizes, width: int, head_dim: int, *at: Equation, floor: int = 0, repeats: int = 0
) -> Found:
    """The columns of a rank that are no whole number of heads: which heads, over which tp?

    floor and repeats are as in `torn_head_cuts`.
    """
    for cut, sure in torn_head_cuts(width, head_dim, it.known, floor, repeats):
        n, tp, unit, level = cut.count, cut.degree, cut.columns, LIKELY if sure else POSSIBLE
        share = "half a head" if 2 * width == unit else f"{width / unit:.4g} heads"
        example = "" if it.known.get("tp") or it.known.get(cut.fact) else "for example "
        of = f"{example}{n} {_WORD[cut.fact]} heads over tp={tp}"
        cause = f"a rank holds {width} columns, {share} of {unit}: {of}"
        rounded = "rounded down" if width == cut.whole // tp else "rounded up"
        end = f" {rounded}" if cut.whole % tp else f" = {share}"
        group = [Stated(f"{unit} = ({repeats} + 2)·{head_dim}")] if repeats else []
        numbers = (*at, *group, Stated(f"{width} = {n}·{unit}/{tp}{'' if repeats else end}"))
        if floor:
            cause = f"{n} heads over tp={tp} round down to {floor}, but the projection keeps {width} columns"
            read = Stated(f"{n}·{unit}/{tp} → {width} ≠ {Product((floor, unit))}")
            numbers = (Quotient(n, tp, floor=True), read)
        yield found(cut.category, level, cause, *numbers, facts={"tp": tp, cut.fact: n})


def _floored(it: DifferingSizes, target: tuple[int, ...], numel: int) -> Found:
    """view(batch, seq, heads, head_dim): the columns hold more than these heads, and not one head more."""
    *lead, heads, last = target
    width, rest = divmod(numel, math.prod(lead))
    if not rest and last > 1 and len(lead) > 1 and heads * last < width < (heads + 1) * last:
        yield from _explain_columns(it, width, last, floor=heads)


_EXPERTS = re.compile(r"\bep_|_ep\b|expert")
_BATCH = re.compile(r"micro|mbs|\bn_mb\b|samples|accum|batch")
_SEQUENCE = re.compile(r"\bcp\b|cp_size|cp_world|context|zigzag|ring|seq|token")
_TP = re.compile(r"\btp\b|tp_size")


def _parts(it: DifferingSizes, o: ViewCall) -> Found:
    """view(batch, k, n // k, …): k parts, where k does not divide the units; or nothing known here."""
    units, dims, get, line = o.numel, list(o.target), it.known.get, it.r.line
    while len(dims) > 2 and (dims[-1] == -1 or (dims[-1] > 1 and units % dims[-1] == 0)):
        units //= max(1, dims.pop())
    told = len(dims)
    while len(dims) > 1 and dims[0] > 0 and units % dims[0] == 0:
        units //= dims.pop(0)
    parts, each = dims[0], math.prod(n for n in dims[1:] if n > 0)
    factor = f"a factor of {it.ratio}" if it.ratio else "no whole factor"
    cause = f"the tensor and the view differ by {factor}: compare heads, batch and sequence"
    numbers = Stated(f"{math.prod(abs(n) for n in o.target)} against {o.numel}")
    rest = found("other", WEAK, cause, numbers, parallel=None, needs="model, layout")
    if parts < 2 or units % parts == 0 or not (-1 in o.target or (len(dims) > 1 and each == units // parts)):
        yield rest
        return
    first_dim = len(dims) == told  # parts of all rows: a weight's, rather than a batch's tokens
    tokens = parts in (not first_dim and get("tp"), get("cp"), 2 * (get("cp") or 0))
    samples = parts in (get("dp"), get("micro_batches"))
    experts = _EXPERTS.search(line) or (parts == get("ep") and not (tokens or samples))
    if not (tokens or samples):
        by_tp = parts == get("tp") or bool(_TP.search(line))
        tokens = bool(_SEQUENCE.search(line)) or (by_tp and not first_dim)
        samples = bool(_BATCH.search(line))
    dealt = len(o.target) == 5 and dims == list(o.target[2:4])  # [batch, seq, ranks, heads, head_dim]
    rows = [("heads_not_divisible", "heads", dealt), ("seq_not_divisible", "tokens", tokens >= samples)]
    rows.append(("microbatch_divisibility", "samples", samples >= tokens))
    likely = (POSSIBLE, None) if dealt or tokens == samples else (LIKELY, True)
    given = next((fact for fact in CATEGORY if get(fact) == units), "")
    if experts or given:
        named = ("other: experts_not_divisible_ep", "experts") if experts else (CATEGORY[given], given)
        likely, rows = (LIKELY, True), [(*named, True)]
    elif first_dim and not (tokens or samples) and by_tp:
        likely, rows = (POSSIBLE, True), [([*categories_of(it.r.named), WIDTH][0], "rows", True)]
    for category, word, ours in rows:
        if ours:
            cause, (level, blame) = f"{units} {word} do not divide into {parts} equal parts", likely
            yield found(category, level, cause, Quotient(units, parts), parallel=blame)
    yield rest
