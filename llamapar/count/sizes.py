"""What a rank holds, counted from the placement table and the maps: parameters and activations by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from llamapar.describe.cp_methods import CpMethod
from llamapar.describe.dtypes import BYTES, TRAINED
from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.describe.options import OPTIONS
from llamapar.describe.placement import ACTIVATIONS, Shard
from llamapar.describe.splits import Padding, Split
from llamapar.errors import Choice, LayoutError, flag, one_of, whole
from llamapar.frameworks import padding_rule
from llamapar.place.cut import Cut
from llamapar.place.pipeline import rank_of
from llamapar.place.stage_map import split_named


@dataclass(frozen=True)
class TensorSize:
    """Parameters of one tensor on TP rank 0: all of them, and the piece when dim 0 is cut `shard` ways."""

    key: str
    numel: int
    rows: int

    def sharded(self, shard: int) -> int:
        """The first rank's piece by torch's fully_shard, which cuts dim 0 with torch.chunk."""
        # Split's first shard is the largest, and the fullest rank is what memory asks for.
        if self.rows:
            return Split(self.rows, shard).size * (self.numel // self.rows)
        return 0


@dataclass(frozen=True)
class StageHold:
    """What one PP rank holds: the layers of each of its virtual stages, and the ends of the model."""

    layers: tuple[int, ...]
    embedding: bool
    head: bool


class Sizes:
    """Sizes on the rank that holds most: TP rank 0, and the CP rank with most tokens.

    Raises LayoutError if tp cuts through a head, because no rank could compute.
    """

    def __init__(
        self,
        model: ModelConfig,
        layout: Layout,
        *,
        seq_len: int,
        micro_batch: int = 1,
        kv_replication: bool = False,
        padding: str | Padding | None = None,
        layer_split: str | Sequence[int] = "balanced ends",
        chunking: str = "head-tail",
        cp_method: str = "all_gather",
        dtype: str = "bfloat16",
        regather: bool = False,
        placement: str = "loop",
    ) -> None:
        self.model = model
        self.layout = layout
        self.seq_len = whole("seq_len", seq_len, 1, 2**31 - 1)
        self.batch = whole("micro_batch", micro_batch, 1, 2**31 - 1)
        OPTIONS["chunking"].chosen(chunking)
        split: str | tuple[int, ...]
        if isinstance(layer_split, Iterable) and not isinstance(layer_split, str):
            split = tuple(whole("layer_split", count, 0) for count in layer_split)
        else:
            split = split_named(layer_split)
        self.cut = Cut(
            model,
            layout,
            padding=padding_rule(padding),
            kv_replication=kv_replication,
            chunking=chunking,
            seq_len=self.seq_len,
            layer_split=split,
        )
        self.method = CpMethod.of(cp_method, layout.cp)
        self.cut.heads.require(self.method)
        self.item = BYTES[one_of("dtype", dtype, TRAINED)]
        self.regather = flag("regather", regather)
        self.placement = placement

    # -- parameters ----------------------------------------------------------------------------

    @cached_property
    def parts(self) -> dict[str, list[TensorSize]]:
        """Parameters on TP rank 0 by place: "layer", "embedding", or "head" (with the final norm)."""
        found: dict[str, list[TensorSize]] = {"layer": [], "embedding": [], "head": []}
        # All layers are equal, so one is measured and multiplied.
        for p in self.model.replace(n_layers=1).parameters():
            shape = self.cut.local_shape(p)
            ends = "head"
            if p.key == "tok_embeddings":
                ends = "embedding"
            where = ends
            if p.layer is not None:
                where = "layer"
            found[where].append(TensorSize(p.key, math.prod(shape), shape[0]))
        return found

    @lru_cache(maxsize=64)  # noqa: B019  most stages hold the same, and 64 Sizes are few
    def params(self, hold: StageHold, shard: int = 1, by_row: bool = True) -> int:
        """Parameters of a PP rank, or its shard of them: each tensor by rows, or all as one flat buffer."""
        layers = sum(hold.layers)
        parts = [(part, layers) for part in self.parts["layer"]]
        tied = self.model.tied and hold.head and not hold.embedding  # the head's own copy of the embedding
        parts += [(part, 1) for part in self.parts["embedding"] if hold.embedding or tied]
        parts += [(part, 1) for part in self.parts["head"] if hold.head]
        if by_row:
            return sum(part.sharded(shard) * times for part, times in parts)
        # Rounded up: a flat buffer is padded until it divides.
        return -(-sum(part.numel * times for part, times in parts) // shard)

    # -- stages --------------------------------------------------------------------------------

    @cached_property
    def stages(self) -> list[StageHold]:
        """What each PP rank holds. Raises LayoutError if the layer split refuses."""
        pp = self.layout.pp
        problem = self.cut.stages.problem
        if problem is not None and problem.field == "layer_split":
            raise problem
        if problem is not None:
            raise LayoutError(problem.what, "", [Choice.of(pp=pp // 2 or 1)], "pp")
        counts = self.cut.stages.counts
        # On a V the first and the last stage share rank 0, which then holds both ends of the model.
        home = [rank_of(stage, pp, self.placement) for stage in range(len(counts))]
        layers = [tuple(n for n, rank in zip(counts, home, strict=True) if rank == r) for r in range(pp)]
        return [StageHold(layers[r], r == home[0], r == home[-1]) for r in range(pp)]

    # -- activations of a micro-batch ----------------------------------------------------------

    @cached_property
    def tokens_seq(self) -> int:
        """The most tokens of a sequence that any CP rank has."""
        return max(self.cut.sequence.rank(r).tokens for r in (0, self.layout.cp - 1))  # chunks never grow

    def _local(self, key: str, gathered: bool = False) -> int:
        """Numbers of an activation on a rank. gathered: the residual stream as column-parallel input."""
        row = ACTIVATIONS[key]
        cut = self.cut
        dims = {"batch": self.batch, "seq": self.tokens_seq, "vocab_size": cut.vocab.padded}
        shape = [dims[d] if d in dims else getattr(self.model, d) for d in row.dims]
        # A gathered tensor is whole along the sequence again, as without SP.
        tp = row.tp
        if self.layout.sp and not gathered:
            tp = row.tp_sp
        if isinstance(tp, Shard):
            dim = row.dims[tp.dim]
            shape[tp.dim] = len(cut.tokens(self.tokens_seq, 0) if dim == "seq" else cut.along(dim, 0))
        return math.prod(shape)

    @cached_property
    def activations(self) -> dict[str, int]:
        """The names used in formulas of activations → numbers on a rank for one micro-batch.

        tokens; residual (cut over tp under sequence parallelism); gathered (as column-parallel matmuls read
        it); column (as it is kept for their gradient); q, k (the rank's own); keys (as attention has them: of
        the whole sequence after the all-gather over cp); ffn; logits; rows and lse (a number for each row of
        a norm, of a head); item and wide (bytes of dtype, and of float32 at least).
        back: attention's output for the rank's own tokens, where Ulysses brings it back.
        Of this project's programs: rope (a table), columns (of the loss's mask), folds (1 where a matmul
        copies).
        kept: tensors of ffn that SwiGLU and w2 keep. copies: of Q, K, V and attention's output.
        """
        lay = self.layout
        m = self.model
        found = {key: self._local(key) for key in ("tokens", "residual", "q", "k", "ffn", "logits")}
        if m.experts:
            found["ffn"] = 0  # what experts keep is not judged
        gathered = self._local("residual", gathered=True)
        # Attention's K has a rank's own heads, copied for Ulysses, of as many tokens as it reads at once.
        keys = found["k"] * self.method.copies(len(self.cut.along("n_kv_heads", 0)))
        if self.method.gathers:
            keys = keys // self.tokens_seq * self.seq_len
        return found | {
            "gathered": gathered,
            "column": found["residual"] if self.regather else gathered,
            "keys": keys,
            "rows": found["residual"] // m.dim,
            # One log-sum-exp for each query row and head: Q without its head_dim.
            "lse": found["q"] // m.head_dim,
            "item": self.item,
            "wide": max(self.item, 4),
            "rope": self.tokens_seq * m.head_dim,
            # Ulysses' way back makes a second output of attention, which wo's gradient needs.
            "back": found["q"] if self.method.heads > 1 else 0,
            "columns": len(self.cut.vocab.rank(0).rows),
            "folds": int(lay.sp and self.batch > 1 and not self.regather),
            "kept": 4,
            "copies": 0,
        }
