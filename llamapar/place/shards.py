"""ZeRO's cut: which rows of a tensor each rank holds, among ranks that would otherwise hold copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llamapar.describe.layout import SHARDING, Layout
from llamapar.describe.splits import Split

SHARED_FROM = {"parameters": 3, "gradients": 2, "optimizer state": 1}
"""State of a model → the ZeRO stage from which ranks share it (arXiv:1910.02054, section 5)."""


@dataclass(frozen=True)
class Shards:
    """Copies of a tensor over dp and cp, and their slices where ZeRO shares it.

    dp_shard·cp ranks share one copy, as in the Llama 3 paper (arXiv:2407.21783, section 3.3.2), and
    dp_replicate such groups hold the same. A slice is along dim 0 by torch.chunk, as `fully_shard` cuts: the
    last ones may be shorter, or empty.
    """

    layout: Layout

    @property
    def ranks(self) -> int:
        """Ranks that share a copy."""
        return self.layout.dp_shard * self.layout.cp

    @property
    def axis(self) -> str:
        """The axes that the sharing ranks are on: "dp-cp", or the only one of them with several ranks."""
        if self.layout.cp == 1:
            return "dp"
        if self.layout.dp_shard == 1:
            return "cp"
        return SHARDING

    def cuts(self, what: str) -> bool:
        """Whether ZeRO shares `what`, a key of SHARED_FROM."""
        return self.layout.zero >= SHARED_FROM[what]

    @property
    def _cp_slower(self) -> bool:
        return self.layout.stride("cp") > self.layout.stride("dp")

    def place(self, dp: int, cp: int) -> int:
        """The index of the slice held at (dp, cp): the rank's position in its group, by global rank."""
        # dp counts copies × shards with the shards faster, so the copy drops out: all copies hold the
        # same slices.
        shard = dp % self.layout.dp_shard
        if self._cp_slower:
            return cp * self.layout.dp_shard + shard
        return shard * self.layout.cp + cp

    def rank_at(self, place: int, rank: int) -> int:
        """The rank that holds slice `place` of the copy that `rank` shares."""
        layout = self.layout
        coord = layout.coord_of(rank)
        cp, shard = divmod(place, layout.dp_shard) if self._cp_slower else divmod(place, layout.cp)[::-1]
        # dp_shard is the faster part of dp, so the sharing ranks are a block of dp_shard neighbours.
        first = coord.dp - coord.dp % layout.dp_shard
        return layout.rank_of(**coord._replace(dp=first + shard, cp=cp)._asdict())

    def padded(self, count: int) -> int:
        """Rows that travel for `count` rows: every slice is sent at full size."""
        return Split(count, self.ranks).size * self.ranks

    def rows(self, count: int, coord: Mapping[str, int]) -> range:
        """The rows, of a tensor's `count`, that the rank at `coord` holds."""
        return Split(count, self.ranks)[self.place(coord["dp"], coord["cp"])]
