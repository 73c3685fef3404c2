"""A trial in a forked child: one thread, a time limit, and no effect outside.

Landlock refuses every file, directory and TCP port, and RLIMIT_FSIZE what is written through a handle that
was open before. Handles of sockets, pipes and terminals lead to /dev/null, shared memory becomes private,
and an audit hook ends what connects, starts a process, sends a signal or changes a file's attributes. Where
one of these is missing nothing is tried: the facts of the failure stand, and `unsafe` says why. Where a
forked child must not touch the tensors' numbers, they are fake in it: `without_numbers` says why.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import pickle
import resource
import select
import signal
import stat
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import FrameType

import torch
import torch.distributed as dist
from torch.utils.data import dataloader

from llamapar.records.frames import Held, is_library

_PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET = 444
_RESTRICT_SELF = 446
_FILES = 0x1FF2
"""Landlock's rights to write, remove and make, without those to read."""

_REFER, _TRUNCATE = 1 << 13, 1 << 14  # From versions 2 and 3 on.
_TCP = 0b11  # From version 4 on: bind, connect.
_SCOPES = 0b11  # From version 6 on: abstract sockets, signals to processes outside.
_PROT_READ_WRITE = 3
_MAP_PRIVATE_FIXED_ANONYMOUS = 0x32
_LIBC = None
if sys.platform == "linux":
    _LIBC = ctypes.CDLL(None, use_errno=True)

_ENDS = frozenset(
    [
        "socket.connect",
        "socket.bind",
        "socket.sendto",
        "socket.sendmsg",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.kill",
        "os.killpg",
        "os.chmod",
        "os.chown",
        "os.utime",
        "os.setxattr",
        "os.removexattr",
        "os.truncate",
        "shutil.rmtree",
        "signal.pthread_kill",
    ]
)
"""Audit events that end a trial."""

STOPPED = "stopped before it left the process"


class Stopped(BaseException):
    """An effect outside that was stopped. No handler of the user's catches it by mistake."""


def unsafe() -> str:
    """Why no trial can run here; "" if one can."""
    if _LIBC is None or not hasattr(os, "fork"):
        return "edits are tried on Linux only: elsewhere a fork is not safe"
    if _LIBC.syscall(_CREATE_RULESET, None, 0, 1) < 1:
        return "this kernel has no Landlock, so a trial could write files"
    if (
        dist.is_available()
        and dist.is_initialized()
        and dist.get_backend() != "fake"
        and dist.get_world_size() > 1
    ):
        return "other ranks wait for this one, and a trial cannot talk to them"
    return ""


def without_numbers() -> str:
    """Why a child must leave the tensors' numbers alone; "" if it need not."""
    if torch.cuda.is_initialized():
        return "CUDA is in use, and a fork cannot use it"
    for ident, frame in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        place: FrameType | None = frame
        while place is not None:
            if not is_library(place.f_code.co_filename):
                return f"{place.f_code.co_name} runs in a thread of its own, which a fork would stop halfway"
            place = place.f_back
    return ""


