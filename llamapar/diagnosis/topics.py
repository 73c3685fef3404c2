"""Hypotheses from what a text is about, where its numbers do not say it: hangs, adapters, ties, order, …

The causes are the rows of topics.toml. Causes that words name and numbers support are in `limits`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from .hypothesis import Hypothesis, Level, found
from .known import Known
from .reading import Reading
from .vocabulary import SHARDING
from .words import either, table

PARALLEL = re.compile(r"parallel|shard|\btp\b|\bmp\b|ranks?\b|world|\bgpus?\b|nccl|dist|numel|collective")


@dataclass(frozen=True)
class Topic:
    """A row of topics.toml, which says what its fields mean."""

    category: str
    cause: str
    words: tuple[re.Pattern[str], ...]
    unless: re.Pattern[str] | None
    level: Level
    alone: Level
    blame: bool | None
    sure: bool
    needs: str

    def matches(self, text: str) -> bool:
        return all(words.search(text) for words in self.words) and not (
            self.unless and self.unless.search(text)
        )


@cache
def _topics() -> tuple[Topic, ...]:
    return tuple(
        Topic(
            row["category"],
            row["cause"],
            tuple(map(either, row["words"])),
            either(row["unless"]) if "unless" in row else None,
            Level[row["level"].upper()],
            Level[row.get("alone", row["level"]).upper()],
            row["blame"] == SHARDING if "blame" in row else None,
            row.get("sure", False),
            row.get("needs", ""),
        )
        for row in table("topics.toml")["topic"]
    )


def topics(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Causes that words name."""
    beside = bool(PARALLEL.search(r.low))
    sharded = beside or any((known.get(axis) or 1) > 1 for axis in ("tp", "cp", "pp"))
    text = "\n".join((r.low, *r.code[-1:])).lower()
    for topic in _topics():
        if topic.matches(text):
            level = topic.level if beside else topic.alone
            blame = topic.blame if topic.sure or sharded else None
            yield found(topic.category, level, topic.cause, parallel=blame, needs=topic.needs)
