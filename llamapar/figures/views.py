"""`view(record)`: a record as a picture, and the same as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamapar.count import Memory
from llamapar.count.wire import Traffic
from llamapar.count.zero_map import ZeroMap
from llamapar.diagnosis import Explanation
from llamapar.errors import LayoutError, install, shown
from llamapar.nodes.loading import Loading
from llamapar.place import HeadMap, RankGrid, SequenceMap, StageMap, TradeMap, VocabMap
from llamapar.place.difference_map import DifferenceMap
from llamapar.place.pipeline import Moment, Schedule, Timeline, Timelines
from llamapar.records.losses import LossCurve
from llamapar.records.trace import Trace
from llamapar.timing.cost import Cost
from llamapar.timing.inside import LayerSteps
from llamapar.timing.plan import Plan

from . import (
    cost,
    diagnosis,
    difference_map,
    head_map,
    inside,
    loading,
    losses,
    memory,
    pipeline,
    plan,
    rank_grid,
    scenes,
    sequence_map,
    stage_map,
    trade_map,
    traffic,
    vocab_map,
    zero_map,
)
from .style import CONFIG, Spec

if TYPE_CHECKING:
    import plotly.graph_objects as go

MIME = "application/vnd.plotly.v1+json"

NO_FIGURE: Spec = {"data": [], "layout": {}}
"""The spec of a View that has only words."""


@dataclass(frozen=True)
class View:
    """A picture and the same as text.

    spec: of a chart {"data": [...], "layout": {...}}, in the form of plotly.js; of a map its scene, which
    `figures/scenes.py` describes. summary: the content of the picture, in exact numbers.
    """

    spec: Spec
    summary: str

    @property
    def is_map(self) -> bool:
        """Whether the picture is a map of who holds what, which plotly does not draw."""
        return "shapes" in self.spec

    @property
    def is_drawn(self) -> bool:
        """Whether there is a picture besides the text."""
        return self.is_map or bool(self.spec["data"])

    @property
    def svg(self) -> str:
        """The picture of a map as SVG. Raises LayoutError for a chart, which has a `figure`."""
        if not self.is_map:
            raise LayoutError("a chart has no SVG of its own", "plotly draws it", ["view.figure"])
        return scenes.svg(self.spec)

    @property
    def figure(self) -> go.Figure:
        """A chart as plotly's own Figure, validated by plotly; imports plotly, which takes seconds.

        Raises LayoutError for a map, which has an `svg`.
        """
        if self.is_map:
            raise LayoutError("a map is no plotly figure", "it is drawn as SVG", ["view.svg"])
        try:
            import plotly.graph_objects as go
        except ModuleNotFoundError as problem:
            what = f"View.figure needs plotly, which is not installed\n  try  {install('lab')}"
            raise ModuleNotFoundError(what, name=problem.name) from None
        return go.Figure(self.spec)

    def __repr__(self) -> str:
        return self.summary

    def _repr_mimebundle_(self, **_: object) -> Spec:
        if self.is_map:
            return {"text/plain": self.summary, "text/html": scenes.image(self.spec)}
        return {"text/plain": self.summary, MIME: {**self.spec, "config": dict(CONFIG)}}


_PICTURES: dict[type, Callable[..., tuple[Spec, str]]] = {
    HeadMap: head_map.picture,
    VocabMap: vocab_map.picture,
    SequenceMap: sequence_map.picture,
    TradeMap: trade_map.picture,
    StageMap: stage_map.picture,
    LayerSteps: inside.picture,
    RankGrid: rank_grid.picture,
    ZeroMap: zero_map.picture,
    Traffic: traffic.picture,
    Trace: traffic.trace,
    Memory: memory.picture,
    Cost: cost.picture,
    Plan: plan.picture,
    Explanation: diagnosis.picture,
    DifferenceMap: difference_map.picture,
    LossCurve: losses.picture,
    **dict.fromkeys((Schedule, Timeline, Timelines, Moment), pipeline.picture),
    Loading: loading.picture,
}


def view(record: object) -> View:
    """The picture of a record: HeadMap, VocabMap, SequenceMap, TradeMap, StageMap, LayerSteps, RankGrid,
    ZeroMap, Traffic, Trace, Memory, Loading, Cost, Plan, Explanation, DifferenceMap, LossCurve,
    Schedule, Timeline, Timelines or Moment.

    A run's result and the value of `with lp.record()` are drawn as their `trace`.
    Raises LayoutError for anything else, and for an explanation without numbers to draw.
    """
    # Asked by attribute and not by type: the types of results are in rooms that need torch.
    if isinstance(trace_of := getattr(record, "trace", None), Trace):
        record = trace_of
    # A record of an optional room brings its own picture.
    picture = _PICTURES.get(type(record)) or getattr(type(record), "picture", None)
    if picture is None:
        raise LayoutError(
            f"{shown(record)} has no picture",
            f"pictures are made of {', '.join(kind.__name__ for kind in _PICTURES)}",
            ["lp.view(lp.heads(model, layout))"],
            "record",
        )
    spec, summary = picture(record)
    return View(json.loads(json.dumps(spec, allow_nan=False)), summary)  # A copy, as plain values.
