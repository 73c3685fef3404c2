"""The result of a run: pieces, errors and traces by rank, compared with the unsharded model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.diagnosis import Explanation
from llamapar.errors import PeerError
from llamapar.place import HeadMap, SequenceMap, VocabMap
from llamapar.records.losses import LossCurve
from llamapar.records.noticed import Mutants
from llamapar.records.tables import Plain, Record, html_table, paragraphs
from llamapar.records.trace import Tape, Trace, grouped, sent_in_words, some
from llamapar.spmd.setting import DTYPES
from llamapar.spmd.training import Training

from . import tape as tapes
from .body import RankReport, Results, Task, Work, inputs, piece, reference, uncut, unpiped
from .coverage import maps, untouched
from .stepping import LIKE, ProcessStep, allowed_distance, curve_of
from .ticking import Ticking
from .unsharded import Unsharded

BLOWN_UP = (
    "updated weights: AdamW's first step is lr·g/(|g| + 1e-8), so a gradient's rounding of 1e-15 may be "
    "1e-10 in a weight, and where a gradient is all rounding its weight moves either way"
)

MOST_ROWS = 10
"""Tensors of one kind that agree and still have a row each: a block's; more are one row."""


class RankResult(Record):
    """Base of the results of a run: what their reports say of the ranks."""

    reports: tuple[RankReport, ...]

    @property
    def errors(self) -> dict[int, BaseException]:
        """rank → the error it raised, or was waiting in; the first rank to raise comes first."""
        raised = [r for r in self.reports if r.error is not None]
        raised.sort(key=lambda r: (isinstance(r.error, PeerError), r.at))
        return {r.rank: r.error for r in raised if r.error is not None}

    @property
    def traces(self) -> dict[int, Trace]:
        return {r.rank: r.trace for r in self.reports if r.trace is not None}

    @property
    def trace(self) -> Trace:
        """The trace of the first rank."""
        return self.reports[0].trace or Trace(self.reports[0].rank)


