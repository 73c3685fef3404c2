"""The lines of torch's watchdog in a log, collected while `explain` reads it; `watchdog` makes sense of them.

Apart from that module because every log passes here, and the analysis of a hang takes time to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MARKS = ("WorkNCCL(SeqNum=", "ast enqueued ")
"""One of them stands in every line that is read."""

MOST = 2**18
"""Most lines that are kept: two for each rank of the largest run, and for two of its groups."""

LONGEST = 2000
"""Characters of a line that are read."""


class WatchdogLines:
    """Collects the watchdog's lines of a log while the log passes in blocks of whole lines."""

    def __init__(self) -> None:
        self.lines = list[str]()

    def watch(self, blocks: Iterable[str]) -> Iterator[str]:
        """The blocks unchanged."""
        for block in blocks:
            if len(self.lines) < MOST and any(mark in block for mark in MARKS):
                rows = (row for row in block.split("\n") if any(mark in row for mark in MARKS))
                self.lines += [row[:LONGEST] for row in rows]
            yield block
