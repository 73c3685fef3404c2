"""A bound on the time of a call that does not fail on a busy machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """At most `seconds` of this thread's processor time, and ten times that by the clock.

    What the tests before have left in memory is kept from Python's collector meanwhile: one look at all of it
    takes half a second by the end of `make test`.
    """
    gc.freeze()
    processor, clock = time.thread_time(), time.monotonic()
    try:
        yield
    finally:
        gc.unfreeze()
    assert time.thread_time() - processor <= seconds
    assert time.monotonic() - clock <= 10 * seconds
