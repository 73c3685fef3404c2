"""A rule as a record: when it applies, how bad that is, its words and its repairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llamapar.describe.job import Job
from llamapar.describe.splits import Padding

from .repairs import ERROR, Repairs


@dataclass(frozen=True)
class Rule:
    """A condition on a Job, with its message and its repairs.

    applies: whether some framework may have something to say; it gets the judge's padding. message, why:
    templates over `Job.numbers`. severity: under the paper's semantics; None if there is nothing to say.
    repairs: changes of single fields that fix it, the nearest first. layouts_first: other layouts of the same
    ranks are offered before those. if_na: severity if the chosen framework has no such feature. of_facts:
    whether it follows from the given facts alone. axis: the degree that it is about, whose valid values are
    listed.
    """

    code: str
    title: str
    applies: Callable[[Job, Padding], bool]
    message: str
    why: str
    severity: Callable[[Job], str | None] = lambda job: ERROR
    repairs: Repairs = lambda job: ()
    layouts_first: bool = False
    if_na: str | None = None
    of_facts: bool = False
    axis: str = ""
