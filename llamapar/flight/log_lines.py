"""The lines of a log that say where a rank stands: those of torch's watchdog, and of stacks.

They are collected while `explain` reads the log; `watchdog` and `main_threads` make sense of them. Apart from
those modules because every log passes here, and the analysis of a hang takes time to import.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MARKS = ("WorkNCCL(SeqNum=", "ast enqueued ", "(most recent call first)", '"MainThread"')
"""One of them stands in every block of lines that is read closely: two of the watchdog's, two of stacks."""

_KEPT = re.compile(
    r'[Tt]hread (?:0x|\d|\()|File "|:\d{1,9}\)$|Process \d|Timeout \(|Fatal Python|^==> '
    r"|^\W{0,9}[Rr](?:ank|ANK)\W{0,3}\d{1,5}\W{0,9}(?:\(|$)"
)
"""What else a line that is kept holds: a thread or a frame of a stack, or whose they are."""

MOST = 2**18
"""Most lines that are kept: two for each rank of the largest run, and for two of its groups."""

LONGEST = 2000
"""Characters of a line that are read."""


class WatchdogLines:
    """Collects those lines of a log while the log passes in blocks of whole lines."""

    def __init__(self) -> None:
        self.lines = list[str]()

    def watch(self, blocks: Iterable[str]) -> Iterator[str]:
        """The blocks unchanged."""
        for block in blocks:
            if len(self.lines) < MOST and any(mark in block for mark in MARKS):
                rows = (row[:LONGEST].rstrip() for row in block.split("\n"))
                self.lines += [row for row in rows if any(m in row for m in MARKS) or _KEPT.search(row)]
            yield block


def kept_lines(data: bytes, name: str) -> list[str]:
    """Those lines of a file, below a heading with its name; [] if it has none."""
    # Looked for in bytes first: the largest files are records, and hold none of the marks.
    if data[:1] in (b"\x80", b"{") or not any(mark.encode() in data for mark in MARKS):
        return []
    watched = WatchdogLines()
    list(watched.watch([data.decode("utf-8", "replace")]))
    return [f"==> {name} <==", *watched.lines] if watched.lines else []
