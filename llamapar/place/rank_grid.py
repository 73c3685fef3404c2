"""Where a rank is among all ranks, and who its peers are on each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import RanksKeywords
from llamapar.describe.layout import AXES, AXIS_TITLES, Coord, Layout, LayoutLike
from llamapar.describe.models import model as find_model
from llamapar.describe.splits import Split
from llamapar.errors import whole
from llamapar.records.tables import Plain, Record

from .head_map import heads
from .sequence_map import sequence
from .share import BATCH_PART, Share, share_of
from .stage_map import stages

MAX_CELLS = 2**14
"""The most cells of the grid; with more ranks, a cell is a block of consecutive ranks."""


@dataclass(frozen=True, repr=False)
class RankGrid(Record):
    """All ranks in rows of consecutive ranks, one of them chosen.

    block: ranks in a cell. cols, rows: cells of the grid; rank = (row·cols + col)·block + rest.
    share: the chosen rank's part of a step, if a model is given.
    """

    layout: Layout
    rank: int
    block: int
    cols: int
    rows: int
    share: Share | None = None

    @property
    def coord(self) -> Coord:
        """The chosen rank's (tp, cp, pp, dp)."""
        return self.layout.coord_of(self.rank)

    @cached_property
    def peers(self) -> dict[str, range]:
        """The chosen rank's group on each axis, itself included."""
        return {axis: self.layout.group(axis, self.rank) for axis in AXES}  # type: ignore[misc]

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        groups = {axis: list(group) for axis, group in self.peers.items()}
        return {"rank": self.rank, "coord": self.coord._asdict(), "groups": groups}

    def cell(self, rank: int) -> tuple[int, int]:
        """(row, col) of a rank's cell."""
        return divmod(rank // self.block, self.cols)

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        lay = self.layout
        place = self.coord
        title = (
            f"rank {self.rank} of {lay.world} in order {lay.order} (fastest first): "
            f"tp={place.tp} cp={place.cp} pp={place.pp} dp={place.dp}"
        )
        rows: list[list[object]] = [
            [AXIS_TITLES[axis], len(group), in_short(group), group.step] for axis, group in self.peers.items()
        ]
        if not self.share:
            return title, ["axis", "ranks", "group", "stride"], rows, ""
        for row, axis in zip(rows, self.peers, strict=True):
            row += [self.share.parts[axis].text, self.share.parts[axis].held]
        return (
            title,
            ["axis", "ranks", "group", "stride", "part of the model", "holds"],
            rows,
            self.share.reason,
        )


def in_short(group: Sequence[int]) -> str:
    """Ranks in words, the middle ones left out where there are many."""
    if len(group) <= 16:
        return ", ".join(map(str, group))
    return f"{group[0]}, {group[1]}, {group[2]}, … {group[-1]}"


@checked_options
def ranks(
    layout: LayoutLike | None = None,
    rank: int = 0,
    **options: Unpack[RanksKeywords],
) -> RankGrid:
    """The grid of all ranks with one of them chosen; instant at 2**20 ranks.

    model: with a model, the record also gives the rank's layers, heads, tokens and batch, and the picture is
    that block. seq_len: tokens of a sequence; by default the model's longest. global_batch: sequences of a
    step. chunking, layer_split, kv_replication: as in `sequence`, `stages` and `heads`.
    """
    layout = Layout.of(layout)
    rank = whole("rank", rank, 0, layout.world - 1)
    share = None
    if options["model"] is not None:
        found = find_model(options["model"])
        global_batch = options["global_batch"]
        seq_len = options["seq_len"]
        # An unknown batch is counted in the parts of DP.
        batch = Split(layout.dp if global_batch is None else global_batch, layout.dp)
        held = heads(found, layout, kv_replication=options["kv_replication"])
        length = seq_len
        if seq_len is None:
            length = found.max_seq_len
        tokens = sequence(layout, length, chunking=options["chunking"])
        layers = stages(found, layout, layer_split=options["layer_split"])
        unit = "sequence"
        if global_batch is None:
            unit = BATCH_PART
        share = share_of(layout.coord_of(rank), held, tokens, layers, batch, unit)
    block = 1
    for axis in layout.axes:
        # More cells than that are neither legible nor quick to send to a browser.
        if layout.world // block <= MAX_CELLS:
            break
        degree = getattr(layout, axis)
        # Blocks grow along the fastest axes first, so that a cell holds consecutive ranks.
        block *= min(degree, -(-layout.world // block // MAX_CELLS))
    cells = -(-layout.world // block)
    cols = _columns(layout, block, cells)
    return RankGrid(layout, rank, block, cols, -(-cells // cols), share)


def _columns(layout: Layout, block: int, cells: int) -> int:
    """Columns of the grid: an axis boundary if one is near the square, else the square root of the cells."""
    square = math.isqrt(cells - 1) + 1
    # Where each axis is complete, counted in ranks: tp, tp·cp, tp·cp·pp, …, in the layout's own order.
    ends = [layout.stride(axis) * layout.size(axis) for axis in layout.axes]
    bounds = [end // block for end in ends if end % block == 0]
    # A row that ends at an axis boundary puts peers in straight columns; beyond a factor of 4 from the square
    # the grid becomes a strip.
    near = [b for b in bounds if square / 4 <= b <= square * 4 and b <= cells]
    return min(near, key=lambda b: abs(math.log(b / square)), default=square)
