"""The engine for ranks that torchrun started: every rank runs this program, and rank 0 reports the result.

The idea: a thread of each rank runs the task, and the main thread watches it. A rank that raises, or that
sees no rank make progress for too long, says so in the store that torchrun's ranks share. The others read
this within a moment, report where they are, and stop, so no rank waits for one that never comes. Rank 0
combines the reports as for a pool, and all ranks return or raise the same. Left out: whether a rank lives.
torchrun watches that itself, and ends the other ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import itertools
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore, rendezvous  # type: ignore[attr-defined]
from torch.distributed.elastic.utils.store import barrier

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
START = 120.0  # seconds within which every rank has to be there
SETTLE = 1.0  # seconds in which the other ranks may raise too, once one has
LAST = 10.0  # seconds that ranks wait for one another when one has failed, or when all is told

PIECE = 4 * 2**20  # bytes of a value in the store, which takes at most 8 MiB

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_runs = itertools.count(1)


def launched() -> int | None:
    """Number of ranks that torchrun (or a program that sets its environment) started; None without it."""
    if all(name in os.environ for name in _ENVIRONMENT):
        return int(os.environ["WORLD_SIZE"])
    return None


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
    `timeout` seconds no rank entered or left a collective, or ended. Raises LlamaparError if
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
    here = _Run(timeout)
    try:
        if here.rank == 0:
            here.work(task, device, backend)
            return here.publish(lambda: finish(here.reports()), lighter)
        try:
            here.work(task, device, backend)
            return here.outcome()
        except RuntimeError as problem:  # out of the store, where it was rank 0's own
            raise RankFailure("rank 0 is gone", str(problem).partition("\n")[0], (), {}, 0) from problem
    finally:
        here.end()


@functools.cache
def _stores() -> tuple[Store, Store]:
    """The store in which the ranks meet: a connection for their process groups, and one for all else.

    A process group that waits in the store keeps its connection busy.
    """
    patience = datetime.timedelta(seconds=START)
    for_groups, _, _ = next(rendezvous("env://", timeout=patience))
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    own = TCPStore(host, port, is_master=False, timeout=patience)
    return for_groups, PrefixStore(f"llamapar/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", own)


def _put(store: Store, key: str, data: bytes) -> None:
    """Set a value of any size, in several parts."""
    pieces = [data[i : i + PIECE] for i in range(0, len(data), PIECE)]
    for i, piece in enumerate(pieces):
        store.set(f"{key}/{i}", piece)  # type: ignore[arg-type]
    store.set(key, str(len(pieces)))


def _get(store: Store, key: str) -> bytes:
    return b"".join(store.get(f"{key}/{i}") for i in range(int(store.get(key))))


def _meet(store: Store, where: str) -> None:
    """Wait until every rank is here, for LAST seconds at most."""
    with contextlib.suppress(RuntimeError):  # A store that is gone was rank 0's, which has ended.
        barrier(store, int(os.environ["WORLD_SIZE"]), where, LAST)


class _OwnNote(Slots):
    """The note of this rank, in its own memory."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.now = RankStatus(0, (), "")
        self.moves = 0

    def write(self, rank: int, text: str, ranks: Iterable[int] | None = None, call: int = 0) -> None:
        group = tuple(range(self.world) if ranks is None else ranks)
        self.now = RankStatus(self.now.notes + 1, group, text, call)

    def move(self, rank: int) -> None:
        self.moves += 1

    def read(self, rank: int) -> RankStatus:
        return self.now


