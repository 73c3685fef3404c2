"""A pool of real processes, one for each rank, kept warm between the cells of a notebook.

This is the kernel's side of `server`: it asks the server for ranks, sends each the same function and collects
one answer from each. Every failure is explained and cleared: shared memory shows what each rank is doing, so
an error can say who waited where, and after any failure the ranks are killed and the next run starts new ones
(a fraction of a second, because torch stays loaded in the server). The ranks meet without an open port, and
gloo uses only loopback.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from llamapar.errors import LlamaparError, PeerError, real, whole
from llamapar.execution.replies import Cancelled, RankAnswer, RankFailure, Scene
from llamapar.execution.stacks import pending_calls, place

from .rank import MAX_WORLD, Quiet, Reply, Slots, Spec, cells_here, dumps, own_file, send, tail
from .server import Server, frames

POLL = 0.05  # seconds between two looks at the ranks
SETTLE = 0.3  # without progress for this long after an error, the others are taken to be stuck
PATIENCE = 3.0  # and at most this long is waited for them
START = 120.0  # seconds without progress within which the process group has to be there
QUIET = 5.0  # seconds without progress after which whoever asked is told who waits
LOOK = 1.0  # seconds within which ranks write down where they stand


class Pool:
    """`world` ranks that run functions; they start with the first `run` and stay until `close`."""

    def __init__(
        self,
        world: int,
        *,
        device: str = "cpu",
        backend: str = "gloo",
        threads: int | None = None,
        preload: Iterable[str] = (),
    ):
        """`threads`: torch's threads for each rank, which takes the GPUs in turn.

        `preload`: modules that the server imports once, so that no rank has to.
        """
        self.spec = _spec(world, device, backend, threads)
        self.preload = tuple(preload)
        self.closed = False
        self._owner = os.getpid()
        self._server: Server | None = None
        self._folder = ""
        self._connections: list[socket.socket] = []
        _pools.add(self)

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout: float = 60.0,
        cancel: Callable[[], bool] | None = None,
        told: Callable[[dict[int, str]], None] | None = None,
        keep: bool = False,
    ) -> list[RankAnswer]:
        """Call `function(context, *args)` on every rank and return the answers in rank order.

        An answer contains any error that its rank raised. Raises RankFailure if a rank died, or if for
        `timeout` seconds no rank made progress (entered or left a collective, or finished);
        Cancelled once `cancel()` returns true, which is asked some twenty times a second. told: called once
        if for 5 s no rank made progress, with what each does and its line. keep: ranks that raise
        stay, unless one of them was left waiting.
        """
        timeout = real("timeout", timeout, 0.1, 1e6, LlamaparError)
        if self.closed or self._owner != os.getpid():
            why = "it is closed" if self.closed else f"its ranks belong to process {self._owner}"
            raise LlamaparError("this pool cannot run anything", why, ["pool(world) for another"])
        try:
            data = dumps((function, args))
        except Exception as problem:
            why = f"{type(problem).__name__}: {problem}"
            choose = ["make inside the function what cannot be sent"]
            if sys.modules.get("cloudpickle") is None:
                choose.insert(0, "pip install cloudpickle, which can send functions of a notebook")
            raise LlamaparError("the function cannot be sent to the ranks", why, choose) from problem
        with _alone():
            try:
                if not self._alive():
                    self._start(cancel)
                for connection in self._connections:
                    with contextlib.suppress(OSError):  # a rank that died just now, as will be seen
                        send(connection, (sys.path, os.getcwd(), cells_here(), data))
                answers = self._gather(timeout, cancel, told)
                fatal: type[BaseException] = BaseException
                if keep:
                    fatal = PeerError
                if any(isinstance(a.error, fatal) or not a.reusable for a in answers):
                    self._stop()  # Kill the ranks: their unfinished work must not meet the next run.
            except BaseException:
                self._stop()
                raise
        return answers

    def close(self) -> None:
        """End the ranks; the server, with torch loaded, stays for the next pool."""
        with _alone():
            self.closed = True
            self._stop()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alive(self) -> bool:
        if self._server is None or not self._connections or not self._server.alive():
            return False
        speaking = self._server.wait(0, *self._connections)  # unasked: the end of a rank
        return not (speaking or self._server.failed or self._server.ended.get(self._folder))

    def _start(self, cancel: Callable[[], bool] | None) -> None:
        self._stop()
        self._server = _the_server(self.preload, cancel)
        try:
            self._folder = tempfile.mkdtemp(prefix="llamapar-")
            self._slots = Slots(os.path.join(self._folder, "slots"), self.spec.world)
        except OSError as problem:
            what = f"{problem.filename or tempfile.gettempdir()}: {problem.strerror}"
            why = "the ranks note there where they are"
            raise LlamaparError(what, why, ["a folder with room, named by the variable TMPDIR"]) from None
        self._connections = self._server.start(self._folder, self.spec)
        bad = [answer for answer in self._gather(START, cancel) if answer.error]
        if bad:
            first = min(bad, key=lambda answer: answer.at)
            ranks = {answer.rank: f"raised {answer.error!r}" for answer in bad}
            what = f"rank {first.rank} could not start"
            choose = []
            if "busy or unavailable" in str(first.error):
                choose = ["nvidia-smi -c DEFAULT, if its GPU is in EXCLUSIVE_PROCESS mode and taken"]
            raise RankFailure(what, str(first.error), choose, ranks, first.rank) from first.error

    def _stop(self) -> None:
        self._hang_up()
        if self._folder and self._server is not None:
            self._server.stop(self._folder)
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = ""

    def _hang_up(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections = []

    def _gather(
        self,
        timeout: float,
        cancel: Callable[[], bool] | None,
        told: Callable[[dict[int, str]], None] | None = None,
    ) -> list[RankAnswer]:
        """One answer from each rank, or the error that says why there is none."""
        assert self._server is not None
        server, world = self._server, range(self.spec.world)
        speaking = dict(zip(self._connections, world, strict=True))
        buffers = [bytearray() for _ in world]
        replies: dict[int, Reply] = {}
        still = Quiet()
        failed_at = time.monotonic()

        def listen(seconds: float) -> None:
            for connection in server.wait(seconds, *speaking):
                rank = speaking[connection]
                try:
                    replies.update((rank, reply) for reply in frames(connection, buffers[rank]))
                except (EOFError, OSError):
                    del speaking[connection]

        while True:
            listen(POLL)
            now = time.monotonic()
            notes = [self._slots.read(rank) for rank in world]
            # A rank replies before it clears its note, so a rank that raised never seems to compute.
            listen(0)
            scene = Scene(notes, replies, server.ended.get(self._folder, {}))
            quiet = still.look([(note.notes, len(buffers[rank])) for rank, note in enumerate(notes)])
            failed = not all(reply.ok for reply in replies.values())
            failed_at = failed_at if failed else now
            if len(replies) == len(world) and (not failed or now - failed_at > 2 * POLL):
                break
            if scene.ended:
                first = next(iter(scene.ended))
                raise scene.death(self._last_words(first), self._written_places().get(first, ""))
            if server.failed:
                what = "the process that starts the ranks ended"
                choose = ["run again: a new one is started"]
                raise RankFailure(what, server.failed, choose, scene.states())
            try:
                if cancel is not None and cancel():
                    raise Cancelled("the run was cancelled")
            except Cancelled as given_up:
                raise scene.cancelled(given_up) from None
            if told is not None and quiet > QUIET and not failed:
                places = self._places()
                states = scene.states()
                told({r: f"{states[r]} at {places[r]}" if places.get(r) else states[r] for r in world})
                told = None
            left = len(world) - len(replies)
            if failed:  # Give the others time to answer, or to reach the call at which they block.
                if (quiet > SETTLE and len(scene.waiting()) == left) or now - failed_at > PATIENCE:
                    break
            elif quiet > timeout:
                raise scene.timeout(timeout, self._places())
        return scene.answers()

    def _last_words(self, rank: int) -> str:
        with contextlib.suppress(OSError), open(own_file(self._folder, "stderr", rank)) as file:
            return tail(file.fileno())
        return ""

    def _places(self) -> dict[int, str]:
        """Rank → its current line, for the ranks that report it in time."""
        assert self._server is not None
        self._server.look(self._folder)
        files = self._stacks()
        end = time.monotonic() + LOOK
        while time.monotonic() < end and not all(file.exists() and file.stat().st_size for file in files):
            time.sleep(POLL)
        time.sleep(POLL)  # for the last of them to be written to its end
        return self._written_places()

    def _stacks(self) -> list[Path]:
        return [Path(own_file(self._folder, "stack", rank)) for rank in range(self.spec.world)]

    def _written_places(self) -> dict[int, str]:
        """Rank → the line that it wrote down last: when it was asked, or when it aborted."""
        found = {rank: file for rank, file in enumerate(self._stacks()) if file.exists()}
        return {rank: place(pending_calls(file.read_text(errors="replace"))) for rank, file in found.items()}


def _spec(world: int, device: str, backend: str, threads: int | None) -> Spec:
    """The requested ranks, if this machine can provide them."""
    if not hasattr(os, "fork"):
        raise LlamaparError("ranks as processes need Linux or macOS", "this system cannot fork")
    whole("world", world, 1, MAX_WORLD, LlamaparError)
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, cores // world)
    if device == "cpu":
        return Spec(world, device, backend, threads, ())
    from llamapar.spmd.compat import gpus

    return Spec(world, device, backend, threads, tuple(range(gpus())))


# -- the ones that are kept ------------------------------------------------------------------------

_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_server: Server | None = None
_warm: Pool | None = None
_busy = threading.RLock()  # The lock knows its owner, so an interrupted run cannot lock itself out.


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Allow one run at a time in this process."""
    if not _busy.acquire(blocking=False):
        raise LlamaparError("the ranks are busy", "a run in another thread has not ended")
    try:
        yield
    finally:
        _busy.release()


