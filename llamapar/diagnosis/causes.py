"""Hypotheses from relations between counts: divisibility, products, orders, and the known numbers alone.

Each relation is judged by what its numbers and names are in the known model, or in a public one. Relations of
whole tensors' sizes are left out: `slips` explains those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from llamapar.records.equations import Product, Quotient, rest

from .cuts import is_head_dim
from .hypothesis import LIKELY, POSSIBLE, WEAK, Hypothesis, Level, first, first_heard, found
from .known import Known
from .observations import AXES, Divides
from .reading import Reading
from .roles import BY_FACT, explain_unnamed, roles
from .view_errors import explain_columns
from .vocabulary import BY_CONCEPT, categories_of
from .words import pattern

# -- A has to be a multiple of B -------------------------------------------------------------------

_BY_AXIS = {"cp": "seq_not_divisible", "dp": "microbatch_divisibility", "pp": "layers_not_divisible_pp"}
"""The axis that divides → the category, where what is divided has no name."""

_WORDS = {
    "kv": "KV heads", "heads": "query heads", "vocab": "vocabulary rows", "layers": "layers", "seq": "tokens",
    "microbatch": "micro-batches", "batch": "samples of the batch", "world": "ranks", "expert": "experts",
    "ffn": "FFN columns", "hidden": "columns", "dimension": "columns",
}  # fmt: skip
_MESH = pattern("mesh_of_fsdp")
_DIM_0 = re.compile(r"(?:first dim\w{0,8}|dim(?:ension)? ?0) of (?:the )?param")
"""Where FSDP cuts a parameter."""

_STRONG = frozenset(("kv", "heads", "vocab", "layers", "world", "expert", "seq", "microbatch", "batch"))


def _by_code(o: Divides, r: Reading) -> Divides:
    """A relation of two bare numbers, with the names that the lines of source above it give them."""
    for line in reversed(r.code if not (o.subject or o.by) else ()):
        words = Reading(line.partition(" = ")[2] or line)
        terms = words.terms
        if not terms:
            continue
        subject = terms[0].concept
        if subject in _STRONG | {"ffn"}:
            return replace(
                o, subject=subject, by=frozenset(t.concept for t in terms[1:]), beside=frozenset((subject,))
            )
    return o


@dataclass(frozen=True)
class Relation:
    """A `Divides`, with the meaning of its numbers and words given the known facts.

    misread: the divisor beside the words does divide, so the text means another number.
    """

    o: Divides
    r: Reading
    known: Known
    misread: bool = False

    @cached_property
    def by(self) -> frozenset[str]:
        """The name of the divisor: as the text says, or the axis whose known degree equals it."""
        divisor = self.o.divisor or 0
        by = self.o.by | {axis for axis in AXES if divisor > 1 and self.known.numbers.get(axis) == divisor}
        axes = [axis for axis in AXES if (self.known.get(axis) or 1) > 1]
        return frozenset(axes) if by <= {"dimension"} and "mesh" in self.r.low and len(axes) == 1 else by

    @property
    def concepts(self) -> frozenset[str]:
        return self.o.beside | self.by

    @property
    def exact(self) -> bool:
        """Whether both numbers are present and do not divide."""
        return self.equation is not None

    @property
    def level(self) -> Level:
        return POSSIBLE if self.misread else LIKELY

    @property
    def equation(self) -> Quotient | None:
        return rest(self.o.number, self.o.divisor)

    @property
    def ranks(self) -> str:
        """The ranks over which it is cut, in words."""
        named = " or ".join(sorted(self.by & {*AXES, "world"}))
        divisor = Product(self.o.factors) if len(self.o.factors) > 1 else self.o.divisor
        return str(divisor or named or ("their divisor" if self.misread else "the ranks"))

    @property
    def cause(self) -> str:
        number = self.o.number or "the"
        return f"{number} {_WORDS.get(self.o.subject, 'units')} cannot be cut evenly over {self.ranks}"

    def found(
        self, category: str, cause: str = "", parallel: bool | None = True, needs: str = ""
    ) -> Hypothesis:
        return found(category, self.level, cause or self.cause, self.equation, parallel=parallel, needs=needs)


def explain_divides(o: Divides, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Find what is divided, and by what: the first reader of `_IN_TURN` with a result decides."""
    o = _by_code(o, r)
    misread = None not in (o.number, o.divisor) and rest(o.number, o.divisor) is None
    o = replace(o, divisor=None, factors=()) if misread else o
    yield from first_heard(_IN_TURN, Relation(o, r, known, misread))


