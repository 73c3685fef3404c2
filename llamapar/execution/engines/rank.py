"""A rank: a process that joins a process group, then runs one job after another for the kernel.

The idea: the kernel can always learn what happens to a rank. The result of a job, or its error, is a `Reply`.
A rank's current position is a `Note` in memory shared with the kernel, which can read it while the rank is
stuck in a collective, or dead. On a signal, the rank writes down the line that it is running.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import io
import linecache
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

MAX_WORLD = 64  # the ranks of a note are the bits of one word; also about what one machine bears
STOPPED = 5.0  # seconds between two looks after which whoever looks was stopped itself (Ctrl-Z)

# -- messages --------------------------------------------------------------------------------------

WORD = struct.Struct("<Q")


def dumps(value: object) -> bytes:
    """`value` pickled, with cloudpickle if installed, because it supports a notebook's functions and
    classes.
    """
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return bytes(cloudpickle.dumps(value))


def send(to: socket.socket, message: object) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    to.sendall(WORD.pack(len(data)) + data)


def receive(source: socket.socket) -> Any:
    """The next message, or EOFError if the other end is closed."""

    def exactly(n: int) -> bytearray:
        data = bytearray(n)
        view = memoryview(data)
        while view:
            got = source.recv_into(view)
            if not got:
                raise EOFError
            view = view[got:]
        return data

    return pickle.loads(exactly(WORD.unpack(exactly(WORD.size))[0]))


# -- what the ranks are doing, in memory that they share with the kernel ---------------------------


class RankStatus(NamedTuple):
    """The position of a rank: `text` ("" while it computes), and the `ranks` it waits with.

    notes: a counter that grows with each note and each sign of progress. call: the number of the collective
    among those of its group, from 1; 0 of anything else.
    """

    notes: int
    ranks: tuple[int, ...]
    text: str
    call: int = 0


class Slots:
    """One note for each rank, written by the rank and read by the kernel at any time.

    The last word of a slot is a separate progress counter, because threads may move while a note is written.
    """

    SIZE = 256
    HEAD = struct.Struct("<QQQH")
    MOVES = SIZE - WORD.size

    def __init__(self, path: str, world: int):
        with open(path, "a+b") as file:
            # Allocate real blocks, so that a full disk raises here and not as SIGBUS later.
            file.write(bytes(world * self.SIZE - file.tell()))
            file.flush()
            self.memory = mmap.mmap(file.fileno(), world * self.SIZE)
        self.world = world

    def write(self, rank: int, text: str, ranks: Iterable[int] | None = None, call: int = 0) -> None:
        at = rank * self.SIZE
        data = text.encode()[: self.MOVES - self.HEAD.size]
        count: int = WORD.unpack_from(self.memory, at)[0]
        mask = sum(1 << r for r in (range(self.world) if ranks is None else set(ranks)))
        WORD.pack_into(self.memory, at, count + 1)  # An odd count means that the note is being written.
        self.memory[at + self.HEAD.size : at + self.HEAD.size + len(data)] = data
        self.HEAD.pack_into(self.memory, at, count + 1, mask, call, len(data))
        WORD.pack_into(self.memory, at, count + 2)

    def move(self, rank: int) -> None:
        """Count a sign of progress."""
        at = rank * self.SIZE + self.MOVES
        WORD.pack_into(self.memory, at, WORD.unpack_from(self.memory, at)[0] + 1)

    def read(self, rank: int) -> RankStatus:
        at, count, moves = rank * self.SIZE, 0, 0
        for _ in range(100):  # A rank that is killed while it writes leaves an odd count for ever.
            data = self.memory[at : at + self.SIZE]
            count, mask, call, length = self.HEAD.unpack_from(data)
            moves = WORD.unpack_from(data, self.MOVES)[0]
            if count % 2 == 0 and count == WORD.unpack_from(self.memory, at)[0]:
                text = data[self.HEAD.size : self.HEAD.size + length].decode(errors="ignore")
                ranks = tuple(r for r in range(self.world) if mask >> r & 1)
                return RankStatus(count + moves, ranks, text, call)
        return RankStatus(count + moves, (), "")


class Quiet:
    """The seconds without progress, excluding the time in which this process itself was stopped."""

    def __init__(self) -> None:
        self.seconds, self._seen, self._looked = 0.0, object(), time.monotonic()

    def look(self, progress: object) -> float:
        """The seconds, given the current `progress`."""
        now = time.monotonic()
        passed = now - self._looked
        self._looked = now
        if progress != self._seen:
            self._seen = progress
            self.seconds = 0.0
        elif passed < STOPPED:
            self.seconds += passed
        return self.seconds


# -- a job ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """The properties of all ranks of one pool."""

    world: int
    device: str
    backend: str
    threads: int
    devices: tuple[int, ...]


UNEVEN = ("all_to_all", "gather", "scatter", "send", "recv")
"""How the notes of collectives begin in which ranks may give tensors of different shapes."""


class Context:
    """The facts that a function on a rank receives: its `rank`, the `world`, its torch `device`."""

    def __init__(self, rank: int, spec: Spec, slots: Slots):
        import torch

        self.rank, self.world, self._slots = rank, spec.world, slots
        gpu = ""
        if spec.devices:
            gpu = f":{spec.devices[rank % len(spec.devices)]}"
        self.device = torch.device(f"{spec.device}{gpu}")

    def note(self, text: str, ranks: Iterable[int] | None = None, call: int = 0) -> None:
        """Record that this rank now waits in `text`, with `ranks` (all of them if None); "" when it leaves.

        A collective that raises keeps its note: this is how a peer's death is told from an error of the rank.
        call: see `RankStatus`. Raises LlamaparError if a rank that waits in the same call gives another
        shape: what the backend makes of that is an abort, or wrong numbers.
        """
        self._slots.write(self.rank, text, ranks, call)
        group: tuple[int, ...] = ()
        if call:
            group = tuple(sorted(ranks or ()))
        given = {rank: self._slots.read(rank) for rank in group}
        same = {rank: one.text for rank, one in given.items() if (one.ranks, one.call) == (group, call)}
        if len({*same.values()}) > 1 and not text.startswith(UNEVEN):
            from llamapar.errors import LlamaparError
            from llamapar.records.trace import grouped, some

            each = "; ".join(f"{some(of)}: {words}" for words, of in grouped(same))
            raise LlamaparError(f"one collective is given different tensors: {each}")

    def moved(self) -> None:
        """Record that this rank made progress, wherever it is."""
        self._slots.move(self.rank)


@dataclass(frozen=True)
class Reply:
    """A rank's message after its start and after each job; `data` is the pickled value or error."""

    ok: bool
    data: bytes | None
    error: str  # "ZeroDivisionError: division by zero"
    traceback: str
    at: float
    where: str  # the note when it raised
    output: str
    stderr: str = ""  # all that its process wrote there, and what it started
    reusable: bool = True  # whether the process groups that it had are still there


