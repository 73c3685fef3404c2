"""The engine for ranks that torchrun started: every rank runs this program, and rank 0 reports the result.

The idea: a thread of each rank runs the task, and the main thread watches it. A rank that raises, or that
sees no rank make progress for too long, says so in the store that torchrun's ranks share. The others read
this within a moment, report where they are, and stop, so no rank waits for one that never comes. Rank 0
combines the reports as for a pool, and all ranks return or raise the same. Each rank also increments a
counter in the store while it lives: a rank whose counter stands still is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore, rendezvous  # type: ignore[attr-defined]

from llamapar.errors import Choice, LlamaparError
from llamapar.execution.body import RankReport, Task
from llamapar.execution.replies import RankFailure, Scene
from llamapar.execution.stacks import of_thread, place
from llamapar.spmd import compat

from . import processes
from .rank import (
    STARTING,
    Context,
    Quiet,
    RankStatus,
    Reply,
    Slots,
    Spec,
    dumps,
    enter_group,
    replied,
)

T = TypeVar("T")

POLL = 0.05  # seconds between two looks at the store
PULSE = 1.0  # seconds between two counts of a living rank
LOST = 10.0  # seconds without a count after which a rank is gone
START = 120.0  # seconds within which every rank has to be there
SETTLE = 1.0  # seconds in which the other ranks may raise too, once one has
LAST = 10.0  # seconds that ranks wait for one another when all is told

PIECE = 4 * 2**20  # bytes of a value in the store

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> int | None:
    """Number of ranks that torchrun (or a program that sets its environment) started; None without it."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _ENVIRONMENT) else None


