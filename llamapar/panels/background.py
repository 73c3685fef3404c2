"""Work in a thread of the kernel, which never waits for it: the latest work wins, and each can be stopped."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar, cast

from llamapar.errors import LlamaparError

Item = TypeVar("Item")


IDLE, RUNNING, WRITING, DONE, CANCELLED, FAILED = (
    "idle", "running", "writing", "done", "cancelled", "failed"
)  # fmt: skip
"""WRITING: the result is there, and its shape tape is being written, which takes about as long again."""

Steps = Iterator[object]
"""A work that can be left for a while after each."""

SLICE = 0.03
"""Seconds of a work between two looks at what came meanwhile, where there are no threads."""


class Background(Generic[Item]):
    """Runs a work in a thread; the work calls `report` with an Item at each step to show its progress."""

    def __init__(self, report: Callable[[Item], None]) -> None:
        self.now: Item | None = None
        self._report = report
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._steps: Steps = iter(())
        _all.add(cast("Background[object]", self))

    def _begin(self, item: Item) -> threading.Event:
        """Show the first step of a work, and stop the previous work."""
        with self._lock:
            self._stop.set()
            self._stop = threading.Event()
            self._put(self._stop, item)
            return self._stop

    def _go(self, item: Item, work: Callable[[threading.Event], Steps | None], name: str) -> None:
        """Begin, and do the work in a thread; without threads, as in a web page, between messages."""
        stop = self._begin(item)
        steps = self._steps_of(item, work, stop)
        thread = threading.Thread(target=lambda: _finish(steps), name=f"llamapar {name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._steps = steps
            _take_turns(steps)
        else:
            self._thread = thread

    def _steps_of(
        self, item: Item, work: Callable[[threading.Event], Steps | None], stop: threading.Event
    ) -> Steps:
        """The steps of a work; an error that it raises is shown as its problem."""
        try:
            yield from work(stop) or ()
        except Exception as error:  # Any error of torch, of the machine or of ours belongs on the page.
            problem = error
            if not isinstance(error, LlamaparError):
                problem = LlamaparError(f"{type(error).__name__}: {error}")
            self._put(stop, replace(item, state=FAILED, problem=problem))  # type: ignore[type-var]

    def _put(self, stop: threading.Event, item: Item) -> None:
        """Show a step of the work with this `stop`, unless another work has replaced it."""
        with self._lock:
            if stop is self._stop:
                self.now = item
                self._report(item)

    def cancel(self) -> None:
        """Stop the current work at its next step."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no work runs, at most `timeout` seconds; returns whether none runs."""
        _finish(self._steps)
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()


def _finish(steps: Iterable[object]) -> None:
    for _ in steps:
        pass


def _take_turns(steps: Steps) -> None:
    """Run a slice of a work, and the rest from the running event loop; without a loop, run all of it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        _finish(steps)
        return
    end = time.monotonic() + SLICE
    for _ in steps:
        if time.monotonic() > end:
            loop.call_later(0, _take_turns, steps)
            break


_all: weakref.WeakSet[Background[object]] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """At exit, stop the thread: one inside torch must not outlive the interpreter."""
    for each in list(_all):
        each.cancel()
        each.wait(2.0)
