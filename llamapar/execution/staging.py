"""Follow a pipeline on the local ranks: its operations, the lines of their stages, sends, and the update.

A PP rank is already a generator (see `pipeline`); here it also notes each new tensor. An operation of the
schedule is a step of the tape, and so is each message at its arrival; the lines of the stage and the sums of
gradients belong to the operation. One process runs the same schedule on whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from llamapar.place.orders import Action
from llamapar.place.walk import action_in_words
from llamapar.records.tables import Plain
from llamapar.records.trace import PHASES, CollectiveEvent
from llamapar.spmd.setting import TIED
from llamapar.spmd.zero import Gathered

from .body import Results
from .following import gathers, within_limit
from .line_by_line import GATHER, NOWHERE, Assignment, Follower, Key
from .messages import ACTIVATIONS, GRADIENTS, SQUARES, Message, Post, ends
from .pipeline_rank import PipelineRank, Turns
from .stepping import Trained
from .steps import Named

FORWARD, BACKWARD, SUMS, UPDATE = PHASES


class CollectiveSpan(NamedTuple):
    """The collectives of a PP rank during something: their number before, and after."""

    pp_rank: int
    since: int
    until: int


class Received(NamedTuple):
    """A tensor that a PP rank obtained.

    reads: the numbers of the notes it was made from. time: the step of the run, and the start of its
    operation in the schedule. Notes are sorted by time, because ranks take turns here but work in parallel in
    a run.
    """

    pp_rank: int
    key: Key
    name: str
    value: Tensor
    phase: str
    depth: int
    reads: tuple[int, ...]
    span: CollectiveSpan
    time: tuple[int, float]

    @property
    def named(self) -> Named:
        return f"{self.pp_rank} {self.key.function} {self.key.name} {self.phase} {self.time[0]}", self.name


@dataclass
class Log:
    """The notes of all PP ranks of a run, and how the run ended.

    sums: whether gradients are summed over ranks. numbers: (PP rank, id of a tensor) → its note. kept:
    tensors without a note, kept alive so that no other tensor gets their ids. events: PP rank → rank →
    collectives.
    """

    sums: bool
    notes: list[Received] = field(default_factory=list)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    posted: dict[Message, tuple[Tensor, CollectiveSpan]] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)
    followers: list[Follower] = field(default_factory=list)
    events: list[Mapping[int, Sequence[CollectiveEvent]]] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    error_at: Key = NOWHERE
    why: str = ""


@dataclass
class WatchedRank(PipelineRank):
    """A PP rank that notes what it does.

    action: its current operation. arrived: the last tensor from another stage. taken: the input of its stage.
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
        turns = super().turns()
        content = None
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
        self.action = action
        self.arrived = arrived
        self.taken = None
        since = self._length
        out = super().do(action, arrived)
        key = Key(str(action), 0, action_in_words(action))
        at = (action.stage, action.micro_batch)
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
        before = self.sums.get((action.stage, name))
        since = self._length
        super().add(action, name, own)
        of = f"{name}.grad of micro-batch {action.micro_batch}"
        more: Plain = {"phase": BACKWARD, "depth": 1}
        if self.scatters is not None:  # what the reduce-scatter takes
            self._note(Key(str(action), 0, of), f"{name}.grad", own, **more)
        key = Key(str(action), 0, f"{name}.grad += {of}")
        reads = (before, own)
        self._note(key, f"{name}.grad", self.sums[action.stage, name], since=since, reads=reads, **more)

    def _tie(self) -> Turns:
        before = dict(self.sums)
        made = yield from super()._tie()
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
        self.log.posted[message] = content, CollectiveSpan(self.pp_rank, since, self._length)
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
        span: CollectiveSpan | None = None,
        source: int | None = None,
        time: float | None = None,
    ) -> None:
        """Add a note for a tensor. since: where the step's collectives begin; without it the step has
        none.
        """
        log = self.log
        until = self._length
        within_limit(len(log.notes))
        known = (log.numbers.get((self.pp_rank, id(t))) for t in reads if t is not None)
        log.numbers[self.pp_rank, id(value)] = len(log.notes)
        log.notes.append(
            Received(
                self.pp_rank,
                key,
                name,
                value,
                phase,
                depth,
                (*(n for n in known if n is not None), *(() if source is None else (source,))),
                span or CollectiveSpan(self.pp_rank, until if since is None else since, until),
                (self.step, self.times.get(self.action, math.inf) if time is None else time),
            )
        )

    def _same(self, value: Tensor, other: Tensor) -> None:
        """Give a tensor the note of another one with the same numbers."""
        self.log.kept.append(value)
        if (note := self.log.numbers.get((self.pp_rank, id(other)))) is not None:
            self.log.numbers[self.pp_rank, id(value)] = note

    def _arrival(self, message: Message, content: Tensor) -> None:
        """The step of a message: the sender's events, and the tensor on the receiving ranks."""
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

    def _line(self, key: Key, value: Tensor, moment: Assignment) -> None:
        """A followed line named a tensor. A tensor that already has a step keeps it."""
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
        updates = self.action is None
        name = key.name
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
