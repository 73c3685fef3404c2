"""Which layers each pipeline stage holds, under each framework's split."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import StagesKeywords
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.splits import LAYER_SPLITS
from llamapar.errors import Choice, LayoutError, one_of, shown
from llamapar.frameworks import framework
from llamapar.records.tables import Judged, cut, span

from .orders import pipeline_in_words


@dataclass(frozen=True)
class Stage:
    """One (virtual) pipeline stage: its layers, and whether it holds the embedding or the head."""

    stage: int
    rank: int
    layers: range
    embedding: bool
    head: bool


@dataclass(frozen=True, repr=False)
class StageMap(Judged):
    """Layers over pp·virtual_stages stages; virtual stage s is on rank s % pp."""

    model: ModelConfig
    pp: int
    virtual_stages: int
    layer_split: str | tuple[int, ...]
    """A name of `splits.LAYER_SPLITS`, or the layers of each stage."""

    @cached_property
    def _made(self) -> tuple[list[int], LayoutError | None]:
        n = self.model.n_layers
        stages = self.pp * self.virtual_stages
        if not isinstance(self.layer_split, str):
            counts = list(self.layer_split)
            if len(counts) == stages and sum(counts) == n:
                return counts, None
            what = f"layer_split={shown(counts)}: {stages} stages of {n} layers in all"
            return [], LayoutError(what, field="layer_split")
        # Splits that count the embedding and the head as layers have n + 2 to deal out; past that no split
        # works.
        if stages > n + 2:
            return [], LayoutError(f"pp·virtual_stages = {stages} stages for {n} layers", field="pp")
        try:
            return LAYER_SPLITS[self.layer_split](n, stages, self.model.head_layers), None
        except LayoutError as problem:
            return [], problem

    @property
    def counts(self) -> list[int]:
        """Layers of each stage, first stage first; empty if the split refuses."""
        return self._made[0]

    @property
    def problem(self) -> LayoutError | None:
        """Why the split refuses, as an error to raise; None if it does not."""
        return self._made[1]

    @property
    def reason(self) -> str:
        """Why the split refuses, in one line; empty if it does not."""
        if self.problem:
            return self.problem.what
        return ""

    @cached_property
    def stages(self) -> list[Stage]:
        """Every stage in pipeline order; empty if the split refuses."""
        # The layer past each stage's last one.
        ends = list(itertools.accumulate(self.counts))
        last = len(ends) - 1
        return [
            # The default split has a first or last stage without any layer where stages are as many as
            # layers + 2.
            Stage(s, s % self.pp, range(end - count, end), s == 0, s == last)
            for s, (count, end) in enumerate(zip(self.counts, ends, strict=True))
        ]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The counts as (stages, layers) runs: 405B at PP=16 is [(1, 7), (14, 8), (1, 7)]."""
        return [(len(list(same)), count) for count, same in itertools.groupby(self.counts)]

    @property
    def is_even(self) -> bool:
        """Whether there are several stages, and all have as many layers."""
        return len(self.runs) == 1 < len(self.counts)

    @property
    def counts_in_words(self) -> str:
        """Layers of the stages in their order: "7, 8 (14 stages), 7"; "16 each" if all have as many."""
        if self.is_even:
            return f"{self.counts[0]} each"
        each = [f"{count} ({n} stages)" if n > 1 else str(count) for n, count in self.runs]
        return ", ".join(each if len(each) <= 9 else [*each[:8], "…", each[-1]])

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        split = "as given"
        if isinstance(self.layer_split, str):
            split = self.layer_split
        over = pipeline_in_words(self.pp, self.virtual_stages)
        title = (
            f"{self.model.name} layers over {over}, {split}: "
            f"{self.model.n_layers} layers as {self.counts_in_words or 'nothing'}"
        )
        rows: list[list[object]] = []
        for s in cut(len(self.stages)):
            stage = self.stages[s]
            ends = [word for word, on in (("embedding", stage.embedding), ("head", stage.head)) if on]
            rows.append([stage.stage, stage.rank, span(stage.layers), len(stage.layers), ", ".join(ends)])
        return title, ["stage", "pp rank", "layers", "count", "also holds"], rows, self.reason


def split_named(layer_split: str) -> str:
    """The name of a split, from such a name or a framework's name. Raises LayoutError for any other."""
    # The error for any other name lists the splits, not the frameworks: these are the rules, those only
    # use them.
    if not isinstance(layer_split, str) or layer_split in LAYER_SPLITS:
        return one_of("layer_split", layer_split, LAYER_SPLITS)
    try:
        known = framework(layer_split)
    except LayoutError:
        return one_of("layer_split", layer_split, LAYER_SPLITS)
    if known.layer_split is None:
        raise LayoutError(
            f"{known.title} has no rule for layers per stage that is known here",
            "",
            [Choice.of(layer_split=name) for name in LAYER_SPLITS],
            "layer_split",
        )
    return known.layer_split


@checked_options
def stages(
    model: ModelLike,
    layout: LayoutLike | None = None,
    **options: Unpack[StagesKeywords],
) -> StageMap:
    """The layers of each pipeline stage.

    layer_split: a name of `splits.LAYER_SPLITS` or a framework's name. The default is the paper's: one layer
    fewer on the first and on the last stage. Raises LayoutError for a framework without a known rule.
    """
    layout = Layout.of(layout)
    split = split_named(options["layer_split"])
    return StageMap(find_model(model), layout.pp, layout.virtual_stages, split)
