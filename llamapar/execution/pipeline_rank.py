"""A rank of a pipeline: its row of the schedule, operation by operation, the same in every engine.

The idea: a rank is a generator. It computes, yields a `Post` for each tensor that another rank needs, and a
`Message` for each tensor that it needs itself; the engine delivers them. In the local engine one loop
continues any rank whose message has arrived; elsewhere each process runs its own rank and waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.place.orders import Action
from llamapar.programs import breaking
from llamapar.spmd import gradients, microbatches
from llamapar.spmd.setting import TIED, Setting
from llamapar.spmd.update import STATES
from llamapar.spmd.zero import Gathered, forward_of, group_axes, leaves_of, zero_group

from .body import NO_RESULTS, Cut, Operation, Results, Task, Work, as_shared, groups_kept, inputs, leaf
from .messages import EMBEDDING, SQUARES, Message, Post, awaited_message, ends, sent_message, squares_to
from .recorder import Recorder
from .replies import RankFailure
from .stepping import Trained

Turns = Generator[Message | Post, Tensor | None, Results]
"""A rank at work: takes in what it asks for by a Message, and returns outputs and gradients."""


@dataclass
class _Pass:
    """A micro-batch between the forward of a stage and the last part of its backward."""

    given: Tensor
    out: Tensor
    incoming: Tensor | None = None


@dataclass
class PipelineRank:
    """The state of a PP rank: parameters of its stages, micro-batches in flight, gradient sums, outputs.

    given: its tensors by name, at least those of its stages. A backward in two halves (I, W) is two calls of
    `torch.autograd.grad` on one graph, which is kept between them. Both halves compute the gradients of the
    activations between weights and inputs, so together they take longer than one whole backward.
    """

    mesh: DeviceMesh
    task: Task
    pp_rank: int
    recorder: Recorder
    given: Mapping[str, Tensor]
    flying: dict[tuple[int, int], _Pass] = field(default_factory=dict)
    sums: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    outputs: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    most: int = 0
    """The most micro-batches of stages in flight at once."""
    step: int = 0
    """The step of the run, from 0."""

    @property
    def work(self) -> Work:
        return Work(tuple(self.operations), self.most)

    def __post_init__(self) -> None:
        setting = self.task.setting
        program = self.task.program
        assert setting.schedule is not None
        assert program.stage is not None
        self.setting = setting
        self.program = program.stage
        self.schedule = setting.schedule
        self.stages = {stage.stage: stage for stage in setting.stages_on(self.pp_rank)}
        self.scatters = zero_group(self.mesh, setting) if setting.reduces_each else None
        self.trained = Trained(self.mesh, setting, self.pp_rank, self.given) if setting.training else None
        self._take(self.given if self.trained is None else self.trained.weights)

    def _take(self, weights: Mapping[str, Tensor]) -> None:
        """The weights for the next forwards."""
        self.weights: dict[int, Mapping[str, Tensor]] = {}
        self.leaves: dict[int, Mapping[str, Tensor]] = {}
        for number, stage in self.stages.items():
            own: Mapping[str, Tensor] = {name: weights[name] for name in self.setting.parameters_on(stage)}
            if self.trained is None:
                own = as_shared(self.mesh, self.setting, own, late=True)
            elif self.trained.group is not None and self.trained.shares("parameters"):
                own = Gathered(self.trained.group, own, late=True)
            self.weights[number] = own
            self.leaves[number] = leaves_of(own)

    def turns(self) -> Turns:
        """The row and the gradients of the whole batch; in training also the update, then the next step."""
        made = yield from self._batch()
        if self.trained is None:
            return made
        yield from self._update(self.trained, made)
        first = self.trained.checkpoint
        for step in range(1, self.trained.training.steps):
            self.step = step
            later = yield from self._batch()
            yield from self._update(self.trained, later)
        return replace(made, first=first, state=self.trained.checkpoint, curve=self.trained.curve)

    def _batch(self) -> Turns:
        """The row, and the gradients of the whole batch."""
        for kept in (self.operations, self.sums, self.outputs):
            kept.clear()
        self.recorder.phase = None
        at_home: dict[Message, Tensor] = {}  # from one stage of this rank to another, which sends nothing
        for action in microbatches.row(self.schedule, self.pp_rank):
            if not self.task.backward and action.kind != "F":
                continue
            arrived = None
            message = awaited_message(self.schedule, action)
            if message is not None:
                here = message.source == message.to
                arrived = at_home.pop(message) if here else (yield message)
            start = time.monotonic()
            out = self.do(action, arrived)
            self.operations.append(Operation(action, start, time.monotonic()))
            message = sent_message(self.schedule, action)
            if message is not None and out is not None:
                if message.source == message.to:
                    at_home[message] = out
                else:
                    yield self._posted(message, out, "forward" if action.kind == "F" else "backward")
        yield from self._tie()
        with self.recorder:
            self.recorder.phase = "gradients"
            summed: dict[str, Tensor] = {}
            for (_, name), own in self.sums.items():
                # A tied embedding with both ends on this rank has a sum of each.
                summed[name] = microbatches.both_ends(summed[name], own) if name in summed else own
            reduced = self.reduced(summed)
            outputs = {
                name: torch.cat([parts[number] for number in sorted(parts)])
                for name, parts in self.outputs.items()
            }
            self.sums.clear()
        return Results(outputs, reduced)

    def _update(self, trained: Trained, made: Results) -> Turns:
        """Norm, clipping and AdamW, and the weights for the next forwards."""
        self.recorder.phase = "update"
        with self.recorder:
            own = trained.squares(made.gradients)
        for message in squares_to(self.setting, self.pp_rank):
            yield self._posted(message, own, "update")
        found = {self.pp_rank: own}
        for message in squares_to(self.setting, self.pp_rank):
            other = yield Message(SQUARES, self.pp_rank, 0, message.to, self.pp_rank)
            assert other is not None
            found[message.to] = other
        self.weights, self.leaves = {}, {}  # Free each old weight as soon as the new one exists.
        with self.recorder:
            trained.update(made, [found[rank] for rank in sorted(found)], self.step)
        self._take(trained.weights)
        return made

    # -- operations ----------------------------------------------------------------------------

    def do(self, action: Action, arrived: Tensor | None) -> Tensor | None:
        """Run one operation, and return what the neighbouring stage needs from it."""
        with self.recorder:
            if action.kind == "F":
                return self._forward(action, arrived)
            return self._backward(action, arrived)

    def _forward(self, action: Action, arrived: Tensor | None) -> Tensor | None:
        _, number, micro_batch = action
        stage = self.stages[number]
        setting = self.setting
        if arrived is None:
            x = microbatches.tokens_of(self._batch_of("tokens"), setting, micro_batch)
        else:
            x = leaf(arrived)
        targets = None
        if stage.head:
            targets = microbatches.targets_of(self._batch_of("targets"), setting, micro_batch)
        weights = self.weights[number]
        with forward_of(weights):
            out = self.program(self.mesh, setting, stage, x, self.given["positions"], targets, weights)
        sent = None
        if isinstance(out, Tensor):
            sent = out.detach()
        else:
            for name, part in out.items():
                self.outputs.setdefault(name, {})[micro_batch] = part.detach()
            out = microbatches.objective(out["loss"], setting)
        if self.task.backward:
            self.flying[number, micro_batch] = _Pass(x, out)
            self.most = max(self.most, len(self.flying))
        return sent

    def _batch_of(self, name: str) -> Tensor:
        return self.given[microbatches.of_step(name, self.step)]

    def _backward(self, action: Action, arrived: Tensor | None) -> Tensor | None:
        kind, number, micro_batch = action
        flight = self.flying[number, micro_batch]
        # A W half reuses the gradient that its I half received.
        incoming = arrived
        if kind == "W":
            incoming = flight.incoming
        wanted: dict[str, Tensor] = {} if kind == "I" else dict(self.leaves[number])
        inputs = [flight.given]
        if kind == "W" or not flight.given.requires_grad:
            inputs = []
        flight.incoming = arrived
        if kind != "I":
            del self.flying[number, micro_batch]
        if not (inputs or wanted):
            return None
        found = torch.autograd.grad(
            # An I half keeps the graph, because its W half differentiates it once more.
            flight.out,
            [*inputs, *wanted.values()],
            incoming,
            retain_graph=kind == "I",
        )
        if self.scatters is not None:
            self.recorder.phase = "gradients"
        for name, own in zip(wanted, found[len(inputs) :], strict=True):
            self.add(action, name, own)
        self.recorder.phase = None
        if inputs:
            return found[0]
        return None

    # -- gradients -----------------------------------------------------------------------------

    def add(self, action: Action, name: str, own: Tensor) -> None:
        """Add a micro-batch's gradient of a parameter to the sum; under ZeRO 2 and 3 its shard."""
        if self.scatters is not None:
            own = gradients.sum_shards(self.scatters, name, own.to(self.setting.sum_dtype))
        total = self.sums.get((action.stage, name))
        self.sums[action.stage, name] = microbatches.added(total, own, self.setting, action.micro_batch)

    def reduced(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """The gradients of the whole batch: the sums over micro-batches after the sums over ranks."""
        return gradients.reduce_gradients(self.mesh, self.setting, sums, self.scatters is not None)

    def _tie(self) -> Turns:
        """Exchange a tied embedding's gradient with the other end, and add it."""
        for message in ends(self.setting, self.pp_rank) if self.task.backward else ():
            own = next(key for key in self.sums if key[1] == TIED)
            yield self._posted(message, self.sums[own], "gradients")
            here = 0 if message.stage else self.setting.layout.stages - 1
            other = yield Message(EMBEDDING, here, 0, message.to, message.source)
            assert other is not None
            with self.recorder:
                self.recorder.phase = "gradients"
                self.sums[own] = microbatches.both_ends(self.sums[own], other)
        return NO_RESULTS

    def _posted(self, message: Message, content: Tensor, phase: str) -> Post:
        content = content.contiguous()
        self.recorder.add_send(content, self.setting.layout, message.to, phase)
        return Post(message, content)


def tensor_names(setting: Setting, pp_rank: int) -> set[str]:
    """Names of a PP rank's tensors: its parameters, and the inputs of its stages."""
    stages = setting.stages_on(pp_rank)
    found = {name for stage in stages for name in setting.parameters_on(stage)} | {"positions"}
    if setting.training is None:
        steps = 1
    else:
        steps = setting.training.steps
        found |= {f"{kind}.{name}" for kind in STATES for name in found}
    ends = {"tokens": any(s.embedding for s in stages), "targets": any(s.head for s in stages)}
    return found | {
        microbatches.of_step(name, i) for name, reads in ends.items() if reads for i in range(steps)
    }


def driven(turns: Turns, answer: Callable[[Message | Post], Tensor | None]) -> Results:
    """Run one rank to its end. answer: the content of a message that it asks for; None to what it posts."""
    content = None
    try:
        while True:
            content = answer(turns.send(content))
    except StopIteration as end:
        results: Results = end.value
        return results


def run_ranks(ranks: list[PipelineRank]) -> list[Results]:
    """Run all ranks of a pipeline in one process; any rank with a ready operation continues.

    Raises RankFailure, with rank, operation and peer, if none can continue.
    """
    mail: dict[Message, Tensor] = {}
    turns = [rank.turns() for rank in ranks]
    asked: dict[int, Message | None] = dict.fromkeys(range(len(ranks)))
    done: dict[int, Results] = {}
    while len(done) < len(ranks):
        moved = False
        for rank in list(asked):
            if asked[rank] is None or asked[rank] in mail:
                _go_on(rank, turns[rank], asked, mail, done)
                moved = True
        if not moved:
            # A whole pass without progress means that the ranks wait for each other.
            raise stuck({rank: message for rank, message in asked.items() if message is not None})
    return [done[rank] for rank in range(len(ranks))]


def _go_on(
    rank: int,
    turns: Turns,
    asked: dict[int, Message | None],
    mail: dict[Message, Tensor],
    done: dict[int, Results],
) -> None:
    """Run one rank until it needs a message that has not arrived, or until its end."""
    message = asked[rank]
    content = None
    if message is not None:
        content = mail.pop(message)
    try:
        while True:
            said = turns.send(content)
            content = None
            if isinstance(said, Post):
                mail[said.message] = said.content
            elif said in mail:
                content = mail.pop(said)
            else:
                asked[rank] = said
                return
    except StopIteration as end:
        done[rank] = end.value
        del asked[rank]


def stuck(waiting: Mapping[int, Message]) -> RankFailure:
    """The error for pipeline ranks that wait for each other."""
    states = {rank: f"waiting for {m.name}, from pp rank {m.source}" for rank, m in waiting.items()}
    lines = [f"pp rank {rank} is {text}" for rank, text in states.items()]
    return RankFailure(
        "the pipeline stands still: no rank can go on",
        "\n       ".join(lines),
        ["lp.schedule(...), whose tables are checked"],
        states,
        min(states, default=None),
    )


def run_pipeline(
    mesh: DeviceMesh,
    task: Task,
    recorders: Sequence[Recorder],
    cut: Cut,
    device: str = "cpu",
    rank: Callable[..., PipelineRank] = PipelineRank,
) -> list[tuple[Results, Work]]:
    """Run every PP rank in this process, their stages in turn on one mesh, and return their results."""
    with breaking.injected(task.fault), groups_kept():
        given = inputs(task, cut, device)
        for recorder in recorders:
            recorder.axes = group_axes(mesh, task.setting)
        ranks = [rank(mesh, task, number, recorder, given) for number, recorder in enumerate(recorders)]
        return [(results, one.work) for one, results in zip(ranks, run_ranks(ranks), strict=True)]
