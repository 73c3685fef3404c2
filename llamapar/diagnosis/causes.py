"""Hypotheses from relations between counts: divisibility, products, orders, and the known numbers alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from llamapar.describe.splits import Padding
from llamapar.records.equations import Comparison, Equation, Product, Quotient, Stated

from .hypothesis import Hypothesis, first, found
from .known import Known, zoo
from .observations import Divides, Order, Unequal
from .reading import Reading
from .weights import PADDED

# -- A has to be a multiple of B -------------------------------------------------------------------

_BY_SUBJECT = {
    "kv": "kv_heads_lt_tp",
    "heads": "heads_not_divisible",
    "vocab": "vocab_not_divisible",
    "layers": "layers_not_divisible_pp",
    "pp": "layers_not_divisible_pp",
    "microbatch": "microbatch_divisibility",
    "batch": "microbatch_divisibility",
    "dp": "microbatch_divisibility",
    "seq": "seq_not_divisible",
    "cp": "seq_not_divisible",
    "world": "world_size_product",
    "tp": "world_size_product",
    "ffn": "hidden_or_ffn_not_divisible",
    "position": "position/rope",
}
"""What is divided → the category."""

_BY_AXIS = {"cp": "seq_not_divisible", "dp": "microbatch_divisibility", "pp": "layers_not_divisible_pp"}
"""The axis that divides → the category, where what is divided has no name."""

_BY_FACT = {
    "n_kv_heads": "kv_heads_lt_tp",
    "kv_dim": "kv_heads_lt_tp",
    "n_heads": "heads_not_divisible",
    "q_dim": "heads_not_divisible",
    "n_layers": "layers_not_divisible_pp",
    "vocab_size": "vocab_not_divisible",
    "ffn_dim": "hidden_or_ffn_not_divisible",
    "dim": "hidden_or_ffn_not_divisible",
    "seq_len": "seq_not_divisible",
    "world": "world_size_product",
    "global_batch": "microbatch_divisibility",
    "micro_batch": "microbatch_divisibility",
}
"""The known number that is divided → the category."""

_WORDS = {
    "kv": "KV heads", "heads": "query heads", "vocab": "vocabulary rows", "layers": "layers", "seq": "tokens",
    "microbatch": "micro-batches", "batch": "samples of the batch", "world": "ranks", "expert": "experts",
    "ffn": "FFN columns", "hidden": "columns", "dimension": "columns",
}  # fmt: skip
_MESH = re.compile(
    r"fsdp|flat_?param|dtensor|device_?mesh|device mesh|fully_shard|sharding propagation|placement"
)
_DIM_0 = re.compile(r"(?:first dim\w{0,8}|dim(?:ension)? ?0) of (?:the )?param")
"""Where FSDP cuts a parameter."""

_AXES = ("tp", "pp", "cp", "dp", "ep")
_STRONG = frozenset(("kv", "heads", "vocab", "layers", "world", "expert", "seq", "microbatch", "batch"))


def _by_code(o: Divides, r: Reading) -> Divides:
    """A relation of two bare numbers with the names that the lines of source over it give them."""
    for line in reversed(r.code if not (o.subject or o.by) else ()):
        terms = [t.concept for t in Reading(line.partition(" = ")[2] or line).terms]
        if terms and terms[0] in _STRONG:
            return replace(o, subject=terms[0], by=frozenset(terms[1:]), beside=frozenset(terms[:1]))
    return o


def explain_divides(o: Divides, r: Reading, known: Known) -> Iterator[Hypothesis]:
    o = _by_code(o, r)
    number, divisor, subject = o.number, o.divisor, o.subject
    by = o.by | {axis for axis in _AXES if divisor and divisor > 1 and known.numbers.get(axis) == divisor}
    axes = [axis for axis in _AXES if (known.get(axis) or 1) > 1]
    if by <= {"dimension"} and "mesh" in r.low and len(axes) == 1:
        by = frozenset(axes)
    concepts = o.beside | by
    exact = number is not None and bool(divisor) and number % (divisor or 1) != 0
    sure = first((exact, 0.9), (number is None or not divisor, 0.8), otherwise=0.55)
    equation = Quotient(number, divisor) if number is not None and divisor else None
    ranks = divisor or " or ".join(sorted(by & {*_AXES, "world"})) or "the ranks"
    units = _WORDS.get(subject, "units")
    width = o.beside & {"hidden", "dimension"} and subject in ("hidden", "dimension")
    contradiction = ("heads" in by and bool(width)) or (subject == "heads" and "kv" in by)
    uneven = re.search(r"uneven|flat_?param", r.low) and _MESH.search(r.low) and "unflatten" not in r.low
    uneven = uneven or (_DIM_0.search(r.low) and by <= {"world", "dp"})
    cause = f"{'the' if number is None else number} {units} cannot be cut evenly over {ranks}"

    if "expert" in concepts and ("ep" in concepts or subject == "expert"):
        yield found("other: experts_not_divisible_ep", sure, cause, equation)
    elif subject == "head_dim":
        cause = "a kernel's rule on the head size; no parallelism is needed for it"
        yield found("other: kernel_limit", 0.8, cause, equation, parallel=False)
    elif by.isdisjoint({"tp", "world"}) and contradiction:
        cause = (
            "the model's own width, heads and KV heads contradict each other; no parallelism is needed for it"
        )
        yield found("other: model_config", 0.8, cause, equation, parallel=False)
    elif "quant" in concepts:
        yield _tile(number, exact, sure, equation, known)
    elif subject in ("dimension", "hidden", "dp", "tp", "world", "vocab", "") and uneven:
        yield found("fsdp_uneven", 0.9 if "fsdp" in r.low else 0.8, cause, equation)
    elif category := _category(o, by, r, known):
        facts = {"tp": divisor} if divisor and category in ("heads_not_divisible", "kv_heads_lt_tp") else {}
        yield found(category, sure + 0.05 * bool(by), cause, equation, facts=facts)
    elif axis := next((axis for axis in _BY_AXIS if axis in by), None):
        score = first((exact, 0.82), (len(by) == 1, 0.6), otherwise=0.45)
        yield found(_BY_AXIS[axis], score, cause, equation)
    elif number is None:
        yield from _unnamed(o, known)
    else:
        for fact, where, score in roles(number, divisor, r.concepts, known):
            word = {"dim": "width", "world": "number of ranks"}.get(fact, fact)
            cause = f"{number} ({word}, {where}) cannot be cut evenly over {ranks}"
            needs = "" if where.startswith("given") else "model"
            blame = None if needs and _NAMED.search(r.low) and not r.concepts else True
            sure = score - 0.25 * (not exact)
            yield found(_BY_FACT[fact], sure, cause, equation, parallel=blame, needs=needs)


_NAMED = re.compile(r"\b[a-z]{2,30}_[a-z]{2,30}\b")
"""A name of user code, such as num_groups, that none of the concepts knows."""

_KV_WEIGHT = re.compile(r"\b[kv]_proj\b|\bw[kv]\b")


def _category(o: Divides, by: frozenset[str], r: Reading, known: Known) -> str | None:
    """The category that the words name, or None."""
    category = _BY_SUBJECT.get(o.subject)
    if o.subject in _AXES and by & {"kv", "heads"}:  # tp % n_kv_heads: the rule of replicated KV heads
        return "kv_heads_lt_tp" if "kv" in by else "heads_not_divisible"
    if o.subject == "heads" and _KV_WEIGHT.search(r.low):
        return "kv_heads_lt_tp"
    if o.subject == "tp" and by.isdisjoint({"world", "tp", "pp", "dp", "cp"}):
        return None
    if category == "layers_not_divisible_pp" and "microbatch" in o.beside | by:
        return "microbatch_divisibility"
    few = o.number is not None and o.divisor is not None and o.number < o.divisor
    if o.subject == "heads" and few and o.number == known.get("n_kv_heads"):
        return "kv_heads_lt_tp"
    return category


def _tile(
    number: int | None, exact: bool, sure: float, equation: Equation | None, known: Known
) -> Hypothesis:
    """A quantised weight against a group or tile: cut by tp, or too odd to begin with?"""
    tp, whole = known.get("tp"), _whole_width(number, known)
    told = f": {equation}" if equation else ""
    if whole and tp in (None, 1):
        cause = f"{whole}, not cut at all: the quantised weight itself does not fit the kernel{told}"
        proven = known.model or tp
        ask = "" if proven else "model, tp"
        blame = False if proven else None
        return found("quant_group_vs_tp", sure, cause, equation, parallel=blame, needs=ask)
    cause = f"a rank's slice of a quantised weight is no multiple of its group or tile{told}"
    blame = first((exact or (tp or 0) > 1, True), (tp, False), otherwise=None)
    ask = "" if exact or tp else "tp, ffn_dim, group size"
    return found("quant_group_vs_tp", sure, cause, equation, parallel=blame, needs=ask)


def _whole_width(number: int | None, known: Known) -> str:
    """The whole width of a public (or the known) model that a number is, in words; "" where none."""
    for m in known.models() if number else ():
        widths = {
            "ffn_dim": m.ffn_dim,
            "2·ffn_dim": 2 * m.ffn_dim,
            "q_dim + 2·kv_dim": m.q_dim + 2 * m.kv_dim,
        }
        for name, width in widths.items():
            if width == number:
                return f"{number} is {name} of {m.name}"
    return ""


def roles(
    number: int, divisor: int | None, concepts: frozenset[str], known: Known
) -> Iterator[tuple[str, str, float]]:
    """What a bare number may be: (fact, where that is from, how likely)."""
    tp, vocab, m = known.get("tp"), known.get("vocab_size"), known.model
    for fact in ("world", *_BY_FACT):
        if fact in ("world", "n_layers") and divisor and divisor == tp and divisor != known.get("pp"):
            continue  # a tensor's size rather than a count of ranks or layers
        if known.get(fact) == number:
            yield fact, "given", 0.9
    if known.get("world") == number:
        yield "world", "given", 0.85
    if vocab and any(p.padded(vocab, tp or 1) == number != vocab for p in PADDED):
        yield "vocab_size", "given, padded", 0.85
    if m:
        for fact in ("kv_dim", "q_dim"):
            if getattr(m, fact) == number and not (fact == "kv_dim" and m.kv_dim == m.q_dim):  # Q is first
                yield fact, f"given by {m.name}", 0.86 if number != m.dim else 0.8
        return
    for concept, fact, low, high in _BESIDE:
        if concept in concepts and low <= number < high:
            yield fact, "by the words beside it", 0.65
    for fact in ("vocab_size", "n_heads", "ffn_dim", "kv_dim", "dim"):
        models = [m for m in zoo().values() if getattr(m, fact) == number]
        if fact == "kv_dim":  # of grouped heads, whose number the divisor does not divide
            models = [m for m in models if m.kv_dim < m.q_dim and m.n_kv_heads % (divisor or 2)]
        named = [m.name for m in models]
        if named:
            yield fact, named[0], 0.6 - 0.05 * (fact == "kv_dim" and len(named) < 3)
    if number <= 256:
        small = divisor is not None and number < divisor and number <= 16
        yield ("n_kv_heads" if small else "n_heads"), "by its size", 0.5
    else:
        vocabulary = number >= 30000 and number % 1024
        yield ("vocab_size", "by its size", 0.45) if vocabulary else ("dim", "by its size", 0.4)


_BESIDE = (
    ("vocab", "vocab_size", 5000, 2**22),
    ("kv", "n_kv_heads", 1, 512),
    ("heads", "n_heads", 1, 512),
    ("ffn", "ffn_dim", 512, 2**18),
)
"""What is spoken of near a bare number, and how large such a number is."""


def _unnamed(o: Divides, known: Known) -> Iterator[Hypothesis]:
    """`numerator % denominator` without numbers: which of the known sizes does tp not divide?"""
    tp, needs = known.get("tp"), "model, tp"
    if o.subject in ("dimension", "hidden"):
        width = known.get("ffn_dim")
        cut = Quotient(width, tp) if width and tp and width % tp else None
        cause = "a width cannot be cut evenly over the ranks"
        yield found(
            "hidden_or_ffn_not_divisible", 0.7 if cut else 0.55, cause, cut, needs="" if cut else needs
        )
        return
    sizes = {fact: known.get(fact) for fact in ("n_heads", "n_kv_heads", "ffn_dim", "vocab_size")}
    if sizes["vocab_size"]:
        sizes["vocab_size"] = Padding(64).padded(sizes["vocab_size"], tp or 1)
    fails = [(fact, size) for fact, size in sizes.items() if size and tp and size % tp]
    if len(fails) == 1 and tp:
        fact, size = fails[0]
        yield found(
            _BY_FACT[fact], 0.7, f"{fact} {size} cannot be cut evenly over tp={tp}", Quotient(size, tp)
        )
    if len(fails) > 1 and tp:
        cause = f"tp={tp} divides none of {', '.join(f'{fact} {size}' for fact, size in fails)}"
        yield found("other", 0.75, cause, *(Quotient(size, tp) for _, size in fails), needs=needs)
        return
    cause = "a size that has to be cut is no multiple of the ranks; the text does not say which"
    yield found("other", 0.4, cause, needs=needs)
    yield found("hidden_or_ffn_not_divisible", 0.3, cause, needs=needs)


# -- orders, and the numbers alone -----------------------------------------------------------------


def explain_order(o: Order, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """A list in steps: parts of a fused weight, or ranks, gathered in the wrong order."""
    step = f"{o.count} parts in steps of {o.stride}"
    ranks = re.search(r"ranks?\b|group|mesh", r.low)
    halves, subtype = ("gate and up", ": fused_swiglu_order") if o.stride == 2 else ("Q, K and V", "")
    cause = f"{step}: {halves} of each rank were put together in another order"
    yield found("fused_qkv_layout" + subtype, 0.4 if ranks else 0.62, cause, needs="name of the weight, tp")
    if ranks:
        yield found("rank_mapping_hang", 0.6, f"{step}: another rank order", needs="layout")


def background(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """What is wrong with the known numbers themselves, where the text speaks of shapes or parts at all."""
    if not (r.shapes or r.concepts or "division" in r.low):
        return
    tp, pp, m = known.get("tp"), known.get("pp") or 1, known.model
    for fact, score in (("n_kv_heads", 0.5), ("n_heads", 0.46)):
        n = known.get(fact)
        if tp and n and n % tp:
            category = "kv_heads_lt_tp" if n < tp and not known.get("n_kv_heads") else _BY_FACT[fact]
            cause = f"{fact} {n} does not divide over tp={tp}"
            yield found(category, score, cause, Quotient(n, tp), facts={"tp": tp, fact: n})
    if pp > 1 and m and m.tied and r.concepts & {"pp", "vocab", "layers"}:
        yield found(
            "tied_embeddings", 0.6, f"{m.name} ties its head to the embedding, and pp={pp} parts them"
        )


# -- counts that should agree ----------------------------------------------------------------------

_TWO_RUNS = re.compile(
    r"checkpoint|ckpt|saved|resum|restor|loading a|mp_rank|consolidated|zero_pp_rank|tp_?rank_?\d|reshard|"
    r"(?:different|old|new|original|source|target) (?:tp|mp|dp|pp|tensor|world|model|parallel)|converted"
)
_LAYERS = re.compile(
    r"(\d{1,6})(?= of \d{1,6} \w{0,12} ?(?:layer|block))|(\d{1,6})[ -](?:\w{1,12} )?(?:layers?|blocks)\b"
)


def explain_unequal(o: Unequal, r: Reading, known: Known) -> Iterator[Hypothesis]:
    concepts = {t.concept for t in o.terms}
    axes = concepts & set(_AXES)
    if _TWO_RUNS.search(r.low) and (axes or "world" in concepts):
        return  # a matter of two layouts, see `topics`
    samples = bool(concepts & {"microbatch", "batch"})
    if samples:
        yield from _batches(o, r, concepts, bool(axes))
    else:
        yield from _products(o, r, concepts, known)
    if "vocab" in concepts:
        yield from _padded(o.values, known)
    layers = [int(first or second) for first, second in _LAYERS.findall(r.low)]
    layers += [t.number for t in o.terms if t.concept == "layers" and t.number]
    staged = "pp" in concepts or (known.get("pp") or 1) > 1
    if not concepts & {"world", "microbatch"} and ((staged and layers) or len(set(layers)) > 1):
        yield from _layers(list(dict.fromkeys(layers)), known)


def _batches(o: Unequal, r: Reading, concepts: set[str], axes: bool) -> Iterator[Hypothesis]:
    if "layers" in concepts:
        return
    asked = axes or "microbatch" in concepts
    score = first(("world" in concepts, 0.8), (asked, 0.7), otherwise=0.45)
    wrong = [
        Comparison(Product(row), "≠", n)
        for row, value in r.products[:1]
        for n in o.values
        if n not in (*row, value)
    ]
    cause = "batch, micro-batches and stages or DP groups do not multiply out"
    yield found("microbatch_divisibility", score, cause, *wrong[:1], parallel=asked or None)


def _products(o: Unequal, r: Reading, concepts: set[str], known: Known) -> Iterator[Hypothesis]:
    """Degrees, written as a product or one by one, against the number of ranks."""
    ranks = [t for t in o.terms if t.concept == "world"]
    degrees = [t.number for t in o.terms if t.concept in _AXES and t.number]
    for row, value in ((row, value) for row, value in r.products if value > 0):
        others = [n for n in o.values if n not in row and n not in (value, 1)]
        told = next((n for n in (*others, known.get("world")) if n and n != value), None)
        if told and value not in (2**31, 2**32) and (ranks or told % value == 0 or value % told == 0):
            cause = f"the degrees multiply to {value}, not to {told}"
            yield found(
                "world_size_product", 0.85, cause, Comparison(Product(row), "≠", told), facts={"world": told}
            )
    if ranks and (concepts & set(_AXES) or re.search(r"mesh|process|gpus?\b|devices", r.low)):
        have = next((t.number for t in ranks if t.number), None) or known.get("world")
        product = math.prod(degrees)
        sign = "=" if product == have else "≠"
        equation = Comparison(Product(tuple(degrees)), sign, have) if have and product > 1 else None
        numbers = ", ".join(map(str, [n for n in dict.fromkeys(o.values) if n][:5]))
        cause = (
            f"the degrees do not multiply to the number of ranks: {numbers or 'the text gives no numbers'}"
        )
        needs = "" if numbers else "world, tp, pp, dp"
        yield found(
            "world_size_product", 0.82 if concepts & set(_AXES) else 0.6, cause, equation, needs=needs
        )


def _padded(values: tuple[int, ...], known: Known) -> Iterator[Hypothesis]:
    """A vocabulary and the same one padded."""
    for small, big in zip(sorted(values), sorted(values)[1:], strict=False):
        pads = any(
            p.padded(small, known.get("tp") or 1) == big for p in (*PADDED, Padding(512), Padding(1024))
        )
        if 10000 < small < big < 1.1 * small and pads:
            cause = f"a vocabulary of {small} rows is padded to {big}"
            equation = Stated(f"{big} - {small} = {big - small} pad rows")
            yield found("vocab_padding", 0.72, cause, equation, needs="padding, tp")
            return


def _layers(layers: list[int], known: Known) -> Iterator[Hypothesis]:
    """n layers in, fewer out: floor division over stages, once or twice."""
    pp, given = known.get("pp"), known.get("n_layers") or 0
    for total in sorted({*layers, given}, reverse=True):
        for kept in (n for n in layers if 0 < n < total):
            for stages in [pp] if pp else range(2, 65):
                for chunks in (1, 2, 3, 4, 5, 6, 8):
                    each = total // stages // chunks
                    if each * chunks * stages == kept:
                        twice = f", //{chunks} = {each}" if chunks > 1 else ""
                        lost = Quotient(total, stages, floor=True, after=twice)
                        cause = (
                            f"{total} layers over {stages} stages round down: {total - kept} layers are lost"
                        )
                        rest = Comparison(Product((each, chunks, stages)), "of", total)
                        yield found(
                            "layers_not_divisible_pp", 0.88, cause, lost, rest, needs="" if pp else "pp"
                        )
                        return
    equation = Quotient(layers[0], pp) if pp and layers else None
    yield found("layers_not_divisible_pp", 0.6, "the layers and the stages do not come out even", equation)