def run_apart(work: Callable[[], Held], seconds: float) -> Held:
    """What `work` returns, in a forked child; None if it hangs, dies or takes too long. It must pickle."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of threads; `without_numbers` has looked at them.
        child = os.fork()
    if not child:
        _in_child(work, writes)
    os.close(writes)
    answer = bytearray()
    end = time.monotonic() + seconds
    while select.select([reads], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(reads, 1 << 20)
        if not part:
            break
        answer += part
    os.close(reads)
    os.kill(child, signal.SIGKILL)  # Until it is waited for, the number is its own.
    os.waitpid(child, 0)
    complete = len(answer) > 8 and len(answer) == 8 + int.from_bytes(answer[:8], "little")
    if complete:
        return pickle.loads(answer[8:])
    return None


def _in_child(work: Callable[[], Held], writes: int) -> None:
    """Do the work, send what it returns, and end. The parent made this process, so the pickle is its own."""
    try:
        _shut_in(writes)
        answer = pickle.dumps(work())
        answer = len(answer).to_bytes(8, "little") + answer
        while answer:
            answer = answer[os.write(writes, answer) :]
    finally:
        os._exit(0)


def _shut_in(answers: int) -> None:
    """Take from this process what reaches outside."""
    gc.disable()  # No finalizer of the parent's runs here.
    torch.set_num_threads(1)  # OpenMP's other threads did not survive the fork.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in map(int, os.listdir("/proc/self/fd")):
        try:
            mode = os.fstat(handle).st_mode
        except OSError:  # The list's own handle is closed by now.
            continue
        outside = stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
        if handle != answers and (outside or handle in (1, 2)):
            os.dup2(nowhere, handle)
        elif stat.S_ISREG(mode):
            _reopen(handle)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _make_maps_private()
    refuse_effects()
    if dist.is_available() and dist.is_initialized():
        # What fails may begin with this; the group is there.
        dist.init_process_group = dist.destroy_process_group = _nothing


def refuse_effects() -> None:
    """Refuse this process files, new connections and other processes, for the rest of its life."""

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        # A handle of a file that was open before can only read it, and a rank cuts its own log short.
        if event in _ENDS and not (event == "os.truncate" and type(arguments[0]) is int):
            raise Stopped(f"{event}: {STOPPED}")

    _restrict()
    sys.addaudithook(audit)
    _without_workers()


def on_fakes(work: Callable[[], Held]) -> Held:
    """What `work` returns where every tensor is fake: shapes and dtypes, no numbers, no kernel that runs."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # It imports sympy.

    with FakeTensorMode(allow_non_fake_inputs=True):
        return work()


def _nothing(*given: object, **options: object) -> None:
    """In place of a call that has happened."""


def _reopen(handle: int) -> None:
    """Replace a handle that can write a file by one that reads it: RLIMIT_FSIZE lets a file be cut short."""
    if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        return
    try:
        reader = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY)
        os.lseek(reader, os.lseek(handle, 0, os.SEEK_CUR), os.SEEK_SET)
    except OSError:  # A file that nobody may read.
        reader = os.open(os.devnull, os.O_RDONLY)
    os.dup2(reader, handle)
    os.close(reader)


def _make_maps_private() -> None:
    """Replace every shared map that can be written by a private copy of it."""
    assert _LIBC is not None
    _LIBC.mmap.restype = ctypes.c_void_p
    _LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    with open("/proc/self/maps") as maps:
        lines = maps.read().splitlines()
    for line in lines:
        place, rights, *_ = line.split()
        if rights.startswith("rw") and rights[3] == "s":
            begin, end = (int(number, 16) for number in place.split("-"))
            content = ctypes.string_at(begin, end - begin)
            _LIBC.mmap(begin, end - begin, _PROT_READ_WRITE, _MAP_PRIVATE_FIXED_ANONYMOUS, -1, 0)
            ctypes.memmove(begin, content, end - begin)


def _restrict() -> None:
    """Refuse files, TCP ports and signals to others, as far as this kernel's Landlock knows them."""
    assert _LIBC is not None
    version = _LIBC.syscall(_CREATE_RULESET, None, 0, 1)
    files = _FILES
    if version >= 2:
        files |= _REFER
    if version >= 3:
        files |= _TRUNCATE
    refused = struct.pack("Q", files)
    if version >= 4:
        refused += struct.pack("Q", _TCP)
    if version >= 6:
        refused += struct.pack("Q", _SCOPES)
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    rules = _LIBC.syscall(_CREATE_RULESET, refused, len(refused), 0)
    if rules < 0 or _LIBC.syscall(_RESTRICT_SELF, rules, 0) != 0:
        os._exit(1)  # Nothing of the user's has run.


def _without_workers() -> None:
    """Let a DataLoader load in this process, and torch.compile compile nothing."""

    def in_this_process(loader: Held) -> Held:
        loader.num_workers = 0
        loader.timeout = 0
        return dataloader._SingleProcessDataLoaderIter(loader)

    dataloader.DataLoader._get_iterator = in_this_process  # type: ignore[method-assign, assignment]
    dataloader._MultiProcessingDataLoaderIter.__del__ = lambda loader: None  # type: ignore[method-assign]
    if "torch._dynamo" in sys.modules:
        torch.compiler.set_stance("force_eager")
