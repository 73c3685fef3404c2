"""The server that forks the ranks of a pool: the process itself, and the kernel's handle on it.

The server is a bare `python -c`, so it never imports the user's `__main__`. It imports torch and rehearses
one rank over the fake backend, because torch postpones imports that take seconds until the first DTensor or
collective call; a forked rank has them all. A fork is only safe because the server has one thread and never
asks CUDA for anything.

Nothing outlives the kernel. The server reads a socket whose other end only the kernel holds, even while it
imports torch. When that end closes, however the kernel died, the server kills the ranks and exits. Each rank
watches a pipe whose other end only the server holds, and dies with it. The server has its own session, so an
interrupt of the kernel does not reach the ranks. Processes of a rank's own group die with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing.connection
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from llamapar.execution.replies import Cancelled, RankFailure, ending

from .rank import MAX_WORLD, WORD, Quiet, Spec, receive, send, tail, work

STOP = 10.0  # seconds within which the server has to end ranks, or itself

NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""With these torch answers that there is no GPU, and does not ask CUDA (torch.cuda.is_available)."""

# -- in the server ----------------------------------------------------------------------------------


def preload_imports(preload: Iterable[str]) -> None:
    """Do the work that every rank should find done: torch's imports, and those of `preload`."""
    # A process that has asked CUDA for the number of GPUs cannot use them after a fork. Without visible GPUs,
    # torch does not ask NVML either, which does not know MIG's devices and is not installed everywhere.
    before = {name: os.environ[name] for name in NO_GPU if name in os.environ}
    os.environ.update(NO_GPU)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rehearse()
            for name in preload:
                importlib.import_module(name)
    finally:
        for name in NO_GPU:
            del os.environ[name]
        os.environ.update(before)


def rehearse() -> None:
    """Do once, alone, what every rank will do, so that torch's late imports are done before the fork.

    There is no backward: autograd would start a thread for each GPU, and it imports nothing.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from llamapar.spmd.collectives import Exchange, same

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    functional = torch.distributed._functional_collectives
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("rehearsal",))
    functional.wait_tensor(functional.all_reduce(torch.ones(2, 2), "sum", mesh))
    for have, want in (
        (Shard(0), Shard(1)),
        (Shard(0), Replicate()),
        (Partial(), Replicate()),
        (Partial(), Shard(0)),
    ):
        DTensor.from_local(torch.ones(2, 2), mesh, [have]).redistribute(mesh, [want]).to_local()
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    Exchange.apply(torch.nn.functional.scaled_dot_product_attention(x, x @ x, x), same, same)
    dist.destroy_process_group()


def run_server(control: socket.socket, preload: Iterable[str]) -> None:
    """Prepare, report ready, and serve until the kernel is gone."""
    control.set_inheritable(False)
    try:
        with _ending_with(control):
            preload_imports(preload)
    except Exception:
        send(control, ("failed", traceback.format_exc()))
        return
    gc.collect()
    gc.freeze()  # The ranks share these pages until a garbage collection writes to them.
    children: dict[int, tuple[str, int]] = {}  # pid → folder of its pool, rank
    with contextlib.suppress(EOFError, OSError):
        send(control, ("ready", ""))
        serve(control, children)
    for pid in children:
        kill(pid)
    for pid, (folder, _) in children.items():
        os.waitpid(pid, 0)
        shutil.rmtree(folder, ignore_errors=True)


def kill(pid: int) -> None:
    """End the process group of the rank `pid`."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@contextlib.contextmanager
def _ending_with(control: socket.socket) -> Iterator[None]:
    """A context in which a thread ends this process as soon as the kernel is gone; the thread ends with the
    block.

    The kernel writes nothing before it receives "ready", so readable input means that the kernel closed.
    """
    stopped, stop = os.pipe()

    def watch() -> None:
        if control.fileno() in select.select([control.fileno(), stopped], [], [])[0]:
            os._exit(1)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        os.close(stop)
        thread.join()
        os.close(stopped)


def serve(control: socket.socket, children: dict[int, tuple[str, int]]) -> None:
    """Start and stop ranks on request, and report each that ended."""
    lifeline, kept_open = os.pipe()  # Only the server holds this end.
    bell, ringer = socket.socketpair()
    for end in (bell, ringer):
        end.setblocking(False)
    # Without a Python handler no byte of this signal reaches the wakeup descriptor.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)

    def ended(pid: int, status: int) -> None:
        kill(pid)  # End what the rank started.
        send(control, ("ended", *children.pop(pid), os.waitstatus_to_exitcode(status)))

    while True:
        ready, _, _ = select.select([control, bell], [], [])
        if bell in ready:
            bell.recv(4096)
            while children and (done := os.waitpid(-1, os.WNOHANG))[0]:
                if done[0] in children:
                    ended(*done)
        if control not in ready:
            continue
        request, folder, spec = receive(control)
        if request == "start":
            fds = socket.recv_fds(control, 1, MAX_WORLD)[1]
            for rank, fd in enumerate(fds):
                if (pid := os.fork()) == 0:
                    # A child closes every end that is not its own: while one stays open, nobody sees that the
                    # other side is gone.
                    others = [kept_open, *fds[:rank], *fds[rank + 1 :]]
                    become_rank(rank, spec, folder, fd, lifeline, others, control)
                children[pid] = (folder, rank)
                with contextlib.suppress(OSError):
                    # Set the group in both processes, so that an immediate kill finds it.
                    os.setpgid(pid, pid)
            for fd in fds:
                os.close(fd)
            continue
        ours = [pid for pid, (of, _) in children.items() if of == folder]
        if request == "look":
            for pid in ours:
                os.kill(pid, signal.SIGUSR2)
        else:
            for pid in ours:
                kill(pid)
            for pid in ours:
                ended(*os.waitpid(pid, 0))
            send(control, ("stopped", folder))


