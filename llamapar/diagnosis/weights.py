"""Hypotheses from the shapes of weights: a rank's shard, another padding, another model?

The placement of each tensor is that of `placement.PARAMETERS`; a name is read as a key of that table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llamapar.describe.models import public_models
from llamapar.describe.placement import PARAMETERS, Shard
from llamapar.records.equations import Equation, Multiples, Padded, Product, Quotient, Stated

from .hypothesis import LIKELY, POSSIBLE, WEAK, Hypothesis, first, found
from .known import Known, degrees
from .observations import ZERO, Held, Pair
from .reading import Reading
from .widths import explain_widths
from .words import either, table

_KEYS = {key: either(patterns) for key, patterns in table("words.toml")["names"].items()}
"""Row of the placement table, or another kind of tensor → what its name holds."""

_FIELD = {
    "query head": "q_dim", "KV head": "kv_dim", "FFN column": "ffn_dim", "vocabulary row": "vocab_size",
}  # fmt: skip


def key_of(name: str) -> str:
    """The row of the placement table that a tensor's name means; "lora", "fused", "position" or ""."""
    low = name.lower()
    return next((key for key, pattern in _KEYS.items() if pattern.search(low)), "")


def is_vocabulary(n: int, known: Known) -> bool:
    public = n > 20000 and any(m.vocab_size == n for m in public_models().values())
    return n == known.get("vocab_size") or public or (60000 < n < 2**20 and n % 1024 > 0)


def explain_parameter(o: Pair, key: str, small: int, big: int, known: Known) -> Iterator[Hypothesis]:
    """A named weight in two shapes: which axis or model makes one of the other?"""
    tp, (k, rest) = known.get("tp"), divmod(big, small)
    equation, kv = Quotient(big, small), key in ("wk", "wv")
    if rest:
        yield from explain_widths(small, big, Reading(""), known)
        return
    heads, kv_heads = known.get("n_heads"), known.get("n_kv_heads")
    if kv and heads and kv_heads and heads == k * kv_heads and tp != k:
        cause = f"{key} of {small} and {big} rows: KV heads read as query heads"
        yield found("fused_qkv_layout", LIKELY, cause, equation, parallel=False)
    placement = PARAMETERS[key]
    cut = isinstance(placement, Shard) and o.dim == placement.dim
    usual = tp is None and k & (k - 1) == 0
    level = first(
        (known.alone("tp"), WEAK), (tp == k and cut, LIKELY), (tp == k or usual, POSSIBLE), otherwise=WEAK
    )
    cause = f"{small} is 1/{k} of {big}: a shard of a checkpoint cut for tp={k} against the whole weight"
    blame = None if kv and tp is None else True
    yield found("checkpoint_tp_mismatch", level, cause, equation, parallel=blame, facts={"tp": k})
    if kv and tp is None:
        cause = f"{small} rows may be grouped KV heads where {big} rows of query heads are expected"
        yield found("fused_qkv_layout", POSSIBLE, cause, equation, parallel=None, needs="n_kv_heads, tp")


# -- the vocabulary --------------------------------------------------------------------------------

EXTRA = 256
"""Rows that vLLM adds to the vocabulary for tokens of adapters (`lora_extra_vocab_size`, vLLM 0.8)."""

_UNITS = (1, 32, 64, 128, 256, 512, 1024)
"""Multiples that vocabularies are padded to, in all or on each rank: vLLM's, ColossalAI's, Megatron's."""


def rounded_up(rows: int, padded: int, known: Known, tp: int = 1) -> bool:
    """Whether `padded` is `rows` rounded up to a multiple that paddings use, in all or of each rank, the
    pad rows being fewer than half of them."""
    changed = (int(n) for n in known.changes.get("tp", ()) if n.isdecimal())
    pads, degrees = padded - rows, {1, tp, known.get("tp") or 1, *changed} - {0}
    return 0 < 2 * pads < rows and any(-rows % (n * ranks) == pads for n in _UNITS for ranks in degrees)


