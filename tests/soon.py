"""A bound on the time of a call that does not fail on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """At most `seconds` of this thread's processor time, and ten times that by the clock."""
    processor, clock = time.thread_time(), time.monotonic()
    yield
    assert time.thread_time() - processor <= seconds
    assert time.monotonic() - clock <= 10 * seconds
