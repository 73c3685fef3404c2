"""Follows a pipeline on the local ranks: its operations, the lines of their stages, sends, and the update.

A PP rank is a generator already (see `pipeline`); here it notes what it comes to hold. An operation of the
schedule is a step of the tape, and so is each message as it arrives; the lines of the stage and the sums of
gradients belong to the operation. One process runs the same schedule, on whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.errors import LlamaparError
from llamapar.place.orders import Action
from llamapar.place.walk import called
from llamapar.records.tables import Plain
from llamapar.records.trace import PHASES, CollectiveEvent, Tape
from llamapar.spmd import compat
from llamapar.spmd.setting import TIED, kind
from llamapar.spmd.zero import Gathered

from .answers import RankFailure
from .body import Results, Task, inputs, shapes, uncut, unpiped
from .engines import local
from .following import Untraced, gathers, ranks_of, within_limit
from .lines import GATHER, NOWHERE, Follower, Key, Moment
from .messages import ACTIVATIONS, GRADIENTS, SQUARES, Message, Post, ends
from .pipeline import PipelineRank, Turns, run_pipeline
from .stepping import Trained
from .steps import Named, Steps, numbered, values_of

FORWARD, BACKWARD, SUMS, UPDATE = PHASES


class Span(NamedTuple):
    """Collectives of a PP rank: how many there were before, and after."""

    pp_rank: int
    since: int
    until: int


class Note(NamedTuple):
    """A tensor that a PP rank came to hold.

    reads: what it was made of, by number. time: the step of the run, and when its operation begins in the
    schedule. Notes are put in this order, for ranks take turns here, and work side by side in a run.
    """

    pp_rank: int
    key: Key
    name: str
    value: Tensor
    phase: str
    depth: int
    reads: tuple[int, ...]
    span: Span
    time: tuple[int, float]

    @property
    def named(self) -> Named:
        return f"{self.pp_rank} {self.key.function} {self.key.name} {self.phase} {self.time[0]}", self.name


@dataclass
class Log:
    """What the PP ranks of a run noted, and how it ended.

    sums: whether there are sums of gradients over ranks. numbers: (PP rank, id of a tensor) → the note that
    has it. kept: tensors without a note of their own, so that no other gets their ids. events: PP rank →
    rank → collectives.
    """

    sums: bool
    notes: list[Note] = field(default_factory=list)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    posted: dict[Message, tuple[Tensor, Span]] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)
    followers: list[Follower] = field(default_factory=list)
    events: list[Mapping[int, Sequence[CollectiveEvent]]] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    error_at: Key = NOWHERE
    why: str = ""


@dataclass
class WatchedRank(PipelineRank):
    """A PP rank that notes what it does.

    action: that it is at. arrived: what came from another stage last. taken: what its stage was called with.
    """

    log: Log = field(default_factory=lambda: Log(sums=True))
    action: Action | None = None
    arrived: Tensor | None = None
    taken: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        timeline = self.schedule.timeline()
        self.times: dict[Action | None, float] = {
            a: start for rank in range(self.schedule.pp) for a, start, _ in timeline.runs(rank)
        }
        self.made: dict[tuple[int, int], Tensor] = {}  # (stage, micro-batch) → by its forward
        self.squares: dict[int, Tensor] = {}  # PP rank → what it adds to the norm
        codes = {self.program.__code__, GATHER, Trained.squares.__code__, Trained.update.__code__}
        tick = self.recorder.tick or (lambda: None)
        self.follower = Follower(
            lambda code, frame: code in codes, self._line, lambda: self.recorder.length, tick
        )
        self.log.followers.append(self.follower)
        for number, own in self.weights.items():
            for name, t in (own.shards if isinstance(own, Gathered) else own).items():
                self._note(Key(f"stage {number}", 0, "argument"), name, t, time=-1.0)

    # -- what it does, as a rank that nobody watches -------------------------------------------

    def turns(self) -> Turns:
        turns, content = super().turns(), None
        while True:
            try:
                with self.follower:
                    said = turns.send(content)
            except StopIteration as end:
                made: Results = end.value
                return made
            content = yield said
            if isinstance(said, Message) and content is not None:
                self._arrival(said, content)

    def do(self, action: Action, arrived: Tensor | None) -> Tensor | None:
        self.action, self.arrived, self.taken, since = action, arrived, None, self._length
        out = super().do(action, arrived)
        key, at = Key(str(action), 0, called(action)), (action.stage, action.micro_batch)
        if action.kind == "F":
            parts = {n: of[at[1]] for n, of in self.outputs.items()} if out is None else {"x": out}
            self.made[at] = next(iter(parts.values()))
            for name, t in parts.items():
                self._note(key, name, t, since=since, reads=(self.taken,))
        elif out is not None or action.kind != "I":  # on the first stage it ends at a parameter
            sums = ((f"{n}.grad", t) for (stage, n), t in self.sums.items() if stage == action.stage)
            name, t = ("x.grad", out) if out is not None else next(sums)
            self._note(key, name, t, phase=BACKWARD, since=since, reads=(arrived, self.made[at]))
        self.action = None
        return out

    def add(self, action: Action, name: str, own: Tensor) -> None:
        before, since = self.sums.get((action.stage, name)), self._length
        super().add(action, name, own)
        of = f"{name}.grad of micro-batch {action.micro_batch}"
        more: Plain = {"phase": BACKWARD, "depth": 1}
        if self.scatters is not None:  # what the reduce-scatter takes
            self._note(Key(str(action), 0, of), f"{name}.grad", own, **more)
        key, reads = Key(str(action), 0, f"{name}.grad += {of}"), (before, own)
        self._note(key, f"{name}.grad", self.sums[action.stage, name], since=since, reads=reads, **more)

    def _tie(self) -> Turns:
        before, made = dict(self.sums), (yield from super()._tie())
        for at, total in self.sums.items():
            if at[1] == TIED and self.task.backward and ends(self.setting, self.pp_rank):
                key = Key("both_ends", 0, f"{TIED}.grad = both_ends({TIED}.grad, {TIED}.grad)")
                # a dp way's own, as the backward's
                self._note(key, f"{TIED}.grad", total, phase=BACKWARD, reads=(before[at], self.arrived))
        return made

    def reduced(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, total in sums.items():
            since = self._length
            found |= super().reduced({name: total})
            key = Key("reduce_gradients", 0, f"{name}.grad = reduce_gradients({name}.grad)")
            if self.log.sums:
                self._note(key, f"{name}.grad", found[name], phase=SUMS, since=since, reads=(total,))
            else:
                self._same(found[name], total)
        return found

    def _posted(self, message: Message, content: Tensor, phase: str) -> Post:
        since = self._length
        post = super()._posted(message, content, phase)
        self.log.posted[message] = content, Span(self.pp_rank, since, self._length)
        return post

    # -- notes ---------------------------------------------------------------------------------

    @property
    def _length(self) -> int:
        return self.recorder.length[0]

    def _note(
        self,
        key: Key,
        name: str,
        value: Tensor,
        *,
        phase: str = FORWARD,
        depth: int = 0,
        reads: Sequence[Tensor | None] = (),
        since: int | None = None,
        span: Span | None = None,
        source: int | None = None,
        time: float | None = None,
    ) -> None:
        """Put a tensor down. since: of which on collectives are the step's, none unless said."""
        log, until = self.log, self._length
        within_limit(len(log.notes))
        found = [log.numbers.get((self.pp_rank, id(t))) for t in reads if t is not None]
        log.numbers[self.pp_rank, id(value)] = len(log.notes)
        log.notes.append(
            Note(
                self.pp_rank,
                key,
                name,
                value,
                phase,
                depth,
                tuple(n for n in (*found, source) if n is not None),
                span or Span(self.pp_rank, until if since is None else since, until),
                (self.step, self.times.get(self.action, math.inf) if time is None else time),
            )
        )

    def _same(self, value: Tensor, other: Tensor) -> None:
        """Let a tensor have the note of another one, whose numbers it has."""
        self.log.kept.append(value)
        if (note := self.log.numbers.get((self.pp_rank, id(other)))) is not None:
            self.log.numbers[self.pp_rank, id(value)] = note

    def _arrival(self, message: Message, content: Tensor) -> None:
        """The step of a message: the sender's events, the tensor on the ranks that it came to."""
        self.arrived = content
        if message.what == SQUARES:
            self.squares[message.source] = content
        sent, span = self.log.posted[message]
        source = self.log.numbers.get((message.source, id(sent)))
        actions = [Action(kind, message.stage, message.micro_batch) for kind in _TAKES.get(message.what, "")]
        time = next((self.times[action] for action in actions if action in self.times), math.inf)
        phase = {ACTIVATIONS: FORWARD, SQUARES: UPDATE}.get(message.what, BACKWARD)
        name = "" if source is None else self.log.notes[source].name
        key = Key(f"to stage {message.stage}", 0, f"send {message.name}")
        self._note(key, name, content, phase=phase, span=span, source=source, time=time)

    def _line(self, key: Key, value: Tensor, moment: Moment) -> None:
        """A line that was followed gave a tensor a name. One that has a step keeps that."""
        own = self.pp_rank, id(value)
        if key.function == GATHER.co_name and not gathers(key, moment):
            return
        if key.code == "argument":
            if key.name == "x":
                self.taken = value
            if key.name == "x" and self.arrived is not None:
                self._same(value, self.arrived)
            elif key.name not in ("x", "targets"):
                return  # the same at each operation
        if own in self.log.numbers:
            return
        updates, name = self.action is None, key.name
        if moment.parameter:
            name = _NAMES.get(key.name, "{}").format(moment.parameter)
        if key.function == "squares":
            self.squares[self.pp_rank] = value
        read = (*moment.read.values(), *(self.squares.values() if key.name == "norm" else ()))
        more: Plain = {"reads": read, "since": moment.since[0]}
        if self.action is not None:  # other operations run the same lines
            key = key._replace(function=f"{self.action} {key.function}")
        self._note(key, name, value, phase=UPDATE if updates else FORWARD, depth=int(not updates), **more)


