"""Hypotheses from two sizes of one dim that should agree: of a named tensor, or of two that meet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from llamapar.describe.placement import PARAMETERS, REPLICATED, Shard
from llamapar.records.equations import Comparison, Product, Quotient, Stated

from .hypothesis import LIKELY, POSSIBLE, WEAK, Hypothesis, first_heard, found
from .known import Known, degrees
from .observations import LABELS, ZERO, Pair, names
from .reading import Reading, Shape
from .tokens import explain_uncut
from .weights import explain_parameter, explain_vocabulary, is_vocabulary, key_of
from .widths import explain_widths, is_width
from .words import pattern


@dataclass(frozen=True)
class Meeting:
    """A `Pair`, with what its tensor is and what is known."""

    o: Pair
    r: Reading
    known: Known

    @property
    def small(self) -> int:
        return min(self.o.a, self.o.b)

    @property
    def big(self) -> int:
        return max(self.o.a, self.o.b)

    @cached_property
    def key(self) -> str:
        """The row of the placement table that the tensor's name means."""
        return key_of(self.o.name)

    @property
    def dims(self) -> int:
        return len(self.o.shapes[0]) if self.o.shapes else 0

    @cached_property
    def adapter(self) -> bool:
        """Whether LoRA is spoken of: by a tensor's name, by the failing line, or by the model's name."""
        spoken = any(key_of(name) == "lora" for name in names(self.r)) or "lora" in self.r.evident
        return spoken or (not self.key and "lora" in self.known.name.lower())

    @property
    def both(self) -> Comparison:
        return Comparison(self.o.a, "≠", self.o.b)


