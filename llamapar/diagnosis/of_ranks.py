"""What ranks raised, explained.

Ranks that raised the same words are one group. The first that raised is the cause; errors of ranks that were
only stopped because another one raised come last, as what else was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llamapar.errors import PeerError
from llamapar.records.trace import grouped, some

from .engine import explain_text
from .explanation import Explanation
from .known import Known
from .lines import score, strip
from .of_error import explain_error

_MOST = 4
"""Other groups of ranks that are listed."""

_CONSEQUENCE = 1.0
"""Score, below which a line only follows from what another rank raised."""


def explain_ranks(errors: Mapping[int, BaseException | str], known: Known | None = None) -> Explanation:
    """Explain what ranks raised. errors: rank → exception or traceback, the first that raised first."""
    groups = list(grouped({rank: _words(error) for rank, error in errors.items()}))
    groups.sort(key=lambda group: _follows(errors[group[1][0]], group[0]))
    (words, ranks), *others = groups
    error = errors[ranks[0]]
    known = known or Known()
    found = explain_text(error, known) if isinstance(error, str) else explain_error(error, known)
    rivals = [f"{some(sorted(group))}: {text}" for text, group in others[:_MOST]]
    if len(others) > _MOST:
        rivals.append(f"{len(others) - _MOST} more errors")
    line = found.line or words
    return replace(found, line=line, ranks=tuple(sorted(ranks)), rivals=(*found.rivals, *rivals))


def _words(error: BaseException | str) -> str:
    """The error in a line: its class and first line, or the last line of a traceback."""
    if isinstance(error, BaseException):
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    lines = [line for line in error.splitlines() if line.strip()]
    return max(reversed(lines), key=lambda line: score(strip(line)[0]), default="")


def _follows(error: BaseException | str, words: str) -> bool:
    """Whether an error follows from another rank's."""
    return isinstance(error, PeerError) or (isinstance(error, str) and score(words) < _CONSEQUENCE)
