"""Faults put into this process and taken out again, and which of them a run could meet at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps

from .faults import FAULTS


@contextmanager
def injected(name: str | None) -> Iterator[None]:
    """Context manager that injects the named fault into this process until the block ends."""
    if name is None:
        yield
        return
    with _replaced(*FAULTS[name].patch):
        yield


@contextmanager
def called() -> Iterator[set[str]]:
    """Context manager that yields a set, which the block fills: names of faults whose function it calls."""
    found = set[str]()

    def noted(name: str, right: Callable[..., object], *given: object, **named: object) -> object:
        found.add(name)
        return right(*given, **named)

    with ExitStack() as stack:
        for name, fault in FAULTS.items():
            stack.enter_context(_replaced(*fault.patch[:2], partial(noted, name)))
        yield found


@contextmanager
def _replaced(owner: object, attribute: str, wrong: Callable[..., object]) -> Iterator[None]:
    """`wrong` in the place of the owner's function, which it gets as its first argument."""
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