_NLL = re.compile(r"nll_loss|cross_entropy")


def _loss(it: Relation) -> Iterator[Hypothesis]:
    if _NLL.search(it.r.low):
        cause = "a loss is taken over shards of the tokens that differ in length"
        yield found("seq_not_divisible", LIKELY, cause, needs="seq_len, tp, cp")


def _experts(it: Relation) -> Iterator[Hypothesis]:
    # These are groups of experts that tokens are routed to; they lie on no rank.
    routed = re.search(r"router|group", it.r.low)
    if "expert" in it.concepts and ("ep" in it.concepts or (it.o.subject == "expert" and not routed)):
        yield it.found("other: experts_not_divisible_ep")


_MOST_HEADS = 256
"""Of a model; a larger number counts no heads."""


def _dealt_heads(it: Relation) -> Iterator[Hypothesis]:
    """An all-to-all distributes the heads, as in Ulysses."""
    if "all_to_all" not in it.r.low or it.o.number is None or it.o.number > _MOST_HEADS:
        return
    cause = f"an all-to-all deals {it.o.number} heads out to {it.o.divisor or 'the'} ranks"
    for category, fact in (("kv_heads_lt_tp", "n_kv_heads"), ("heads_not_divisible", "n_heads")):
        level = LIKELY if it.known.get(fact) == it.o.number else POSSIBLE
        blame = True if level is LIKELY else None
        yield found(category, level, cause, it.equation, parallel=blame, needs="tp, cp, n_heads, n_kv_heads")


_SDPA = re.compile(r"heads in keys? and values? must divide")


def _queries_over_keys(it: Relation) -> Iterator[Hypothesis]:
    """torch's attention: the query heads of a rank are no multiple of its KV heads."""
    if not _SDPA.search(it.r.low) or it.known.alone("tp"):
        return
    tp, kv = it.known.get("tp"), it.known.get("n_kv_heads")
    cut = Quotient(kv, tp) if tp and kv and kv % tp else None
    cause = "a rank's query heads are no multiple of its KV heads: does tp divide these?"
    yield found("kv_heads_lt_tp", LIKELY, cause, cut, parallel=True if cut else None, needs="tp, n_kv_heads")


def _columns(it: Relation) -> Iterator[Hypothesis]:
    """Two bare numbers that may be the columns of a rank and the size of a head."""
    o = it.o
    if (
        not o.subject
        and o.number
        and o.divisor
        and not it.known.get("quant_group")
        and is_head_dim(o.divisor)
    ):
        yield from explain_columns(o.number, o.divisor, it.r, it.known)


def _own_numbers(it: Relation) -> Iterator[Hypothesis]:
    """Width over heads, or heads over KV heads: numbers of the model that no axis cuts."""
    width = it.o.subject in ("hidden", "dimension")
    among = ("heads" in it.by and width) or (it.o.subject == "heads" and "kv" in it.by)
    if among and it.by.isdisjoint({"tp", "world"}):
        cause = (
            "the model's own width, heads and KV heads contradict each other; no parallelism is needed for it"
        )
        yield found("other: model_config", LIKELY, cause, it.equation, parallel=False)


