"""A candidate explanation, with the arithmetic that supports it.

No hypothesis denies division in its sentence and shows a quotient that comes out whole.
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
    """How much speaks for a cause; `str` gives the word.

    LIKELY: the words name it, or its arithmetic comes out exactly with what is given or stated.
    POSSIBLE: the arithmetic comes out exactly with a number that had to be assumed, or words fit others too.
    WEAK: nothing exact speaks for it.
    """

    WEAK = 1
    POSSIBLE = 2
    LIKELY = 3

    def __str__(self) -> str:
        return self.name.lower()


LOCAL = "other: global_dim_not_localized"
WIDTH = "hidden_or_ffn_not_divisible"
"""Two categories that many readers name."""

LIKELY, POSSIBLE, WEAK = Level.LIKELY, Level.POSSIBLE, Level.WEAK


def first(*cases: tuple[object, _T], otherwise: _T) -> _T:
    """What stands beside the first condition that holds: a level, or a verdict."""
    return next((value for holds, value in cases if holds), otherwise)


def first_heard(readers: Iterable[Callable[[_T], Iterator[Hypothesis]]], it: _T) -> Iterable[Hypothesis]:
    """What the first of the readers that has something to say of `it` says."""
    return next(filter(None, (list(reader(it)) for reader in readers)), ())


_DENIES = re.compile("evenly|not divide|no (?:usual )?(?:factor|multiple|shard|degree)|contradict")


def refutes(equation: Equation, cause: str) -> bool:
    """Whether an equation refutes the sentence above it: 24/8 = 3 under "cannot be cut evenly over 8"."""
    denied = isinstance(equation, Quotient) and equation.whole and not equation.floor
    return denied and bool(_DENIES.search(cause))


@dataclass(frozen=True)
class Hypothesis:
    """One candidate cause of what was observed.

    level: how much speaks for it; of equals the one that was found first is named first.
    parallel: whether sharding is to blame; None where the text alone cannot tell.
    needs: facts that would separate it from its rivals. facts: what it implies, by fact name.
    remedy: a way out in words, where it has another than its category.
    """

    category: str
    cause: str
    level: Level
    equations: tuple[Equation, ...] = ()
    subtype: str | None = None
    parallel: bool | None = True
    needs: tuple[str, ...] = ()
    facts: Mapping[str, int] = field(default_factory=dict)
    remedy: str = ""

    def __post_init__(self) -> None:
        if any(refutes(equation, self.cause) for equation in self.equations):
            raise ValueError(f"{self.cause}: {', '.join(map(str, self.equations))}")


def found(
    category: str, level: Level, cause: str, *equations: Equation | None, parallel: bool | None = True,
    needs: str = "", facts: Mapping[str, int] | None = None, remedy: str = "",
) -> Hypothesis:  # fmt: skip
    """A Hypothesis in one line: "other: kernel_limit" carries a subtype, `needs` is a list with commas."""
    name, _, subtype = category.partition(": ")
    wanted = tuple(filter(None, needs.split(", ")))
    there = tuple(equation for equation in equations if equation is not None)
    return Hypothesis(name, cause, level, there, subtype or None, parallel, wanted, facts or {}, remedy)
