"""Views and splits that do not fit a tensor: which heads or tokens are cut?"""

from __future__ import annotations

import math
import re

from llamapar.records.equations import Comparison, Product, Stated

from .cuts import CATEGORY, HEADS, head_dims, torn_head_cuts
from .hypothesis import LIKELY, POSSIBLE, WEAK, found, likely_if
from .meetings import DifferingSizes
from .observations import ViewCall
from .slips import Found, a_slice, as_queries

_RANKS = re.compile(r"devices|world|\branks?\b|mesh")
_RESHAPED = re.compile(r"\.(?:view|reshape|unflatten)\(")
_WORD = {"n_kv_heads": "KV", "n_heads": "query"}


def explain_view(it: DifferingSizes) -> Found:
    """Hypotheses for a view whose shape does not fit the tensor."""
    o = it.o
    if not isinstance(o, ViewCall):
        return
    # This view reshapes the list of ranks, not a tensor.
    if _RANKS.search(_RESHAPED.split(it.r.line, maxsplit=1)[0]):
        cause = f"{o.numel} ranks do not make a grid of {' x '.join(map(str, o.target))}"
        yield found("world_size_product", LIKELY, cause, Comparison(Product(o.target), "≠", o.numel))
    elif 0 in o.target:  # [batch, seq, heads, head_dim]; else it may be any row
        cause = "a rank was given 0 heads: tp is larger than the number of KV heads"
        level = likely_if(o.target.index(0) > 1)
        yield found("kv_heads_lt_tp", level, cause, Comparison(0, "≠", o.numel) if o.numel else None)
    elif o.target.count(-1) == 1:
        yield from _torn(it, o)
    elif it.ratio:
        yield from as_queries(it)
        yield from a_slice(it, it.small, it.big)
    else:
        cause = "the tensor and the view differ by no whole factor: compare heads, batch and sequence"
        yield found("other", WEAK, cause, it.both, parallel=None, needs="model, layout")


def _torn(it: DifferingSizes, o: ViewCall) -> Found:
    """view(batch, seq, -1, head_dim): the columns of a rank end inside a head, or inside a group of Q, K and
    V heads.
    """
    *lead, last = o.target
    repeats = 0
    if len(lead) > 2 and lead[-2] == -1 and lead[-1] > 2:
        repeats = lead[-1] - 2
    rows = math.prod(lead[:-2] if repeats else lead[:-1])
    width, rest = divmod(o.numel, rows or 1)
    usual = last == it.known.get("head_dim") or last in head_dims()
    if not (usual and width) or (not repeats and (rest or lead[-1:] != [-1])):
        return
    at = Stated(f"{rows} × {width} = {o.numel}")
    heads = torn_head_cuts(width, last, it.known, repeats)
    for cut, sure in heads:
        n = cut.count
        tp = cut.degree
        unit = cut.columns
        of = f"{n} {_WORD[cut.fact]} heads over tp={tp}"
        if not (it.known.get("tp") or it.known.get(cut.fact)):
            of = f"for example {of}"
        share = "half a head" if 2 * width == unit else f"{width / unit:.4g} heads"
        cause = f"a rank holds {width} columns, {share} of {unit}: {of}"
        group = []
        if repeats:
            group = [Stated(f"{unit} = ({repeats} + 2)·{last}")]
        end = "" if repeats else f" = {share}"
        if cut.whole % tp:
            end = " rounded"
        numbers = (at, *group, Stated(f"{width} = {n}·{unit}/{tp}{end}"))
        level = likely_if(sure)
        yield found(cut.category, level, cause, *numbers, facts={"tp": tp, cut.fact: n})
    for fact in () if heads else HEADS[bool(repeats) :]:
        cause = f"{width} columns hold no whole number of {_WORD[fact]} heads of {last}"
        yield found(CATEGORY[fact], POSSIBLE, cause, at, parallel=repeats > 0 or None)