def become_rank(
    rank: int,
    spec: Spec,
    folder: str,
    fd: int,
    lifeline: int,
    others: Iterable[int],
    control: socket.socket,
) -> NoReturn:
    """The life of a forked child, from its first instruction to its exit."""

    def watch() -> None:
        os.read(lifeline, 1)  # The read returns when the server is gone.
        os.killpg(0, signal.SIGKILL)

    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        control.close()
        for other in others:
            os.close(other)
        threading.Thread(target=watch, daemon=True).start()
        connection = socket.socket(fileno=fd)
        connection.set_inheritable(False)
        work(rank, spec, folder, connection)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


# -- in the kernel ---------------------------------------------------------------------------------

PROGRAM = """
import json, socket, sys
sys.path[:] = json.loads(sys.argv[2])
from llamapar.execution.engines.server import run_server
run_server(socket.socket(fileno=int(sys.argv[1])), sys.argv[3:])
"""


class Server:
    """The process that has torch loaded and forks ranks; `ended` and `failed` hold its reports."""

    def __init__(self, preload: tuple[str, ...], cancel: Callable[[], bool] | None = None):
        """Returns when the process is ready. `cancel` is asked meanwhile; true ends the process."""
        self.preload, self.ready, self.failed, self._read = preload, False, "", bytearray()
        self.ended: dict[str, dict[int, int]] = {}  # folder of a pool → rank → exit code, negative: signal
        self.stopped: set[str] = set()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (what the ranks' libraries write)
        self.control, theirs = socket.socketpair()
        places = json.dumps([place or os.getcwd() for place in sys.path if isinstance(place, str)])
        quiet = {"OPENBLAS_NUM_THREADS": "1", "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno()), places, *preload],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                env=os.environ | quiet,
                start_new_session=True,  # A new session keeps the kernel's interrupts away.
            )
        try:
            while not (self.ready or self.failed):
                self.wait(0.05)
                if cancel is not None and cancel():
                    raise Cancelled("the run was cancelled", "torch was still being imported for the ranks")
            if self.failed:
                *trace, last = self.failed.strip().splitlines()
                error = RankFailure("the process that starts the ranks could not start", last)
                error.add_note("\n".join(trace))
                raise error
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Send or read a whole message; an interrupt in the middle ends the server, because the stream is
        then broken.
        """
        try:
            yield
        except BaseException:
            self.process.kill()
            self.failed = "interrupted in the middle of a message"
            raise

    def wait(self, seconds: float, *others: socket.socket) -> list[socket.socket]:
        """Wait for and process a message of the server, or return those of `others` that have input."""
        ready = multiprocessing.connection.wait([self.control, *others], seconds)
        if self.control in ready:
            with self._whole():
                try:
                    for message in frames(self.control, self._read):
                        self._take(*message)
                except (EOFError, OSError):
                    self.process.wait()
                    how = f"it {ending(self.process.returncode)}{tail(self.log.fileno())}"
                    self.failed = self.failed or how
        return [source for source in others if source in ready]

    def alive(self) -> bool:
        if not self.failed:
            self.wait(0)
        return not self.failed

    def _take(self, kind: str, text: str, *details: int) -> None:
        if kind == "ended":
            self.ended.setdefault(text, {})[details[0]] = details[1]
        elif kind == "stopped":
            self.stopped.add(text)
        elif kind == "ready":
            self.ready = True
        else:
            self.failed = text

    def start(self, folder: str, spec: Spec) -> list[socket.socket]:
        """Request ranks, and return our ends of their connections."""
        pairs = [socket.socketpair() for _ in range(spec.world)]
        with self._whole(), contextlib.suppress(OSError):  # a server that is gone is found by `wait`
            send(self.control, ("start", folder, spec))
            socket.send_fds(self.control, [b"."], [theirs.fileno() for _, theirs in pairs])
        for _, theirs in pairs:
            theirs.close()
        return [ours for ours, _ in pairs]

    def look(self, folder: str) -> None:
        """Make the ranks of `folder` write down their current lines."""
        with self._whole(), contextlib.suppress(OSError):
            send(self.control, ("look", folder, None))

    def stop(self, folder: str) -> None:
        """Kill the ranks of `folder`, and return when they are gone.

        A server that stays silent for STOP seconds, for example because a signal stopped it, is ended with
        its ranks.
        """
        if not self.failed:
            with self._whole(), contextlib.suppress(OSError):
                send(self.control, ("stop", folder, None))
        still = Quiet()
        while not (self.failed or folder in self.stopped):
            self.wait(1.0)
            if still.look(len(self.ended.get(folder, {}))) > STOP:
                self.failed = f"it was ended: no answer for {STOP:g} s"
                self.process.kill()
        self.stopped.discard(folder)
        self.ended.pop(folder, None)

    def close(self) -> None:
        self.control.close()  # the server kills its ranks and leaves when it sees that
        if not self.ready:
            self.process.kill()
        try:
            self.process.wait(STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.failed = self.failed or "closed"


def frames(source: socket.socket, buffer: bytearray) -> Iterator[Any]:
    """The complete messages so far; `buffer` keeps the rest. Raises EOFError once the stream has ended."""
    more = True
    with contextlib.suppress(BlockingIOError):
        while more:
            got = source.recv(1 << 20, socket.MSG_DONTWAIT)
            buffer += got
            more = bool(got)
    while len(buffer) >= WORD.size and len(buffer) >= (end := WORD.size + WORD.unpack_from(buffer)[0]):
        message = pickle.loads(buffer[WORD.size : end])
        del buffer[:end]
        yield message
    if not more:
        raise EOFError
