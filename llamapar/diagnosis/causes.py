"""Hypotheses from relations between counts: divisibility, products, orders, and the known numbers alone.

Each relation is judged by what its numbers and names are in the known model, or in a public one. Relations of
whole tensors' sizes are left out: `slips` explains those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from llamapar.describe.models import public_models
from llamapar.records.equations import Quotient, rest

from .cuts import widths
from .hypothesis import LIKELY, POSSIBLE, WEAK, Hypothesis, Level, first_heard, found, likely_if
from .known import Known
from .observations import AXES, Divides
from .reading import Reading
from .vocabulary import BY_CONCEPT
from .words import pattern, table

# -- A has to be a multiple of B -------------------------------------------------------------------

_BY_AXIS = {
    "cp": "seq_not_divisible",
    "dp": "microbatch_divisibility",
    "pp": "layers_not_divisible_pp",
    "ep": "other: experts_not_divisible_ep",
}
"""The axis that divides → the category, where what is divided has no name."""

_WORDS = {
    "kv": "KV heads", "heads": "query heads", "vocab": "vocabulary rows", "layers": "layers", "seq": "tokens",
    "microbatch": "micro-batches", "batch": "samples of the batch", "world": "ranks", "expert": "experts",
    "ffn": "FFN columns", "hidden": "columns", "dimension": "columns",
}  # fmt: skip
_FACTS = {
    "kv": "n_kv_heads", "heads": "n_heads", "vocab": "vocab_size", "layers": "n_layers", "seq": "seq_len",
    "ffn": "ffn_dim", "hidden": "dim", "batch": "global_batch", "world": "world",
}  # fmt: skip
"""What a text calls a size → the fact that it is."""

_CUT_BY = {"cp": "seq_len", "pp": "n_layers", "dp": "global_batch"}
"""An axis → the fact that it cuts, where the text names no size."""

_MESH = pattern("mesh_of_fsdp")
_UNNAMED = pattern("unnamed_division")
_DIM_0 = re.compile(r"(?:first dim\w{0,8}|dim(?:ension)? ?0) of (?:the )?param")
"""Where FSDP cuts a parameter."""

_STRONG = frozenset(
    ("kv", "heads", "vocab", "layers", "world", "expert", "seq", "microbatch", "batch", "ffn")
)


def _by_code(o: Divides, r: Reading) -> Divides:
    """A relation of two bare numbers, with the names that the lines of source above it give them."""
    for line in reversed(r.code if not (o.subject or o.by) else ()):
        subject, *by = [t.concept for t in Reading(line.partition(" = ")[2] or line).terms] or [""]
        if subject in _STRONG:
            return replace(o, subject=subject, by=frozenset(by), beside=frozenset((subject,)))
    return o


@dataclass(frozen=True)
class Relation:
    """A `Divides`, with the meaning of its numbers and words given the known facts."""

    o: Divides
    r: Reading
    known: Known

    @cached_property
    def by(self) -> frozenset[str]:
        """The name of the divisor: as the text says, or the axis whose known degree equals it."""
        divisor = self.o.divisor or 0
        by = self.o.by or self.o.beside & {*AXES}
        return by | {axis for axis in AXES if divisor > 1 and self.known.numbers.get(axis) == divisor}

    @cached_property
    def equation(self) -> Quotient | None:
        """The division, if its numbers are stated or known, and do not divide."""
        axis = next((_CUT_BY[axis] for axis in _CUT_BY if axis in self.by), "")
        number = self.o.number or self.known.get(_FACTS.get(self.o.subject, axis))
        divisors = [self.o.divisor] if self.o.divisor else [self.known.get(axis) for axis in sorted(self.by)]
        return next(filter(None, (rest(number, divisor) for divisor in divisors)), None)

    @property
    def ranks(self) -> str:
        """The ranks over which it is cut, in words."""
        return str(self.o.divisor or " or ".join(sorted(self.by & {*AXES, "world"})) or "the ranks")

    @property
    def cause(self) -> str:
        number = self.o.number or "the"
        return f"{number} {_WORDS.get(self.o.subject, 'units')} cannot be cut evenly over {self.ranks}"

    def found(self, category: str, cause: str = "", parallel: bool | None = True) -> Hypothesis:
        way = _REMEDIES.get((category, "cp" in self.by), "")
        return found(category, LIKELY, cause or self.cause, self.equation, parallel=parallel, remedy=way)


def explain_divides(o: Divides, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Find what is divided, and by what: the first reader of `_IN_TURN` with a result decides."""
    if _UNNAMED.search(r.low):
        return  # The text names no size that ranks cut.
    o = _by_code(o, r)
    if o.number and o.divisor and rest(o.number, o.divisor) is None:
        o = replace(o, divisor=None)  # It does divide, so the text means another number.
    yield from first_heard(_IN_TURN, Relation(o, r, known))