def explain_pair(o: Pair, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Why two sizes differ: the first of `_IN_TURN` that has something to say is heard."""
    yield from first_heard(_IN_TURN, Meeting(o, r, known))


def _labels(it: Meeting) -> Iterator[Hypothesis]:
    if it.o.name == LABELS and it.small:
        yield from _lengths(it, LABELS)
    elif it.o.name == LABELS:
        cause = "there are no labels at all: an empty batch, or all of them masked"
        yield found("other: bad_data", POSSIBLE, cause, it.both, parallel=False)


def _lengths(it: Meeting, what: str) -> Iterator[Hypothesis]:
    """Two lengths of a sequence: one was not cut, or both are parts that were not cut evenly."""
    if it.big % it.small == 0:
        yield from explain_uncut(it.small, it.big, what, it.known)
        return
    cause = (
        f"{it.o.a} and {it.o.b} tokens: parts of a sequence that the ranks do not divide, or two sequences"
    )
    yield found("seq_not_divisible", POSSIBLE, cause, it.both, parallel=None, needs="seq_len, cp, tp")


def _two_models(it: Meeting) -> Iterator[Hypothesis]:
    shapes = it.o.shapes
    pairs = [pair for pair in zip(*shapes, strict=False) if len(set(pair)) > 1] if shapes else []
    if it.o.name and shapes and len(pairs) > 1:
        cause = f"{it.o.name} differs in more than one dim: the weights of two models"
        numbers = Stated(f"{_written(shapes[0])} ≠ {_written(shapes[1])}")
        yield found("other: model_config", LIKELY, cause, numbers, parallel=False)


def _written(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


_MOST_RANKS = 512
"""Of an adapter; a larger dim is one of the base model's."""


def _lora(it: Meeting) -> Iterator[Hypothesis]:
    """Ranks of two adapters, one of them perhaps a rank's share; else widths that are cut differently."""
    if not it.adapter:
        return
    small, big, tp = it.small, it.big, it.known.get("tp")
    rank_dim = 1 if "lora_b" in it.o.name.lower() else 0
    width = it.o.name and (it.key != "lora" or it.o.dim != rank_dim)
    if big > _MOST_RANKS or it.o.shapes is None or width:
        bases = small > _MOST_RANKS and is_width(small, it.known) and is_width(big, it.known)
        if bases and big % small:
            cause = f"an adapter for a base model of {it.o.a} columns meets one of {it.o.b}: two models"
            yield found("lora_tp", LIKELY, cause, it.both, parallel=False)
        else:
            level, blame = (POSSIBLE, None) if small and big % small else (LIKELY, True)
            cause = "LoRA and base weights are cut or padded differently"
            yield found("lora_tp", level, cause, it.both, parallel=blame)
    elif small and big % small == 0 and tp in (None, big // small):
        cause = f"LoRA ranks of {small} and {big}: two adapters, or one that is cut over tp={big // small}"
        blame = True if tp or it.known.changes else None
        yield found("lora_tp", LIKELY, cause, Quotient(big, big // small), parallel=blame)
    else:
        yield found("lora_tp", LIKELY, "two LoRA ranks differ", it.both, parallel=False)


def _placeholder(it: Meeting) -> Iterator[Hypothesis]:
    """No element, or one, where a weight should be."""
    cause = "an empty tensor stands for the weight: a ZeRO-3 placeholder that was not gathered"
    loaded = it.o.shapes and {(0,), (1,)} & set(it.o.shapes) and it.r.loading
    if not loaded and (it.small or (it.o.shapes and (0,) not in it.o.shapes)):
        return
    width = it.big in [it.known.get(fact) for fact in ("dim", "ffn_dim", "vocab_size")]
    spoken = loaded or width or it.known.get("zero") == 3 or ZERO.search(it.r.low)
    level, blame = (LIKELY, True) if spoken else (POSSIBLE, None)
    yield found("other: zero3_unmaterialised_param", level, cause, it.both, parallel=blame, needs="zero")


def _no_tokens(it: Meeting) -> Iterator[Hypothesis]:
    if it.small == 0 and ("seq" in it.r.evident or (it.o.dim == 1 and it.dims > 2)):
        cause = f"a rank holds none of the {it.big} tokens: they are cut into more parts than they fill"
        yield found("seq_not_divisible", LIKELY, cause, it.both, needs="seq_len, tp, cp")


def _positions(it: Meeting) -> Iterator[Hypothesis]:
    if it.key == "position" or (not it.key and "position" in it.r.evident):
        cp = it.known.get("cp")
        cut = cp if cp is None else cp > 1
        blame = (cut or False) if it.r.loading else cut  # of a file, no axis cuts the positions
        cause = f"position tables of {it.o.a} and {it.o.b} rows: another sequence length"
        yield found("position/rope", LIKELY, cause, it.both, parallel=blame, needs="cp, seq_len")


_NEARLY = 1.05
"""Two pieces of one size at most so far apart are uneven shares of it."""


def _gathered(it: Meeting) -> Iterator[Hypothesis]:
    if "collective" in it.r.low and it.small * _NEARLY > it.big and it.small > 64:
        cause = (
            f"ranks gather pieces of {it.o.a} and {it.o.b}: a dim that they do not divide, such as the tokens"
        )
        level = LIKELY if it.dims > 2 and it.o.dim != it.dims - 1 else POSSIBLE
        yield found("seq_not_divisible", level, cause, it.both, needs="seq_len, cp")


def _fused(it: Meeting) -> Iterator[Hypothesis]:
    """Q, K and V in one tensor: a shard of it, or another layout."""
    if it.key != "fused":
        return
    tp, (k, rest) = it.known.get("tp"), divmod(it.big, it.small)
    equation = Quotient(it.big, it.small)
    if rest == 0 and tp in (None, k) and k in (2, 4, 8, 16):
        cause = f"a fused weight of {it.big} rows against {it.small}: 1/{k} of it"
        level = LIKELY if tp == k else POSSIBLE
        yield found("checkpoint_tp_mismatch", level, cause, equation, facts={"tp": k})
    cause = f"Q, K and V in one tensor: {it.small} against {it.big} rows"
    yield found("fused_qkv_layout", POSSIBLE, cause, equation, parallel=None, needs="n_heads, n_kv_heads, tp")


_OF_NOBODY = pattern("cut_by_nobody")


def _cut_by_nobody(it: Meeting) -> Iterator[Hypothesis]:
    """A tensor that every rank holds whole: no axis makes two sizes of it, but FSDP may, into equal parts."""
    parts = it.small > 0 and it.big % it.small == 0 and it.known.get("world") in (None, it.big // it.small)
    head = _OF_NOBODY.search(it.o.name.lower())
    if it.r.loading and (head or (PARAMETERS.get(it.key) == REPLICATED and not parts)):
        cause = f"{it.o.name} is whole on every rank, and its two sizes are those of two models"
        yield found("other: model_config", LIKELY, cause, it.both, parallel=False)


_FLAT = 2**21
"""More elements than a dim has: a flat partition of an optimizer's state."""


def _flat(it: Meeting) -> Iterator[Hypothesis]:
    if it.small > _FLAT and "collective" not in it.r.low:
        whole = it.big % it.small == 0
        ranks = f"{it.big // it.small} times as many" if whole else "another number of"
        cause = f"flat partitions of {it.small} and {it.big} elements: a state cut for {ranks} ranks"
        yield found(
            "checkpoint_tp_mismatch", LIKELY if whole else POSSIBLE, cause, Quotient(it.big, it.small)
        )


# -- a pair of which nothing of that can be said ---------------------------------------------------


def _plain(it: Meeting) -> Iterator[Hypothesis]:
    if it.small < 1:
        return
    yield from _padded_rows(it)
    yield from _tiles(it)
    if _of_a_vocabulary(it):
        yield from explain_vocabulary(it.small, it.big, it.r, it.known, bool(it.key))
    elif (it.o.shapes or it.key in ("wk", "wv")) and isinstance(PARAMETERS.get(it.key), Shard):
        yield from explain_parameter(it.o, it.key, it.small, it.big, it.known)
    else:
        yield from _lengths_or_widths(it)


_VOCABULARY = 20000
"""Rows from which on two sizes that nearly agree are vocabularies."""


def _of_a_vocabulary(it: Meeting) -> bool:
    if it.key in ("tok_embeddings", "output"):
        return True
    near = it.small > _VOCABULARY and it.small % 64 == it.big % 64 == 0 and it.small * 1.02 >= it.big
    uneven = "evenly" in it.r.low and "shard" in it.r.low and it.big > 30000
    tokens = it.dims > 2 and it.o.dim == 1  # [batch, seq, …]
    return not tokens and (near or uneven or is_vocabulary(it.big, it.known))


_FSDP = re.compile(r"fsdp|fully_shard|dtensor|unshard|param|weight")


def _padded_rows(it: Meeting) -> Iterator[Hypothesis]:
    """Rows that FSDP pads."""
    small, big, dp = it.small, it.big, it.known.get("dp") or 1
    if it.o.dim == 0 and small % dp and -(-small // dp) * dp == big:
        cause = f"{small} rows do not divide over dp={dp}: FSDP pads them to {big}"
        numbers = Quotient(small, dp), Comparison(Product((big // dp, dp)), "≠", small)
        parameter = it.o.name or _FSDP.search(f"{it.r.low} {it.r.line}")  # else they may be samples
        yield found("fsdp_uneven", LIKELY if parameter else POSSIBLE, cause, *numbers)


def _tiles(it: Meeting) -> Iterator[Hypothesis]:
    """A rank's FFN columns, padded for groups or tiles."""
    small, big = it.small, it.big
    tile = next((n for n in (64, 128, 256) if small > n and small % n and -(-small // n) * n == big), 0)
    tp = next((tp for tp in degrees(it.known) if _is_ffn(small * tp, it.known)), 0) if tile else 0
    if tp:
        cause = f"a rank's {small} FFN columns at tp={tp} are padded to {big}, for groups or tiles of {tile}"
        both = Quotient(small * tp, tp), Quotient(small, tile, after=f" → {big}")
        blame, level = (True, LIKELY) if it.known.get("tp") else (None, POSSIBLE)
        yield found("quant_group_vs_tp", level, cause, *both, parallel=blame)


def _is_ffn(n: int, known: Known) -> bool:
    ffn = known.get("ffn_dim")
    return n == ffn if ffn else any(m.ffn_dim == n for m in known.models())


def _lengths_or_widths(it: Meeting) -> Iterator[Hypothesis]:
    """Two lengths of a sequence, or two widths of which one may be a rank's part."""
    small, big = it.small, it.big
    if it.o.dim == 1 and it.dims > 2:
        yield from _lengths(it, "another tensor")
        return
    yield from explain_widths(small, big, it.r, it.known)
    if small > 1:
        cause = f"{it.o.a} and {it.o.b} differ by no factor that a split would leave"
        blame = False if big % small else None
        yield found("other", WEAK, cause, Quotient(big, small), parallel=blame, needs="model, layout")


_IN_TURN = (
    _labels, _two_models, _lora, _no_tokens, _placeholder, _positions, _cut_by_nobody,
    _gathered, _fused, _flat, _plain,
)  # fmt: skip