_TAKES = {ACTIVATIONS: "F", GRADIENTS: "BI"}
"""What is sent → the kinds of operations that take it."""

_NAMES = {"gradient": "{}.grad", "exp_avg": "exp_avg.{}", "exp_avg_sq": "exp_avg_sq.{}"}
"""A name in the update's lines → what the tensor is of a parameter, unless it is the parameter."""


# -- runs --------------------------------------------------------------------------------------


def follow_stages(task: Task, tick: Callable[[], None], sums: bool, alone: bool = False) -> Log:
    """The task's pipeline on the ranks of a stage. alone: as in `following.ranks_of`."""
    log, recorders = Log(sums), local.recorders(task.setting, tick, Untraced)
    with ranks_of(task, alone) as (mesh, cut):
        try:
            run_pipeline(mesh, task, recorders, cut, rank=partial(WatchedRank, log=log))
        except RankFailure as failure:
            log.error_at, log.why = Key("schedule", 0, failure.what), failure.what
            log.errors = {
                rank: state
                for pp_rank, state in failure.ranks.items()
                for rank in recorders[pp_rank].places.values()
            }
        except LlamaparError:
            raise
        except Exception as error:
            found = local.errors_of(recorders, error)
            log.errors = {rank: f"{type(raised).__name__}: {raised}" for rank, raised in found.items()}
            ended = (follower.ended_at(error) for follower in log.followers)
            log.error_at = next((key for key in ended if key is not NOWHERE), NOWHERE)
    for recorder in recorders:
        traces = recorder.traces
        log.events.append({place: traces[r].events for r, place in recorder.places.items()})
    return log


