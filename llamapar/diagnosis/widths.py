"""Hypotheses from two widths that meet and should be one: a product, or two sizes of a dim."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llamapar.records.equations import Comparison, Product, Quotient

from .hypothesis import LIKELY, LOCAL, POSSIBLE, WEAK, WIDTH, Hypothesis, first, found
from .known import Known, degrees, on_a_rank
from .observations import Matmul
from .reading import Reading

_SHARDS = re.compile(r"shard|parallel|dtensor|mesh")


def explain_matmul(o: Matmul, r: Reading, known: Known) -> Iterator[Hypothesis]:
    small, big = sorted((o.a, o.b))
    if "lora" in r.evident and small > 1:
        cause = f"{small} and {big} columns meet in an adapter: it and the base are cut differently"
        cut = big % small == 0 and known.get("tp") == big // small
        numbers = Comparison(o.a, "≠", o.b)
        yield found("lora_tp", LIKELY, cause, numbers, parallel=True if cut else None, needs="tp")
        return
    if small == 0:
        cause = f"an empty tensor meets {big} columns: a ZeRO-3 placeholder that was not gathered"
        placeholder = "other: zero3_unmaterialised_param"
        yield found(placeholder, POSSIBLE, cause, Comparison(o.a, "≠", o.b), parallel=None, needs="zero")
    elif small == 1 or (o.rest == 1 and big % small):
        cause = "a packed (quantised) weight is used as if it were plain"
        yield found("other", POSSIBLE, cause, parallel=False)
    if small > 1 and is_narrow(o, known) and known.get("tp") == big // small:
        yield from explain_narrow(small, big, o.rest)
    elif small > 1:
        yield from explain_widths(small, big, r, known)


_NARROW = 64
"""Columns of a weight, at most, that are the rank of an adapter."""


def is_narrow(o: Matmul, known: Known) -> bool:
    """Whether the longer side is a weight of so few columns that it may be an adapter's."""
    return o.b > o.a and 1 < o.rest <= _NARROW and o.rest != known.get("dim")