MOST_PRINTED = 200
"""Lines of a rank's output that are kept."""


def capped(text: str) -> str:
    """What was printed; of many lines the first, and how many more there were."""
    lines = text.splitlines(keepends=True)
    more = len(lines) - MOST_PRINTED
    if more > 0:
        return "".join(lines[:MOST_PRINTED]) + f"… {more:,} more lines\n"
    return text


def replied(context: Context, function: Callable[[], object], capture: bool = True) -> Reply:
    """Call `function` and return its outcome; an error is an answer too.

    capture: put the printed text into the reply, stderr as a file.
    """
    ok = True
    data = None
    error = ""
    trace = ""
    printed = io.StringIO()
    stderr = ""
    if capture:
        os.ftruncate(2, 0)
    try:
        with contextlib.redirect_stdout(printed) if capture else contextlib.nullcontext():
            data = dumps(function())
    except BaseException as problem:
        from llamapar.diagnosis.live_facts import keep_facts

        keep_facts(problem)
        ok = False
        error = "".join(traceback.format_exception_only(problem)).strip()
        frames = problem.__traceback__
        for _ in range(2):  # Those of this function and of what calls the program are no news.
            frames = frames.tb_next if frames else None
        trace = "".join(traceback.format_exception(type(problem), problem, frames))
        with contextlib.suppress(Exception):
            pickle.loads(data := dumps(problem))
    at = time.monotonic()
    where = context._slots.read(context.rank).text
    if capture:
        sys.stderr.flush()
        stderr = os.pread(2, os.fstat(2).st_size, 0).decode(errors="replace")
    return Reply(ok, data, error, trace, at, where, capped(printed.getvalue()), capped(stderr))


