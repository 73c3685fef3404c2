"""Hypotheses that words name and numbers support: memory, 32 bits, another layout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from llamapar.describe.layout import divisors
from llamapar.describe.models import ModelConfig
from llamapar.records.equations import Comparison, Equation, Product, Quotient, Stated

from .cuts import cuts, uneven
from .hypothesis import LIKELY, LOCAL, POSSIBLE, Hypothesis, found
from .known import Known
from .reading import Reading
from .vocabulary import categories_of
from .words import either, pattern, table


def limits(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Hypotheses about division by zero, memory, counters and checkpoints."""
    yield from _zero_division(r, known)
    yield from _past_the_rows(r, known)
    yield from _unequal_pieces(r, known)
    yield from _memory(r, known)
    yield from _counter(r, known)
    yield from _checkpoint(r, known)


def sentences(r: Reading) -> Iterator[Hypothesis]:
    """The rule that a text quotes of torch, NCCL, JAX or a trainer; which cut broke it, no sentence says."""
    for row in table("words.toml")["sentences"]:
        if either(row["words"]).search(r.low):
            yield found(
                row["category"], POSSIBLE, row["cause"], parallel=not row.get("open") or None, quoted=True
            )
            return


_ZERO = pattern("zero_division")
_BY_NO_HEADS = re.compile(r"(?://|/|%) ?(?:self\.)?(?:\w{1,20}_)?local_(?:\w{1,20}_)?(?:kv|key_value)_heads")


def _zero_division(r: Reading, known: Known) -> Iterator[Hypothesis]:
    if not _ZERO.search(r.low) or "float division" in r.low or (r.code and not r.counts_heads):
        return
    tp, kv, gpus, rest = known.get("tp"), known.get("n_kv_heads"), known.get("world"), ""
    if kv and gpus and not tp and _BY_NO_HEADS.search(r.line):
        above = [degree for degree in divisors(gpus) if degree > kv]
        tp, rest = (above[0], f"; no other tp of {gpus} GPUs does") if len(above) == 1 else (tp, rest)
    if tp and kv and tp > kv:
        cause = f"{kv} KV heads over tp={tp} leave {kv}//{tp} = 0 on a rank, which then divides{rest}"
        facts = {"tp": tp, "n_kv_heads": kv}
        yield found("kv_heads_lt_tp", LIKELY, cause, Quotient(kv, tp, floor=True), facts=facts)
    elif not (kv and (tp or gpus or kv + 1) <= kv) and not known.alone("tp"):
        cause = "a divisor is 0, and the text does not name it; a count of KV heads per rank may round to 0"
        if r.counts_heads:
            cause = "a count per rank rounds down to 0 and then divides: usual where tp > n_kv_heads"
        blame, needs = True if r.counts_heads else None, "tp, n_kv_heads"
        yield found("kv_heads_lt_tp", POSSIBLE, cause, parallel=blame, needs=needs, quoted=True)


_COLLECTIVE = pattern("collective_of_unequal_pieces")
_PAST = pattern("past_the_rows")
_OF_A_RANK = re.compile(r"\btp|_tp\b|rank|shard|parallel|local_|\bstart")
_TABLE = pattern("table_of_tokens")


