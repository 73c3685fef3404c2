"""The dry engine: one rank of any layout, alone, on the fake process group and the meta device.

The rank runs the project's programs and its row of the schedule without peers. Messages from others are made
up, because only their size matters. Micro-batches of a stage are alike, so each kind of operation runs for
one of them, and its result is reused for the others.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.placement import PARAMETERS
from llamapar.execution.body import (
    NO_RESULTS,
    Cut,
    RankReport,
    Results,
    Task,
    as_shared,
    computed,
    dry_rank,
    groups_kept,
    inputs,
)
from llamapar.execution.ledger import Ledger
from llamapar.execution.messages import Message, Post, dtype_of, shape_of
from llamapar.execution.pipeline_rank import PipelineRank, Turns, driven, tensor_names
from llamapar.execution.recorder import Recorder
from llamapar.execution.replies import Cancelled
from llamapar.execution.stepping import Trained
from llamapar.place.orders import Action
from llamapar.place.pipeline import Schedule
from llamapar.programs import breaking
from llamapar.records.curve import MemoryCurve, OperationMemory
from llamapar.spmd import microbatches
from llamapar.spmd.gradients import reduce_gradients
from llamapar.spmd.setting import kind
from llamapar.spmd.zero import Gathered, group_axes, leaves_of

from . import local

MESSAGES = "messages"
ENDS = "stage's input and output"
SUMS = "sums of gradients over ranks"
UPDATE = "norm, clipping and AdamW"

Pattern = tuple[int, str, bool]
"""A stage, a micro-batch's operations on it in order, and whether it is the first in the sums."""


class _OperationResult(NamedTuple):
    """The result of an operation: its memory, its part of the trace, and the shape that it sends."""

    profile: OperationMemory
    since: tuple[int, int]
    until: tuple[int, int]
    sent: torch.Size | None


def patterns(schedule: Schedule, pp_rank: int) -> dict[tuple[int, int], Pattern]:
    """(stage, micro-batch) → a key that is equal for operations that are alike."""
    kinds: dict[tuple[int, int], str] = {}
    first: dict[int, int] = {}
    for what, stage, number in microbatches.row(schedule, pp_rank):
        kinds[stage, number] = kinds.get((stage, number), "") + what
        if what in "BW":
            first.setdefault(stage, number)
    return {
        (stage, number): (stage, all_of, first.get(stage) == number)
        for (stage, number), all_of in kinds.items()
    }


@dataclass
class DryRank(PipelineRank):
    """A pipeline rank whose tensors are counted. Its messages are shapes, so the ledger does not count them.

    every: run each operation, including those whose kind has already run.
    """

    ledger: Ledger = field(default_factory=Ledger)
    every: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.given = {name: t for name, t in self.given.items() if kind(name) not in PARAMETERS}
        _count(self.ledger, self.given)
        for weights in self.weights.values():
            _count(self.ledger, weights)
        if self.trained is not None:
            self.trained.held = self.ledger.take
            for name in self.trained.states:
                self.trained.tell(name)
            self.trained.held = self.ledger.held
        row = microbatches.row(self.schedule, self.pp_rank)
        self.alike = patterns(self.schedule, self.pp_rank)
        first: dict[tuple[Pattern, str], int] = {}
        for what, stage, number in row:
            first.setdefault((self.alike[stage, number], what), number)
        self.measured = {(pattern[0], number) for (pattern, _), number in first.items()}
        self.known: dict[tuple[Pattern, str], _OperationResult] = {}

    def do(self, action: Action, arrived: Tensor | None) -> Tensor | None:
        """One operation, run or reused, and a tensor of the shape that the neighbouring stage receives."""
        what, stage, number = action
        pattern = self.alike[stage, number]
        name = f"{what} of micro-batch {number} on stage {stage}"
        if self.every or (stage, number) in self.measured:
            self.known[pattern, what] = self._run(name, action, arrived)
        else:
            known = self.known[pattern, what]
            self.ledger.again(name, known.profile)
            self.recorder.again(known.since, known.until)
        sent = self.known[pattern, what].sent
        if sent is None:
            return None
        return torch.empty(sent, dtype=self.setting.torch_dtype, device="meta")

    def _run(self, name: str, action: Action, arrived: Tensor | None) -> _OperationResult:
        since = self.recorder.length
        ledger = self.ledger
        with ledger.span(name):
            if arrived is not None:
                arrived = torch.empty_like(arrived)
                ledger.take(arrived, MESSAGES)
            out = super().do(action, arrived)
            del arrived
            sent = None
            if out is not None:
                sent = out.shape
            if out is not None:
                ledger.made(out.contiguous(), MESSAGES)  # as it is sent; a copy, if it is one, is gone then
            del out
            self._settle(action)
        return _OperationResult(ledger.spans[-1].profile, since, self.recorder.length, sent)

    def _settle(self, action: Action) -> None:
        """Set the holder of what outlives the operation; the head's output is not kept, because no step keeps
        it.
        """
        self.outputs.clear()
        flight = self.flying.get((action.stage, action.micro_batch))
        for t in (flight.given, flight.out) if flight is not None else ():
            self.ledger.held(t, ENDS)
        for t in self.sums.values():
            self.ledger.held(t, "gradients")

    def _tie(self) -> Turns:
        self.ledger.begin(SUMS, "gradients")
        return super()._tie()

    def _batch(self) -> Turns:
        made = yield from super()._batch()
        self.ledger.end()  # of the sums
        return made

    def _update(self, trained: Trained, made: Results) -> Turns:
        with self.ledger.span(UPDATE):
            return (yield from super()._update(trained, made))

    def alone(self) -> Results:
        """Run the whole row; every message is answered with a tensor of its shape."""
        coord = self.setting.layout.coord_of(self.recorder.ranks[0])._asdict()

        def answer(said: Message | Post) -> Tensor | None:
            if isinstance(said, Post):
                return None
            shape = shape_of(self.setting, said, coord)
            return torch.empty(shape, dtype=dtype_of(self.setting, said), device="meta")

        return driven(self.turns(), answer)