def one_process(task: Task) -> Task:
    """The same schedule on one rank a stage, with the sequences in the order of the micro-batches."""
    setting, layout = task.setting, task.setting.layout
    one = Layout(
        pp=layout.pp, virtual_stages=layout.virtual_stages, sequence_parallel=layout.sequence_parallel
    )
    cut = (layout.dp, setting.micro_batches, setting.micro_batch)
    sequences = [name for name in shapes(task) if kind(name) == "tokens"]
    whole = inputs(task, uncut, wanted=sequences)
    given = {name: t.unflatten(0, cut).transpose(0, 1).flatten(0, 2) for name, t in whole.items()}
    alone = replace(setting, layout=one.replace(zero=layout.zero))  # ZeRO's lines are there too
    return replace(task, setting=alone, fault=None, given={**task.given, **given})


def stages_tape(task: Task, right: Tape | None, tick: Callable[[], None]) -> Tape:
    """The tape of a pipeline. As `watching.watched`."""
    layout, sums = task.setting.layout, task.setting.of_one_stage.world > 1
    alone = follow_stages(one_process(task), tick, sums, alone=True)
    here = follow_stages(task, tick, sums)
    coords = {rank: layout.coord_of(rank) for rank in range(layout.world)}
    maker = Steps(unpiped(task).setting, coords, right)
    whole = dict(zip(numbered([n.named for n in _in_time(alone)]), _in_time(alone), strict=True))
    wholes: list[Tensor | None] = []
    notes = _in_time(here)
    names = {i: named for named, i in numbered([note.named for note in notes]).items()}
    at = {id(note): i for i, note in enumerate(notes)}
    steps = []
    for i, note in enumerate(notes):
        other, reads = whole.get(names[i]), [at[id(here.notes[n])] for n in note.reads]
        if other is None:  # one process has it already: it is what it was made of, held otherwise
            wholes.append(next((wholes[n] for n in reads if notes[n].name == note.name), None))
        elif note.phase == BACKWARD:  # a dp way's mean is over its own sequences
            wholes.append(compat.first_of(other.value) * layout.dp)
        else:
            wholes.append(compat.first_of(other.value))
        places = list(here.events[note.pp_rank])
        steps.append(
            maker.make(
                note.key,
                note.name,
                values_of(note.value, places),
                wholes[i],
                phase=note.phase,
                reads=tuple(reads),
                events=_events(note, here),
                depth=note.depth,
            )
        )
    if here.errors:
        steps.append(maker.error(here.error_at, here.errors, here.why))
    function = task.program.stage
    assert function is not None
    return maker.tape(task, steps, function)


def _in_time(log: Log) -> list[Note]:
    return sorted(log.notes, key=lambda note: note.time)


def _events(note: Note, log: Log) -> Mapping[int, Sequence[CollectiveEvent]]:
    """Collectives of a note by the rank that has them; a send by the rank that it goes to."""
    pp_rank, since, until = note.span
    found = {rank: events[since:until] for rank, events in log.events[pp_rank].items()}
    if pp_rank == note.pp_rank:
        return found
    return {event.group[1]: (event,) for events in found.values() for event in events}
