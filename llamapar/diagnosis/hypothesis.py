"""A candidate explanation, with the arithmetic that supports it.

A hypothesis never says "cannot be divided" beside a quotient that is whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from llamapar.records.equations import Equation, Quotient

_T = TypeVar("_T")


class Level(IntEnum):
    """Strength of the evidence for a cause; `str` gives the word.

    CERTAIN: an experiment proved it. LIKELY: the words name it, or its arithmetic is exact with given or
    stated numbers. POSSIBLE: the arithmetic is exact with an assumed number, or the words also fit other
    causes. WEAK: no exact evidence supports it; it only orders causes, and is shown as possible.
    """

    WEAK = 1
    POSSIBLE = 2
    LIKELY = 3
    CERTAIN = 4

    def __str__(self) -> str:
        shown = self
        if self is Level.WEAK:
            shown = Level.POSSIBLE
        return shown.name.lower()


LOCAL = "other: global_dim_not_localized"
WIDTH = "hidden_or_ffn_not_divisible"
"""Two categories that many readers name."""

LIKELY = Level.LIKELY
POSSIBLE = Level.POSSIBLE
WEAK = Level.WEAK


def likely_if(proven: object) -> Level:
    """LIKELY where this holds, else POSSIBLE."""
    if proven:
        return LIKELY
    return POSSIBLE


def first(*cases: tuple[object, _T], otherwise: _T) -> _T:
    """The value beside the first condition that holds: a level, or a verdict."""
    return next((value for holds, value in cases if holds), otherwise)


def first_heard(readers: Iterable[Callable[[_T], Iterator[Hypothesis]]], it: _T) -> Iterable[Hypothesis]:
    """The result of the first reader that returns one for `it`."""
    return next(filter(None, (list(reader(it)) for reader in readers)), ())


_DENIES = re.compile("evenly|not divide|no (?:usual )?(?:factor|multiple|shard|degree)|contradict")


def refutes(equation: Equation, cause: str) -> bool:
    """Whether an equation refutes the sentence above it: 24/8 = 3 under "cannot be cut evenly over 8"."""
    denied = isinstance(equation, Quotient) and equation.whole and not equation.floor
    return denied and bool(_DENIES.search(cause))


@dataclass(frozen=True)
class Hypothesis:
    """One candidate cause of an observation.

    level: strength of its evidence; among equals, the one found first comes first. arithmetic: relations that
    hold between the text's own numbers. parallel: whether sharding is to blame; None if that cannot be
    decided. needs: facts that would separate it from its rivals. facts: what it implies about model and
    layout, by field name. remedy: advice in words, if it differs from the category's. quoted: whether a
    framework or torch says it in these words, so that it stands without arithmetic.
    """

    category: str
    cause: str
    level: Level
    arithmetic: tuple[Equation, ...] = ()
    subtype: str | None = None
    parallel: bool | None = True
    needs: tuple[str, ...] = ()
    facts: Mapping[str, int] = field(default_factory=dict)
    remedy: str = ""
    quoted: bool = False

    def __post_init__(self) -> None:
        if any(refutes(equation, self.cause) for equation in self.arithmetic):
            raise ValueError(f"{self.cause}: {', '.join(map(str, self.arithmetic))}")


def found(
    category: str, level: Level, cause: str, *equations: Equation | None, parallel: bool | None = True,
    needs: str = "", facts: Mapping[str, int] | None = None, remedy: str = "", quoted: bool = False,
) -> Hypothesis:  # fmt: skip
    """A Hypothesis in one line: "other: kernel_limit" has a subtype, `needs` is separated by commas."""
    name, _, subtype = category.partition(": ")
    wanted = tuple(filter(None, needs.split(", ")))
    there = tuple(equation for equation in equations if equation is not None)
    return Hypothesis(
        name, cause, level, there, subtype or None, parallel, wanted, facts or {}, remedy, quoted
    )