def run(
    task: Task, rank: int, tick: Callable[[], None] | None = None, every: bool = False
) -> tuple[RankReport, MemoryCurve]:
    """Run the task as `rank` of its layout, and report what the rank did and its memory; the report has any
    error.

    every: run each micro-batch, including those like one that has run.
    """
    ledger = Ledger()
    recorder = Recorder(rank, tick=tick, ledger=ledger)
    made = NO_RESULTS
    error: Exception | None = None
    text = ""
    with local.one_run:
        local.close_ranks()
        with dry_rank(task, rank) as (mesh, cut), breaking.injected(task.fault), groups_kept():
            try:
                recorder.axes = group_axes(mesh, task.setting)
                pp_rank = task.setting.layout.coord_of(rank).pp
                given = inputs(
                    task,
                    cut,
                    "meta",
                    tensor_names(task.setting, pp_rank) if task.setting.schedule else None,
                )
                with ledger.packing():
                    made = _worked(mesh, task, recorder, given, cut, every)
            except Cancelled:
                raise
            except Exception as raised:
                error = raised
                text = traceback.format_exc()
    trace = recorder.traces[rank]
    report = RankReport(rank=rank, trace=trace, error=error, traceback=text, **vars(made))
    title = f"{task.program.name}, {task.setting.layout}: memory of rank {rank} over its operations"
    return report, MemoryCurve(title, ledger.start or dict(ledger.by_holder), tuple(ledger.spans))


def _count(ledger: Ledger, given: Mapping[str, Tensor]) -> None:
    """Set the holders of a rank's tensors and of their future gradients; under ZeRO 3 the rank has shards."""
    own = given
    if isinstance(given, Gathered):
        given.told = ledger.told
        own = given.shards
    for name, t in own.items():
        holder = "inputs"
        if t.requires_grad:
            holder = MESSAGES
        ledger.take(t, "parameters" if kind(name) in PARAMETERS else holder)
    for t in leaves_of(given).values():
        if t.requires_grad:
            t.register_hook(lambda gradient: ledger.held(gradient, "gradients"))


def _worked(
    mesh: DeviceMesh, task: Task, recorder: Recorder, given: dict[str, Tensor], cut: Cut, every: bool
) -> Results:
    """Run the rank's row of the pipeline, or a program without one: forward, backward, sums of gradients."""
    setting = task.setting
    ledger = recorder.ledger
    assert ledger is not None
    if setting.schedule is not None:
        pp_rank = setting.layout.coord_of(recorder.ranks[0]).pp
        one = DryRank(mesh, task, pp_rank, recorder, given, ledger=ledger, every=every)
        given.clear()  # it has all of them, and lets go of weights that are updated
        return one.alone()
    own = as_shared(mesh, setting, given)
    _count(ledger, own)
    function = partial(task.program.function, mesh, setting)
    with recorder:
        made = computed(task, function, own, setting.global_batch // setting.layout.dp, cut, ledger.span)
        recorder.phase = "gradients"
        with ledger.span(SUMS, "gradients"):
            scattered = isinstance(own, Gathered)
            return Results(made.outputs, reduce_gradients(mesh, setting, made.gradients, scattered))