def _own_numbers(it: Relation) -> Iterator[Hypothesis]:
    """Width over heads, or heads over KV heads: numbers of the model that no axis cuts."""
    among = "heads" in it.by and it.o.subject in ("hidden", "dimension")
    if among and it.by.isdisjoint({"tp", "world"}):
        cause = (
            "the model's own width, heads and KV heads contradict each other; no parallelism is needed for it"
        )
        yield found("other: model_config", LIKELY, cause, it.equation, parallel=False)


def _tile(it: Relation) -> Iterator[Hypothesis]:
    """A quantised weight against a group or tile: does tp cut it, or is it already odd?"""
    if "quant" in it.o.beside | it.by:
        number = it.o.number or 0
        tp = it.known.get("tp")
        numbers = ""
        if it.equation:
            numbers = f": {it.equation}"
        cause = f"a quantised weight, or a rank's slice of it, is no multiple of its group or tile{numbers}"
        whole = widths(number, it.known) or widths(number // 2, it.known)  # gate and up may lie in one
        yield it.found("quant_group_vs_tp", cause, tp > 1 if tp else (bool(numbers) and not whole) or None)


def _uneven_shards(it: Relation) -> Iterator[Hypothesis]:
    low = it.r.low
    uneven = re.search(r"uneven|flat_?param", low) and _MESH.search(low) and "unflatten" not in low
    if uneven or _DIM_0.search(low):
        yield found("fsdp_uneven", LIKELY, it.cause, it.equation)


_HEADS = ("heads_not_divisible", "kv_heads_lt_tp")
_REMEDIES = {(category, True): table("categories.toml")["remedies"]["traded"] for category in _HEADS}
"""Category, and whether CP is what cuts → advice. Only Ulysses cuts heads over CP."""


_KV_WEIGHT = re.compile(r"\b[kv]_proj\b|\bw[kv]\b")


def _explain_named_division(it: Relation) -> Iterator[Hypothesis]:
    """The dividend has a name, or the dividing axis has one."""
    category = BY_CONCEPT.get(it.o.subject)
    # tp % n_kv_heads is the rule of replicated KV heads.
    if (it.o.subject in AXES and "kv" in it.by) or (category == _HEADS[0] and _KV_WEIGHT.search(it.r.low)):
        category = "kv_heads_lt_tp"
    axis = next((axis for axis in _BY_AXIS if axis in it.by), None)
    if category:
        facts = {}
        if it.o.divisor and category in _HEADS:
            facts = {"tp": it.o.divisor}
        yield replace(it.found(category), facts=facts)
    elif axis:
        yield found(_BY_AXIS[axis], likely_if(it.equation), it.cause, it.equation)


_NAMED = re.compile(r"\b[a-z]{2,30}_[a-z]{2,30}\b")
"""A name of user code, such as num_groups, that none of the concepts knows."""


def _bare(it: Relation) -> Iterator[Hypothesis]:
    """Numbers without names."""
    for fact, where, level in _roles(it.o.number, it.known) if it.o.number else ():
        word = {"dim": "width", "world": "number of ranks"}.get(fact, fact)
        cause = f"{it.o.number} ({word}, {where}) cannot be cut evenly over {it.ranks}"
        if not it.by:
            level = min(level, POSSIBLE)  # The divisor is none of the known degrees.
        other = _NAMED.search(it.r.low) and not it.r.concepts - {"dimension"} and not it.r.parallel
        blame: bool | None = True
        if other and level < LIKELY:
            blame = None
        yield found(_BY_FACT[fact], level, cause, it.equation, parallel=blame, needs="model")


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


def _roles(number: int, known: Known) -> Iterator[tuple[str, str, Level]]:
    """The possible roles of a bare number: (fact, its source, level)."""
    m = known.model
    for fact in ("world", *_BY_FACT):
        if known.get(fact) == number:
            yield fact, "given", LIKELY
    if m:
        for fact in ("kv_dim", "q_dim"):
            if getattr(m, fact) == number and not (fact == "kv_dim" and m.kv_dim == m.q_dim):  # Q is first
                yield fact, f"given by {m.name}", LIKELY
        return
    for fact in ("vocab_size", "n_heads", "ffn_dim", "kv_dim", "dim"):
        named = next((m.name for m in public_models().values() if getattr(m, fact) == number), "")
        if named:
            yield fact, named, POSSIBLE
    vocabulary = number >= 30000 and number % 1024
    yield ("vocab_size" if vocabulary else "dim"), "by its size", WEAK


_IN_TURN = (_own_numbers, _tile, _uneven_shards, _explain_named_division, _bare)
