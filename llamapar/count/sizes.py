"""What a rank holds, counted from the placement table and the maps: parameters and activations by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.describe.placement import ACTIVATIONS, Activation, Shard
from llamapar.describe.splits import Split, kv_copies
from llamapar.errors import Choice, LayoutError, flag, one_of, shown, whole
from llamapar.frameworks import padding_rule
from llamapar.place.cut import place
from llamapar.place.head_map import HeadMap
from llamapar.place.sequence_map import CHUNKINGS, SequenceMap
from llamapar.place.stage_map import stages as stage_map
from llamapar.place.vocab_map import VocabMap

from .wire import ITEMSIZE as SENT_ITEMSIZE

ITEMSIZE = SENT_ITEMSIZE | {"float16": 2}
"""dtype → bytes of a number."""


@dataclass(frozen=True)
class Part:
    """Parameters of one tensor on TP rank 0: all of them, and the piece when dim 0 is cut `shard` ways."""

    key: str
    numel: int
    rows: int

    def sharded(self, shard: int) -> int:
        """torch's fully_shard: dim 0 by torch.chunk, the first rank's piece."""
        return Split(self.rows, shard).size * (self.numel // self.rows) if self.rows else 0


@dataclass(frozen=True)
class StageHold:
    """What one PP rank holds: layers of each of its virtual stages, and the ends of the model."""

    layers: tuple[int, ...]
    embedding: bool
    head: bool


class Sizes:
    """Sizes on the rank that holds most: TP rank 0, and the CP rank with most tokens.

    Raises LayoutError where tp cuts through a head: no rank could compute.
    """

    def __init__(
        self,
        model: ModelConfig,
        layout: Layout,
        *,
        seq_len: int,
        micro_batch: int = 1,
        kv_replication: bool = False,
        padding: Any = None,
        chunking: str = "head-tail",
        cp_method: str = "all_gather",
        dtype: str = "bfloat16",
        regather: bool = False,
    ) -> None:
        self.model, self.layout = model, layout
        self.seq_len = whole("seq_len", seq_len, 1, 2**31 - 1)
        self.batch = whole("micro_batch", micro_batch, 1, 2**31 - 1)
        self.padding = padding_rule(padding)
        self.heads = HeadMap(model, layout.tp, kv_replication)
        if self.heads.reason:
            near = [Choice.of(tp=math.gcd(layout.tp, model.n_kv_heads))]
            if not kv_replication and kv_copies(model.n_kv_heads, layout.tp) > 1:
                near.append(Choice.of(kv_replication=True))
            raise LayoutError(self.heads.reason, "a rank computes with whole heads", near, "tp")
        self.vocab = VocabMap(model, layout.tp, self.padding)
        self.sequence = SequenceMap(seq_len, layout.cp, one_of("chunking", chunking, CHUNKINGS))
        self.item = ITEMSIZE[one_of("dtype", dtype, ITEMSIZE)]
        self.regather = flag("regather", regather)
        self.gathers = one_of("cp_method", cp_method, ("all_gather", "ring")) == "all_gather"

    # -- parameters ----------------------------------------------------------------------------

    @cached_property
    def parts(self) -> dict[str, list[Part]]:
        """ "layer", "embedding", "head" (with the final norm) → the parameters there, on TP rank 0."""
        one, flat = self.model.replace(n_layers=1), self.layout.replace(pp=1, virtual_stages=1)
        found: dict[str, list[Part]] = {"layer": [], "embedding": [], "head": []}
        for placed in place(one, flat, [1]):
            p = placed.parameter
            shape = placed.local_shape(self.layout, 0, self.padding)
            copies = self.heads.replicas if p.key in ("wk", "wv", "bk", "bv") else 1
            where = "layer" if p.layer is not None else "embedding" if p.key == "tok_embeddings" else "head"
            rows = shape[0] * copies if shape else 1
            found[where].append(Part(p.key, math.prod(shape) * copies, rows))
        return found

    @lru_cache(maxsize=64)  # noqa: B019  most stages hold the same, and 64 Sizes are few
    def params(self, hold: StageHold, shard: int = 1, by_row: bool = True) -> int:
        """Parameters of a PP rank, or its piece of them: per tensor by rows, or all as one flat buffer."""
        layers = sum(hold.layers)
        parts = [(part, layers) for part in self.parts["layer"]]
        tied = self.model.tied and hold.head and not hold.embedding  # the head's own copy of the embedding
        parts += [(part, 1) for part in self.parts["embedding"] if hold.embedding or tied]
        parts += [(part, 1) for part in self.parts["head"] if hold.head]
        if by_row:
            return sum(part.sharded(shard) * times for part, times in parts)
        return -(-sum(part.numel * times for part, times in parts) // shard)

    # -- stages --------------------------------------------------------------------------------

    def stages(self, layer_split: str | Sequence[int]) -> list[StageHold]:
        """What each PP rank holds. layer_split: as in `lp.stages`, or each stage's layers as numbers."""
        n = self.layout.stages
        if isinstance(layer_split, str):
            mapped = stage_map(self.model, self.layout, layer_split=layer_split)
            if mapped.reason:
                raise LayoutError(mapped.reason, "", [Choice.of(pp=self.layout.pp // 2 or 1)], "pp")
            counts = mapped.counts
        else:
            counts = [whole("layer_split", count, 0) for count in layer_split]
            if len(counts) != n or sum(counts) != self.model.n_layers:
                what = f"layer_split={shown(counts)}: {n} stages of {self.model.n_layers} layers in all"
                raise LayoutError(what, "", field="layer_split")
        pp = self.layout.pp
        return [StageHold(tuple(counts[r::pp]), r == 0, r == pp - 1) for r in range(pp)]

    # -- activations of a micro-batch ----------------------------------------------------------

    @cached_property
    def tokens_seq(self) -> int:
        """Tokens of a sequence on a CP rank, the most that any has."""
        return max(self.sequence.rank(r).tokens for r in (0, self.layout.cp - 1))  # chunks never grow

    def _local(self, key: str, gathered: bool = False) -> int:
        """Numbers of an activation on a rank. gathered: the residual stream as column-parallel input."""
        row: Activation = ACTIVATIONS[key]
        m = self.model
        dims = {"batch": self.batch, "seq": self.tokens_seq, "vocab_size": self.vocab.padded}
        shape = [dims[d] if d in dims else getattr(m, d) for d in row.dims]
        tp = row.tp_sp if self.layout.sp and not gathered else row.tp
        if isinstance(tp, Shard):
            held = self.heads.rank(0)
            units = {"query head": len(held.q_heads), "KV head": len(held.kv_heads)}
            units["vocabulary row"] = len(self.vocab.rank(0).rows)
            shape[tp.dim] = units.get(tp.unit, Split(shape[tp.dim], self.layout.tp).size)
        return math.prod(shape)

    @cached_property
    def activations(self) -> dict[str, int]:
        """The names that formulas of activations use → numbers on a rank for one micro-batch.

        tokens, residual (cut over tp under sequence parallelism), gathered (as column-parallel matmuls
        read it), column (as it is kept for their gradient), q, k (own), keys (as attention holds them: of
        the whole sequence after the all-gather over cp), ffn, logits; rows and lse (a number a row of a norm,
        of a head); item and wide (bytes of dtype, and of float32 at least). Of this project's programs:
        rope (a table), reordered (tokens), columns (of the loss's mask), folds (1 where a matmul copies).
        """
        lay, m = self.layout, self.model
        found = {key: self._local(key) for key in ("tokens", "residual", "q", "k", "ffn", "logits")}
        gathered = self._local("residual", gathered=True)
        whole_seq = lay.cp > 1 and self.gathers
        return found | {
            "gathered": gathered,
            "column": found["residual"] if self.regather else gathered,
            "keys": found["k"] // self.tokens_seq * (self.seq_len if whole_seq else self.tokens_seq),
            "rows": found["residual"] // m.dim,
            "lse": found["q"] // m.head_dim,
            "item": self.item,
            "wide": max(self.item, 4),
            "rope": self.tokens_seq * m.head_dim,
            "reordered": self.seq_len if whole_seq and self.sequence.chunking == "head-tail" else 0,
            "columns": len(self.vocab.rank(0).rows),
            "folds": int(lay.sp and self.batch > 1 and not self.regather),
        }
