"""Pictures of the lessons' questions: a part that is left out until a guess stands, a guess drawn beside it.

What `veils` does for a picture with one pair of axes is done here for pictures of several, and for ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import llamapar as lp
from guesses import words
from llamapar.figures import View
from veils import GUESS, TRUTH, VEIL

_AXES = {"x": "y", "x2": "y2", "x3": "y3"}
"""The axes of a picture's parts."""


@dataclass(frozen=True)
class Frame:
    """A rectangle from x to x and from y to y, with its words; dashed where it is a guess."""

    x: tuple[float, float]
    y: tuple[float, float]
    says: str
    guess: bool = False
    part: str = "x"


def covered(view: View, hidden: Callable[[Mapping[str, Any]], bool], part: str = "") -> View:
    """The picture without the traces that are `hidden`, and with a veil over a part, named by its x axis."""
    title = {name: value for name, value in view.spec["layout"]["title"].items() if name != "subtitle"}
    layout = {**view.spec["layout"], "title": title}
    if part:
        box = {"type": "rect", "xref": f"{part} domain", "yref": f"{_AXES[part]} domain", "x0": 0, "x1": 1}
        box |= {"y0": 0, "y1": 1, "fillcolor": VEIL, "opacity": 0.35, "line": {"width": 0}, "layer": "below"}
        at = {"xref": box["xref"], "yref": box["yref"], "x": 0.5, "y": 0.5}
        layout["shapes"] = [box]
        layout["annotations"] = [at | {"text": "?", "showarrow": False, "font": {"size": 22}}]
    kept = [trace for trace in view.spec["data"] if not hidden(trace)]
    if part:  # plotly drops axes without a trace; their numbers might give the answer away
        kept.append({"x": [None], "y": [None], "xaxis": part, "yaxis": _AXES[part]})
        layout[f"xaxis{part[1:]}"] = {**layout[f"xaxis{part[1:]}"], "showticklabels": False}
    return View({"data": kept, "layout": layout}, f"{title['text']}. A part is veiled until you guess.")


def framed(view: View, frames: Sequence[Frame], said: str) -> View:
    """The picture with frames drawn in it. said: the guess and the truth in words, before the summary."""
    shapes, notes = [], list(view.spec["layout"].get("annotations", []))
    for frame in frames:
        colour, dash = (GUESS, "dash") if frame.guess else (TRUTH, "solid")
        refs = {"xref": frame.part, "yref": _AXES[frame.part]}
        ends = {"x0": frame.x[0], "x1": frame.x[1], "y0": frame.y[0], "y1": frame.y[1]}
        shapes.append({"type": "rect", **refs, **ends, "line": {"color": colour, "width": 3, "dash": dash}})
        note = {**refs, "x": sum(frame.x) / 2, "y": frame.y[frame.guess], "text": f"<b>{frame.says}</b>"}
        inside = frame.part != "x"  # a small part has no room around it
        note |= {"yanchor": "top" if frame.guess != inside else "bottom", "showarrow": False}
        notes.append(note | {"bgcolor": "rgba(255,255,255,0.85)", "font": {"color": "#111111"}})
    layout = {**view.spec["layout"], "shapes": shapes, "annotations": notes}
    return View({"data": view.spec["data"], "layout": layout}, f"{said}\n{view.summary}")


def without_peers(layout: lp.Layout, rank: int) -> View:
    """The picture of a rank in which its peers are not marked."""
    view = lp.view(lp.ranks(layout, rank))
    return covered(view, lambda trace: " · " in str(trace.get("name", "")))


def with_ranks(layout: lp.Layout, rank: int, guessed: Sequence[float]) -> View:
    """The picture of a rank and its peers, with the ranks of a guess in orange squares."""
    view = lp.view(lp.ranks(layout, rank))
    wide = view.spec["data"][0]["dy"]
    real = [int(n) for n in guessed if n in range(layout.world)]
    marker = {"symbol": "square-open", "color": GUESS, "size": 20, "line": {"width": 3}}
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [n % wide for n in real],
        "y": [n - n % wide for n in real],
        "text": [f"rank {n}, as you said" for n in real],
        "marker": marker,
        "name": "you said",
        "showlegend": True,
    }
    said = f"You said {', '.join(map(words, guessed)) or 'nothing'}."
    return View({**view.spec, "data": [*view.spec["data"], trace]}, f"{said}\n{view.summary}")
