"""The first line of a program that makes something wrong of what is right, found on a watched tape.

A tensor is right if all ranks together hold the one process's, in pieces or as summands. What only looks
strange, as rows that are masked later, is right if something right was made of it. Gradients come after the
forward, and are searched in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from llamapar.records.trace import TapeStep

from .body import Task, inputs, uncut, unpiped
from .run_pairs import MOST_RANKS, run_pairs


def followed_steps(task: Task, tick: Callable[[], None]) -> Sequence[TapeStep]:
    """The steps of a program on the ranks of one stage; () if it does not run in this way, or on too many."""
    task = unpiped(task)
    if task.layout.world > MOST_RANKS:
        return ()
    # Random tokens depend on the layout's shards, so both runs are given the same ones.
    given = {name: t.detach() for name, t in inputs(task, uncut).items()}
    pairs = run_pairs(replace(task, given=given), None, tick, padded=False)
    return () if pairs.here.errors else pairs.tape().steps


def first_wrong(steps: Sequence[TapeStep]) -> int | None:
    """The first wrong tensor of which no line made something right; None without one."""
    told = [step.whole is not None and step.whole.is_floating_point() for step in steps]
    fine = [known and step.agrees for known, step in zip(told, steps, strict=True)]
    for i in reversed(range(len(steps))):
        lines: dict[str, list[bool]] = {}
        for n in range(i + 1, len(steps)):
            if i in steps[n].reads and steps[n].phase == steps[i].phase:
                lines.setdefault(steps[n].where, []).append(fine[n])
        # Of a line that makes several tensors, one may be right whatever became of the others.
        fine[i] = fine[i] or any(all(made) for made in lines.values())
    return next((i for i, right in enumerate(fine) if told[i] and not right), None)
