"""Pictures before a guess, with a veil over the answer, and after it, with the guess drawn in them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any

from llamapar.figures import View

VEIL, GUESS, TRUTH = "#9A9A9A", "#D55E00", "#009E73"

Span = tuple[float, float]

_ALL = (float("-inf"), float("inf"))

_AXES = {"x": "y", "x2": "y2", "x3": "y3"}
"""The axes of a picture's parts."""


def veiled(view: View, x: Span, y: Span | None, says: str = "?", title: str = "") -> View:
    """The picture without what it has inside x and y, which are covered; in words it says only that.

    Points are taken out rather than covered alone, or the mouse would read them. y: None for the whole
    height, over all vertical axes. title: in place of the picture's own, where that says too much.
    """
    spec = view.spec
    kept = [made for trace in spec["data"] if (made := _outside(trace, x, y or _ALL))]
    told = _untold(view) | ({"text": title} if title else {})
    across = {"x0": x[0], "x1": x[1], "line": {"width": 0}, "fillcolor": VEIL, "opacity": 0.35}
    down = {"y0": y[0], "y1": y[1]} if y else {"y0": 0, "y1": 1, "yref": "paper"}
    middle = {"y": sum(y) / 2} if y else {"y": 0.5, "yref": "paper"}
    note = {"x": sum(x) / 2, **middle, "text": says, "showarrow": False, "font": {"size": 22}}
    shape = {"type": "rect", "layer": "below", **across, **down}
    layout = {**spec["layout"], "title": told, "shapes": [shape], "annotations": [note]}
    return _veiled(kept, layout)


def _untold(view: View) -> dict[str, Any]:
    """The title without its second line, which may say the answer."""
    return {name: value for name, value in view.spec["layout"]["title"].items() if name != "subtitle"}


def _veiled(data: list[Any], layout: dict[str, Any]) -> View:
    return View(
        {"data": data, "layout": layout}, f"{layout['title']['text']}. A part is veiled until you guess."
    )


def covered(view: View, hidden: Callable[[Mapping[str, Any]], bool], part: str = "") -> View:
    """The picture without the traces that are `hidden`, and with a veil over a part, named by its x axis."""
    layout = {**view.spec["layout"], "title": _untold(view)}
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
    return _veiled(kept, layout)


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


def marker(
    view: View, truth: object, place: Callable[[Any], tuple[Span, Span] | None], say: Callable[[Any], str]
) -> Callable[[Any], View]:
    """What draws a guess into a picture: a dashed frame beside that of the truth, each with its words.

    place: where a value stands along x and y; None where it stands nowhere. say: a value in words.
    """

    def drawn(guess: object) -> View:
        shapes, notes = [], []
        frames = ((truth, "it is", TRUTH, "solid", "bottom"), (guess, "you said", GUESS, "dash", "top"))
        for value, words, colour, dash, anchor in frames:
            rectangle = place(value)
            if rectangle is None:
                continue
            x, y = rectangle
            ends = {"x0": x[0], "x1": x[1], "y0": y[0], "y1": y[1]}
            shapes.append({"type": "rect", **ends, "line": {"color": colour, "width": 3, "dash": dash}})
            note = {"x": sum(x) / 2, "y": max(y) if anchor == "top" else min(y), "yanchor": anchor}
            note |= {"text": f"<b>{words} {say(value)}</b>", "showarrow": False, "font": {"color": "#111111"}}
            notes.append(note | {"bgcolor": "rgba(255,255,255,0.85)"})
        layout = {**view.spec["layout"], "shapes": shapes, "annotations": notes}
        said = f"You said {say(guess)}; it is {say(truth)}."
        return View({"data": view.spec["data"], "layout": layout}, f"{said}\n{view.summary}")

    return drawn
