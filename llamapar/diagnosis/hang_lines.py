"""The lines of torch's watchdog in a log, kept while it passes: `hangs` reads from them where ranks are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from llamapar.errors import LlamaparError
from llamapar.late import offered

from .explanation import Explanation
from .known import Known

_MARK = re.compile(r"WorkNCCL\(SeqNum=|ast enqueued ")
"""What stands in every line that is kept."""

MOST = 2**18
"""Most lines that are kept: two for each rank of the largest run, and for two of its groups."""

_LONGEST = 2000
"""Characters of a line that are kept."""


class WatchdogLines:
    """Collects those lines of a log while the log passes in blocks of whole lines."""

    def __init__(self) -> None:
        self.lines = list[str]()

    def watch(self, blocks: Iterable[str]) -> Iterator[str]:
        """The blocks unchanged."""
        for block in blocks:
            if len(self.lines) < MOST and _MARK.search(block):
                self.lines += [row[:_LONGEST] for row in block.split("\n") if _MARK.search(row, 0, _LONGEST)]
            yield block

    def explained(self, found: Explanation, known: Known) -> Explanation:
        """The answer from these lines where they say more than `found`, the answer from the log's words.

        Without the room that reads them a note says how to get it.
        """
        if not self.lines:
            return found
        try:
            explain_log = offered("hangs", "explain_log")
        except LlamaparError as missing:
            unread = f"the watchdog's lines are not read: {missing.what}; {missing.choose[0]}"
            return replace(found, rivals=(*found.rivals, unread))
        answer: Explanation = explain_log(self.lines, found, known)
        return answer
