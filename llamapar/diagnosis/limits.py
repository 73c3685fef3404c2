"""Hypotheses that words name and numbers support: memory, 32 bits, another layout."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llamapar.describe.layout import AXES, divisors
from llamapar.records.equations import Comparison, Equation, Product, Quotient, Stated

from .cuts import SizeCut, cuts, uneven
from .hypothesis import LIKELY, LOCAL, POSSIBLE, Hypothesis, found, likely_if
from .known import Known
from .reading import Reading
from .vocabulary import AXES_AND_WORLD, BY_CONCEPT
from .words import either, pattern, table


def limits(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Hypotheses about division by zero, memory, counters and checkpoints."""
    for reader in (_zero_division, _past_the_rows, _unequal_pieces, _memory, _counter, _checkpoint):
        yield from reader(r, known)


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
    """A count of KV heads per rank that rounds down to 0, where tp is larger than that count."""
    if not _ZERO.search(r.low) or (r.code and not r.counts_heads):
        return
    tp = known.get("tp")
    kv = known.get("n_kv_heads")
    gpus = known.get("world")
    rest = ""
    if kv and gpus and not tp and _BY_NO_HEADS.search(r.line):
        above = [degree for degree in divisors(gpus) if degree > kv]
        if len(above) == 1:
            tp = above[0]
            rest = f"; no other tp of {gpus} GPUs does"
    if tp and kv and tp > kv:
        cause = f"{kv} KV heads over tp={tp} leave {kv}//{tp} = 0 on a rank, which then divides{rest}"
        facts = {"tp": tp, "n_kv_heads": kv}
        yield found("kv_heads_lt_tp", LIKELY, cause, Quotient(kv, tp, floor=True), facts=facts)
    elif tp is None and not (kv and gpus and gpus <= kv):
        cause = "a divisor is 0, and the text does not name it; a count of KV heads per rank may round to 0"
        if r.counts_heads:
            cause = "a count per rank rounds down to 0 and then divides: usual where tp > n_kv_heads"
        blame = r.counts_heads or None
        needs = "tp, n_kv_heads"
        yield found("kv_heads_lt_tp", POSSIBLE, cause, parallel=blame, needs=needs, quoted=True)


_PAST = pattern("past_the_rows")
_OF_A_RANK = re.compile(r"\btp|_tp\b|rank|shard|parallel|local_|\bstart")
_TABLE = pattern("table_of_tokens")


