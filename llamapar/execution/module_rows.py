"""The rows of a module that a plan cut: output, loss and every parameter beside the whole module's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from .module_facts import ModuleFacts
from .module_reading import FORWARD, TRAINER, TensorReading, gap, largest, part_of, parts_in_words, reading
from .module_run import ModuleOutcome
from .module_task import ModuleTask, sequences
from .result import Result
from .rows import GRADIENT, LOSS, OUTPUT, Row


def judged(
    result: Result, task: ModuleTask, one: ModuleOutcome, outcomes: Mapping[int, ModuleOutcome]
) -> Result:
    """The result with the ranks' parameters, gradients, output and loss beside the whole module's."""
    tolerance = result.tolerance
    first = outcomes[min(outcomes)]
    sizes = {n: t.numel() * t.element_size() for n, t in first.here.items() if n not in first.tied}
    parameters = [_parameter(name, task, one, outcomes, tolerance) for name in one.here]
    more = [name for name in first.here if name not in one.here]
    notes = [
        *result.notes,
        *([f"the cut module has parameters of its own: {', '.join(more)}"] if more else []),
        *(note for outcome in outcomes.values() for note in outcome.notes),
    ]
    if all(row.here == row.whole for row in parameters):
        notes.append("no parameter is cut: every rank has the whole module")
    facts = ModuleFacts(
        tied=one.tied,
        buffers={name: tuple(t.shape) for name, t in one.buffers.items()},
        changed=one.changed,
        drew=one.drew,
        bytes_here=sum(sizes.values()),
        gradient_bytes=sum(size for name, size in sizes.items() if name in first.gradient),
        summands=tuple(row.how for row in parameters if row.how.startswith("a summand")),
    )
    result = replace(result, rows=tuple(parameters), module=facts, notes=tuple(dict.fromkeys(notes)))
    if one.drew:
        return result
    forward = _output(task, one, outcomes, tolerance), _loss(task, one, outcomes, tolerance)
    return replace(result, rows=(*forward, *parameters), against="the whole module")


def _output(
    task: ModuleTask, one: ModuleOutcome, outcomes: Mapping[int, ModuleOutcome], tolerance: float
) -> Row:
    """The row of all outputs, with the reading of the last one."""
    layout = task.layout
    placement = ""
    error = 0.0
    for i, t in enumerate(one.outputs):
        owns = {r: dict(enumerate(of.outputs)).get(i, torch.empty(0)) for r, of in outcomes.items()}
        output = reading(owns, t, layout, tolerance, FORWARD)
        off = output.error
        placement = ""
        if output.fits:
            placement = output.words
        if output.summed or not output.fits:  # as far as it is from the whole, or from the rank's sequences
            shares = {r: sequences(task, "", t, layout.coord_of(r)._asdict()) for r in owns}
            off = max(min(gap(own, t), gap(own, shares[r])) for r, own in owns.items()) / largest(t)
        error = max(error, off)
    return _forward_row(OUTPUT, "out", error, tolerance, placement)


def _loss(
    task: ModuleTask, one: ModuleOutcome, outcomes: Mapping[int, ModuleOutcome], tolerance: float
) -> Row:
    """The row of the loss, which may be a rank's share of it."""
    losses = {r: outcome.loss for r, outcome in outcomes.items()}
    loss = reading(losses, one.loss, task.layout, tolerance, TRAINER, dict.fromkeys(losses, ()))
    return _forward_row(LOSS, "", loss.error, tolerance, loss.words if loss.fits else "")


def _forward_row(kind: str, name: str, error: float, tolerance: float, placement: str) -> Row:
    ok = error <= tolerance
    return Row(kind, name, error, tolerance, ok, "equal" if ok else "DIFFERS", placement=placement)


def _parameter(
    name: str,
    task: ModuleTask,
    one: ModuleOutcome,
    outcomes: Mapping[int, ModuleOutcome],
    tolerance: float,
) -> Row:
    """A parameter of the whole module, by one of its names, what ranks hold of it, and its gradient."""
    first = outcomes[min(outcomes)]
    whole_of_it = one.here[name]
    row = Row(GRADIENT, name, None, tolerance, how="", whole=tuple(whole_of_it.shape))
    if any(name not in outcome.here for outcome in outcomes.values()):
        return replace(row, ok=False, placement="the cut module has no such parameter")
    row = replace(row, here=tuple(first.here[name].shape))
    if name in first.tied:
        return replace(row, placement=f"tied to {first.tied[name]}")
    found = {rank: part_of(outcome.here[name], whole_of_it) for rank, outcome in outcomes.items()}
    parts = {rank: part for rank, part in found.items() if part is not None}
    row = replace(row, placement=parts_in_words(found, task.layout, row.whole), ok=len(parts) == len(found))
    if one.drew or name not in one.gradient:
        return replace(row, how="" if one.drew else "none")
    owns = {rank: outcome.gradient[name] for rank, outcome in outcomes.items() if name in outcome.gradient}
    fit = TensorReading(False, "not comparable" if len(owns) == len(outcomes) else "no gradient")
    if row.ok and len(owns) == len(outcomes):
        ways = FORWARD | TRAINER
        fit = reading(owns, one.gradient[name], task.layout, tolerance, ways, parts)
    words = fit.words
    ok = fit.fits and "tp" not in fit.summed
    if fit.fits:
        summed = " and ".join(f"{way} over {axis}" for axis, way in fit.summed.items())
        words = "in full"
        if summed:
            words = f"a summand: {summed}"
    # The parameter that it is tied to in the whole module, and no longer in the cut one.
    other = ({of: n for n, of in one.tied.items()} | one.tied).get(name)
    if not ok and other is not None and other not in first.tied:
        words = f"of its own use alone: the plan unties it from {other}"
    return replace(row, how=words, error=fit.error, ok=ok)
