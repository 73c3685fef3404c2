"""A rank's share of a step: its part of the layers, the heads, the tokens and the batch, each a lane.

A step is a block of four dims, and each axis cuts one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from llamapar.describe.splits import Split
from llamapar.place.cut import Cut
from llamapar.place.rank_grid import RankGrid
from llamapar.place.share import Share, share_of
from llamapar.records.tables import cut, units

from . import draw, style
from .scenes import Drawing, Scene, middle
from .wording import listed

HEIGHT, STEP, HIGH = 209, 52, 26
"""Pixels of the map, from one lane to the next, and of a lane."""

PARTS = 64
"""Most parts of a dim with an edge at each cut; of more, half as many edges leave the rank in sight."""

PIECES = 64
"""Most pieces of a rank that are drawn."""

SLIVER = 0.003
"""Part of the width that a piece fills at least."""


def picture(record: RankGrid, share: Share) -> tuple[Scene, str]:
    """A lane for each axis: the dim that it cuts, and in full colour what the rank has of it."""
    drawing = Drawing("share", 1, HEIGHT)
    lanes: list[list[object]] = []
    for k, part in enumerate(share.parts.values()):
        y = (k * STEP + 20, k * STEP + 20 + HIGH)
        lanes.append([middle(y), f"{part.word}s", f"{part.axis.upper()} {part.ways}"])
        every = 1 if len(part.splits) <= PARTS else draw.step(len(part.splits), PARTS // 2)
        starts = [part.splits[i].start for i in range(0, len(part.splits), every)]
        for start, stop in itertools.pairwise(sorted({*starts, part.whole} if starts else ())):
            ends = start / part.whole, stop / part.whole
            drawing.box(part.axis, ends, ends, y, f"{part.axis}0 rest")
        pieces = [part.pieces[i] for i in cut(len(part.pieces), PIECES)]
        for n, piece in enumerate(pieces):
            left = piece.start / part.whole
            ends = left, max(left + SLIVER, piece.stop / part.whole)
            drawing.box(f"own {part.axis}", (n, n + 1), ends, (y[0] - 3, y[1] + 3), f"{part.axis}0")
        drawing.labels.append((0, y[0] - 6, f"{part.text}: {part.held}", 1, "held"))
    words = f"Rank {record.rank:,} of {record.layout.world:,}: {held(share)}"
    legend = [["pp0", f"of rank {record.rank:,}"], ["pp0 rest", "of other ranks"]]
    made = drawing.scene(share_in_words(record), bool(share.reason), lanes, lambda _: words, legend)
    return {**made, "ranks": [[0, 1, words, record.rank]]}, _summary(record, share)


# -- in words --------------------------------------------------------------------------------------


def share_in_words(record: RankGrid) -> str:
    """What the rank works on, in a sentence."""
    assert record.share
    does = listed([part.text for part in record.share.parts.values()])
    return f"Rank {record.rank:,} of {record.layout.world:,} works on {does}."


OF_TP = {"n_heads": "head", "q_dim": "head", "ffn_dim": "hidden column", "vocab_size": "vocabulary row"}
"""Dim that TP cuts in a program → what a rank holds of it."""


def of_each_rank(of: Cut, batch: int, dim: str) -> list[str]:
    """What each rank of a layout holds, in words. batch: sequences of a step. dim: of OF_TP, what TP cuts."""
    layout = of.layout
    maps = (of.heads, of.sequence, of.stages, Split(batch, layout.dp))
    told = []
    for rank in range(layout.world):
        at = layout.coord_of(rank)
        share = share_of(at, *maps, "sequence")
        other = {}
        if OF_TP[dim] != "head":
            other = {"tp": units(OF_TP[dim], of.along(dim, at.tp))}
        told.append(f"rank {rank:,} of {layout.world:,}: {held(share, other)}")
    return told


def held(share: Share, other: Mapping[str, str] | None = None) -> str:
    """What a rank holds of the dims that are cut: "heads 80–95 · tokens 0–63".

    other: axis → what it cuts, in words, where that is not the usual dim.
    """
    words = {axis: part.held for axis, part in share.parts.items() if part.ways > 1}
    words |= {axis: said for axis, said in (other or {}).items() if axis in words}
    return " · ".join(words.values()) or "the whole step"


def _summary(record: RankGrid, share: Share) -> str:
    each = [
        f"  {axis.upper()} rank {getattr(record.coord, axis)} of {part.ways}: {part.text}, {part.held}"
        for axis, part in share.parts.items()
    ]
    return draw.lines(
        f"rank {record.rank} of {record.layout.world:,} in {style.name_of(share.model)}: {share.text}",
        each,
        share.reason,
    )
