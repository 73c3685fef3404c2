"""Work in a thread of the kernel, which never waits for it: the latest wins, and each can be stopped."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar, cast

Item = TypeVar("Item")


class Background(Generic[Item]):
    """Shows how far a work is by calling `report` with an Item at each step, from the thread that does it."""

    def __init__(self, report: Callable[[Item], None]) -> None:
        self.now: Item | None = None
        self._report = report
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        _all.add(cast("Background[object]", self))

    def _begin(self, item: Item) -> threading.Event:
        """Show the first step of a work; what went on is stopped."""
        with self._lock:
            self._stop.set()
            self._stop = threading.Event()
            self._put(self._stop, item)
            return self._stop

    def _go(self, item: Item, work: Callable[[threading.Event], None], name: str) -> None:
        """Begin, and do the work in a thread; here and now where a Python has no threads, as a page's."""
        stop = self._begin(item)
        thread = threading.Thread(target=work, args=(stop,), name=f"llamapar {name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            work(stop)
        else:
            self._thread = thread

    def _put(self, stop: threading.Event, item: Item) -> None:
        """Show a step of the work that `stop` belongs to, unless another took its place."""
        with self._lock:
            if stop is self._stop:
                self.now = item
                self._report(item)

    def cancel(self) -> None:
        """Stop what goes on, at its next step."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Until nothing goes on, at most `timeout` seconds; whether nothing does."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()


_all: weakref.WeakSet[Background[object]] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """A thread inside torch must not outlive the interpreter."""
    for each in list(_all):
        each.cancel()
        each.wait(2.0)
