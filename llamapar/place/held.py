"""Which part of a parameter a TP rank holds, whichever kind it is: the maps asked by the placement table."""

from __future__ import annotations

from llamapar.describe.placement import Shard
from llamapar.describe.splits import Split

from .head_map import HeadMap
from .vocab_map import VocabMap


def held(placed: Shard, n: int, rank: int, heads: HeadMap, vocab: VocabMap) -> range:
    """Rows (or columns) along `placed.dim`, n long in the whole tensor, that TP rank `rank` holds.

    Heads are counted in rows of the projection; vocabulary rows in those of the padded embedding.
    """
    if placed.unit == "vocabulary row":
        return vocab.rank(rank).rows
    if placed.unit == "query head":
        return heads.rank(rank).q_rows
    if placed.unit == "KV head":
        return heads.rank(rank).kv_rows
    return Split(n, heads.tp)[rank]
