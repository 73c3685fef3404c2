"""End the processes that a rank started together with it, even those that left its process group.

On Linux the server and each rank adopt orphaned descendants, so a process that made itself independent
becomes their child and can be found. Elsewhere only the process group of a rank is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path


def adopt() -> None:
    """Make this process the parent of its orphaned descendants."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def children_now() -> set[int]:
    """The children of this process, if the system lists them."""
    return {int(pid) for of in Path("/proc/self/task").glob("*/children") for pid in of.read_text().split()}


def end_children(but: Iterable[int] = ()) -> None:
    """End the children of this process except `but`, and the orphans it then adopts, until none is left."""
    seen = set(but)
    while found := children_now() - seen:
        seen |= found
        for pid in found:
            # The process has ended, or its number belongs to another one now.
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def kill(pid: int) -> None:
    """End the process group of the rank `pid`."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