def _tile(it: Relation) -> Iterator[Hypothesis]:
    """A quantised weight against a group or tile: does tp cut it, or is it already odd?"""
    if "quant" not in it.concepts:
        return
    tp, whole = it.known.get("tp"), _whole_width(it.o.number, it.known)
    numbers = f": {it.equation}" if it.equation else ""
    if whole and tp in (None, 1):
        cause = f"{whole}, not cut at all: the quantised weight itself does not fit the kernel{numbers}"
        yield it.found("quant_group_vs_tp", cause, False if it.known.model or tp else None)
        return
    cause = f"a rank's slice of a quantised weight is no multiple of its group or tile{numbers}"
    blame = first((it.exact or (tp or 0) > 1, True), (tp, False), otherwise=None)
    yield it.found("quant_group_vs_tp", cause, blame)


def _uneven_shards(it: Relation) -> Iterator[Hypothesis]:
    low = it.r.low
    uneven = re.search(r"uneven|flat_?param", low) and _MESH.search(low) and "unflatten" not in low
    if uneven or _DIM_0.search(low):
        yield found("fsdp_uneven", LIKELY, it.cause, it.equation)


def _explain_named_division(it: Relation) -> Iterator[Hypothesis]:
    """The dividend has a name, or the dividing axis has one."""
    category = _category(it)
    axis = next((axis for axis in _BY_AXIS if axis in it.by), None)
    if category:
        facts = {"tp": it.o.divisor} if it.o.divisor and category in _HEADS else {}
        yield replace(it.found(category), facts=facts)
    elif axis:
        yield found(_BY_AXIS[axis], LIKELY if it.exact else POSSIBLE, it.cause, it.equation)


def _bare(it: Relation) -> Iterator[Hypothesis]:
    """Numbers without names, or not even numbers."""
    if it.o.number is None:
        yield from explain_unnamed(it.o, it.known)
        return
    for fact, where, level in roles(it.o.number, it.o.divisor, it.r.concepts, it.known):
        word = {"dim": "width", "world": "number of ranks"}.get(fact, fact)
        cause = f"{it.o.number} ({word}, {where}) cannot be cut evenly over {it.ranks}"
        level = level if it.exact else min(level, WEAK)
        if level is WEAK and it.exact and it.o.number > _MOST_HEADS and it.by & {*AXES}:
            level = POSSIBLE  # This is certainly a cut, although its size is unknown.
            if named := categories_of(it.r.named):
                yield found(named[0], level, it.cause, it.equation, needs="model")
                return
        other = _NAMED.search(it.r.low) and not it.r.concepts - {"dimension"} and not it.r.parallel
        blame = None if other and level < LIKELY else True
        yield found(BY_FACT[fact], level, cause, it.equation, parallel=blame, needs="model")


_IN_TURN = (
    _loss, _experts, _dealt_heads, _queries_over_keys, _columns, _own_numbers, _tile,
    _uneven_shards, _explain_named_division, _bare,
)  # fmt: skip

_HEADS = ("heads_not_divisible", "kv_heads_lt_tp")
_NAMED = re.compile(r"\b[a-z]{2,30}_[a-z]{2,30}\b")
"""A name of user code, such as num_groups, that none of the concepts knows."""

_KV_WEIGHT = re.compile(r"\b[kv]_proj\b|\bw[kv]\b")


def _category(it: Relation) -> str | None:
    """The category of the words, or None."""
    o, by = it.o, it.by
    category = BY_CONCEPT.get(o.subject)
    if o.subject in AXES and by & {"kv", "heads"}:  # tp % n_kv_heads: the rule of replicated KV heads
        return "kv_heads_lt_tp" if "kv" in by else "heads_not_divisible"
    if o.subject == "heads" and _KV_WEIGHT.search(it.r.low):
        return "kv_heads_lt_tp"
    if o.subject == "tp" and by.isdisjoint({"world", "tp", "pp", "dp", "cp"}):
        return None
    return category


def _whole_width(number: int | None, known: Known) -> str:
    """The full width of a public (or the known) model that equals a number, in words; "" without one."""
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