def _past_the_rows(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """An index beyond the rows of a table: one of the whole size, and the rows of one rank?"""
    past = _PAST.search(r.whole)
    if past is None:
        return
    index, size = [*(int(n) for n in past.groups() if n), 0, 0][:2]
    seq = known.get("seq_len") or 0
    most = known.get("max_seq_len") or 2**40
    if "position" in r.evident or seq > most:
        cause = "a position is past the rows of its table: of a rank, or of a shorter model"
        numbers = Comparison(index, "≥", size) if size else _of_rank(known, "seq_len", "cp")
        blame: bool | None = (known.get("cp") or 1) > 1 or None
        level = POSSIBLE
        if seq > most:
            cause = f"{seq} positions are asked of a table of {most}"
            numbers = Comparison(seq, ">", most)
            level = LIKELY
            blame = False
        yield found("position/rope", level, cause, numbers, parallel=blame, needs="seq_len, max_seq_len, cp")
        return
    sizes = [cut for cut in cuts(known) if cut.axis != "dp" and cut.columns == 1 and size in cut.shares]
    # Whatever is cut, a rank holds no more of it than its number of rows times the degree.
    any_size = [
        SizeCut("", "other", axis, size * (known.get(axis) or 1), known.get(axis) or 1) for axis in AXES[:2]
    ]
    for cut in [*sizes, *any_size]:
        first = size
        if not cut.fact:  # One past the end is anybody's mistake where no size is known.
            first = size + 1
        if first <= index < cut.whole:
            cause = f"{index} of {cut} is looked up among the {size} of one rank"
            # The first row of the next rank is one past the end, too, so it proves less.
            sure = cut.fact and cut.even and index > size
            yield found(LOCAL, likely_if(sure), cause, Quotient(cut.count, cut.degree))
            return
    rows = _of_rank(known, "vocab_size", "tp")
    if rows and _TABLE.search(r.whole):
        cause = (
            "a token is past the rows of the table: a whole id meets a rank's rows, or another tokenizer does"
        )
        yield found(LOCAL, POSSIBLE, cause, rows, parallel=bool(_OF_A_RANK.search(r.whole)) or None)


def _of_rank(known: Known, size: str, axis: str) -> Quotient | None:
    """A known size over a known degree."""
    whole = known.get(size)
    degree = known.get(axis) or 1
    if whole and degree > 1:
        return Quotient(whole, degree)
    return None


_COLLECTIVE = pattern("collective_of_unequal_pieces")


def _unequal_pieces(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Pieces of a collective that should be equal differ: which known size do the ranks not divide?"""
    if not _COLLECTIVE.search(r.low):
        return
    named = [BY_CONCEPT[c] for c in r.named if c in BY_CONCEPT and c not in AXES_AND_WORLD]
    for cut in sorted(uneven(known), key=lambda cut: cut.category not in named):
        cause = f"a collective takes pieces of equal size, and the ranks' pieces differ: {cut}"
        yield found(cut.category, POSSIBLE, cause, Quotient(cut.count, cut.degree))


_OOM = pattern("out_of_memory")
_ASKED = pattern("memory_of_a_layout")
_CAPACITY = re.compile(r"capaci?ty of (\d{1,4}\.\d\d) gib|(\d{1,4}\.\d\d) gib total capaci?ty")
_GPU = 60 * 2**30
"""Bytes of weights that the largest GPUs barely hold beside the rest."""

_AMOUNT = re.compile(r"\b(\d{1,9}(?:\.\d{0,6})?) ?(gib|mib|gb|mb|kb)\b")
_UNIT = {"gib": 2**30, "gb": 2**30, "mib": 2**20, "mb": 2**20, "kb": 2**10}


def _memory(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """A failed allocation: is there less than is asked for, or are the weights alone too large?"""
    if not _OOM.search(r.low):
        return
    m = known.model
    there = _CAPACITY.search(r.low)
    numbers = list[Equation]()
    amounts = [
        (float(n) * _UNIT[unit], f"{n} {unit.upper().replace('IB', 'iB')}")
        for n, unit in _AMOUNT.findall(r.low)
    ]
    if len(amounts) > 1 and amounts[0] > amounts[-1]:
        numbers.append(Stated(f"{amounts[0][1]} > {amounts[-1][1]}"))
    elif not amounts and len(r.values) == 2 and r.values[0] > r.values[1] > 0:
        numbers.append(Comparison(r.values[0], ">", r.values[1]))
    ranks = known.get("world") or (known.get("tp") or 1) * (known.get("pp") or 1)
    if m and m.n_params * 2 > _GPU * ranks:
        numbers.append(Stated(f"{m.n_params} parameters × 2 B = {m.n_params * 2 / 1e9:.0f} GB of weights"))
    cause = f"a rank needs more than its memory{f' of {there[1] or there[2]} GiB' if there else ''}"
    if numbers:
        cause += f": {numbers[0]}"
    blame = bool(numbers or _ASKED.search(r.low) or known.changes) or None
    level = likely_if(numbers)
    needs = "model, layout, memory of a GPU"
    if there:
        needs = "model, layout"
    yield found(
        "memory_oom_layout", level, cause, *numbers, parallel=blame, needs=needs, quoted="allocat" in r.low
    )


_OVERFLOW = pattern("overflow")


def _counter(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Sizes past 2^31 elements or 2^32 bytes."""
    if not _OVERFLOW.search(r.low):
        return
    equations: list[Equation] = [
        Comparison(Product(row), "≥", 2**31, "2^31") for row, n in r.products if 2**31 <= n < 2**35
    ]
    passed = [n for n in r.values if 2**31 <= n < 2**34][:1]
    equations += [Comparison(n, "≥", 2**31, "2^31", after=f" = {2**31}") for n in passed]
    m = known.model
    if m and m.vocab_size * m.dim * 4 > 2**32:
        size = Product((m.vocab_size, m.dim, 4), "B")
        rest = f", read as {size.value % 2**32}"
        equations.append(Comparison(size, ">", 2**32, "2^32", "embedding ", rest))
    cause = f"a size {'passes' if equations else 'may pass'} what 32 bits can count"
    remedy = ""
    reported = "missingbytes" in r.low  # b4rtaz/distributed-llama #169, mended by f8113c1
    if reported:
        cause += ", as in distributed-llama 0.12.0 to 0.12.6"
        remedy = "distributed-llama 0.12.7 or later"
    level = likely_if(equations)
    if equations or (reported and m is None):
        kind = "counter_overflow: scale_not_layout"
        needs = "shapes and element size"
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
        level = likely_if(len(sizes) > 1)
        if len(sizes) < 2:
            sizes = r.values
        if len({*sizes[:2]}) == 2 and min(sizes[:2]) > 0:
            cause = "the checkpoint was cut for another layout than the one that reads it"
            yield found("checkpoint_tp_mismatch", level, cause, Comparison(sizes[0], "≠", sizes[1]))
            return
    n_layers = known.get("n_layers") or 0
    pp = known.get("pp") or 1
    layer = _LAYER.search(r.low)
    if layer and 0 < n_layers // pp <= int(layer[1]) < n_layers:
        cause = f"layer {layer[1]} is none of the {n_layers // pp} that the first stage holds"
        yield found("checkpoint_tp_mismatch", POSSIBLE, cause, Quotient(n_layers, pp))
    if changed := sorted(known.changes.keys() & {"tp", "pp", "dp", "world", "cp"}):
        old, new = known.changes[changed[0]]
        cause = f"the checkpoint was cut for {changed[0]}={old} and is read under {changed[0]}={new}"
        pair = Stated(f"{old} ≠ {new}") if not old.isdecimal() else Comparison(int(old), "≠", int(new))
        sure = spoken and "dtensor" not in r.low  # else its words name what is wrong
        yield found("checkpoint_tp_mismatch", likely_if(sure), cause, pair)
