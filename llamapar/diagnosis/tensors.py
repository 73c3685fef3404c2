"""Two sizes of one tensor, or of two tensors that meet: which tensor is it, and which cut is to blame?"""

from __future__ import annotations

import re
from collections.abc import Callable

from llamapar.describe.placement import COUNTED_IN, PARAMETERS, Shard
from llamapar.records.equations import Equation, Multiples, Padded, Product, Quotient, Stated

from .cuts import is_vocabulary, rounded_up, shard_of, widths
from .hypothesis import LIKELY, POSSIBLE, WEAK, first, first_heard, found, likely_if
from .known import Known
from .meetings import DifferingSizes, key_of
from .observations import LABELS, LoneShape, Matmul, Pair, ViewCall, names
from .reading import Reading
from .slips import TABLES, Found, assumed_cut, by_known_cuts
from .view_errors import explain_view

_MOST_RANKS = 512
"""Of an adapter, at most; a larger number is a base model's dim."""

_A_WEIGHT = re.compile(r"\bweight\b|lm_head|embed_tokens|\bparam\b")
"""A line of code that reads a weight by name, which is empty only where ZeRO-3 or FSDP holds it elsewhere."""


def _other_model(it: DifferingSizes) -> Found:
    """A weight that differs in several dims: no axis makes its sizes."""
    if it.name and sum(a != b for a, b in zip(*it.shapes, strict=False)) > 1:
        cause = f"{it.name} differs in more than one dim: two models, or one weight in two forms"
        numbers = Stated(" ≠ ".join(str(list(shape)) for shape in it.shapes))
        yield found("other: model_config", LIKELY, cause, numbers, parallel=False)
    elif it.key in TABLES and it.dim == 1 and it.dims == 2:
        cause = f"{it.name} is {it.a:,} wide in one and {it.b:,} in the other: two models"
        if it.ratio:
            cause += f", or columns cut over {it.ratio} ranks"
        level = likely_if(not it.ratio)
        widths_of = Quotient(it.big, it.small)
        yield found("other: model_config", level, cause, widths_of, parallel=None if it.ratio else False)


def _adapter(it: DifferingSizes) -> Found:
    """Ranks of two adapters, one perhaps a shard; else widths that are cut differently."""
    small = it.small
    big = it.big
    tp = it.known.get("tp")
    product = isinstance(it.o, Matmul)
    spoken = "lora" in it.r.evident or (not product and any(key_of(name) == "lora" for name in names(it.r)))
    if not spoken or small < 1:
        return
    ours = it.ratio > 0 and tp in (None, it.ratio)
    if big > _MOST_RANKS or not it.shapes or (it.name and it.key != "lora"):
        cause = "LoRA and base weights are cut or padded differently"
        blame: bool | None = bool(ours and tp) if product else it.ratio > 0
        level = likely_if(it.ratio or product)
        yield found("lora_tp", level, cause, it.both, parallel=blame or None)
    else:
        cause = f"LoRA ranks of {small} and {big}: two adapters"
        if ours:
            cause += f", or one that is cut over tp={it.ratio}"
        blame = first((not ours, False), (tp or it.known.changes, True), otherwise=None)
        yield found("lora_tp", LIKELY, cause, Quotient(big, small), parallel=blame)


def _empty(it: DifferingSizes) -> Found:
    """No element, or one in a file, in place of tokens or a weight."""
    if not it.small and it.dim == 1 and it.dims > 2:
        cause = f"a rank holds none of the {it.big} tokens: they are cut into more parts than they fill"
        yield found("seq_not_divisible", LIKELY, cause, it.both)
        return
    loaded = {(0,), (1,)} & {*it.shapes} and it.r.loading
    if loaded or (not it.small and it.name != LABELS and (not it.shapes or (0,) in it.shapes)):
        width = it.big in [it.known.get(fact) for fact in ("dim", "ffn_dim", "vocab_size")]
        spoken = loaded or width or it.known.get("zero") == 3
        cause = "an empty tensor stands for the weight: a ZeRO-3 placeholder that was not gathered"
        level = likely_if(spoken)
        blame = bool(spoken or _A_WEIGHT.search(it.r.line)) or None
        yield found("other: zero3_unmaterialised_param", level, cause, it.both, parallel=blame, needs="zero")


def _positions(it: DifferingSizes) -> Found:
    if it.key == "position" or (not it.key and "position" in it.r.operands):
        cp = it.known.get("cp") or (1 if it.r.loading else None)  # No axis cuts the positions of a file.
        cause = (
            f"{it.a} and {it.b} meet at a position table: another sequence length, or other rotary columns"
        )
        yield found("position/rope", LIKELY, cause, it.both, parallel=cp if cp is None else cp > 1)


# -- vocabularies ----------------------------------------------------------------------------------

_PADS = re.compile(r"\bpad|divisible_by|evenly")


