"""The arithmetic of every split: units over ranks, padding, layers over stages, KV copies.

A boundary between two shards is computed here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import overload

from llamapar.errors import LayoutError, whole


@dataclass(frozen=True)
class Split(Sequence[range]):
    """`n` units over `k` ranks by torch's chunk rule: rank r owns the units of `split[r]`.

    Every shard has ceil(n / k) units until they run out; then comes a shorter one, then empty ones. Source:
    torch.chunk; torch/distributed/tensor/placement_types.py `Shard.local_shard_size_and_offset`, torch
    2.13.0. If k divides n, all shards are equal.
    """

    n: int
    k: int

    def __post_init__(self) -> None:
        whole("n", self.n, 0)
        whole("k", self.k, 1)

    @property
    def size(self) -> int:
        """Units of a full shard: ceil(n / k)."""
        return -(-self.n // self.k)

    @property
    def even(self) -> bool:
        return self.n % self.k == 0

    def __len__(self) -> int:
        return self.k

    @overload
    def __getitem__(self, rank: int) -> range: ...
    @overload
    def __getitem__(self, rank: slice) -> list[range]: ...
    def __getitem__(self, rank: int | slice) -> range | list[range]:
        if isinstance(rank, slice):
            return [self[i] for i in range(*rank.indices(self.k))]
        if rank < 0:
            rank += self.k
        if not 0 <= rank < self.k:
            raise IndexError(f"rank {rank} of {self.k}")
        return range(min(rank * self.size, self.n), min((rank + 1) * self.size, self.n))

    def owner(self, unit: int) -> int:
        """The rank that owns `unit`."""
        return whole("unit", unit, 0, self.n - 1) // self.size


@dataclass(frozen=True)
class Padding:
    """A rule that pads the vocabulary up to a multiple of `multiple`, or of multiple·tp with `per_tp`."""

    multiple: int = 1
    per_tp: bool = False

    def __post_init__(self) -> None:
        whole("padding", self.multiple, 1, 2**20)

    def unit(self, tp: int) -> int:
        return self.multiple * (tp if self.per_tp else 1)

    def padded(self, vocab_size: int, tp: int) -> int:
        """Rows of the padded embedding."""
        unit = self.unit(tp)
        return -(-vocab_size // unit) * unit

    @property
    def text(self) -> str:
        """The rule as `padding=` accepts it: "64", "128*tp"."""
        return f"{self.multiple}{'*tp' if self.per_tp else ''}"

    def __str__(self) -> str:
        if self == NO_PADDING:
            return "no padding"
        return f"multiple of {self.text.replace('*', '·')}"


NO_PADDING = Padding()


# -- layers over stages ------------------------------------------------------------------------


def _ends(layers: int, stages: int, head: float = 0) -> list[int]:
    """Counts embedding and head as one layer each; the first stages take the remainder."""
    if stages == 1:
        return [layers]
    # 405B, 126 layers over 16 stages: 128 / 16 = 8 each, so 7 layers beside the embedding, 14 times 8,
    # and 7 beside the head.
    each, extra = divmod(layers + 2, stages)
    if each == 0:
        raise LayoutError(
            f"{stages} stages for {layers} layers",
            f"with the embedding and the head counted as one layer each there are {layers + 2}",
            [f"at most {layers + 2} stages"],
        )
    counts = [each + (stage < extra) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    return counts


def _equal(layers: int, stages: int, head: float = 0) -> list[int]:
    if layers % stages:
        near = [s for s in (*range(stages, 0, -1),) if layers % s == 0][:1]
        raise LayoutError(
            f"{layers} layers do not divide over {stages} stages",
            "this split gives every stage the same number of layers",
            [f"{s} stages" for s in near],
        )
    return [layers // stages] * stages


def _spread(first: Callable[[int, int], int], layers: int, stages: int, head: float = 0) -> list[int]:
    """Equal counts, and one layer more for as many stages as remain, from first(stages, remainder) on."""
    each, extra = divmod(layers, stages)
    start = first(stages, extra)
    return [each + (start <= stage < start + extra) for stage in range(stages)]


def _last(layers: int, stages: int, head: float = 0) -> list[int]:
    each, extra = divmod(layers, stages)
    return [each] * (stages - 1) + [each + extra]


def _compute(layers: int, stages: int, head: float = 0) -> list[int]:
    """nanotron's rule: a stage ends with the block that passes its equal share of compute.

    head: compute of the head, in layers. Source: huggingface/nanotron, src/nanotron/models/base.py:204-226
    @2411b022a7.
    """
    counts = [0] * stages
    stage = 0
    for done in range(1, layers + 1):
        counts[stage] += 1
        if done * stages > (layers + head) * (stage + 1) and stage < stages - 1:
            stage += 1
    return counts


LAYER_SPLITS: dict[str, Callable[..., list[int]]] = {
    "balanced ends": _ends,
    "equal": _equal,
    "remainder first": partial(_spread, lambda stages, extra: 0),
    "remainder last": _last,
    # ColossalAI's: stages around the middle, one more behind it than before it if the number is odd.
    "remainder middle": partial(_spread, lambda stages, extra: stages // 2 - extra // 2),
    # vLLM's: the stages before the last one.
    "remainder before last": partial(_spread, lambda stages, extra: stages - 1 - extra),
    "equal compute": _compute,
}
"""Name of a split → its function from (layers, stages, head) to layers per stage; LayoutError if it refuses.

head: compute of the head in layers (`ModelConfig.head_layers`), of which only "equal compute" asks.
"""


def kv_copies(n_kv_heads: int, tp: int) -> int:
    """TP ranks that hold the same KV head: tp / n_kv_heads, or 1 if that is no whole number above 1."""
    if tp > n_kv_heads and tp % n_kv_heads == 0:
        return tp // n_kv_heads
    return 1
