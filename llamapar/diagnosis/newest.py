"""The newest failure of this session, of any kind: `%explain` without a text is about it."""

from __future__ import annotations

from typing import Protocol

from .explanation import Explanation


class Failed(Protocol):
    """A result that is not ok and says why."""

    @property
    def explanation(self) -> Explanation | None: ...


_newest: list[BaseException | Failed] = []


def note(failure: BaseException | Failed) -> None:
    """Keep this failure as the newest, with its tensors or frames, until the next one."""
    _newest[:] = [failure]


def newest() -> BaseException | Failed | None:
    """The newest failure; None if nothing has failed."""
    if _newest:
        return _newest[0]
    return None
