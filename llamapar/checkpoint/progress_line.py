"""Progress of a long copy: a line on stderr, or a function of the caller."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


class ProgressLine:
    """Progress on one line of stderr, which is overwritten: bytes and remaining time."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stderr
        self._begun = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        left = (time.monotonic() - self._begun) * (total - done) / max(1, done)
        end = ""
        if done >= total:
            end = "\n"
        self._out.write(f"\r{done / 1e9:.2f} of {total / 1e9:.2f} GB, {left:.0f} s left {end}")
        self._out.flush()


class Counter:
    """Sum of the bytes that are done, for `progress`; True: a ProgressLine on stderr."""

    def __init__(self, progress: Progress | bool, total: int) -> None:
        self._progress = ProgressLine() if progress is True else progress
        self._done = 0
        self._total = total
        self(0)

    def __call__(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress:
            self._progress(self._done, self._total)
