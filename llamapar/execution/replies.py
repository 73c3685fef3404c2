"""The answers of a pool's ranks: one answer from each, or one error that says why there is none.

Every sentence about a failed run is written here, from a `Scene`: the last note of each rank, and which ranks
had replied or ended when the pool stopped waiting.
"""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llamapar.errors import Choice, LlamaparError, PeerError
from llamapar.records.tables import noun
from llamapar.records.trace import grouped

from .engines.rank import RankStatus, Reply


class RankFailure(LlamaparError):
    """The ranks could not answer: one was killed, or a collective waited for a rank that never arrived.

    `ranks` says what each rank was doing; `first` is the rank that failed, or went missing, first.
    """

    def __init__(
        self,
        what: str,
        why: str = "",
        choose: Iterable[object] = (),
        ranks: dict[int, str] | None = None,
        first: int | None = None,
    ):
        super().__init__(what, why, choose)
        self.ranks = ranks or {}
        self.first = first


class Cancelled(LlamaparError):
    """The run was stopped because its `cancel` returned true."""


class RankError(RuntimeError):
    """Stands for an error or a result of a rank that cannot be sent to the kernel."""


@dataclass(frozen=True)
class RankAnswer:
    """A rank's result, or the `error` that it raised with the text of its `traceback`.

    `at` is `time.monotonic()` of the answer, so the smallest among errors belongs to the first rank to raise.
    `output` is the rank's stdout; `stderr` has warnings, logs and the output of C++ and child processes.
    `reusable` is false if the rank's process groups are gone.
    """

    rank: int
    value: Any = None
    error: BaseException | None = None
    traceback: str = ""
    at: float = 0.0
    output: str = ""
    stderr: str = ""
    reusable: bool = True


