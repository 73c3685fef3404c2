"""THE placement table, and the arithmetic of every split.

Which tensor is cut on which dim by which axis is said here once; checking, memory, execution,
checkpoints and pictures read it. A boundary between two shards is computed here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from .errors import LayoutError, shown, whole
from .layout import Layout
from .models import ModelConfig, Parameter

# -- placements --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """Cut along tensor dim `dim`, in units of `unit`."""

    dim: int
    unit: str

    def __str__(self) -> str:
        return f"Shard({self.dim}) by {self.unit}"


@dataclass(frozen=True)
class Replicate:
    """Every rank of the axis holds the whole tensor."""

    def __str__(self) -> str:
        return "Replicate"


@dataclass(frozen=True)
class Partial:
    """Every rank of the axis holds a summand; an all-reduce or reduce-scatter adds them up."""

    def __str__(self) -> str:
        return "Partial(sum)"


Placement = Shard | Replicate | Partial

_WHOLE = Replicate()

PARAMETERS: dict[str, Placement] = {
    "tok_embeddings": Shard(0, "vocabulary row"),
    "wq": Shard(0, "query head"),
    "wk": Shard(0, "KV head"),
    "wv": Shard(0, "KV head"),
    "bq": Shard(0, "query head"),
    "bk": Shard(0, "KV head"),
    "bv": Shard(0, "KV head"),
    "wo": Shard(1, "query head"),
    "bo": _WHOLE,
    "w1": Shard(0, "FFN column"),
    "w3": Shard(0, "FFN column"),
    "w2": Shard(1, "FFN column"),
    "norm": _WHOLE,
    "output": Shard(0, "vocabulary row"),
}
"""How TP places each kind of parameter; keys are `model.Parameter.key`.

CP replicates every parameter, PP gives each stage whole layers, and DP shares optimizer state,
gradients or parameters by ZeRO stage over dp_shard x cp (The Llama 3 Herd of Models, section 3.3.2;
Megatron-LM, arXiv:1909.08053, section 3, for the column and row split).
"""


@dataclass(frozen=True)
class Activation:
    """An activation's dims and how each axis places it; `tp_sp` is TP's under sequence parallel."""

    dims: tuple[str, ...]
    tp: Placement
    tp_sp: Placement
    cp: Placement
    dp: Placement = Shard(0, "sequence of the batch")


_CHUNK = Shard(1, "sequence chunk")
_TOKEN = Shard(1, "token")

ACTIVATIONS: dict[str, Activation] = {
    "tokens": Activation(("batch", "seq"), _WHOLE, _WHOLE, _CHUNK),
    "residual": Activation(("batch", "seq", "dim"), _WHOLE, _TOKEN, _CHUNK),
    "q": Activation(
        ("batch", "seq", "n_heads", "head_dim"),
        Shard(2, "query head"),
        Shard(2, "query head"),
        _CHUNK,
    ),
    "k": Activation(
        ("batch", "seq", "n_kv_heads", "head_dim"), Shard(2, "KV head"), Shard(2, "KV head"), _CHUNK
    ),
    "v": Activation(
        ("batch", "seq", "n_kv_heads", "head_dim"), Shard(2, "KV head"), Shard(2, "KV head"), _CHUNK
    ),
    "ffn": Activation(("batch", "seq", "ffn_dim"), Shard(2, "FFN column"), Shard(2, "FFN column"), _CHUNK),
    "row_parallel_out": Activation(("batch", "seq", "dim"), Partial(), Partial(), _CHUNK),
    "logits": Activation(
        ("batch", "seq", "vocab_size"),
        Shard(2, "vocabulary row"),
        Shard(2, "vocabulary row"),
        _CHUNK,
    ),
    "loss": Activation(("batch",), _WHOLE, _WHOLE, _WHOLE),
}
"""How each axis places the activations of one pipeline stage."""


# -- one dimension over k ranks ----------------------------------------------------------------


@dataclass(frozen=True)
class Split(Sequence[range]):
    """`n` units over `k` ranks by torch's chunk rule: rank r owns the units of `split[r]`.

    Every shard has ceil(n / k) units until they run out: then a shorter one, then empty ones
    (torch.chunk; torch/distributed/tensor/placement_types.py `Shard.local_shard_size_and_offset`,
    torch 2.13.0). When k divides n all shards are equal.
    """

    n: int
    k: int

    def __post_init__(self) -> None:
        whole("n", self.n, 0)
        whole("k", self.k, 1)

    @property
    def size(self) -> int:
        """Units of a full shard."""
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
    """A vocabulary padded up to a multiple of `multiple`, times tp when `per_tp`."""

    multiple: int = 1
    per_tp: bool = False

    def __post_init__(self) -> None:
        whole("padding multiple", self.multiple, 1, 2**20)

    def unit(self, tp: int) -> int:
        return self.multiple * (tp if self.per_tp else 1)

    def padded(self, vocab_size: int, tp: int) -> int:
        """Rows of the padded embedding."""
        unit = self.unit(tp)
        return -(-vocab_size // unit) * unit

    def __str__(self) -> str:
        if self == NO_PADDING:
            return "no padding"
        return f"multiple of {self.multiple}{'·tp' if self.per_tp else ''}"


NO_PADDING = Padding()


# -- layers over stages ------------------------------------------------------------------------


def _ends(layers: int, stages: int) -> list[int]:
    """Embedding and head each count as a layer; the first stages take the remainder."""
    if stages == 1:
        return [layers]
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


def _equal(layers: int, stages: int) -> list[int]:
    if layers % stages:
        near = [s for s in (*range(stages, 0, -1),) if layers % s == 0][:1]
        raise LayoutError(
            f"{layers} layers do not divide over {stages} stages",
            "this split gives every stage the same number of layers",
            [f"{s} stages" for s in near],
        )
    return [layers // stages] * stages


def _first(layers: int, stages: int) -> list[int]:
    each, extra = divmod(layers, stages)
    return [each + (stage < extra) for stage in range(stages)]


def _last(layers: int, stages: int) -> list[int]:
    each, extra = divmod(layers, stages)
    return [each] * (stages - 1) + [each + extra]


def _middle(layers: int, stages: int) -> list[int]:
    """ColossalAI's remainder: the middle stages."""
    each, extra = divmod(layers, stages)
    start = stages // 2 - extra // 2
    return [each + (start <= stage < start + extra) for stage in range(stages)]


