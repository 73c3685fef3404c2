"""A bound on the work of reading, because a small file can be written so that reading it hardly ever ends.

Readers count on one meter what they look at and what they copy. They are written to need a few steps for each
character; what grows faster than the file, as a variable that is put into itself, meets the limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llamapar.errors import LlamaparError

STEPS_OF_A_CHARACTER, STEPS_BESIDE = 20, 10_000_000
"""The limit grows with the text. Of the real files in the tests none needs more than a fifth of it."""


class Meter:
    """Counts the steps of reading texts of `size` characters. name: what a person calls these texts."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.steps = 0
        self.limit = STEPS_OF_A_CHARACTER * size + STEPS_BESIDE

    def spend(self, steps: int) -> None:
        """Count steps. Raises LlamaparError past the limit."""
        self.steps += steps
        if self.steps > self.limit:
            raise LlamaparError(f"{self.name} needs more than {self.limit:,} steps to read", field="config")


def numbered_matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """The matches of a pattern with the lines that they begin in, counted in one pass over the text."""
    line = 1
    last = 0
    for match in pattern.finditer(text):
        line = line + text.count("\n", last, match.start())
        last = match.start()
        yield line, match
