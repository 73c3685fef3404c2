"""Pictures before a guess, with a veil over the answer, and after it, with the guess drawn in them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from itertools import compress
from typing import Any

from llamapar.figures import View

VEIL, GUESS, TRUTH = "#9A9A9A", "#D55E00", "#009E73"

Span = tuple[float, float]

_ALL = (float("-inf"), float("inf"))


def veiled(view: View, x: Span, y: Span | None, says: str = "?", title: str = "") -> View:
    """The picture without what it has inside x and y, which are covered; in words it says only that.

    Points are taken out rather than covered alone, or the mouse would read them. y: None for the whole
    height, over all vertical axes. title: in place of the picture's own, where that says too much.
    """
    spec = view.spec
    kept = [made for trace in spec["data"] if (made := _outside(trace, x, y or _ALL))]
    told = {name: value for name, value in spec["layout"]["title"].items() if name != "subtitle"}
    told |= {"text": title} if title else {}
    across = {"x0": x[0], "x1": x[1], "line": {"width": 0}, "fillcolor": VEIL, "opacity": 0.35}
    down = {"y0": y[0], "y1": y[1]} if y else {"y0": 0, "y1": 1, "yref": "paper"}
    middle = {"y": sum(y) / 2} if y else {"y": 0.5, "yref": "paper"}
    note = {"x": sum(x) / 2, **middle, "text": says, "showarrow": False, "font": {"size": 22}}
    shape = {"type": "rect", "layer": "below", **across, **down}
    layout = {**spec["layout"], "title": told, "shapes": [shape], "annotations": [note]}
    return View({"data": kept, "layout": layout}, f"{told['text']}. A part is veiled until you guess.")


def _outside(trace: Mapping[str, Any], x: Span, y: Span) -> dict[str, Any] | None:
    """A trace without its points inside; None where none is left."""
    if trace["type"] == "heatmap":
        return _cells_outside(trace, x, y)
    n = len(trace["x"])
    base = trace.get("base", [0] * n)
    across = [b + w / 2 if "base" in trace else w for b, w in zip(base, trace["x"], strict=True)]
    down = trace.get("y", [trace.get("y0", 0)] * n)
    stay = [
        a is None or not (x[0] <= a <= x[1] and y[0] <= d <= y[1])  # None ends a line
        for a, d in zip(across, down, strict=True)
    ]
    if not any(stay):
        return None
    cut = {k: list(compress(v, stay)) for k, v in trace.items() if isinstance(v, list) and len(v) == n}
    return {**trace, **cut}


def _cells_outside(trace: Mapping[str, Any], x: Span, y: Span) -> dict[str, Any]:
    """A heatmap without its cells inside, and without what the mouse would read of them."""
    packed, cells = trace["z"], trace["z"]
    if isinstance(packed, Mapping):  # as plotly packs an array of bytes
        _, width = map(int, packed["shape"].split(","))
        numbers = list(b64decode(packed["bdata"]))
        cells = [numbers[start : start + width] for start in range(0, len(numbers), width)]
    across = [x[0] <= trace["x0"] + k * trace["dx"] <= x[1] for k in range(len(cells[0]))]
    down = [y[0] <= trace["y0"] + k * trace["dy"] <= y[1] for k in range(len(cells))]
    z = [
        [None if hidden and row_hidden else cell for cell, hidden in zip(row, across, strict=True)]
        for row, row_hidden in zip(cells, down, strict=True)
    ]
    return {**{k: v for k, v in trace.items() if k not in ("hovertext", "text", "customdata")}, "z": z}


def marked(view: View, y: Span, guess: Span | None, truth: Span, said: str, true: str) -> View:
    """The picture with the span of a guess and that of the truth framed, each with its words."""
    frames = [(truth, TRUTH, "solid", f"it is {true}", y[0], "bottom")]
    if guess is not None:
        frames.append((guess, GUESS, "dash", f"you said {said}", y[1], "top"))
    shapes, notes = [], []
    for (start, stop), colour, dash, words, edge, anchor in frames:
        line = {"color": colour, "width": 3, "dash": dash}
        shapes.append({"type": "rect", "x0": start, "x1": stop, "y0": y[0], "y1": y[1], "line": line})
        note = {"x": (start + stop) / 2, "y": edge, "text": f"<b>{words}</b>", "yanchor": anchor}
        notes.append(
            note | {"showarrow": False, "bgcolor": "rgba(255,255,255,0.85)", "font": {"color": "#111111"}}
        )
    layout = {**view.spec["layout"], "shapes": shapes, "annotations": notes}
    return View(
        {"data": view.spec["data"], "layout": layout},
        f"{said and f'You said {said}; '}it is {true}.\n{view.summary}",
    )
