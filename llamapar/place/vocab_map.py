"""Which vocabulary rows each TP rank holds, and where the pad rows are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import VocabKeywords
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.splits import Padding, Split
from llamapar.errors import MAX_SIZE, Choice, LayoutError, whole
from llamapar.frameworks import padding_rule
from llamapar.records.tables import Judged, cut, span


@dataclass(frozen=True)
class RankVocab:
    """Rows of the embedding (and of the head) on one TP rank.

    rows: of the padded vocabulary. real: the rows that stand for a token. pads: how many do not.
    """

    rank: int
    rows: range
    real: range

    @property
    def pads(self) -> int:
        return len(self.rows) - len(self.real)


@dataclass(frozen=True, repr=False)
class VocabMap(Judged):
    """The vocabulary over TP under a padding rule, cut by torch's chunk rule."""

    model: ModelConfig
    tp: int
    padding: Padding

    @property
    def padded(self) -> int:
        """Rows of the padded embedding."""
        return self.padding.padded(self.model.vocab_size, self.tp)

    @property
    def pad_rows(self) -> int:
        return self.padded - self.model.vocab_size

    @property
    def split(self) -> Split:
        return Split(self.padded, self.tp)

    def rank(self, r: int) -> RankVocab:
        """The rows of TP rank r."""
        rows = self.split[r]
        vocab = self.model.vocab_size
        # Pads stand at the end of the vocabulary, so ranks from some point on hold few real rows or none.
        return RankVocab(r, rows, range(min(rows.start, vocab), min(rows.stop, vocab)))

    @property
    def ranks(self) -> list[RankVocab]:
        return [self.rank(r) for r in range(self.tp)]

    @property
    def reason(self) -> str:
        """Why the shards are not equal, in one line; empty if they are."""
        if self.split.even:
            return ""
        return f"tp={self.tp} does not divide {self.padded:,} rows: shards are uneven"

    def owner(self, token: int) -> int:
        """The TP rank that holds a token's row."""
        return self.split.owner(whole("token", token, 0, self.model.vocab_size - 1))

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        title = (
            f"{self.model.name} vocabulary over tp={self.tp}, {self.padding}: "
            f"{self.model.vocab_size:,} rows, padded to {self.padded:,}, {self.pad_rows:,} pad rows"
        )
        rows: list[list[object]] = [
            [mine.rank, span(mine.rows), f"{len(mine.rows):,}", span(mine.real), mine.pads]
            for mine in map(self.rank, cut(self.tp))
        ]
        return title, ["tp rank", "rows", "count", "tokens", "pad rows"], rows, self.reason


@checked_options
def vocab(
    model: ModelLike,
    layout: LayoutLike | None = None,
    **options: Unpack[VocabKeywords],
) -> VocabMap:
    """The vocabulary rows of each TP rank. Raises LayoutError for bad input.

    padding: a Padding, a text such as "64" or "32*tp", a framework's name for its own rule, or None.
    """
    made = VocabMap(find_model(model), Layout.of(layout).tp, padding_rule(options["padding"]))
    if made.padded > MAX_SIZE:
        raise LayoutError(
            f"padding={made.padding} at tp={made.tp} makes {made.padded} rows, more than {MAX_SIZE}",
            "no embedding is that tall",
            [Choice.of(padding="128*tp"), Choice.of(padding="none")],
            "padding",
        )
    return made
