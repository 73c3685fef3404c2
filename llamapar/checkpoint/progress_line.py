"""Progress of a long copy: a line on stderr, or a function of the caller."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import IO

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


class ProgressLine:
    """Progress on one line of stderr, which is overwritten: bytes, rate and remaining time."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stderr
        self._begun = time.monotonic()
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        # Five times a second is enough to read; a terminal is slower than the copying.
        if now - self._last < 0.2 and done < total:
            return
        self._last = now
        rate = done / max(now - self._begun, 1e-9)
        left = (total - done) / rate if rate else 0.0
        end = "\n" if done >= total else ""
        share = 20 * done // total if total else 20
        self._out.write(
            f"\r[{'#' * share}{'.' * (20 - share)}] {done / 1e9:.2f} of {total / 1e9:.2f} GB, "
            f"{rate / 1e6:.0f} MB/s, {left:.0f} s left {end}"
        )
        self._out.flush()


class Counter:
    """Sum of the bytes that several threads have done, for `progress`; True: a ProgressLine on stderr."""

    def __init__(self, progress: Progress | bool, total: int) -> None:
        self._progress = ProgressLine() if progress is True else progress
        self._done, self._total = 0, total
        self._lock = threading.Lock()

    def __call__(self, nbytes: int) -> None:
        with self._lock:
            self._done = min(self._done + nbytes, self._total)
            if self._progress:
                self._progress(self._done, self._total)
