"""Two runs of one program, line by line: the first line where they part."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from llamapar.diagnosis import Explanation
from llamapar.diagnosis.vocabulary import UNKNOWN
from llamapar.errors import LlamaparError
from llamapar.records.trace import Tape

from .body import inputs, uncut, unpiped
from .differences import operand
from .first_line import right_steps
from .module_reading import gap, largest
from .patterns import FIT
from .result import Result
from .run_pairs import run_pairs
from .steps import key_of, numbered


def first_parting(one: object, other: object) -> Explanation | None:
    """The first line where two runs, or two tapes with numbers, part; None if they do not.

    Results are followed once more, in float64 and with the inputs of the first. A tensor parts if its whole
    has other numbers, or if the ranks of one run hold it and those of the other do not.
    """
    if not isinstance(one, Result | Tape) or not isinstance(other, Result | Tape):
        what = f"a run is not compared with {type(other).__name__}"
        raise LlamaparError(what, "two results or two tapes are compared", field="plan")
    given = {}
    if isinstance(one, Result):
        given = {name: t.detach() for name, t in inputs(one.task, uncut).items()}
    tapes = [_tape(each, given) for each in (one, other)]
    steps = [tape.steps for tape in tapes]
    right = [right_steps(of, [step.agrees for step in of]) for of in steps]
    places = [numbered([key_of(step) for step in of]) for of in steps]
    for key, i in places[0].items():
        j = places[1].get(key, -1)
        mine = steps[0][i]
        its = steps[1][j]
        if j < 0 or mine.whole is None or its.whole is None:
            continue
        apart = gap(mine.whole.double(), its.whole.double())
        words = ""
        if apart > FIT * largest(mine.whole.double()):
            words = f"has other numbers, by up to {apart:.1e}"
            if mine.global_shape != its.global_shape:
                words = "has another shape"
        elif right[0][i] != right[1][j]:
            wrong = tapes[int(right[0][i])]
            words = f"is wrong on the ranks of {wrong.layout}"
        if words:
            what = f"{tapes[0].layout} and {tapes[1].layout} part: {mine.name} {words}"
            return Explanation(
                UNKNOWN,
                what,
                what=what,
                line=f"{its.where}: {its.code}",
                operands=(operand(mine), operand(its)),
            )
    return None


def _tape(run: Result | Tape, given: dict[str, Tensor]) -> Tape:
    """The tape of a run with its numbers."""
    if isinstance(run, Tape):
        return run
    task = unpiped(replace(run.task, given=given)).in_float64()
    return run_pairs(task, None, lambda: None, padded=False).tape()