@dataclass(frozen=True)
class Scene:
    """The state of every rank at one moment: its last note, and its reply or exit code if it has one."""

    notes: list[RankStatus]
    replies: dict[int, Reply]
    ended: dict[int, int]

    def waiting(self) -> dict[int, RankStatus]:
        """The ranks that are inside a collective."""
        return {r: note for r, note in enumerate(self.notes) if note.text and r not in self.replies}

    def states(self, broken: bool = False) -> dict[int, str]:
        """What each rank did. If the group is `broken`, an error from a collective means that the rank
        waited.
        """
        return {rank: self._state(rank, broken) for rank in range(len(self.notes))}

    def _state(self, rank: int, broken: bool) -> str:
        reply = self.replies.get(rank)
        where = self.notes[rank].text
        if rank in self.ended:
            return ending(self.ended[rank]).removeprefix("was ")
        if reply is not None and reply.ok:
            return "finished"
        if reply is not None:
            if not (broken and reply.where):
                return f"raised {reply.error.splitlines()[0]}"
            where = reply.where
        if where:
            return f"waiting in {where}"
        return "computing"

    def death(self, last_words: str, at: str) -> RankFailure:
        """The error for ranks that ended; whatever the others raise afterwards is a consequence.

        at: the line on which the first one aborted; "" where it left none.
        """
        states = self.states(broken=True)
        first = next(iter(self.ended))
        killed = self.ended[first] == -signal.SIGKILL
        others = _by_state({rank: text for rank, text in states.items() if rank != first})
        why = []
        if killed:
            why = ["the system kills a process that runs out of memory"]
        what = f"rank {first} {ending(self.ended[first])}"
        if at:
            what += f" on {at}" + (f", in {self.notes[first].text}" if self.notes[first].text else "")
        return RankFailure(
            what,
            "; ".join(filter(None, [*why, others])) + ("" if killed else last_words),
            ["smaller sizes", "fewer ranks"] if killed else [],
            states,
            first,
        )

    def gone(self, absent: list[int], seconds: float) -> RankFailure:
        """The error for ranks that sent nothing for too long."""
        states = {rank: text for rank, text in self.states(broken=True).items() if rank not in absent}
        is_ = "is"
        if len(absent) > 1:
            is_ = "are"
        what = f"{rank_names(absent)} {is_} gone: no sign of life for {seconds:g} s"
        choose = ["torchrun's own report, which says how they ended"]
        return RankFailure(what, _by_state(states), choose, states, absent[0])

    def timeout(self, seconds: float, places: Mapping[int, str]) -> RankFailure:
        """The error for ranks without progress: which rank reached which collective, and the line of each."""
        states = self.states()
        waiting = self.waiting()
        lines = list[str]()
        absent = list[int]()
        if not waiting:
            lines = [f"{_by_state(states)}; progress is to enter or leave a collective, or to end"]
            absent = [rank for rank in states if rank not in self.replies]
        for place in dict.fromkeys((note.text, note.ranks) for note in waiting.values()):
            text, group = place
            here = [rank for rank, note in waiting.items() if (note.text, note.ranks) == place]
            away = {rank: states[rank] for rank in group if rank not in here}
            absent += list(away)
            line = f"{text}: {rank_names(here)} arrived" + ("" if away else ", none left")
            for what, ranks in grouped(away):
                it, is_ = ("it", "is ") if len(ranks) == 1 else ("they", "are ")
                line += f"; {rank_names(ranks)} never did, {it} {'' if what == 'finished' else is_}{what}"
            lines.append(line)
        standing = {rank: line for rank, line in places.items() if line and rank not in self.replies}
        for line, ranks in grouped(standing):
            lines.append(f"{rank_names(ranks)} stand{'' if len(ranks) > 1 else 's'} on {line}")
        return RankFailure(
            f"time-out: no rank made progress for {seconds:g} s",
            "\n       ".join(lines),
            [Choice.of("if a rank only computes for long", timeout=2 * seconds)],
            states,
            min(absent, default=None),
        )

    def cancelled(self, why: Cancelled) -> Cancelled:
        """The error of a cancelled run, with the state of each rank."""
        return Cancelled(why.what, _by_state(self.states()), why.choices)

    def answers(self) -> list[RankAnswer]:
        """An answer from each rank; a rank without one was stopped because another rank raised first."""
        states = self.states()
        raised = [rank for rank, reply in self.replies.items() if not reply.ok]
        first = min(raised, key=lambda rank: self.replies[rank].at, default=None)

        def answer(rank: int) -> RankAnswer:
            reply = self.replies.get(rank)
            if reply is not None:
                return unpack_reply(rank, reply)
            what = f"rank {rank} was {states[rank]} when rank {first} {states.get(first or 0)}"
            return RankAnswer(rank, error=PeerError(what), at=time.monotonic())

        return [answer(rank) for rank in range(len(self.notes))]


def unpack_reply(rank: int, reply: Reply) -> RankAnswer:
    """The answer in a reply, whether or not its value can be rebuilt in this process."""
    value = None
    error = None
    try:
        value = pickle.loads(reply.data) if reply.data is not None else RankError(reply.error)
    except Exception as problem:  # Unpickling can run any code, so anything can be raised.
        error = RankError(reply.error or f"rank {rank} returned what cannot be read here: {problem!r}")
    if not reply.ok:
        value, error = None, error or value
    return RankAnswer(
        rank, value, error, reply.traceback, reply.at, reply.output, reply.stderr, reply.reusable
    )


def ending(code: int) -> str:
    """An exit code in words; a negative one is the number of a signal."""
    if code >= 0:
        return f"exited with status {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"


def _by_state(states: Mapping[int, str]) -> str:
    """Ranks grouped by state: "ranks 0, 2: computing; rank 1: finished"."""
    return "; ".join(f"{rank_names(ranks)}: {text}" for text, ranks in grouped(states))


def rank_names(ranks: list[int]) -> str:
    return f"{noun(len(ranks), 'rank')} {', '.join(map(str, ranks))}"
