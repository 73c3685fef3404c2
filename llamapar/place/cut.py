"""Who holds what: a model under a layout in one value. A shard boundary is computed here and nowhere else."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig, Parameter
from llamapar.describe.placement import COUNTED_IN, KV_PARAMETERS, PARAMETERS, Placement, Shard
from llamapar.describe.splits import NO_PADDING, Padding, Split

from .ffn_map import FfnMap
from .head_map import HeadMap
from .pipeline import Schedule
from .sequence_map import SequenceMap
from .shards import Shards
from .stage_map import Stage, StageMap
from .vocab_map import VocabMap


@dataclass(frozen=True)
class Cut:
    """`model` cut by `layout`, with every choice that decides which rank holds what.

    padding: of the vocabulary.
    kv_replication: past n_kv_heads, each KV head is held whole by tp / n_kv_heads ranks. interleave: the
    copies of a head are on neighbouring ranks; False tiles them (wrong on purpose).
    chunking: "head-tail" or "contiguous", of the sequence over cp. seq_len: tokens of a sequence; None means
    the model's max_seq_len.
    layer_split: a name of `splits.LAYER_SPLITS`, or the layers of each stage.
    embedding_columns: the embedding is cut by columns, as in Meta's files of Llama 1 and 2.
    """

    model: ModelConfig
    layout: Layout
    _: KW_ONLY  # a field that moves must not change what a caller means
    padding: Padding = NO_PADDING
    kv_replication: bool = False
    interleave: bool = True
    chunking: str = "head-tail"
    seq_len: int | None = None
    layer_split: str | tuple[int, ...] = "balanced ends"
    embedding_columns: bool = False

    # -- the maps ------------------------------------------------------------------------------

    @cached_property
    def heads(self) -> HeadMap:
        return HeadMap(self.model, self.layout.tp, self.kv_replication, self.interleave)

    @cached_property
    def vocab(self) -> VocabMap:
        return VocabMap(self.model, self.layout.tp, self.padding)

    @cached_property
    def ffn(self) -> FfnMap:
        return FfnMap(self.model, self.layout.tp)

    @cached_property
    def sequence(self) -> SequenceMap:
        layout = self.layout
        tokens = self.seq_len or self.model.max_seq_len
        return SequenceMap(tokens, layout.cp, self.chunking, layout.sp_ways)

    @cached_property
    def stages(self) -> StageMap:
        return StageMap(self.model, self.layout.pp, self.layout.virtual_stages, self.layer_split)

    @cached_property
    def shards(self) -> Shards:
        return Shards(self.layout)

    # -- one dim over tp -----------------------------------------------------------------------

    def along(self, dim: str, rank: int) -> range:
        """The part of a dim that TP rank `rank` holds: "q_dim", "n_kv_heads", "ffn_dim", "vocab_size", ….

        "n_heads" and "n_kv_heads" count heads, "q_dim" and "kv_dim" rows of their projections; "vocab_size"
        counts rows of the padded vocabulary.
        """
        if dim == "vocab_size":
            return self.vocab.rank(rank).rows
        if dim == "ffn_dim":
            return self.ffn.split[rank]
        # Rows of Q, K and V are asked of the head map and not of Split, because a copied KV head is no
        # even share.
        if dim in ("n_heads", "q_dim", "n_kv_heads", "kv_dim"):
            mine = self.heads.rank(rank)
            parts = {
                "n_heads": mine.q_heads,
                "q_dim": mine.q_rows,
                "n_kv_heads": mine.kv_heads,
                "kv_dim": mine.kv_rows,
            }
            return parts[dim]
        # Any other dim of the model, such as "dim": cut evenly, as torch.chunk would.
        return Split(getattr(self.model, dim), self.layout.tp)[rank]

    def tokens(self, count: int, rank: int) -> range:
        """Which of a CP rank's `count` tokens TP rank `rank` holds under sequence parallelism."""
        return Split(count, self.layout.tp)[rank]

    def sequences(self, global_batch: int, dp_rank: int) -> range:
        """The sequences of a batch that a DP rank holds."""
        return Split(global_batch, self.layout.dp)[dp_rank]

    # -- parameters ----------------------------------------------------------------------------

    def placement(self, key: str) -> Placement:
        """How TP places a parameter. key: its row of the placement table, `Parameter.key`."""
        if self.embedding_columns and key == "tok_embeddings":
            return Shard(1, "embedding column")
        return PARAMETERS[key]

    def rows(self, key: str, rank: int) -> range | None:
        """What TP rank `rank` holds of the dim on which a parameter is cut; None if it is not cut."""
        placement = self.placement(key)
        if isinstance(placement, Shard):
            return self.along(COUNTED_IN[placement.unit], rank)
        return None

    def local_shape(self, parameter: Parameter, rank: int = 0) -> tuple[int, ...]:
        """Shape of a parameter's piece on TP rank `rank`, with pad rows and KV copies included."""
        placement = self.placement(parameter.key)
        shape = list(parameter.shape)
        rows = self.rows(parameter.key, rank)
        if isinstance(placement, Shard) and rows is not None:
            shape[placement.dim] = len(rows)
        return tuple(shape)

    def local_rows(self, key: str, rank: int) -> int:
        """Rows (dim 0) of a parameter's piece on TP rank `rank`."""
        return self._shapes[key, rank][0]

    def copies(self, key: str) -> int:
        """How many TP ranks hold the same piece of a parameter: all, tp / n_kv_heads, or one."""
        if not isinstance(self.placement(key), Shard):
            return self.layout.tp
        if key in KV_PARAMETERS:
            return self.heads.replicas
        return 1

    @cached_property
    def _shapes(self) -> dict[tuple[str, int], tuple[int, ...]]:
        # All layers have the same shapes, so one layer stands for 126.
        one_layer = self.model.replace(n_layers=1).parameters()
        return {(p.key, r): self.local_shape(p, r) for p in one_layer for r in range(self.layout.tp)}

    # -- stages --------------------------------------------------------------------------------

    def _all_stages(self) -> list[Stage]:
        # The map keeps a refused split as a value, so that a table can show it; whoever needs stages
        # raises it.
        if self.stages.problem is not None:
            raise self.stages.problem
        return self.stages.stages

    def stages_of(self, schedule: Schedule, pp_rank: int) -> list[Stage]:
        """The stages that a schedule gives a PP rank. Raises LayoutError if the layer split refuses."""
        stages = self._all_stages()
        return [stages[number] for number in schedule.stages_of(pp_rank)]

    @cached_property
    def _stage_of_layer(self) -> list[int]:
        return [stage.stage for stage in self._all_stages() for _ in stage.layers]

    def stage(self, parameter: Parameter) -> int:
        """The (virtual) pipeline stage of a parameter. Raises LayoutError if the layer split refuses."""
        if parameter.layer is not None:
            return self._stage_of_layer[parameter.layer]
        # What belongs to no layer is the embedding, or the last norm and the output.
        if parameter.key == "tok_embeddings":
            return 0
        return self.layout.stages - 1
