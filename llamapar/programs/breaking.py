"""Faults put into this process and taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps

from .faults import FAULTS


@contextmanager
def injected(name: str | None) -> Iterator[None]:
    """Context manager that injects the named fault into this process until the block ends."""
    if name is None:
        yield
        return
    owner, attribute, wrong = FAULTS[name].patch
    right = getattr(owner, attribute)

    @wraps(right)
    def function(*given: object, **named: object) -> object:
        return wrong(right, *given, **named)

    # Programs look their parts up in the module at each call, so replacing the attribute reaches all of
    # them.
    setattr(owner, attribute, function)
    try:
        yield
    finally:
        setattr(owner, attribute, right)
