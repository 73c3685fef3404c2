"""`llamapar ranks`: the coord of a global rank, and its peers."""

from __future__ import annotations

from llamapar.describe.layout import AXES
from llamapar.place import ranks

from .commands import Command, CommandAnswer, Given
from .output import as_text


def _ranks(given: Given) -> CommandAnswer:
    grid = ranks(given.layout, **given.of("rank"))
    return CommandAnswer(
        True,
        lambda: as_text(grid),
        lambda: {
            "rank": grid.rank,
            "coord": grid.coord._asdict(),
            "groups": {axis: list(group) for axis, group in grid.peers.items()},
        },
    )


COMMAND = Command(
    _ranks,
    "coordinates of a global rank, and its peers on each axis",
    "ranks",
    (*AXES, "order", "rank"),
    "llamapar ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345\n"
    "  llamapar ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345 --order megatron-lm",
    exits="0 found",
)
