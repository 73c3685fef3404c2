"""Two runs of one program, line by line: the first line where they part."""

from __future__ import annotations

from dataclasses import replace

from llamapar.errors import LlamaparError

from .body import inputs, uncut, unpiped
from .differences import Difference, operand
from .first_line import right_steps
from .module_reading import gap, largest
from .patterns import FIT
from .result import NO_NUMBERS, Result
from .rows import LINE, Row
from .run_pairs import MOST_RANKS, run_pairs
from .steps import numbered, step_key


def parted(one: object, other: object) -> Result:
    """The other result beside the one: equal, or with the first line where they part.

    Both are followed once more, in float64 and with the inputs of the one. A tensor parts if its whole has
    other numbers, or if the ranks of one run hold it and those of the other do not.

    Raises LlamaparError where nothing can be compared.
    """
    if not isinstance(one, Result) or not isinstance(other, Result):
        what = f"a result is not compared with {type(other).__name__}"
        raise LlamaparError(what, "two results of one program are compared", field="plan")
    _require_comparable(one, other)
    given = {name: t.detach() for name, t in inputs(one.task, uncut).items()}
    steps = []
    for run in (one, other):
        task = unpiped(replace(run.task, given=given)).in_float64()
        steps.append(run_pairs(task, None, lambda: None, padded=False).tape().steps)
    right = [right_steps(of, [step.agrees for step in of]) for of in steps]
    places = numbered([step_key(step) for step in steps[1]])
    found = replace(other, rows=(), tolerance=FIT, against=f"the run of {one.layout}")
    for key, i in numbered([step_key(step) for step in steps[0]]).items():
        mine = steps[0][i]
        j = places.get(key, -1)
        its = steps[1][j]
        if j < 0 or mine.whole is None or its.whole is None:
            continue
        apart = gap(mine.whole.double(), its.whole.double()) / largest(mine.whole.double())
        words = ""
        if apart > FIT:
            words = "has other numbers"
        elif right[0][i] != right[1][j]:
            words = f"is wrong on the ranks of {other.layout if right[0][i] else one.layout}"
        if words:
            story = Difference(f"{mine.name} {words}", line=f"{its.where}: {its.code}")
            story.pattern = f"there {one.layout} and {other.layout} part"
            story.operands = [operand(mine), operand(its)]
            row = Row(LINE, f"{its.where}: {mine.name}", apart, FIT, False, "DIFFERS")
            return replace(found, rows=(row,), parted=story)
    return found


def _require_comparable(one: Result, other: Result) -> None:
    """Raises LlamaparError unless two runs compute one program's numbers, on ranks that can be followed."""
    why = ""
    if "dry" in (one.engine, other.engine):
        why = NO_NUMBERS[0]
    elif one.name != other.name or one.task.setting.model != other.task.setting.model:
        why = "two results of one program and one model are compared"
    elif max(one.layout.world, other.layout.world) > MOST_RANKS:
        why = f"at most {MOST_RANKS} ranks are followed line by line"
    if why:
        what = f"{other.name} of {other.layout} is not compared with the first run"
        raise LlamaparError(what, why, field="plan")
