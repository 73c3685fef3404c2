"""Two runs of one program, line by line: the first line where they part.

Two results of programs, or of modules by their submodules, run once more, in float64 and with the inputs of
the first. Two tapes are compared as they are, and so are two cells of `%%ranks`: their numbers where both
have them, else their shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from llamapar.errors import LlamaparError
from llamapar.records.tables import plural
from llamapar.records.trace import Tape, TapeStep, Trace, some
from llamapar.spmd.setting import DTYPES

from .body import RankReport, Task, inputs, uncut, unpiped
from .differences import Difference, draw, operand, pieces_of_step
from .first_line import FirstLine, right_steps
from .module_reading import gap, largest
from .module_tape import module_tapes
from .patterns import FIT, place_in_words, stretches
from .result import NO_NUMBERS, Result
from .rows import LINE, Row
from .run_pairs import MOST_RANKS, run_pairs
from .steps import numbered, step_key


def parted(one: object, other: object) -> Result:
    """The other run beside the one: equal, or with the first line where they part.

    Raises LlamaparError where nothing can be compared.
    """
    if isinstance(one, Result) and isinstance(other, Result) and one.cell and other.cell:
        return parted(one.tape, other.tape)
    if isinstance(one, Tape) and isinstance(other, Tape):
        ranks = range(other.ranks)
        events = {r: [event for step in other.steps for event in step.events.get(r, ())] for r in ranks}
        reports = tuple(
            RankReport(rank=r, trace=Trace(r, tuple(events[r])) if events[r] else None) for r in ranks
        )
        device = "meta"
        if any(step.values for step in other.steps):
            device = "cpu"
        found = Result(other.program, other, "tape", device, reports, tolerance=FIT)
        return _beside(found, one, other)
    if isinstance(one, Result) and isinstance(other, Result) and one.module and other.module:
        plain = replace(other, tolerance=FIT, module=None, repair=None)
        return _beside(plain, *module_tapes(one, other))
    if not isinstance(one, Result) or not isinstance(other, Result):
        what = f"{type(one).__name__} is not compared with {type(other).__name__}"
        raise LlamaparError(what, "two results of one program are compared, or two tapes", field="plan")
    _require_comparable(one, other)
    given = {name: t.detach() for name, t in inputs(one.task, uncut).items()}
    tapes = list[Tape]()
    for run in (one, other):
        task = unpiped(replace(run.task, given=given)).in_float64()
        tapes.append(run_pairs(task, None, lambda: None, padded=False).tape())
    return _beside(replace(other, tolerance=FIT), *tapes)


def _beside(found: Result, one: Tape, other: Tape) -> Result:
    """The result of the other tape's run, beside that of the one. Raises LlamaparError for tapes without a
    common tensor.
    """
    names = ("the first run", "the second one")
    if one.layout != other.layout:
        names = (one.layout, other.layout)
    places = numbered([step_key(step) for step in other.steps])
    keys = numbered([step_key(step) for step in one.steps])
    pairs = [(i, places[key]) for key, i in keys.items() if key in places]
    if not pairs:
        what = f"the tapes of {one.program} and {other.program} have no tensor in common"
        raise LlamaparError(what, "functions and names of two runs of one program agree", field="plan")
    alone = len(keys) + len(places) - 2 * len(pairs)
    notes = [f"{plural(len(pairs), 'tensor')} of both compared"]
    if alone:
        notes.append(f"not compared: {plural(alone, 'tensor')} that one run alone has")
    found = replace(found, rows=(), against=f"the run of {one.layout}", notes=tuple(notes))
    right = [right_steps(of.steps, [step.agrees for step in of.steps]) for of in (one, other)]
    for i, j in pairs:
        mine = one.steps[i]
        its = other.steps[j]
        apart, words = _apart(mine, its, same_ranks=one.layout == other.layout)
        if not words and None not in (mine.whole, its.whole) and right[0][i] != right[1][j]:
            words = f"is wrong on the ranks of {names[right[0][i]]}"
            apart = None
        if words:
            story = Difference(f"{mine.name or 'the line'} {words}", line=f"{its.where}: {its.code}")
            story.pattern = f"there {names[0]} and {names[1]} part"
            if isinstance(found.ran, Task) and its.at:
                task = unpiped(found.ran)
                t = pieces_of_step(FirstLine(task, replace(its, whole=mine.whole), (), its))
                story.place = place_in_words(t)
                draw(story, mine.name, [*stretches(t)], task.setting)
            story.operands = [operand(step) for step in (mine, its) if step.local]
            row = Row(LINE, f"{its.where}: {mine.name}", apart, found.tolerance, False, "DIFFERS")
            return replace(found, rows=(row,), parted=story)
    return found


def _apart(mine: TapeStep, its: TapeStep, same_ranks: bool) -> tuple[float | None, str]:
    """By how much, and how, a tensor of two tapes differs; "" if it does not."""
    if mine.error != its.error:
        raised = mine.error or its.error
        return None, f"raises on {some([*raised])}: {next(iter(raised.values()))}"
    if mine.global_shape != its.global_shape and None not in (mine.global_shape, its.global_shape):
        return None, f"is {list(mine.global_shape or ())} whole, and then {list(its.global_shape or ())}"
    if same_ranks:
        for rank in [rank for rank, shape in mine.local.items() if shape != its.local.get(rank, shape)]:
            return None, f"is {list(mine.local[rank])} on rank {rank}, and then {list(its.local[rank])}"
    pairs = [(mine.whole, its.whole)]
    if mine.whole is None or its.whole is None:
        pairs = [(_copy(mine.values), _copy(its.values))]
        if same_ranks:
            pairs = [(own, its.values.get(rank)) for rank, own in mine.values.items()]
    most = 0.0
    for own, another in pairs:
        if own is not None and another is not None:
            apart = gap(own.double(), another.double()) / largest(own.double())
            most = max(most, apart)
            if apart > max(FIT, DTYPES.get(str(own.dtype).removeprefix("torch."), 0.0)):
                return apart, "has other numbers"
    return most, ""


def _copy(values: Mapping[int, Tensor]) -> Tensor | None:
    """What all ranks hold alike; None where they hold different numbers."""
    first = next(iter(values.values()), None)
    alike = first is not None and all(torch.equal(first, own) for own in values.values())
    if alike:
        return first
    return None


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