def _past_the_rows(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """A token id beyond the rows of a table: an id of the whole vocabulary, and the rows of one rank?"""
    past = _PAST.search(r.whole)
    if past is None:
        return
    size = int(past["size"] or past["size2"] or past["size3"] or 0)
    seq, most = known.get("seq_len") or 0, known.get("max_seq_len") or 2**40
    if seq > most and size in (0, most):
        cause = f"{seq} positions are asked of a table of {most}"
        yield found("position/rope", LIKELY, cause, Comparison(seq, ">", most), parallel=False)
        return
    index = int(past["index"] or past["index2"] or past["index3"] or past["target"] or 0)
    if "position" in r.evident or seq > most:
        cause = "a position is past the rows of its table: of a rank, or of a shorter model"
        blame, needs = (known.get("cp") or 1) > 1 or None, "seq_len, max_seq_len, cp"
        numbers = Comparison(index, "≥", size) if size else _of_rank(known, "seq_len", "cp")
        yield found("position/rope", POSSIBLE, cause, numbers, parallel=blame, needs=needs)
        return
    counted = [cut for cut in cuts(known) if cut.axis != "dp" and cut.columns == 1]
    for cut in counted if size else [cut for cut in counted if cut.fact == "vocab_size"]:
        rows, numbers = size or max(cut.shares - {cut.whole}, default=1), Quotient(cut.count, cut.degree)
        # one past the end is anybody's mistake, but for a token, which is the next rank's first
        if rows in cut.shares and rows + (cut.fact != "vocab_size") <= index < cut.whole:
            if not cut.even:
                cause = f"{index} of {cut}, which does not divide, is past the {rows} of one rank"
                yield found(cut.category, POSSIBLE, cause, numbers)
            cause = f"{index} of {cut} is looked up among the {rows} of one rank"
            yield found(LOCAL, LIKELY if cut.even else POSSIBLE, cause, numbers)
            return
    for axis in ("tp", "cp") if size < index else ():
        degree = known.get(axis) or 1
        if index < size * degree:
            cause = (
                f"{index} is past the {size} of a rank, not past {size * degree} on all of {axis}={degree}"
            )
            yield found(LOCAL, POSSIBLE, cause, Product((size, degree)))
            return
    rows_of_a_rank = _of_rank(known, "vocab_size", "tp")
    if rows_of_a_rank and _TABLE.search(r.whole):
        cause = (
            "a token is past the rows of the table: a whole id meets a rank's rows, or another tokenizer does"
        )
        ours = bool(_OF_A_RANK.search(r.whole)) or None
        yield found(LOCAL, POSSIBLE, cause, rows_of_a_rank, parallel=ours)


def _of_rank(known: Known, size: str, axis: str) -> Quotient | None:
    """A known size over a known degree."""
    whole, degree = known.get(size), known.get(axis) or 1
    return Quotient(whole, degree) if whole and degree > 1 else None


_FEWER = re.compile(r"not enough values to unpack|index out of range")
_PARTS = re.compile(r"equal division|stack expects each tensor to be equal size")
_LATER = re.compile(r"at entry 0 and .{1,80} at entry (?:[2-9]|\d\d)")
"""Samples of different lengths differ from the start; equal parts differ at the last one."""

_KEYS = re.compile(r"\b(?:kv|k|v|keys?|values?|xk|xv)\b|kv_")


def _unequal_pieces(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Pieces that should be equal differ, or are too few: which known size do the ranks not divide?"""
    if _COLLECTIVE.search(r.low):
        cause = "a collective takes pieces of equal size, and the ranks' pieces differ"
    elif _FEWER.search(r.low) and ".chunk(" in r.line:
        cause = "a tensor came apart in fewer chunks than there are ranks, which do not divide it"
    elif _PARTS.search(r.low) and (r.parallel or not r.shapes or _LATER.search(r.low)):
        cause = "parts that should be equal are not"
    else:
        return
    keys = ["kv_heads_lt_tp"] if any(_KEYS.search(line) for line in r.code) else []
    named = [*keys, *categories_of(r.named)]
    rows = sorted(uneven(known), key=lambda cut: (cut.count not in r.values, cut.category not in named))
    for cut in rows:
        level = LIKELY if len(rows) == 1 and not r.shapes else POSSIBLE  # else the sizes decide
        yield found(cut.category, level, f"{cause}: {cut}", Quotient(cut.count, cut.degree))


_OOM = pattern("out_of_memory")
_SIZE = re.compile(r"allocat\w{1,4}\D{0,30}(\d{1,20}(?:\.\d{0,6})?) ?(tib|gib|mib|kib|gb|mb|kb|bytes|b\b)")
_UNIT = {
    "tib": 2**40,
    "gib": 2**30,
    "gb": 2**30,
    "mib": 2**20,
    "mb": 2**20,
    "kib": 2**10,
    "kb": 2**10,
    "bytes": 1,
    "b": 1,
}
_ASKED = pattern("memory_of_a_layout")
_CAPACITY = re.compile(r"capaci?ty of (\d{1,4}\.\d\d) gib|(\d{1,4}\.\d\d) gib total capaci?ty")
_CHUNKS = table("categories.toml")["remedies"]["logits"]


def _memory(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """A failed allocation: is it a weight or the logits, or are the weights alone too large?"""
    if not _OOM.search(r.low):
        return
    m, size, there = known.model, _SIZE.search(r.low), _CAPACITY.search(r.low)
    equal = list(_as_large(size, m, known)) if size and m else []
    numbers, names = [equation for _, equation in equal], list(dict.fromkeys(name for name, _ in equal))
    heavy = m and m.n_params * 2 > 60 * 2**30 * (known.get("world") or 1)
    numbers += _more_than_there_is(r) if not numbers else []
    if m and size and heavy and float(size[1]) * _UNIT[size[2]] <= 16 * m.n_params:  # more is a batch
        numbers.append(Stated(f"{m.n_params} parameters × 2 B = {m.n_params * 2 / 1e9:.0f} GB of weights"))
    cause = f"a rank holds more than its memory{f' of {there[1] or there[2]} GiB' if there else ''}"
    if len(equal) > 1:
        cause += f", and asks for as much as {' or '.join(names)} would take"
    elif numbers:
        cause += f": {numbers[0]}"
    cut = numbers and names != ["logits"]  # what the layout leaves whole, or cuts too little
    blame = True if cut or _ASKED.search(r.low) or known.changes else None
    level = LIKELY if numbers else POSSIBLE
    needs = "model, layout" if there else "model, layout, memory of a GPU"
    remedy = _CHUNKS if names and all("logits" in name for name in names) else ""
    yield found(
        "memory_oom_layout", level, cause, *numbers,
        parallel=blame, needs=needs, remedy=remedy, quoted=size is not None,
    )  # fmt: skip


_AMOUNT = re.compile(r"\b(\d{1,9}(?:\.\d{0,6})?) ?(gib|mib|kib|gb|mb|kb)\b")


def _more_than_there_is(r: Reading) -> list[Equation]:
    """The first amount of memory that a text names, where it is more than the last."""
    amounts = [
        (float(number) * _UNIT[unit], f"{number} {unit.upper().replace('IB', 'iB')}")
        for number, unit in _AMOUNT.findall(r.low)
    ]
    if not amounts and len(r.values) == 2 and r.values[0] > r.values[1] > 0:
        return [Comparison(r.values[0], ">", r.values[1])]
    if len(amounts) < 2 or amounts[0] <= amounts[-1]:
        return []
    return [Stated(f"{amounts[0][1]} > {amounts[-1][1]}")]


@dataclass(frozen=True)
class Allocation:
    """An allocation that failed: its bytes, as exactly as the message says them.

    gpu_bytes: the memory of the GPU; None if the message does not say it. alike: the tensors of a rank that
    are as large.
    """

    bytes: int
    gpu_bytes: int | None
    alike: tuple[str, ...]


def allocation(line: str, known: Known) -> Allocation | None:
    """The failed allocation that a line states; None if it states none, or if the model is unknown."""
    size, there = _SIZE.search(line.lower()), _CAPACITY.search(line.lower())
    if size is None or known.model is None:
        return None
    alike = dict.fromkeys(name for name, _ in _as_large(size, known.model, known, activations=True))
    asked = round(float(size[1]) * _UNIT[size[2]])
    return Allocation(asked, round(float(there[1] or there[2]) * 2**30) if there else None, tuple(alike))


def _as_large(
    size: re.Match[str], m: ModelConfig, known: Known, activations: bool = False
) -> Iterator[tuple[str, Equation]]:
    """The tensors of a rank with this number of bytes; if tokens are unknown, powers of two are tried."""
    number, unit, tp = float(size[1]), _UNIT[size[2]], known.get("tp") or 1
    seq, batch, cp = known.get("seq_len"), known.get("micro_batch"), known.get("cp") or 1
    tokens = [2**n for n in range(10, 21)]
    if seq:
        tokens = [seq // cp * n for n in range(batch or 1, (batch or 16) + 1)]
    rows = {"wq, wk and wv": m.q_dim + 2 * m.kv_dim, "w1 and w3": 2 * m.ffn_dim, "w2": m.ffn_dim}
    rows |= {"the embedding": m.vocab_size, "wq": m.q_dim}
    tensors = [(name, n // tp, m.dim) for name, n in rows.items() if n % tp == 0]
    tensors += [("logits", n, -(-m.vocab_size // tp)) for n in tokens]
    tensors += [("whole logits", n, m.vocab_size) for n in tokens if tp > 1]
    if activations:
        widths = {m.dim, *(n // by for n in (m.q_dim, m.kv_dim, m.ffn_dim, 2 * m.ffn_dim) for by in (1, tp))}
        tensors += [("an activation of a layer", n, width) for n in tokens for width in sorted(widths)]
    after, asked = f" at tp={tp}" if known.get("tp") else " uncut", " ".join(size.groups()).upper()
    asked = asked.replace("IB", "iB").replace("BYTES", "bytes")
    for name, n, other in tensors:
        for made in (Product((n, other, width), "B") for width in (4, 2, 1)[: 2 if "logits" in name else 3]):
            if abs(made.value / unit - number) < 0.006 * (unit > 1) + 1e-9:
                stated = Stated(f"{name}: {made} = {asked}{after}")
                compared = Comparison(made, "=", round(number * unit), asked, f"{name}: ", after)
                yield name, stated if "." in asked else compared


_OVERFLOW = pattern("overflow")
_FLOAT = pattern("overflow_of_floats")


def _counter(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Sizes past 2^31 elements or 2^32 bytes."""
    worded = _OVERFLOW.search(r.low) and not _FLOAT.search(r.low)
    if not worded and not any(value in (2**31, 2**32) for _, value in r.products):
        return
    equations = [
        Comparison(Product(row), "≥", 2**bits, f"2^{bits}")
        for row, n in r.products
        if 2**31 <= n < 2**35
        for bits in [31 + (n >= 2**32)]
    ]
    passed = [n for n in r.values if 2**31 <= n < 2**34][:1]
    equations += [Comparison(n, "≥", 2**31, "2^31", after=f" = {2**31}") for n in passed]
    m = known.model
    if m and m.vocab_size * m.dim * 4 > 2**32:
        size = Product((m.vocab_size, m.dim, 4), "B")
        rest = f", read as {size.value % 2**32}"
        equations.append(Comparison(size, ">", 2**32, "2^32", "embedding ", rest))
    cause, remedy = f"a size {'passes' if equations else 'may pass'} what 32 bits can count", ""
    reported = "missingbytes" in r.low  # b4rtaz/distributed-llama #169, mended by f8113c1
    if reported:
        cause += ", as in distributed-llama 0.12.0 to 0.12.6"
        remedy = "distributed-llama 0.12.7 or later"
    level = LIKELY if equations else POSSIBLE
    if equations or (reported and m is None):
        kind, needs = "counter_overflow: scale_not_layout", "shapes and element size"
        yield found(kind, level, cause, *equations[:3], needs=needs, remedy=remedy, quoted=reported)


_CHECKPOINT = pattern("checkpoint")
_TWO_LAYOUTS = pattern("two_layouts")
_LAYER = re.compile(r"(?:missing|unexpected) key.{0,60}\blayers\.(\d{1,4})\.", re.DOTALL)
_FILES = re.compile(r"mp_rank|zero_pp_rank|consolidated\.\d|shards?\b|\.pth")


def _checkpoint(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """A checkpoint cut for one layout and read under another."""
    spoken = _CHECKPOINT.search(r.low)
    if not spoken and not (known.changes and r.parallel):
        return
    axes = r.concepts & {"tp", "pp", "dp", "world", "cp"}
    if (axes or _FILES.search(r.low)) and _TWO_LAYOUTS.search(r.low):
        sizes = [t.number for t in r.terms if t.concept in axes and t.number]
        sizes = sizes if len(sizes) > 1 else r.values
        if len({*sizes[:2]}) == 2 and min(sizes[:2]) > 0:
            cause = "the checkpoint was cut for another layout than the one that reads it"
            level = POSSIBLE if "no such file" in r.low else LIKELY  # Its path may be wrong, too.
            yield found("checkpoint_tp_mismatch", level, cause, Comparison(sizes[0], "≠", sizes[1]))
            return
    n_layers, pp = known.get("n_layers") or 0, known.get("pp") or 1
    layer = _LAYER.search(r.low)
    if layer and 0 < n_layers // pp <= int(layer[1]) < n_layers:
        cause = f"layer {layer[1]} is none of the {n_layers // pp} that the first stage holds"
        yield found("checkpoint_tp_mismatch", POSSIBLE, cause, Quotient(n_layers, pp))
    if changed := sorted(known.changes.keys() & {"tp", "pp", "dp", "world", "cp"}):
        old, new = known.changes[changed[0]]
        cause = f"the checkpoint was cut for {changed[0]}={old} and is read under {changed[0]}={new}"
        pair = Stated(f"{old} ≠ {new}") if not old.isdecimal() else Comparison(int(old), "≠", int(new))
        sure = spoken and "dtensor" not in r.low  # else its words name what is wrong
        yield found("checkpoint_tp_mismatch", LIKELY if sure else POSSIBLE, cause, pair)
