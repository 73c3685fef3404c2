"""How what a rank started is ended with it, also where it left the rank's process group.

On Linux the server and each rank adopt what their descendants leave behind, so that a process which made
itself independent becomes their child, and is found. Elsewhere only the process group of a rank is ended.
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
    """Make this process the parent of what its descendants leave behind when they end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def children_now() -> set[int]:
    """The children of this process, where the system lists them."""
    return {int(pid) for of in Path("/proc/self/task").glob("*/children") for pid in of.read_text().split()}


def end_children(but: Iterable[int] = ()) -> None:
    """End the children of this process except `but`, and those that it adopts by that, until none is left."""
    seen = set(but)
    while found := children_now() - seen:
        seen |= found
        for pid in found:
            with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else now
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def kill(pid: int) -> None:
    """End the process group of the rank `pid`."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