@dataclass(frozen=True, repr=False)
class RunResult(RankResult):
    """The result of a run, and how it compares with the unsharded model.

    reports: one for each rank. outputs and gradients: rank → name → the rank's piece. output_errors,
    gradient_errors: name → max|Δ| / max|reference| over all ranks, {} without a reference. For training steps
    these two describe the first step, as do mean_errors, of AdamW's mean of the clipped gradients, and
    weight_errors. beyond: updated weights that differ by more than the gradients' tolerance allows through
    AdamW, see `stepping.allowed`. loss_curve: of all steps. rounding: the distance of one process in bfloat16
    from itself in float64, computed only if an error was larger than usual. mutants: the slips that the run
    would have noticed, if it was asked.
    """

    task: Task
    engine: str
    device: str
    reports: tuple[RankReport, ...]
    notes: tuple[str, ...] = ()
    why: str = ""
    output_errors: Mapping[str, float] = field(default_factory=dict)
    gradient_errors: Mapping[str, float] = field(default_factory=dict)
    mean_errors: Mapping[str, float] = field(default_factory=dict)
    weight_errors: Mapping[str, float] = field(default_factory=dict)
    beyond: tuple[str, ...] = ()
    loss_curve: LossCurve | None = None
    rounding: float = 0.0
    mutants: Mutants | None = None

    @property
    def ranks(self) -> int:
        return len(self.reports)

    @property
    def layout(self) -> Layout:
        return self.task.setting.layout

    @property
    def tolerance(self) -> float:
        """Largest max|Δ| / max|reference| that counts as equal, for this dtype or for two roundings of this
        size.
        """
        return max(DTYPES[self.task.setting.dtype], 2 * self.rounding)

    @property
    def outputs(self) -> dict[int, dict[str, Tensor]]:
        """rank → name → its piece; a single returned tensor has the name "out"."""
        return {r.rank: r.outputs for r in self.reports}

    @property
    def gradients(self) -> dict[int, dict[str, Tensor]]:
        """rank → argument → gradient of its piece, after the sums over ranks."""
        return {r.rank: r.gradients for r in self.reports}

    @property
    def state(self) -> dict[int, dict[str, Tensor]]:
        """rank → name → its piece of the weights after the last step, and of AdamW's state."""
        return {r.rank: r.state for r in self.reports}

    @cached_property
    def explanation(self) -> Explanation | None:
        """Why ranks raised, the first that did first; None without an error."""
        if not self.errors:
            return None
        texts = {report.rank: report.traceback for report in self.reports}
        raised = {
            rank: error if error.__traceback__ else texts[rank] or error
            for rank, error in self.errors.items()
        }
        return tapes.explain_failure(self.task, raised)

    @property
    def work(self) -> dict[int, Work]:
        """rank → its timed operations in a pipeline, and its largest number of micro-batches in flight."""
        return {r.rank: r.work for r in self.reports}

    @cached_property
    def tape(self) -> Tape:
        """The tape of shapes after each assignment, from the meta device."""
        return tapes.shape_tape(unpiped(self.task), self.why)

    @cached_property
    def untouched(self) -> tuple[str, ...]:
        """What the inputs never touched, in sentences: a slip there could not have shown."""
        return untouched(self.task) if self.max_error is not None else ()

    @cached_property
    def maps(self) -> dict[str, HeadMap | VocabMap | SequenceMap]:
        """The maps of this run by name, "sequence", "heads" and "vocab", with the vocabulary rows it used."""
        return maps(self.task)

    @property
    def details(self) -> tuple[Record, ...]:
        """The lines below the summary in its text."""
        return (self.mutants,) if self.mutants is not None else ()

    @property
    def max_error(self) -> float | None:
        """Largest of output_errors; None if nothing was compared."""
        return max(self.output_errors.values(), default=None)

    @property
    def max_grad_error(self) -> float | None:
        return max(self.gradient_errors.values(), default=None)

    @property
    def max_weight_error(self) -> float | None:
        return max(self.weight_errors.values(), default=None)

    @property
    def _errors(self) -> tuple[tuple[str, Mapping[str, float]], ...]:
        """The errors that must lie within the tolerance."""
        return (
            ("output", self.output_errors),
            ("gradient", self.gradient_errors),
            ("AdamW's mean", self.mean_errors),
        )

    @property
    def _off(self) -> dict[str, list[str]]:
        """Kind → the names whose errors are beyond the tolerance, or are no number."""
        limit = self.tolerance
        return {what: [n for n, e in errors.items() if not e <= limit] for what, errors in self._errors}

    @property
    def difference(self) -> str:
        """What differs first, or what a rank raised; "" if nothing does."""
        for rank, error in self.errors.items():
            return f"rank {rank} raises {type(error).__name__}"
        for what, names in {**self._off, "updated weight": self.beyond}.items():
            if names:
                return f"{what} {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
        like = self.loss_curve is None or self.loss_curve.distance <= self.tolerance**LIKE
        return "" if like else "loss of a later step"

    @property
    def ok(self) -> bool:
        """Whether every rank finished and everything compared is equal within the tolerance."""
        return not self.difference

    @property
    def summary(self) -> str:
        """One line: the program, where it ran, and how it compares."""
        what = f"{self.task.program.name}  {self.layout} ({self.ranks} ranks, {self.engine}, {self.device})"
        if self.task.fault:
            what += f" with {self.task.fault}"
        if self.errors:
            rank, error = next(iter(self.errors.items()))
            return f"{what}: rank {rank} raised {type(error).__name__}"
        if self.max_error is None:
            return f"{what}: ran, nothing to compare with"
        verdict = "equal to the reference" if self.ok else "DIFFERS from the reference"
        return f"{what}: {verdict}"

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        return {
            "ok": self.ok,
            "max_error": self.max_error,
            "max_grad_error": self.max_grad_error,
            **self._of_steps(),
            "engine": self.engine,
            "device": self.device,
            "ranks": self.ranks,
            "events": len(self.trace.events),
            "bytes": self.trace.by_axis,
            "errors": {str(r): f"{type(e).__name__}: {e}" for r, e in self.errors.items()},
            "untouched": list(self.untouched),
            **({"mutants": self.mutants.as_dict()} if self.mutants is not None else {}),
            "notes": list(self.notes),
        }

    def _of_steps(self) -> Plain:
        if self.loss_curve is None:
            return {}
        told = {"max_weight_error": self.max_weight_error, "beyond": list(self.beyond)}
        return told | {"losses": list(self.loss_curve.losses), "norms": list(self.loss_curve.norms)}

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        off = self._off
        rows: list[list[object]] = []
        for what, errors in self._errors:
            rows += _compared(what, errors, off[what], "equal")
        rows += _compared("updated weight", self.weight_errors, self.beyond, "as AdamW makes it")
        raised = {
            rank: f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            for rank, error in self.errors.items()
        }
        rows += [["error", some(ranks), "", text] for text, ranks in grouped(raised)]
        if self.explanation is not None and self.explanation.cause:
            rows.append(["why", "", "", self.explanation.cause])
        foot = [
            sent_in_words(self.trace),
            *(f"not exercised: {what}" for what in self.untouched),
            *self.notes,
        ]
        if self.weight_errors:
            foot.insert(0, BLOWN_UP)
        return (
            self.summary,
            ["what", "of", "max|Δ| / max|ref|", f"within {self.tolerance:.0e}"],
            rows,
            "\n".join(foot),
        )

    def _repr_html_(self) -> str:
        title, head, rows, foot = self._table()
        tried = self.mutants._repr_html_() if self.mutants is not None else ""
        return html_table(title, head, rows) + paragraphs(foot) + tried


def _compared(
    what: str, errors: Mapping[str, float], off: Collection[str], agrees: str
) -> list[list[object]]:
    """One row for each tensor; if there are many, one row for all that agree. off: those that differ."""
    alike = [name for name in errors if name not in off]
    shown = errors if len(alike) <= MOST_ROWS else off
    verdicts = {name: "DIFFERS" if name in off else agrees for name in shown}
    rows: list[list[object]] = [[what, name, f"{errors[name]:.0e}", verdicts[name]] for name in shown]
    if shown is off:
        worst = max(alike, key=errors.__getitem__)
        rows.append([what, f"{len(alike)} tensors, worst {worst}", f"{errors[worst]:.0e}", agrees])
    return rows