def _vocabulary(it: DifferingSizes) -> Found:
    small = it.small
    big = it.big
    r = it.r
    known = it.known
    both = small % 64 == big % 64 == 0
    close = small * 1.02 >= big
    spoken = bool(it.key) or "vocab" in r.evident or known.get("vocab_size") in (small, big)
    # A power of two can be any width or length, so it proves nothing.
    maybe = is_vocabulary(big, known) and (spoken or r.loading or big & (big - 1) > 0)
    tokens = it.dims > 2 and it.dim == 1  # [batch, seq, …]
    if small < 1 or not isinstance(it.o, Pair) or not (it.key in TABLES or (maybe and not tokens)):
        return
    public = all("vocab_size" in widths(n, known) for n in (small, big))
    shards = shard_of(small, big, known)
    rows_of = first(
        (spoken, "vocabularies"), (public, "public vocabularies"), otherwise="perhaps vocabularies"
    )
    if close:  # The two differ by their padding, or by added tokens.
        padded = both or rounded_up(small, big, known)
        pads = Multiples((small, big), 64) if both else Stated(f"{big} - {small} = {big - small}")
        why = "tokens were added on one side"
        category = "embed_checkpoint_shape"
        if padded:
            why = "padded to different multiples"
            category = "vocab_padding"
        cause = f"{rows_of} of {small} and {big} rows: {why}"
        cut = (known.get("tp") or 1) > 1 or (both and (r.loading or not public))
        blame = first((padded and cut, True), (padded or not r.loading, None), otherwise=False)
        level = likely_if(blame is not None or r.loading)
        yield found(category, level, cause, pads, parallel=blame)
    elif shards is None:
        numbers = Quotient(big, small)
        cause = f"{rows_of} of {small} and {big} rows are of two models: {numbers} is no shard"
        sure = it.key or public  # else these may be the parts of anything
        padded = small % 128 == big % 128 == 0 and small * 2 > big  # perhaps one of them, twice
        level = WEAK
        if sure:
            level = LIKELY
        blame = None
        if sure and not padded:
            blame = False
        yield found("other: model_config", level, cause, numbers, parallel=blame, needs="vocab_size")
    else:
        yield from _shard_of_vocabulary(it, *shards)


def _shard_of_vocabulary(it: DifferingSizes, k: int, padded_to: int) -> Found:
    small = it.small
    big = it.big
    known = it.known
    padded = padded_to != it.big
    ours = known.get("tp") == k or known.get("world") == 1 or "tp" in known.changes
    # Else an embedding's output may meet that of a padded one.
    level = likely_if(ours and (it.key or it.r.loading))
    rows = [("embed_checkpoint_shape", level), ("vocab_padding", level if padded else POSSIBLE)]
    if not padded and it.key and "checkpoint" in it.r.low:
        # a run of one rank holds its own table whole; and is `big` a vocabulary at all?
        rows.insert(known.get("world") != 1 and is_vocabulary(big, known), ("checkpoint_tp_mismatch", level))
    if padded and _PADS.search(it.r.low):
        rows = [("vocab_padding", LIKELY), ("embed_checkpoint_shape", level)]
    cause = f"{small} rows are one of {k} shards of a vocabulary of {big}"
    if padded:
        cause += f" padded to {padded_to}"
    numbers: Equation = Padded(small, k, big) if padded else Quotient(big, k)
    for category, likely in rows:
        told = cause
        if padded and category == "vocab_padding":
            told = f"{big} rows are padded to {padded_to} before they are cut over {k} ranks"
        yield found(category, likely, told, numbers, facts={"tp": k, "vocab_size": big})


_TENSORS = (_other_model, _adapter, _empty, _positions, _vocabulary, assumed_cut)
_IN_TURN: dict[type, tuple[Callable[[DifferingSizes], Found], ...]] = {
    ViewCall: (explain_view,),
}
"""The questions to a place that no known cut explains, the surest first."""


def explain_place(o: ViewCall | Matmul | Pair, r: Reading, known: Known) -> Found:
    """Why two sizes differ that should be equal: the first question with an answer decides."""
    it = DifferingSizes.of(o, r, known)
    if it.a != it.b:
        yield from first_heard((by_known_cuts, *_IN_TURN.get(type(o), _TENSORS)), it)


# -- one observed shape ----------------------------------------------------------------------------


def explain_held(o: LoneShape, r: Reading, known: Known) -> Found:
    """One shape alone: whose tensor is it, in which model, and how is it cut?"""
    key = key_of(o.name)
    shape = o.shape
    if known.model and any(parameter.shape == shape for parameter in known.model.parameters()):
        return
    if not key and known.model and len(shape) == 2:
        for name in ("tok_embeddings", "w1", "wq"):
            yield from explain_held(LoneShape(name, shape), r, known)
    placed = PARAMETERS.get(key)
    if not isinstance(placed, Shard) or len(shape) != 2 or min(shape) < 1:
        return
    rows = shape[placed.dim]
    embedding = key in TABLES
    for model in known.models:
        whole = int(getattr(model, COUNTED_IN[placed.unit]))
        tp, total = shard_of(rows, whole, known) or (_MOST + 1, 0)
        ours = shape[1 - placed.dim] == model.dim and 1 < tp <= _MOST and known.fits(tp=tp)
        if ours and (embedding or total == whole):
            equation: Equation = Padded(rows, tp, whole) if total != whole else Product((rows, tp))
            cause = f"{rows} rows are one of {tp} shards of {model.name}'s {placed.unit}s"
            if total != whole:
                cause += " after padding"
            category = "checkpoint_tp_mismatch"
            if embedding:
                category = "embed_checkpoint_shape"
            level = likely_if(embedding and known.model)
            yield found(category, level, cause, equation, needs="model, tp", facts={"tp": tp})


_MOST = 128
"""Degree, at most, of a shard that is recognised by its shape alone."""
