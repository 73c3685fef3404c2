"""The first line of a program that makes something wrong of what is right, found on a watched tape.

A tensor is right if all ranks together hold the one process's, in pieces or as summands; where one process
makes the same mistake alone, if the reference computes the same numbers somewhere. What only looks strange,
as rows that are masked later, is right if something right was made of it. Gradients come after the forward,
and are searched in the same way.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from llamapar.records.trace import TapeStep

from .body import Task, inputs, reference, uncut, unpiped
from .ledger import Ledger
from .module_reading import gap, largest
from .patterns import FIT
from .recorder import Recorder
from .run_pairs import MOST_RANKS, run_pairs
from .stage_tape import stages_tape


class FirstLine(NamedTuple):
    """The step of the first wrong tensor, and the steps that its line read, of a task's ranks.

    at: the step of the line that made it; of a gradient the line whose backward does, that reads the tensor.
    like: what the reference computes of as many numbers. alone: whether one process makes the same mistake.
    stage: whose ranks these are, where not the world's.
    """

    task: Task
    made: TapeStep
    reads: tuple[TapeStep, ...]
    at: TapeStep
    like: Sequence[Tensor] = ()
    alone: bool = False
    stage: str = ""


class _Computed(Ledger):
    """Keeps every tensor of floating-point numbers that is computed."""

    def __init__(self, found: list[Tensor]) -> None:
        self.found = found

    def made(self, t: Tensor, operation: str = "") -> None:
        if t.is_floating_point():
            self.found.append(t.detach())


def _is_among(t: Tensor | None, others: Iterable[Tensor]) -> bool:
    """Whether a tensor has the numbers of another one, in whatever shape."""
    if t is None or not t.is_floating_point():
        return False
    flat = t.flatten()
    limit = FIT * largest(t)
    return any(gap(flat, other.flatten()) < limit for other in others if other.numel() == t.numel())


def in_place_of(line: FirstLine) -> str:
    """Which tensor a line added or multiplied in place of which other one, if the reference computes what
    that other one makes; "" for none.
    """
    named = dict(line.task.given)
    named |= {step.name: step.whole for step in line.reads if step.whole is not None}
    made = line.made.whole
    for wrong, right in itertools.permutations(named, 2):
        one = named[wrong]
        other = named[right]
        if one.shape == other.shape == made.shape[made.dim() - one.dim() :]:
            mended = made - one + other, made / one * other
            if any(_is_among(t, line.like) for t in mended):
                return f"{wrong} in place of {right}"
    return ""


def first_line(task: Task, tick: Callable[[], None]) -> FirstLine | None:
    """The first wrong line of a program in float64, on the ranks of one stage; None if it does not run in
    this way, or on too many.
    """
    stage = ""
    if task.layout.pp > 1:
        stage = " on a stage, whose ranks are counted from 0"
    task = unpiped(task)
    if task.layout.world > MOST_RANKS:
        return None
    # Random tokens depend on the layout's shards, so both runs are given the same ones.
    given = {name: t.detach() for name, t in inputs(task, uncut).items()}
    task = replace(task, given=given)
    pairs = run_pairs(task, None, tick, padded=False)
    if pairs.alone.errors or pairs.here.errors:
        return None
    steps = pairs.tape().steps
    computed = [*given.values()]
    with Recorder(tick=tick, ledger=_Computed(computed)):
        reference(task)
    right = right_steps(steps, [step.agrees for step in steps])
    alone = all(right)
    if alone:
        among = list[bool]()
        for step in steps:
            tick()
            among.append(_is_among(step.whole, computed))
        right = right_steps(steps, among)
    if all(right):
        return None
    made = steps[right.index(False)]
    like = [t for t in computed if t.numel() == made.whole.numel() and t.is_floating_point()]
    reads = tuple(steps[n] for n in made.reads)
    if made.phase == "gradients" and not reads:
        reads = (pairs.before_sums(made.name),)
    at = made
    if reads and made.phase == "backward":
        at = reads[0]
    return FirstLine(task, made, reads, at, like, alone, stage)


def first_of_pipeline(task: Task, tick: Callable[[], None]) -> FirstLine | str:
    """The same of a pipeline's operations, sums and updates, beside one rank a stage; with as few layers as
    there are stages, unless tensors are given. Else why no line is named, "" for what is not followed.
    """
    setting = task.setting
    if setting.schedule is None or setting.layout.world > MOST_RANKS:
        return ""
    if not task.given:
        task = replace(
            task, setting=replace(setting, model=setting.model.replace(n_layers=setting.layout.stages))
        )
    steps = stages_tape(task, None, tick).steps
    right = right_steps(steps, [step.agrees for step in steps])
    if any(step.error for step in steps):
        return ""
    if all(right):
        return "line by line the ranks equal one rank a stage that runs the same program, so no line is named"
    made = steps[right.index(False)]
    # The layers are fewer than the user's, so their numbers say nothing.
    name, code = (re.sub(r"layers\.\d+\.", "", text) for text in (made.name, made.code))
    made = replace(made, name=name, code=code)
    return FirstLine(task, made, tuple(steps[n] for n in made.reads), made)


def right_steps(steps: Sequence[TapeStep], right: Sequence[bool]) -> list[bool]:
    """Which steps are right: of themselves, as `right` says, because a line made something right of them, or
    because that cannot be told.
    """
    wholes = [step.whole for step in steps]
    told = [t is not None and t.is_floating_point() for t in wholes]
    fine = [known and agrees for known, agrees in zip(told, right, strict=True)]
    for i in reversed(range(len(steps))):
        lines: dict[str, list[bool]] = {}
        for n in range(i + 1, len(steps)):
            if i in steps[n].reads and steps[n].phase == steps[i].phase:
                lines.setdefault(steps[n].where, []).append(fine[n])
        # Of a line that makes several tensors, one may be right whatever became of the others.
        fine[i] = fine[i] or any(all(made) for made in lines.values())
    return [is_fine or not known for is_fine, known in zip(fine, told, strict=True)]