def pool(
    world: int,
    device: str = "cpu",
    backend: str = "gloo",
    *,
    threads: int | None = None,
    preload: Iterable[str] = (),
) -> Pool:
    """The pool kept between cells: the same processes for the same arguments, else new ones."""
    global _warm
    asked = Pool(world, device=device, backend=backend, threads=threads, preload=preload)
    if _warm is None or _warm.closed or (_warm.spec, _warm.preload) != (asked.spec, asked.preload):
        close_pool()
        _warm = asked
    return _warm


def close_pool() -> None:
    """End the ranks of the kept pool, if there is one."""
    global _warm
    if _warm is not None:
        _warm.close()
    _warm = None


def _the_server(preload: tuple[str, ...], cancel: Callable[[], bool] | None) -> Server:
    """The server of this process; a new one if it ended or lacks a module."""
    global _server
    if _server is not None and not (_server.alive() and set(preload) <= set(_server.preload)):
        preload = tuple(dict.fromkeys((*_server.preload, *preload)))
        _server.close()
        _server = None
    if _server is None:
        _server = Server(preload, cancel)
    return _server


def _hang_up() -> None:
    for each in list(_pools):
        each._hang_up()


@atexit.register
def _leave() -> None:
    _hang_up()
    if _server is not None:
        _server.close()


def _forget() -> None:
    """In a fork of the kernel: drop everything that would keep the ranks alive after the kernel."""
    global _server, _warm, _busy
    _hang_up()
    for each in _pools:
        each._folder = ""  # not this process's to remove
    if _server is not None:
        _server.control.close()
        _server.process.returncode = 0  # not a child of this process
    _server = None
    _warm = None
    _busy = threading.RLock()


if hasattr(os, "register_at_fork"):  # where processes fork
    os.register_at_fork(after_in_child=_forget)