STARTING = "the start of the process group"


def enter_group(context: Context, backend: str, store: Store) -> None:
    """Make this process a rank of the process group that meets in `store`."""
    import torch
    import torch.distributed as dist

    context.note(STARTING)
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    dist.init_process_group(
        backend,
        store=store,
        rank=context.rank,
        world_size=context.world,
        # Our own time-out comes first, because its message says more.
        timeout=datetime.timedelta(minutes=30),
        device_id=context.device if backend == "nccl" else None,
    )


def join(context: Context, spec: Spec, folder: str) -> None:
    """Make this process a rank of a process group that meets in `folder` and uses only loopback."""
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    os.environ.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=loopback)
    os.environ.update(RANK=str(context.rank), LOCAL_RANK=str(context.rank))
    os.environ.update(WORLD_SIZE=str(spec.world), LOCAL_WORLD_SIZE=str(spec.world))
    torch.set_num_threads(spec.threads)
    enter_group(context, spec.backend, FileStore(os.path.join(folder, "store"), spec.world))
    dist.all_reduce(torch.ones(1, device=context.device))
    if spec.device == "cuda":
        torch.cuda.synchronize()


def own_file(folder: str, what: str, rank: int) -> str:
    """A file that a rank writes: "stderr" of its last job; after SIGUSR2 its lines of code ("stack")."""
    return os.path.join(folder, f"{what}-{rank}")


def tail(fd: int) -> str:
    """The last lines of a file of stderr, for an exit that nothing else explains."""
    size = os.fstat(fd).st_size
    text = os.pread(fd, 2000, max(0, size - 2000)).decode(errors="replace").strip()
    return "".join(f"\n       {line}" for line in text.splitlines()[-4:])


def work(rank: int, spec: Spec, folder: str, connection: socket.socket) -> None:
    """Join the group, then answer one job after another until the kernel closes `connection`."""
    stack = open(own_file(folder, "stack", rank), "w")  # noqa: SIM115 (faulthandler's, as long as the rank lives)
    own = os.open(own_file(folder, "stderr", rank), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(own, 2)  # below sys.stderr: what C++, loggers of before and child processes write is there too
    os.close(own)
    faulthandler.register(signal.SIGUSR2, stack, all_threads=False)
    faulthandler.enable(stack, all_threads=False)  # What aborts in C++ leaves its line there, too.
    context = Context(rank, spec, Slots(os.path.join(folder, "slots"), spec.world))
    send(connection, replied(context, lambda: join(context, spec, folder)))
    from llamapar.spmd.compat import process_groups

    while True:
        context.note("")  # Clear the note after the reply, so that a rank that raised never seems to compute.
        try:
            job = receive(connection)
        except EOFError:
            return
        before = process_groups()
        reply = replied(context, partial(_run, context, *job))
        send(connection, replace(reply, reusable=before <= process_groups()))


Cells = dict[str, tuple[int, None, list[str], str]]
"""Entries of Python's cache of lines, by file."""


def cells_here() -> Cells:
    """The entries of Python's cache of lines that stand for no file, as those of a notebook's cells do."""
    entries = linecache.cache.items()
    return {file: (each[0], None, each[2], file) for file, each in entries if len(each) > 1 and not each[1]}


def _run(context: Context, path: list[str], directory: str, cells: Cells, data: bytes) -> object:
    """Run a job as if in the kernel: with its module path, its cells' lines, and in its directory."""
    sys.path[:] = path
    linecache.cache.update(cells)
    with contextlib.suppress(OSError):  # The directory may have been deleted.
        os.chdir(directory)
    function, args = pickle.loads(data)
    return function(context, *args)
