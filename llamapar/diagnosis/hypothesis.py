"""A candidate explanation, with the arithmetic that supports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from llamapar.records.equations import Equation

_T = TypeVar("_T")


def first(*cases: tuple[object, _T], otherwise: _T) -> _T:
    """What stands beside the first condition that holds: a score, or a verdict."""
    return next((value for holds, value in cases if holds), otherwise)


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
    equations: tuple[Equation, ...] = ()
    subtype: str | None = None
    parallel: bool | None = True
    needs: tuple[str, ...] = ()
    facts: Mapping[str, int] = field(default_factory=dict)


def found(
    category: str, score: float, cause: str, *equations: Equation | None, parallel: bool | None = True,
    needs: str = "", facts: Mapping[str, int] | None = None,
) -> Hypothesis:  # fmt: skip
    """A Hypothesis in one line: "other: kernel_limit" carries a subtype, `needs` is a list with commas."""
    name, _, subtype = category.partition(": ")
    wanted = tuple(filter(None, needs.split(", ")))
    there = tuple(equation for equation in equations if equation is not None)
    return Hypothesis(name, cause, score, there, subtype or None, parallel, wanted, facts or {})