def compared(result: RunResult, alone: Unsharded, tick: Callable[[], None]) -> RunResult:
    """The result with its errors filled in: name → the largest over ranks, each against its piece of one
    process's.

    tick: called before each tensor; an exception from it stops the comparison.
    """
    task, reports, training = result.task, result.reports, result.task.setting.training
    one = alone.made
    output_errors: dict[str, float] = {}
    gradient_errors: dict[str, float] = {}
    sides = ((output_errors, one.outputs), (gradient_errors, one.gradients))
    scales = [{name: _scale(t) for name, t in wholes.items()} for _, wholes in sides]
    for report in reports:
        coord = task.setting.layout.coord_of(report.rank)._asdict()
        for (errors, wholes), scale, own in zip(
            sides, scales, (report.outputs, report.gradients), strict=True
        ):
            for name, whole_one in wholes.items():
                tick()
                if not task.setting.holds(name, coord["pp"]):
                    continue
                expected = piece(task, name, whole_one, coord)
                if expected is not None and errors is gradient_errors:
                    expected = task.setting.gradient(name, expected, coord)
                if expected is not None:
                    apart = _distance(own.get(name), expected, scale[name])
                    errors[name] = max(errors.get(name, 0.0), apart)
    found = replace(result, output_errors=output_errors, gradient_errors=gradient_errors)
    if training is not None:
        found = _with_steps(found, training, alone.steps)
    worst = max((e for _, errors in found._errors for e in errors.values()), default=0.0)
    if task.setting.dtype != "bfloat16" or not found.tolerance < worst < 1:
        return found
    with Ticking(tick):
        off = _rounding(task, one)
    note = f"one process in bfloat16 is off by {off:.0e} of itself in float64: a layout may be, the other way"
    return replace(found, rounding=off, notes=(*found.notes, note))


def _rounding(task: Task, one: Results) -> float:
    """Distance of one process from the same process in float64, from equal initial numbers.

    A layout rounds as often, in other places. On a model 16 wide the median of 12 seeds was 0.05 for both,
    and the worst 0.18 for both; 128 wide it was 0.03 (measured).
    """
    exact = reference(replace(task, given=inputs(task, uncut)).in_float64())
    pairs = ((one.outputs, exact.outputs), (one.gradients, exact.gradients))
    return max(_distance(own[name], t, _scale(t)) for own, whole in pairs for name, t in whole.items())


def _with_steps(result: RunResult, training: Training, steps: Sequence[ProcessStep]) -> RunResult:
    """The result with the errors of the norm and of the updated weights, and with the loss curve."""
    setting, reports, first = result.task.setting, result.reports, steps[0]
    output_errors = dict(result.output_errors)
    mean_errors: dict[str, float] = {}
    weight_errors: dict[str, float] = {}
    one_norm = torch.tensor([first.norm], dtype=torch.float64)
    beyond = set[str]()
    limits = {name: allowed_distance(first, name, training, DTYPES[setting.dtype]) for name in first.states}

    def note(errors: dict[str, float], name: str, distance: float) -> None:
        errors[name] = max(errors.get(name, 0.0), distance)

    for report in reports:
        coord = setting.layout.coord_of(report.rank)._asdict()
        note(output_errors, "norm", _distance(report.curve["norms"][:1], one_norm, _scale(one_norm)))
        for name in first.states.keys() & report.first.keys():
            wholes = first.states[name].master.to(setting.torch_dtype), limits[name]
            expected, limit = (setting.held(name, t, coord, "parameters") for t in wholes)
            own = report.first[name]
            note(weight_errors, name, _distance(own, expected, _scale(wholes[0])))
            if own.shape != expected.shape or not bool(((own - expected).abs() <= limit).all()):
                beyond.add(name)
            mean = first.states[name].exp_avg
            expected = setting.held(name, mean, coord, "optimizer state")
            note(mean_errors, name, _distance(report.first[f"exp_avg.{name}"], expected, _scale(mean)))
    names = tuple(name for name in first.states if name in beyond)
    return replace(
        result,
        output_errors=output_errors,
        mean_errors=mean_errors,
        weight_errors=weight_errors,
        beyond=names,
        loss_curve=curve_of(result.task, reports, steps),
    )


def _scale(whole_one: Tensor) -> float:
    """max|whole|, the unit of differences."""
    return (whole_one.double().abs().max().item() if whole_one.numel() else 0.0) or 1.0


def _distance(own: Tensor | None, expected: Tensor, scale: float) -> float:
    """max|own - expected| / scale; infinite for a missing tensor, another shape, or a number that is not
    finite.
    """
    if own is None or own.shape != expected.shape:
        return float("inf")
    if not own.numel():
        return 0.0
    apart = (own.double() - expected.double()).abs().max().item()
    return apart / scale if math.isfinite(apart) else float("inf")
