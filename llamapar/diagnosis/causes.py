"""Hypotheses from relations between counts: divisibility, products, orders, and the known numbers alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from llamapar.describe.splits import Padding
from llamapar.records.equations import Equation, Quotient

from .hypothesis import LIKELY, POSSIBLE, WEAK, Hypothesis, Level, first, found
from .known import VOCABULARIES, Known, zoo
from .observations import AXES, Divides, Order
from .reading import Reading
from .views import explain_columns, is_head_dim
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

_STRONG = frozenset(("kv", "heads", "vocab", "layers", "world", "expert", "seq", "microbatch", "batch"))


def _by_code(o: Divides, r: Reading) -> Divides:
    """A relation of two bare numbers with the names that the lines of source over it give them."""
    for line in reversed(r.code if not (o.subject or o.by) else ()):
        words = Reading(line.partition(" = ")[2] or line)
        terms = words.terms
        if not terms:
            continue
        first_of = words.low[terms[0].start : terms[0].end]
        subject = "ffn" if first_of.startswith("embed") and terms[0].concept == "hidden" else terms[0].concept
        if subject in _STRONG | {"ffn"}:
            return replace(
                o, subject=subject, by=frozenset(t.concept for t in terms[1:]), beside=frozenset((subject,))
            )
    return o


def explain_divides(o: Divides, r: Reading, known: Known) -> Iterator[Hypothesis]:
    o = _by_code(o, r)
    if _NLL.search(r.low):
        cause = "a loss is taken over shards of the tokens that differ in length"
        yield found("seq_not_divisible", LIKELY, cause, needs="seq_len, tp, cp")
        return
    number, divisor, subject = o.number, o.divisor, o.subject
    by = o.by | {axis for axis in AXES if divisor and divisor > 1 and known.numbers.get(axis) == divisor}
    axes = [axis for axis in AXES if (known.get(axis) or 1) > 1]
    if by <= {"dimension"} and "mesh" in r.low and len(axes) == 1:
        by = frozenset(axes)
    concepts = o.beside | by
    exact = number is not None and bool(divisor) and number % (divisor or 1) != 0
    level = LIKELY if exact or number is None or not divisor else POSSIBLE
    equation = Quotient(number, divisor) if number is not None and divisor else None
    ranks = divisor or " or ".join(sorted(by & {*AXES, "world"})) or "the ranks"
    units = _WORDS.get(subject, "units")
    width = o.beside & {"hidden", "dimension"} and subject in ("hidden", "dimension")
    contradiction = ("heads" in by and bool(width)) or (subject == "heads" and "kv" in by)
    uneven = re.search(r"uneven|flat_?param", r.low) and _MESH.search(r.low) and "unflatten" not in r.low
    uneven = uneven or (_DIM_0.search(r.low) and by <= {"world", "dp"})
    cause = f"{'the' if number is None else number} {units} cannot be cut evenly over {ranks}"

    if "expert" in concepts and ("ep" in concepts or subject == "expert"):
        yield found("other: experts_not_divisible_ep", level, cause, equation)
    elif subject == "head_dim":
        cause = "a kernel's rule on the head size; no parallelism is needed for it"
        yield found("other: kernel_limit", LIKELY, cause, equation, parallel=False)
    elif "all_to_all" in r.low and number is not None and number <= _FEW:
        for category in ("kv_heads_lt_tp", "heads_not_divisible"):
            cause = f"an all-to-all deals {number} heads out to {divisor or 'the'} ranks"
            yield found(
                category, POSSIBLE, cause, equation, parallel=None, needs="tp, cp, n_heads, n_kv_heads"
            )
    elif _SDPA.search(r.low) and not known.alone("tp"):
        tp, kv = known.get("tp"), known.get("n_kv_heads")
        cut = bool(tp and kv and kv % tp)
        numbers = Quotient(kv, tp) if tp and kv and cut else None
        cause = "a rank's query heads are no multiple of its KV heads: does tp divide these?"
        yield found(
            "kv_heads_lt_tp", LIKELY, cause, numbers, parallel=True if cut else None, needs="tp, n_kv_heads"
        )
    elif columns := _columns(o, r, known):
        yield from columns
    elif by.isdisjoint({"tp", "world"}) and contradiction:
        cause = (
            "the model's own width, heads and KV heads contradict each other; no parallelism is needed for it"
        )
        yield found("other: model_config", LIKELY, cause, equation, parallel=False)
    elif "quant" in concepts:
        yield _tile(number, exact, level, equation, known)
    elif subject in ("dimension", "hidden", "dp", "tp", "world", "vocab", "") and uneven:
        yield found("fsdp_uneven", LIKELY, cause, equation)
    elif named := _category(o, by, r, known):
        facts = {"tp": divisor} if divisor and named in ("heads_not_divisible", "kv_heads_lt_tp") else {}
        yield found(named, level, cause, equation, facts=facts)
    elif axis := next((axis for axis in _BY_AXIS if axis in by), None):
        yield found(_BY_AXIS[axis], LIKELY if exact else POSSIBLE, cause, equation)
    elif number is None:
        yield from _unnamed(o, known)
    else:
        for fact, where, role in roles(number, divisor, r.concepts, known):
            word = {"dim": "width", "world": "number of ranks"}.get(fact, fact)
            cause = f"{number} ({word}, {where}) cannot be cut evenly over {ranks}"
            needs = "model"
            blame = None if needs and _NAMED.search(r.low) and not r.concepts else True
            yield found(
                _BY_FACT[fact],
                role if exact else min(role, WEAK),
                cause,
                equation,
                parallel=blame,
                needs=needs,
            )


_SDPA = re.compile(r"heads in keys? and values? must divide")
_FEW = 256
"""Most heads that a model has; more are no count of heads."""

_NLL = re.compile(r"nll_loss|cross_entropy")
_NAMED = re.compile(r"\b[a-z]{2,30}_[a-z]{2,30}\b")
"""A name of user code, such as num_groups, that none of the concepts knows."""

_KV_WEIGHT = re.compile(r"\b[kv]_proj\b|\bw[kv]\b")


def _columns(o: Divides, r: Reading, known: Known) -> list[Hypothesis]:
    """Two bare numbers that may be the columns of a rank and the size of a head."""
    if o.subject or not o.number or not o.divisor or known.get("quant_group") or not is_head_dim(o.divisor):
        return []
    return list(explain_columns(o.number, o.divisor, r, known))


def _category(o: Divides, by: frozenset[str], r: Reading, known: Known) -> str | None:
    """The category that the words name, or None."""
    category = _BY_SUBJECT.get(o.subject)
    if o.subject in AXES and by & {"kv", "heads"}:  # tp % n_kv_heads: the rule of replicated KV heads
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
    number: int | None, exact: bool, level: Level, equation: Equation | None, known: Known
) -> Hypothesis:
    """A quantised weight against a group or tile: cut by tp, or too odd to begin with?"""
    tp, whole = known.get("tp"), _whole_width(number, known)
    told = f": {equation}" if equation else ""
    if whole and tp in (None, 1):
        cause = f"{whole}, not cut at all: the quantised weight itself does not fit the kernel{told}"
        proven = known.model or tp
        blame = False if proven else None
        return found("quant_group_vs_tp", level, cause, equation, parallel=blame)
    cause = f"a rank's slice of a quantised weight is no multiple of its group or tile{told}"
    blame = first((exact or (tp or 0) > 1, True), (tp, False), otherwise=None)
    return found("quant_group_vs_tp", level, cause, equation, parallel=blame)


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
) -> Iterator[tuple[str, str, Level]]:
    """What a bare number may be: (fact, where that is from, how likely)."""
    tp, vocab, m = known.get("tp"), known.get("vocab_size"), known.model
    batch, dp = known.get("global_batch"), known.get("dp") or 0
    if batch and dp > 1 and number == batch // dp:
        yield "global_batch", f"given, over dp={dp}", LIKELY
    for fact in ("world", *_BY_FACT):
        if fact in ("world", "n_layers") and divisor and divisor == tp and divisor != known.get("pp"):
            continue  # a tensor's size rather than a count of ranks or layers
        if known.get(fact) == number:
            yield fact, "given", LIKELY
    if known.get("world") == number:
        yield "world", "given", LIKELY
    if vocab and any(p.padded(vocab, tp or 1) == number != vocab for p in PADDED):
        yield "vocab_size", "given, padded", LIKELY
    if m:
        for fact in ("kv_dim", "q_dim"):
            if getattr(m, fact) == number and not (fact == "kv_dim" and m.kv_dim == m.q_dim):  # Q is first
                yield fact, f"given by {m.name}", LIKELY
        return
    for concept, fact, low, high in _BESIDE:
        if concept in concepts and low <= number < high:
            yield fact, "by the words beside it", POSSIBLE
    if number in VOCABULARIES:
        yield "vocab_size", "a public vocabulary", POSSIBLE
    for fact in ("vocab_size", "n_heads", "ffn_dim", "kv_dim", "dim"):
        models = [m for m in zoo().values() if getattr(m, fact) == number]
        if fact == "kv_dim":  # of grouped heads, whose number the divisor does not divide
            models = [m for m in models if m.kv_dim < m.q_dim and m.n_kv_heads % (divisor or 2)]
        named = [m.name for m in models]
        if named:
            yield fact, named[0], POSSIBLE
    if number <= 256:
        small = divisor is not None and number < divisor and number <= 16
        yield ("n_kv_heads" if small else "n_heads"), "by its size", WEAK
    else:
        vocabulary = number >= 30000 and number % 1024
        yield ("vocab_size", "by its size", WEAK) if vocabulary else ("dim", "by its size", WEAK)


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
    if o.by & {"batch", "microbatch"} and not o.by & {*AXES}:
        cause = "a size that is dealt out to the batch is no multiple of it"
        yield found("microbatch_divisibility", POSSIBLE, cause, parallel=None)
        return
    if o.subject in ("dimension", "hidden"):
        width = known.get("ffn_dim")
        cut = Quotient(width, tp) if width and tp and width % tp else None
        cause = "a width cannot be cut evenly over the ranks"
        yield found(
            "hidden_or_ffn_not_divisible", LIKELY if cut else POSSIBLE, cause, cut, needs="" if cut else needs
        )
        return
    sizes = {fact: known.get(fact) for fact in ("n_heads", "n_kv_heads", "ffn_dim", "vocab_size")}
    if sizes["vocab_size"]:
        sizes["vocab_size"] = Padding(64).padded(sizes["vocab_size"], tp or 1)
    fails = [(fact, size) for fact, size in sizes.items() if size and tp and size % tp]
    if len(fails) == 1 and tp:
        fact, size = fails[0]
        yield found(
            _BY_FACT[fact], LIKELY, f"{fact} {size} cannot be cut evenly over tp={tp}", Quotient(size, tp)
        )
    if len(fails) > 1 and tp:
        cause = f"tp={tp} divides none of {', '.join(f'{fact} {size}' for fact, size in fails)}"
        yield found("other", POSSIBLE, cause, *(Quotient(size, tp) for _, size in fails), needs=needs)
        return
    cause = "a size that has to be cut is no multiple of the ranks; the text does not say which"
    yield found("other", WEAK, cause, needs=needs)
    yield found("hidden_or_ffn_not_divisible", WEAK, cause, needs=needs)


# -- orders, and the numbers alone -----------------------------------------------------------------


def explain_order(o: Order, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """A list in steps: parts of a fused weight, or ranks, gathered in the wrong order."""
    step = f"{o.count} parts in steps of {o.stride}"
    ranks = re.search(r"ranks?\b|group|mesh", r.low)
    halves, subtype = ("gate and up", ": fused_swiglu_order") if o.stride == 2 else ("Q, K and V", "")
    cause = f"{step}: {halves} of each rank were put together in another order"
    yield found(
        "fused_qkv_layout" + subtype, WEAK if ranks else POSSIBLE, cause, needs="name of the weight, tp"
    )
    if ranks:
        yield found("rank_mapping_hang", POSSIBLE, f"{step}: another rank order", needs="layout")


def background(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """What is wrong with the known numbers themselves, where the text speaks of shapes or parts at all."""
    if not (r.shapes or r.concepts or "division" in r.low):
        return
    tp, pp, m = known.get("tp"), known.get("pp") or 1, known.model
    for fact in ("n_kv_heads", "n_heads"):
        n = known.get(fact)
        if tp and n and n % tp:
            category = "kv_heads_lt_tp" if n < tp and not known.get("n_kv_heads") else _BY_FACT[fact]
            cause = f"{fact} {n} does not divide over tp={tp}"
            yield found(category, POSSIBLE, cause, Quotient(n, tp), facts={"tp": tp, fact: n})
    if pp > 1 and m and m.tied and r.concepts & {"pp", "vocab", "layers"}:
        yield found(
            "tied_embeddings", POSSIBLE, f"{m.name} ties its head to the embedding, and pp={pp} parts them"
        )