def on_this_machine() -> int:
    """Number of the ranks that torchrun started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", launched() or 1))


def run(
    task: Task,
    device: str,
    backend: str,
    timeout: float,
    finish: Callable[[list[RankReport]], T],
    lighter: Callable[[T], T],
) -> T:
    """The result of `finish`, on rank 0, for the reports of all ranks; the others return its `lighter` form.

    Raises, on every rank alike, what `finish` raises, and RankFailure for a rank that is gone, or if for
    `timeout` seconds no rank entered or left a collective, printed, or ended. Raises LlamaparError if
    torchrun did not start the ranks of the layout.
    """
    world = task.setting.layout.world
    started = launched()
    if started is None:
        raise LlamaparError(
            "engine='torchrun', but torchrun did not start this process",
            "it sets RANK, WORLD_SIZE, …",
            [f"torchrun --nproc-per-node {world} …", Choice.of(engine="processes")],
            "engine",
        )
    if world != started:
        what = f"the layout has {world} ranks, torchrun started {started}"
        raise LlamaparError(
            what, "every rank is one process", [f"torchrun --nproc-per-node {world}"], "world"
        )
    if dist.is_initialized():
        what = "torch.distributed has a process group in this process already"
        raise LlamaparError(what, "", ["torch.distributed.destroy_process_group()"], "engine")
    here = meeting().next()
    try:
        try:
            here.work(task, device, backend, timeout)
            if here.rank:
                return here.outcome()
            scene, places = here.scene()
        except RuntimeError as problem:  # out of the store, where it was rank 0's own
            raise RankFailure("rank 0 is gone", str(problem).partition("\n")[0], (), {}, 0) from problem
        lost = here.meeting.lost()
        return here.publish(lambda: finish(_reports(scene, places, lost, timeout)), lighter)
    finally:
        here.end()


def _reports(scene: Scene, places: Mapping[int, str], lost: list[int], timeout: float) -> list[RankReport]:
    """A report from each rank, or RankFailure."""
    absent = [rank for rank in lost if rank not in scene.replies]
    if absent:
        raise scene.gone(absent, LOST)
    if all(reply.ok for reply in scene.replies.values()) and len(scene.replies) < len(scene.notes):
        raise scene.timeout(timeout, places)
    return processes.reports(scene.answers())


def _put(store: Store, key: str, data: bytes) -> None:
    """Set a value of any size in several parts, because a store takes at most 8 MiB at once."""
    pieces = [data[i : i + PIECE] for i in range(0, len(data), PIECE)]
    for i, piece in enumerate(pieces):
        store.set(f"{key}/{i}", piece)  # type: ignore[arg-type]
    store.set(key, str(len(pieces)))


def _get(store: Store, key: str) -> bytes:
    return b"".join(store.get(f"{key}/{i}") for i in range(int(store.get(key))))


class _OwnNote(Slots):
    """The note of this rank, in its own memory."""

    def __init__(self, world: int) -> None:
        self.world, self.now, self.moves = world, RankStatus(0, (), ""), 0

    def write(self, rank: int, text: str, ranks: Iterable[int] | None = None, call: int = 0) -> None:
        group = tuple(range(self.world) if ranks is None else ranks)
        self.now = RankStatus(self.now.notes + 1, group, text, call)

    def move(self, rank: int) -> None:
        self.moves += 1

    def read(self, rank: int) -> RankStatus:
        return self.now


class Meeting:
    """The meeting point of the ranks: the store, and this rank's counter in it."""

    def __init__(self) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        patience = datetime.timedelta(seconds=START)
        self.base, _, _ = next(rendezvous("env://", timeout=patience))
        # A connection of its own: a process group that waits in the store keeps the other one busy.
        host = os.environ["MASTER_ADDR"]
        port = int(os.environ["MASTER_PORT"])
        own = TCPStore(host, port, is_master=False, timeout=patience)
        self.store = PrefixStore(f"llamapar/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", own)
        self.runs = 0
        self.stuck = False  # whether a thread of this process hangs in a collective for good
        self._over = threading.Event()
        self._pulse = threading.Thread(target=self._live, name="llamapar pulse", daemon=True)
        self._pulse.start()
        self._counts: dict[int, tuple[int, float]] = {}
        self._looked = 0.0
        self._lost: list[int] = []

    def _live(self) -> None:
        with contextlib.suppress(RuntimeError):  # The store is gone, so nobody reads the counter any more.
            while True:
                self.store.add(f"alive/{self.rank}", 1)
                if self._over.wait(PULSE):
                    return

    def leave(self) -> None:
        """Called at exit: a thread that is still inside torch would abort the process."""
        if self.stuck:
            self.end(1)
        self._over.set()
        self._pulse.join()

    def end(self, status: int) -> None:
        """End this process at once, although a thread of it hangs in a collective for good."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)

    def next(self) -> _Run:
        self.runs += 1
        return _Run(self, self.runs)

    def lost(self) -> list[int]:
        """Ranks that are gone, checked once every PULSE: rank 0 watches all, the others watch rank 0."""
        now = time.monotonic()
        if now - self._looked < PULSE:
            return self._lost
        self._looked = now
        self._lost = []
        for rank in [0] if self.rank else range(self.world):
            count = self.store.add(f"alive/{rank}", 0)
            seen, since = self._counts.get(rank, (-1, now))
            if count != seen:
                self._counts[rank] = count, now
            elif now - since > (LOST if count else START):
                self._lost.append(rank)
        return self._lost


class _Progress:
    """The time without progress of any rank; each counts in the store, which is read once in `every`
    seconds.
    """

    def __init__(self, store: Store, every: float) -> None:
        self._store, self._every, self._still = store, every, Quiet()
        self._own: object = None
        self._looked = 0.0

    def quiet(self, own: object) -> float:
        """The seconds, given this rank's own current progress."""
        moved = own != self._own
        self._own = own
        if moved or time.monotonic() - self._looked >= self._every:
            self._looked = time.monotonic()
            self._still.look(self._store.add("progress", int(moved)))
        return self._still.seconds