def _before_last(layers: int, stages: int) -> list[int]:
    """vLLM's remainder: the stages before the last, from the back."""
    each, extra = divmod(layers, stages)
    return [each + (stages - 1 - extra <= stage < stages - 1) for stage in range(stages)]


LAYER_SPLITS: dict[str, Callable[[int, int], list[int]]] = {
    "balanced ends": _ends,
    "equal": _equal,
    "remainder first": _first,
    "remainder last": _last,
    "remainder middle": _middle,
    "remainder before last": _before_last,
}
"""Layers per stage, first stage first, from (layers, stages); LayoutError where a split refuses."""


# -- the inventory, placed ---------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """One parameter on the mesh: how TP places it, and the pipeline stage that holds it."""

    parameter: Parameter
    tp: Placement
    stage: int

    def placements(self, layout: Layout) -> dict[str, str]:
        """What each axis does with the tensor, in words."""
        flat = layout.zero == 3 and layout.dp_shard * layout.cp > 1
        return {
            "tp": str(self.tp),
            "cp": str(_WHOLE),
            "pp": f"stage {self.stage} on rank {self.stage % layout.pp}",
            "dp": f"Shard over {layout.dp_shard * layout.cp} ranks (ZeRO 3)" if flat else str(_WHOLE),
        }

    def local_shape(self, layout: Layout, tp_rank: int = 0, padding: Padding = NO_PADDING) -> tuple[int, ...]:
        """Shape on TP rank `tp_rank`, by torch's chunk rule where tp does not divide."""
        shape = list(self.parameter.shape)
        if isinstance(self.tp, Shard):
            if self.tp.unit == "vocabulary row":
                shape[self.tp.dim] = padding.padded(shape[self.tp.dim], layout.tp)
            shape[self.tp.dim] = len(Split(shape[self.tp.dim], layout.tp)[tp_rank])
        return tuple(shape)


def place(model: ModelConfig, layout: Layout, layer_counts: Sequence[int]) -> Iterator[Placed]:
    """Every parameter of `model` with its TP placement and stage.

    layer_counts: layers of each of the layout.stages stages, from LAYER_SPLITS.
    """
    if len(layer_counts) != layout.stages or sum(layer_counts) != model.n_layers:
        raise LayoutError(
            f"layer counts {shown(list(layer_counts))}: {layout.stages} stages of "
            f"{model.n_layers} layers in all are needed"
        )
    stage_of = [stage for stage, count in enumerate(layer_counts) for _ in range(count)]
    for parameter in model.parameters():
        if parameter.layer is not None:
            stage = stage_of[parameter.layer]
        else:
            stage = 0 if parameter.key == "tok_embeddings" else layout.stages - 1
        yield Placed(parameter, PARAMETERS[parameter.key], stage)


def kv_copies(n_kv_heads: int, tp: int) -> int:
    """TP ranks that would hold the same KV head: tp / n_kv_heads, or 1 where that is no such number."""
    return tp // n_kv_heads if tp > n_kv_heads and tp % n_kv_heads == 0 else 1


def causal_pairs(positions: range) -> int:
    """(query, key) pairs of a causal mask for queries at `positions`: the sum of p + 1."""
    first, count = positions.start, len(positions)
    return count * (first + 1) + math.comb(count, 2)