def _adapter_rows(small: int, big: int) -> bool:
    """Whether both are a public vocabulary plus EXTRA rows, padded before or after."""
    for m in public_models().values():
        after = {-(-(m.vocab_size + EXTRA) // unit) * unit for unit in (64, 128, 256)}
        before = {-(-m.vocab_size // unit) * unit + EXTRA for unit in (64, 128, 256)}
        if {small, big} <= after | before:
            return True
    return False


def _shards(rows: int, vocab: int, known: Known) -> tuple[int, int] | None:
    """(tp, padded vocabulary) such that padded / tp = rows, plain shards first."""
    for tp in degrees(known):
        if rows * tp == vocab:
            return tp, vocab
    for tp in degrees(known):
        if rounded_up(vocab, rows * tp, known, tp):
            return tp, rows * tp
    return (vocab // rows, vocab) if vocab % rows == 0 else None


_PADS = re.compile(r"\bpad|divisible_by|evenly")


def explain_vocabulary(small: int, big: int, r: Reading, known: Known, named: bool) -> Iterator[Hypothesis]:
    tp = known.get("tp")
    if small * 1.02 >= big:  # two paddings of nearly the same vocabulary
        lora = "lora" in r.concepts or _adapter_rows(small, big)
        both = small % 64 == big % 64 == 0
        padded = both or rounded_up(small, big, known)
        why = "padded to different multiples" if padded else "tokens were added on one side"
        pads = Multiples((small, big), 64) if both else Stated(f"{big} - {small} = {big - small}")
        cause = f"vocabularies of {small} and {big} rows: {why}"
        category = first((lora, "lora_tp"), (padded, "vocab_padding"), otherwise="embed_checkpoint_shape")
        models = {small, big} <= {m.vocab_size for m in known.models()} and not r.loading  # two of them meet
        cut = (tp or 1) > 1 or (both and not models)
        blame = first((padded and cut, True), (padded or not r.loading, None), otherwise=False)
        level = LIKELY if blame is not None or r.loading else POSSIBLE
        yield found(category, level, cause, pads, parallel=blame, needs="padding, tp")
        return
    shards = _shards(small, big, known)
    if shards is None:
        cause = (
            f"vocabularies of {small} and {big} rows are of two models: {Quotient(big, small)} is no shard"
        )
        public = {m.vocab_size for m in known.models()}
        sure = named or {small, big} <= public  # else these may be the parts of anything
        padded = small % 128 == big % 128 == 0 and small * 2 > big  # may be one that was padded twice
        level, blame = LIKELY if sure else WEAK, False if sure and not padded else None
        yield found(
            "other: model_config", level, cause, Quotient(big, small), parallel=blame, needs="vocab_size"
        )
        return
    k, padded_to = shards
    facts = {"tp": k, "vocab_size": big}
    ours = tp in (None, k) or known.get("world") == 1
    loaded = named or r.loading  # else an embedding's output may meet that of a padded one
    level = LIKELY if ours and loaded else POSSIBLE
    if padded_to == big:
        cause = f"{small} rows are one of {k} shards of a vocabulary of {big}"
        table = found("embed_checkpoint_shape", level, cause, Quotient(big, k), facts=facts)
        cause = f"the checkpoint's {small} rows are one of {k} shards of {big}: it was cut for tp={k}"
        file = found("checkpoint_tp_mismatch", level, cause, Quotient(big, k), facts=facts)
        if not (named and "checkpoint" in r.low):
            yield table
        else:  # a run of one rank holds its own table whole; and is `big` a vocabulary at all?
            whole = known.get("world") == 1 or not is_vocabulary(big, known)
            yield from (file, table) if whole else (table, file)
        cause = f"{big} rows are laid out as if they were the {small} of one rank, or the reverse"
        yield found("vocab_padding", min(level, POSSIBLE), cause, Quotient(big, k), facts=facts)
        return
    equation = Padded(small, k, big)
    cause = f"{small} rows are one of {k} shards of a vocabulary of {big} padded to {padded_to}"
    shard = found("embed_checkpoint_shape", level, cause, equation, needs="tp, padding", facts=facts)
    cause = f"{big} rows are padded to {padded_to} before they are cut over {k} ranks"
    if "divisible" in r.low and -(-big // k) == small:
        cause = f"{small} rows are {big}/{k} rounded up: {big} do not divide over tp={k}"
        yield found("vocab_not_divisible", level, cause, Quotient(big, k), facts=facts)
    spoken = _PADS.search(r.low)
    padded_first = found("vocab_padding", LIKELY if spoken else level, cause, equation, facts=facts)
    yield from (padded_first, shard) if spoken else (shard, padded_first)


# -- one observed shape ----------------------------------------------------------------------------


def explain_held(o: Held, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """A tensor's shape alone: which model's tensor, cut how, is it?"""
    key, shape = key_of(o.name), o.shape
    if len(shape) > 2 and sum(shape) in r.values and len(shape) in r.values and len(set(shape)) == 2:
        cause = f"{sum(shape)} rows over {len(shape)} ranks are cut as {list(shape)}: not evenly"
        yield found("fsdp_uneven", LIKELY, cause, Quotient(sum(shape), len(shape)))
        return
    if 0 in shape or shape == (1,):
        cause = f"{o.name or 'a weight'} is {list(shape)}: a ZeRO-3 placeholder, not the weight"
        level = LIKELY if o.name or ZERO.search(r.low) else POSSIBLE
        yield found("other: zero3_unmaterialised_param", level, cause, needs="zero")
        return
    m = known.model
    if not key and m and (whole_ones := [p.key for p in m.parameters() if p.shape == shape]):
        cause = f"{list(shape)} is the whole {whole_ones[0]} of {m.name}"
        yield found("other", WEAK, cause, parallel=False)
    elif not key and m and len(shape) == 2:
        for name in ("tok_embeddings", "w1", "wq"):
            yield from explain_held(Held(name, shape), r, known)
    if not key and "rank" in r.low:
        cause = f"a rank holds {list(shape)}: padded or short where the ranks do not divide the dim"
        yield found("fsdp_uneven", POSSIBLE, cause, parallel=None, needs="shape of the whole tensor, world")
    placement = PARAMETERS.get(key)
    if not isinstance(placement, Shard) or placement.dim >= len(shape):
        return
    rows, fact = shape[placement.dim], _FIELD[placement.unit]
    for model in known.models():
        whole = int(getattr(model, fact))
        if (len(shape) == 2 and shape[1 - placement.dim] != model.dim) or rows < 1:
            continue
        if whole == rows:
            cause = f"{o.name} has its whole width of {rows} ({model.name})"
            yield found("other", WEAK, cause, parallel=False)
            continue
        shards = _shards(rows, whole, known) if fact == "vocab_size" else _chunk(rows, whole, known)
        if shards is None or shards[0] > 128:
            continue
        tp, total = shards
        padded = fact == "vocab_size" and total != whole
        equation: Equation = Padded(rows, tp, whole) if padded else Product((rows, tp))
        if total != rows * tp:
            equation = Quotient(whole, tp)
        embedding = fact == "vocab_size"
        category = "embed_checkpoint_shape" if embedding else "checkpoint_tp_mismatch"
        level = LIKELY if embedding and known.model else POSSIBLE
        cause = f"{rows} rows are one of {tp} shards of {model.name}'s {placement.unit}s"
        cause += " after padding" if padded else ""
        yield found(category, level, cause, equation, needs="model, tp", facts={"tp": tp})


def _chunk(rows: int, whole: int, known: Known) -> tuple[int, int] | None:
    return next(((tp, whole) for tp in degrees(known) if -(-whole // tp) == rows), None)
