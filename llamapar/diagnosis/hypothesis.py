"""A candidate explanation, and the words in which numbers are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True)
class Hypothesis:
    """One candidate cause of what was observed.

    score: from 0 to 1, the category's prior times how exactly the arithmetic holds.
    parallel: whether sharding is to blame; None where the text alone cannot tell.
    needs: facts that would separate it from its rivals. facts: what it implies, by fact name.
    """

    category: str
    cause: str
    score: float
    equations: tuple[str, ...] = ()
    subtype: str | None = None
    parallel: bool | None = True
    needs: tuple[str, ...] = ()
    facts: Mapping[str, int] = field(default_factory=dict)


def found(
    category: str, score: float, cause: str, *equations: str, parallel: bool | None = True, needs: str = "",
    facts: Mapping[str, int] | None = None,
) -> Hypothesis:  # fmt: skip
    """A Hypothesis in one line: "other: kernel_limit" carries a subtype, `needs` is a list with commas."""
    name, _, subtype = category.partition(": ")
    wanted = tuple(filter(None, needs.split(", ")))
    told = tuple(filter(None, equations))
    return Hypothesis(name, cause, score, told, subtype or None, parallel, wanted, facts or {})


def over(n: int, k: int) -> str:
    """`n/k = …` exactly where it is whole: "52/3 = 17.3333", "128256/8 = 16032"."""
    each = Fraction(n, k)
    if each.denominator == 1:
        return f"{n}/{k} = {each.numerator}"
    return f"{n}/{k} = {n // k} rest {n % k}" if abs(n) > 10**15 else f"{n}/{k} = {n / k:.6g}"


def times(*factors: int) -> str:
    """`a·b·c = product`."""
    product = 1
    for factor in factors:
        product *= factor
    return f"{'·'.join(map(str, factors))} = {product}"