def explain_narrow(small: int, big: int, columns: int) -> Iterator[Hypothesis]:
    """A rank's slice and a narrow weight of all rows: an adapter's, or another that was not cut."""
    ratio = Quotient(big, big // small)
    cause = (
        f"{small} columns of a rank meet a weight of {big} rows and {columns} columns, as of an uncut adapter"
    )
    yield found("lora_tp", POSSIBLE, cause, ratio, needs="rank of the adapter")
    cause = f"{small} is 1/{big // small} of {big}: a rank's slice meets a whole dim"
    yield found(LOCAL, POSSIBLE, cause, ratio)


_WIDTHS = ("dim", "ffn_dim", "n_heads", "vocab_size", "q_dim", "kv_dim")


def is_given(n: int, known: Known) -> bool:
    """Whether a size that was given is so large."""
    return n in [known.get(fact) for fact in (*_WIDTHS[:4], "seq_len")]


def is_width(n: int, known: Known) -> bool:
    """Whether a model, the known one or else a public one, has such a width or count of heads."""
    return is_given(n, known) or (
        n >= 16 and any(n in [getattr(m, name) for name in _WIDTHS] for m in known.models())
    )


def explain_widths(small: int, big: int, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Two widths that should agree, one of them perhaps a rank's part of the other."""
    tp, solo = known.get("tp"), known.alone("tp")
    k, rest = divmod(big, small)
    if rest:
        rounded = list(_rounded(small, big, r, known))
        yield from rounded or _unrelated(small, big, r, known)
        return
    if k == 2 and tp != 2 and small == known.get("ffn_dim"):
        cause = f"gate and up in one, {big} columns, meet a weight of {small}: one side lacks the gate"
        swiglu, blame = "fused_qkv_layout: fused_swiglu_order", False if tp == 1 else None
        yield found(swiglu, LIKELY, cause, Product((2, small)), parallel=blame, needs="tp")
    if (known.get("n_heads"), known.get("n_kv_heads")) == (big, small) and tp != k:
        cause = f"{small} KV heads meet {big} query heads: code that does not repeat KV heads"
        yield found("fused_qkv_layout", LIKELY, cause, Quotient(big, small), parallel=False, needs="tp")
    usual = k & (k - 1) == 0 and k <= 64 and is_width(big, known)
    alike = any(known.get(axis) == k for axis in ("world", "dp", "cp", "ep"))
    ours = not solo and (tp == k or alike)  # which proves a cut; what was cut, only a size that is known
    sure = LIKELY if is_given(big, known) else POSSIBLE
    level = first((solo, WEAK), (ours, sure), (tp, WEAK), (usual, POSSIBLE), otherwise=WEAK)
    cause = f"{small} is 1/{k} of {big}: a rank's slice (tp={k}) meets a whole dim"
    category = "checkpoint_tp_mismatch" if r.loading else LOCAL
    blame = True if ours or (level == POSSIBLE and _SHARDS.search(r.low)) else None
    yield found(category, level, cause, Quotient(big, k), parallel=blame, needs="tp", facts={"tp": k})


def _rounded(small: int, big: int, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Uneven shards: one width is the other's share rounded up, or that share times tp."""
    shards, tp = bool(_SHARDS.search(r.low)), known.get("tp")
    ranks = known.get("dp") or known.get("world") or 1
    if tp is None and ranks > 1:
        yield from _dealt(small, big, ranks, "fsdp_uneven")
        return
    if tp and known.model is None and not is_given(big, known) and big - small < tp:
        yield from _dealt(small, big, tp, "checkpoint_tp_mismatch" if r.loading else WIDTH)
        return
    for k in degrees(known):
        if k > small:
            continue
        if big % k and -(-big // k) == small:
            sure = is_width(big, known)
            level = first((sure and tp == k, LIKELY), (sure, POSSIBLE), otherwise=WEAK)
            cause = f"{small} is {big}/{k} rounded up: {big} columns do not divide over tp={k}"
            numbers = Quotient(big, k, after=f" → {small}")
            yield found(WIDTH, level, cause, numbers, parallel=sure or None, facts={"tp": k})
            return
        if small % k and -(-small // k) * k == big:
            level = POSSIBLE if shards else WEAK
            cause = f"{small} columns over tp={k} are taken for {big // k} on every rank"
            both = Quotient(small, k), Comparison(Product((big // k, k)), "≠", small)
            yield found(WIDTH, level, cause, *both, parallel=shards or None, facts={"tp": k})
            if shards:
                cause = f"local shards of {big // k} on {k} ranks are taken for {big} in all, not {small}"
                dtensor = re.search(r"dtensor|full_tensor|from_local|redistribute|d_?sharding", r.low)
                yield found("fsdp_uneven", LIKELY if dtensor else POSSIBLE, cause, both[1])
            return


def _dealt(small: int, big: int, ranks: int, category: str) -> Iterator[Hypothesis]:
    """Shares of a size that is not known over the ranks that are: the last one is short, or was padded."""
    whole = (ranks - 1) * big + small
    if big - small < ranks:
        cause = f"{big} and {small} are shares of {whole} over {ranks} ranks, which does not divide"
        yield found(category, POSSIBLE, cause, Quotient(whole, ranks), needs="shape of the tensor")


_MOST = 1024
"""Of a degree that is thought of where none is known."""

_WIDEST = 2**21
"""Of a dim of a weight; what is larger is the number of its elements."""


_UNITS = (1, 64, 96, 128, 256)
"""Columns that are not parted: one, or those of a head."""


def _unrelated(small: int, big: int, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """No degree makes one of the two from the other. The uneven parts of one width differ by less than the
    degree, so that what is far apart is no pair of these either."""
    near = big - small < min(_MOST, small)
    tried = {*range(2, 65), *degrees(known)}
    if _SHARDS.search(r.low) or near or big > _WIDEST or any(_is_share(small, big, k) for k in tried):
        return
    cause = f"no usual degree cuts {big} into {small}, nor one width into both: they are of two models"
    yield found("other", POSSIBLE, cause, Quotient(big, small), parallel=False, needs="model, layout")


def _is_share(small: int, big: int, degree: int) -> bool:
    """Whether ranks hold `small` of `big`."""
    units = (unit for unit in _UNITS if small % unit == big % unit == 0)
    return any(small // unit in on_a_rank(big // unit, degree) for unit in units)