class _Run:
    """One run, with the messages between its ranks."""

    def __init__(self, timeout: float) -> None:
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.timeout = timeout
        for_groups, store = _stores()
        number = next(_runs)
        self.store = PrefixStore(f"run/{number}", store)
        self.group_store = PrefixStore(f"llamapar/groups/{number}", for_groups)
        self.note = _OwnNote(self.world)
        self.worker: threading.Thread | None = None

    def work(self, task: Task, device: str, backend: str) -> None:
        """Run the task here until all is done or some rank fails, and put the outcome into the store."""
        gpus = 0
        if device == "cuda":
            gpus = compat.gpus()
        devices: tuple[int, ...] = ()
        if gpus:
            devices = (int(os.environ.get("LOCAL_RANK", 0)) % gpus,)
        context = Context(self.rank, Spec(self.world, device, backend, 0, devices), self.note)
        replies = list[Reply]()

        def in_group() -> RankReport:
            enter_group(context, backend, self.group_store)
            processes.lanes_of(task.setting.layout, context.device.type)  # takes long where ranks are many
            context.note("")
            return processes.run_here(context, task)

        def reply() -> None:
            replies.append(replied(context, in_group, capture=False))

        worker = self.worker = threading.Thread(target=reply, name="llamapar rank", daemon=True)
        worker.start()
        at = ""
        if not self._watch(lambda: not worker.is_alive()):
            self.store.set("failed", "")
            at = place(of_thread(worker.ident))
            worker.join(SETTLE)
        own = None
        if replies:
            own = replies[0]
        if own is not None and not own.ok:
            self.store.set("failed", "")  # Clocks differ between machines, so the order in the store decides.
            own = replace(own, at=float(self.store.add("raised", 1)))
        _put(self.store, f"notes/{self.rank}", pickle.dumps((self.note.now, own, at)))
        self.store.add("progress", 1)  # Finishing counts as progress.
        self.store.add("done", 1)
        if self.rank == 0 and not self._watch(lambda: self.store.add("done", 0) == self.world):
            self.store.set("failed", "")

    def _watch(self, done: Callable[[], bool]) -> bool:
        """Wait until it is done; False once a rank has failed, or none has made progress for too long."""
        still = Quiet()
        seen = 0, 0
        while not done():
            time.sleep(POLL)
            now = self.note.now  # read once, for the start may end meanwhile
            own = now.notes, self.note.moves
            quiet = still.look(self.store.add("progress", int(own != seen)))
            seen = own
            limit = max(self.timeout, START) if now.text == STARTING else self.timeout
            if quiet > limit or self.store.check(["failed"]):
                return False
        return True

    def reports(self) -> list[RankReport]:
        """A report from each rank, or RankFailure."""
        notes = [RankStatus(0, (), "")] * self.world
        replies: dict[int, Reply] = {}
        places: dict[int, str] = {}
        missing = set(range(self.world))
        end = time.monotonic() + LAST
        while missing and time.monotonic() < end:
            for rank in sorted(missing):
                if self.store.check([f"notes/{rank}"]):
                    told = pickle.loads(_get(self.store, f"notes/{rank}"))
                    notes[rank], reply, places[rank] = told
                    missing.discard(rank)
                    if reply is not None:
                        replies[rank] = reply
            time.sleep(POLL)
        scene = Scene(notes, replies, {})
        if missing:
            raise scene.gone(sorted(missing), LAST)
        if all(reply.ok for reply in replies.values()) and len(replies) < self.world:
            raise scene.timeout(self.timeout, dict(sorted(places.items())))
        return processes.reports(scene.answers())

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
            data = pickle.dumps((None, words))
            raise
        finally:
            _put(self.store, "outcome", data)
            _meet(self.store, "received")
        return made

    def outcome(self) -> Any:
        """The result of rank 0, or the error that it raised."""
        while not self.store.check(["outcome"]):
            time.sleep(POLL)
        data = _get(self.store, "outcome")
        _meet(self.store, "received")
        made, error = pickle.loads(data)
        if error is not None:
            kind, *words = error
            raise kind(*words)
        return made

    def end(self) -> None:
        """Leave the process group: closed connections release some of the ranks that still wait.

        A rank of a run that failed ends with status 1: as Python ends, a thread that is still inside torch
        would abort the process, and so would now and then what is left of a group whose peers are gone.
        """
        if self.worker is None:
            return
        self.worker.join(SETTLE)
        if self.worker.is_alive() or self._failed():
            atexit.register(_end, 1)
        if not self.worker.is_alive() and dist.is_initialized():
            processes.mesh_of.cache_clear()
            processes.lanes_of.cache_clear()
            dist.destroy_process_group()

    def _failed(self) -> bool:
        """Whether some rank failed; True, too, if the store is gone with rank 0."""
        try:
            return self.store.check(["failed"])
        except RuntimeError:
            return True


def _end(status: int) -> None:
    """End this process at once."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def part(status: int) -> int:
    """Wait, before a rank's process ends, until rank 0 has written its output; returns the status unchanged.

    torchrun kills the other ranks as soon as one ends with a nonzero status.
    """
    _meet(_stores()[1], "written")
    return status
