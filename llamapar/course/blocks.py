"""The map at the head of a lesson: what one rank has of the layers, the heads, the tokens and the batch."""

from __future__ import annotations

from typing import Any

import llamapar as lp
from llamapar.figures.block import held


def block(model: lp.ModelLike, rank: int = 0, **how: Any) -> lp.View:
    """A rank's share of a model. how: the degrees of a layout, and what else `lp.ranks` takes."""
    record = lp.ranks(rank=rank, model=model, **how)
    assert record.share is not None
    name = record.share.model.name
    world = record.layout.world
    return lp.View(lp.view(record).spec, f"rank {record.rank:,} of {world:,} in {name}: {held(record.share)}")
