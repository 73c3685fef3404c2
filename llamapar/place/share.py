"""What one rank works on: its part of the layers, the heads, the tokens and the batch of a step.

A step is a block of four dims, and each mesh axis cuts one of them: TP cuts heads, CP tokens, PP layers and
DP the batch. A rank works on the intersection. The axis's own map says which units those are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from llamapar.describe.layout import Coord
from llamapar.describe.models import ModelConfig
from llamapar.describe.splits import Split
from llamapar.records.tables import plural, span

from .head_map import HeadMap
from .sequence_map import SequenceMap, in_runs
from .stage_map import StageMap

LISTED = 4
"""The most pieces of a part that are named one by one."""

BATCH_PART = "batch part"
"""The unit of a batch of unknown size: the part that one DP rank gets."""


@dataclass(frozen=True)
class Part:
    """A rank's part of the dim that an axis cuts into `ways`.

    splits: every stage, chunk or shard of the dim's `whole` rows. pieces: those of the rank, with neighbours
    joined. per: rows of a unit; head_dim for heads, else 1.
    """

    axis: str
    ways: int
    word: str
    whole: int
    splits: Sequence[range]
    pieces: tuple[range, ...]
    per: int = 1

    @property
    def size(self) -> int:
        """Units of the whole dim."""
        return self.whole // self.per

    @property
    def count(self) -> str:
        """Its size as a number of units: "16 of 128 query heads", "all 126 layers"; of a batch that is not
        known "1/8 of the batch".
        """
        if self.word == BATCH_PART:
            return self.text
        word = self.word
        if self.axis == "tp":
            word = f"query {word}"
        if self._units < self.size:
            return self._counted(word)
        if self.size == 1:
            return plural(1, word)
        return f"all {plural(self.size, word)}"

    @property
    def _units(self) -> Fraction:
        """Units of the rank's pieces."""
        return Fraction(sum(map(len, self.pieces)), self.per)

    def _counted(self, word: str) -> str:
        """Units of the pieces, and of the whole: "16 of 128 query heads"."""
        held = f"{float(self._units):.3g}"
        if not self.pieces:
            held = "none"
        elif self._units.denominator == 1:
            held = f"{int(self._units):,}"
        return f"{held} of {plural(self.size, word)}"

    @property
    def text(self) -> str:
        """Its size in words: "1/8 of the heads", "8 of 126 layers", "all tokens", "the whole batch"."""
        # A Fraction compares exactly with 1 and 1/ways, and is printed as "1/8".
        part = self._units / self.size
        if self.axis == "dp":
            whole = "batch"
            all_of_it = "the whole batch"
        else:
            whole = f"{self.word}s"
            all_of_it = f"all {whole}"
        if part == 1:
            return all_of_it
        if part * self.ways == 1:
            return f"{part} of the {whole}"
        return self._counted(self.word)

    @property
    def held(self) -> str:
        """Its units in words: "heads 80–95", "tokens 0–4095, 126976–131071"."""
        cut = any(piece.start % self.per or piece.stop % self.per for piece in self.pieces)
        # Rounded outwards to whole heads; `cut` says whether a head is only partly there.
        spans = [span(range(p.start // self.per, -(-p.stop // self.per))) for p in self.pieces[:LISTED]]
        if len(self.pieces) > LISTED:
            spans[-1:] = ["…", span(self.pieces[-1])]
        if not spans:
            return f"no {self.word}s"
        several = len(self.pieces) > 1 or any(len(piece) > self.per for piece in self.pieces)
        words = f"{self.word}{'s' if several else ''} {', '.join(spans)}"
        if cut:
            return f"{words} (cut)"
        return words


@dataclass(frozen=True)
class Share:
    """A rank's part of a step of `model`, for each axis, in the order of the block's dims.

    reason: why a cut is not even or not possible; empty if all are even.
    """

    model: ModelConfig
    pp: Part
    tp: Part
    cp: Part
    dp: Part
    reason: str

    @property
    def parts(self) -> dict[str, Part]:
        """Axis → the rank's part of the dim that it cuts."""
        return {part.axis: part for part in (self.pp, self.tp, self.cp, self.dp)}

    def phrases(self, rank: int) -> list[tuple[str, str]]:
        """The sentence that says what the rank works on, in pieces, each with the axis that cuts it or ""."""
        return [
            (f"Rank {rank:,} computes ", ""),
            (self.tp.count, "tp"),
            (" in ", ""),
            (self.pp.count, "pp"),
            (", on ", ""),
            (self.cp.count, "cp"),
            (" of ", ""),
            (self.dp.count, "dp"),
            (".", ""),
        ]

    @property
    def text(self) -> str:
        """ "1/16 of the layers · 1/8 of the heads · 1/16 of the tokens · 1/8 of the batch"."""
        return " · ".join(part.text for part in self.parts.values())


def share_of(
    at: Coord, heads: HeadMap, tokens: SequenceMap, layers: StageMap, batch: Split, word: str
) -> Share:
    """The share of the rank at a place of the mesh, from the maps of the four axes.

    batch: the batch over DP. word: the unit in which the batch is counted.
    """
    model = heads.model
    stages = [stage.layers for stage in layers.stages]
    # Head-tail would cut even one rank's sequence in two, which a picture of an uncut axis should not
    # show.
    chunks = tokens.split if tokens.cp > 1 else Split(tokens.seq_len, 1)
    parts = (
        # Every pp-th stage from the rank's own on: loop placement.
        Part("pp", layers.pp, "layer", model.n_layers, stages, in_runs(stages[at.pp :: layers.pp])),
        Part(
            "tp",
            heads.tp,
            "head",
            model.q_dim,
            Split(model.q_dim, heads.tp),
            in_runs([heads.rank(at.tp).q_rows]),
            model.head_dim,
        ),
        Part("cp", tokens.cp, "token", tokens.seq_len, chunks, in_runs(tokens.rank(at.cp).chunks)),
        Part("dp", batch.k, word, batch.n, batch, in_runs([batch[at.dp]])),
    )
    uneven = ""
    if not batch.even:
        uneven = f"global_batch={batch.n} does not divide over dp={batch.k}"
    reason = layers.reason or heads.reason or tokens.reason or uneven
    return Share(model, *parts, reason)
