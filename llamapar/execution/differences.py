"""Numbers that differ from one process's, explained: which tensors, and the line that made them wrong.

The first kind of tensor that differs is explained, in the order of a step; what comes after it follows from
it. The program runs once more in float64, line by line, when the explanation is read. What two seconds do not
suffice for is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from llamapar.diagnosis import Explanation
from llamapar.diagnosis.vocabulary import SHARDING
from llamapar.errors import LlamaparError

from .body import Task
from .engines import local
from .first_line import first_wrong, followed_steps
from .replies import Cancelled
from .rows import GRADIENT, Row
from .ticking import after, ticker

SECONDS = 2.0
"""Most time that an explanation takes."""


def explain_numbers(task: object, rows: Sequence[Row], where: str, line: str) -> Explanation:
    """Explain rows that differ. task: what ran. where: the tensors; line: what is known of the place."""
    first = next(row for row in rows if not row.ok)
    what = f"{where} differs from one process"
    if isinstance(task, Task):
        with suppress(Cancelled, LlamaparError), local.one_run:
            steps = followed_steps(task.in_float64(), ticker(after(SECONDS)))
            at = first_wrong(steps)
            if at is not None:
                # A gradient is made by the backward of the line that read the tensor.
                of_line = [*steps[at].reads, at] if steps[at].phase == "backward" else [at]
                made = steps[of_line[0]]
                what += f": {steps[at].name} is the first that is wrong"
                line = f"{made.where}: {made.code}"
            name = f"{first.name}.grad" if first.kind == GRADIENT else first.name
            for end in [step for step in steps if step.name == name and not line][-1:]:
                summed = [
                    axis for axis, place in end.places.items() if end.agrees and place.kind == "summand"
                ]
                if summed:
                    what += f": each rank has its own summand of the sum over {' and '.join(summed)}"
    return Explanation(SHARDING, what, line=line, ranks=first.ranks)
