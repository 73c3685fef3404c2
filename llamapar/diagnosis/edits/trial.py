"""Trials of edits, in a child: the program runs on from the failing statement with edits in it.

An edit that mends this failure and meets the next one goes on with that: a chain of up to four.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from .candidates import GATHER
from .child import Stopped
from .editing import Edits, places, swap_code, total_cost, with_edits_in
from .failure import Facts, Failure
from .program import Program

# EPERM, EBADF, EACCES, EXDEV, EINVAL, EFBIG and ENOTSOCK; then what libraries in C++ and Rust say.
_REFUSED = re.compile(
    r"\[errno (1|9|13|18|22|27|88)\]|permission denied|cannot be opened|file too large|code: 13",
    re.IGNORECASE,
)
"""What errors say with which a write outside ends in a child."""

LONGEST_CHAIN = 4


def run_on(program: Program, start: int, edits: Edits) -> None:
    """Run the last cell on from a statement; from its beginning where an edit stands before that."""
    swap_code(program, edits)
    body = program.tree(program.last).body
    steps = program.steps(set(), places(edits))
    again = [step for step in steps if step[0] != program.last]
    if again or any(number < start for _, number in steps):
        start = 0
        program.names.clear()
        program.names.update(program.before)
    for file, number in again:
        with suppress(Exception):  # What failed when it ran fails again.
            program.execute(file, with_edits_in(program, file, [number], edits))
    program.execute(program.last, with_edits_in(program, program.last, range(start, len(body)), edits))


# -- work for a child ------------------------------------------------------------------------------


def run_again(program: Program, start: int) -> Facts | str:
    """Run on without an edit: the facts of the failure, or what else happens."""
    try:
        run_on(program, start, ())
    except Stopped as stop:
        return str(stop)
    except BaseException as error:
        if program.frames(error):
            return Failure(program, error).facts()
        return f"{type(error).__name__}: {error}"
    return "it runs"


@dataclass(frozen=True)
class Trial:
    """What came of edits: whether the cell runs, whether they mend this failure and meet another one.

    stop: the effect outside at which it ended. more: sets of edits that mend the next failure.
    """

    runs: bool
    further: bool = False
    message: str = ""
    stop: str = ""
    more: Sequence[Edits] = ()


def retry(program: Program, facts: Facts, edits: Edits, level: int) -> Trial:
    """Run on with edits."""
    try:
        run_on(program, facts.start, edits)
    except Stopped as stop:
        return Trial(True, stop=str(stop))
    except BaseException as error:
        if _REFUSED.search(str(error)):
            return Trial(True, stop="a file would have been changed: stopped before that")
        if not program.frames(error):
            return Trial(False, message=str(error))
        failure = Failure(program, error)
        same_place = (failure.file, failure.frame.f_code.co_qualname) == (facts.file, facts.function)
        back = program.start(error) < facts.start
        back |= same_place and failure.statement.lineno <= facts.line
        message = f"{type(error).__name__}: {error}"
        if back or level >= LONGEST_CHAIN:
            return Trial(False, not back, message)
        more = [*failure.here(3), *((edit,) for edit in failure.elsewhere()[:3])]
        more = [edits for edits in more if edits[0].kind != GATHER]
        return Trial(False, True, message, more=sorted(more, key=total_cost))
    return Trial(True)
