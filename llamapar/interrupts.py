"""Ctrl-C, and Jupyter's interrupt, at moments when a KeyboardInterrupt would do harm.

Raised while torch is imported it may be swallowed, or leave a torch behind that no import mends; raised
where torch's C++ calls back into Python it ends the process. A library waits for a moment when raising is
safe; the `llamapar` command has nothing to put in order, so from its first line on it ends at once, and its
ranks with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

STATUS = 130
"""The exit status of a command that Ctrl-C ended: 128 + SIGINT."""


def _replaced(old: object, new: Callable[[int, FrameType | None], object] | signal.Handlers) -> bool:
    """Whether `new` took the place of the handler `old`, which only the main thread can do.

    A handler that somebody else has put there stays, and so does a SIGINT that is ignored, as under nohup.
    """
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is old
    if mine:
        signal.signal(signal.SIGINT, new)
    return mine


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], None]]:
    """Keeps an interrupt to the end of the block; the function that this gives raises one that came."""
    came: list[int] = []

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    def keep(number: int, frame: FrameType | None) -> None:
        came.append(number)

    ours = _replaced(signal.default_int_handler, keep)
    try:
        yield check
    except KeyboardInterrupt:
        came.clear()
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        check()  # before whatever else the block raised


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(STATUS)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """In this block an interrupt is a KeyboardInterrupt, for a command that has something to put in order."""
    ours = _replaced(_leave, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, _leave)


def no_more() -> None:
    """The command has answered: an interrupt of what is left, the interpreter's end, changes nothing."""
    _replaced(_leave, signal.SIG_IGN)


def _is_the_command() -> bool:
    """Whether this process is `llamapar …` or `python -m llamapar …`."""
    name = ""
    if sys.argv:
        name = sys.argv[0]
    return (name == "-m" and "llamapar" in sys.orig_argv) or os.path.splitext(os.path.basename(name))[
        0
    ] == "llamapar"


if _is_the_command():  # here, for the rest of the package takes a while to import
    _replaced(signal.default_int_handler, _leave)