class _Run:
    """One run, with the messages between its ranks."""

    def __init__(self, meeting: Meeting, number: int) -> None:
        self.rank = meeting.rank
        self.world = meeting.world
        self.meeting = meeting
        self.store = PrefixStore(f"run/{number}", meeting.store)
        self.group_store = PrefixStore(f"llamapar/groups/{number}", meeting.base)
        self.worker: threading.Thread | None = None

    def work(self, task: Task, device: str, backend: str, timeout: float) -> None:
        """Run the task here until all is done or some rank fails, and put the outcome into the store."""
        gpus = compat.gpus() if device == "cuda" else 0
        devices = (int(os.environ.get("LOCAL_RANK", 0)) % gpus,) if gpus else ()
        spec = Spec(self.world, device, backend, 0, devices)
        note = _OwnNote(self.world)
        replies = list[Reply]()
        context = Context(self.rank, spec, note)

        def in_group() -> RankReport:
            enter_group(context, backend, self.group_store)
            processes.lanes_of(task.setting.layout, context.device.type)  # takes long where ranks are many
            context.note("")
            return processes.run_here(context, task)

        self.worker = threading.Thread(
            target=lambda: replies.append(replied(context, in_group, capture=False)),
            name="llamapar rank",
            daemon=True,
        )
        self.worker.start()
        failed = False
        at = ""
        progress = _Progress(self.store, min(PULSE, timeout / 4))
        while self.worker.is_alive() and not failed:
            self.worker.join(POLL)
            limit = max(timeout, START) if note.now.text == STARTING else timeout
            stuck = progress.quiet((note.now.notes, note.moves)) > limit
            failed = stuck or self.store.check(["failed"]) or (self.rank == 0 and bool(self.meeting.lost()))
        self.store.add("progress", 1)  # Finishing counts as progress.
        if failed:
            self.store.set("failed", "")
            at = place(of_thread(self.worker.ident))
            self.worker.join(SETTLE)
        own = replies[0] if replies else None
        if own is not None and not own.ok:
            self.store.set("failed", "")  # Clocks differ between machines, so the order in the store decides.
            own = replace(own, at=float(self.store.add("raised", 1)))
        _put(self.store, f"notes/{self.rank}", pickle.dumps((note.now, own, at)))

    def scene(self) -> tuple[Scene, dict[int, str]]:
        """Every rank's report and its line; empty for ranks that are gone."""
        notes = [RankStatus(0, (), "")] * self.world
        replies = dict[int, Reply]()
        places = dict[int, str]()
        missing = set(range(self.world))
        while missing:
            for rank in sorted(missing):
                if self.store.check([f"notes/{rank}"]):
                    told = pickle.loads(_get(self.store, f"notes/{rank}"))
                    notes[rank], reply, places[rank] = told
                    missing.discard(rank)
                    if reply is not None:
                        replies[rank] = reply
            missing -= set(self.meeting.lost())
            time.sleep(POLL if missing else 0)
        return Scene(notes, replies, {}), dict(sorted(places.items()))

    def publish(self, make: Callable[[], T], lighter: Callable[[T], T]) -> T:
        """Put the result or error of `make` into the store for the other ranks, then return or raise it
        here.
        """
        try:
            made = make()
            data = dumps((lighter(made), None))
        except BaseException as problem:  # An error of our own must not leave the others waiting.
            words: tuple[object, ...] = (RankFailure, f"rank 0 raised {problem!r}", "", ())
            if isinstance(problem, LlamaparError):
                words = (type(problem), problem.what, problem.why, problem.choose)
            self._publish(pickle.dumps((None, words)))
            raise
        self._publish(data)
        return made

    def _publish(self, data: bytes) -> None:
        _put(self.store, "outcome", data)
        end = time.monotonic() + LAST
        while (missing := self.world - 1 - self.store.add("received", 0)) > 0 and time.monotonic() < end:
            if len(self.meeting.lost()) >= missing:
                break
            time.sleep(POLL)

    def outcome(self) -> Any:
        """The result of rank 0, or the error that it raised."""
        while not self.store.check(["outcome"]):
            if self.meeting.lost():
                raise RankFailure("rank 0 is gone", f"no sign of life for {LOST:g} s", (), {}, 0)
            time.sleep(POLL)
        data = _get(self.store, "outcome")
        self.store.add("received", 1)
        made, error = pickle.loads(data)
        if error is not None:
            kind, *words = error
            raise kind(*words)
        return made

    def end(self) -> None:
        """Leave the process group: closed connections release some of the ranks that still wait."""
        if self.worker is None:
            return
        self.worker.join(SETTLE)
        if self.worker.is_alive():
            self.meeting.stuck = True
        elif dist.is_initialized():
            processes.forget_meshes()
            dist.destroy_process_group()


@functools.cache
def meeting() -> Meeting:
    """The only meeting of this process."""
    made = Meeting()
    atexit.register(made.leave)
    return made


def part(status: int) -> int:
    """Wait, before a rank's process ends, until rank 0 has written its output; returns the status unchanged.

    torchrun kills the other ranks as soon as one ends with a nonzero status.
    """
    with contextlib.suppress(RuntimeError):  # the store is gone: it was rank 0's, which has written
        here = meeting()
        if here.rank == 0:
            here.store.set("written", "")
            end = time.monotonic() + LAST  # the store may be this process's
            while here.store.add("parted", 0) < here.world - 1 and time.monotonic() < end:
                time.sleep(POLL)
        else:
            end = time.monotonic() + START
            while not here.store.check(["written"]) and not here.lost() and time.monotonic() < end:
                time.sleep(POLL)
            here.store.add("parted", 1)
    if meeting.cache_info().currsize and meeting().stuck:
        meeting().end(status)
    return status
