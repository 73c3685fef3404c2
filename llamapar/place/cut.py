"""The inventory, placed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig, Parameter
from llamapar.describe.placement import PARAMETERS, REPLICATED, Placement, Shard
from llamapar.describe.splits import NO_PADDING, Padding, Split
from llamapar.errors import LayoutError, shown


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
            "cp": str(REPLICATED),
            "pp": f"stage {self.stage} on rank {self.stage % layout.pp}",
            "dp": f"Shard over {layout.dp_shard * layout.cp} ranks (ZeRO 3)" if flat else str(REPLICATED),
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
