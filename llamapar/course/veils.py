"""Pictures before a guess, with a veil over the answer, and after it, with the guess drawn in them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any

from llamapar.figures import View

VEIL = "#9A9A9A"

Span = tuple[float, float]
Guess = Any
"""An answer, of the type that its question asks for."""

_VEIL = {"type": "rect", "layer": "below", "fillcolor": VEIL, "opacity": 0.35, "line": {"width": 0}}
_MARK = {"text": "?", "showarrow": False, "font": {"size": 22}}
"""What lies over a veiled part, but for its place."""


def veiled(view: View, x: Span, title: str = "") -> View:
    """The picture without what it has inside x, at any height, which is covered; in words it says only that.

    Points are taken out rather than covered alone, or the mouse would read them. title: in place of the
    picture's own, where that says too much.
    """
    kept = [made for trace in view.spec["data"] if (made := _outside(trace, x))]
    veil = _VEIL | {"x0": x[0], "x1": x[1], "y0": 0, "y1": 1, "yref": "paper"}
    mark = _MARK | {"x": sum(x) / 2, "y": 0.5, "yref": "paper"}
    return _veiled(kept, {**view.spec["layout"], "shapes": [veil], "annotations": [mark]}, title)


def covered(view: View, hidden: Callable[[str, float], bool], title: str) -> View:
    """The map without its shapes that are `hidden`, by their lane and left edge, which a veil covers.

    What ranks hold in words goes as well, and so does the sentence: `title` stands in its place.
    """
    scene = view.spec
    gone = [one[4] for one in scene["shapes"] if hidden(one[0], one[4][0])]
    left, right = min(band[0] for band in gone), max(band[1] for band in gone)
    top, bottom = min(band[2] for band in gone), max(band[5] for band in gone)

    def lies_under(x: float, y: float) -> bool:
        return left <= x <= right and top <= y <= bottom

    veil = ["veil", 0, 1, 0, [left, right, top, left, right, bottom], "veil"]
    mark = [(left + right) / 2, (top + bottom) / 2 + 8, "?", 1, "mark"]
    told = {
        "says": f"{title} A part is veiled until you guess.",
        "warn": False,
        "shapes": [*(one for one in scene["shapes"] if not hidden(one[0], one[4][0])), veil],
        "labels": [*(one for one in scene["labels"] if not lies_under(one[0], one[1])), mark],
        "cuts": [one for one in scene["cuts"] if not lies_under(one[0], one[1])],
        "ranks": [[*one[:2], f"rank {one[3]}", one[3]] for one in scene["ranks"]],
        "legend": scene["legend"][:2],
    }
    return View({**scene, **told}, told["says"])


def framed(
    view: View, truth: object, place: Callable[[Guess], tuple[str, float, float]], say: Callable[[Guess], str]
) -> Callable[[Guess], View]:
    """What draws a guess into a map: a dashed frame beside that of the truth, each with its words.

    place: the lane and the part of it that a value stands for. say: a value in words.
    """

    def drawn(guess: object) -> View:
        scene = view.spec
        frames = list[list[object]]()
        words = list[list[object]]()
        for value, look, said in ((truth, "truth", "it is"), (guess, "guess", "you said")):
            lane, first, last = place(value)
            bands = [
                one[4] for one in scene["shapes"] if one[0] == lane and first < (one[1] + one[2]) / 2 < last
            ]
            if not bands:
                continue
            x0 = bands[0][0]
            x1 = bands[-1][1]
            top = bands[0][2]
            bottom = bands[0][5]
            frames.append([look, first, last, 0, [x0, x1, top, x0, x1, bottom], look])
            at = bottom + 3 if look == "truth" else top + 1
            words.append([(x0 + x1) / 2, at, f"{said} {say(value)}", 1, "mark"])
        spec = {**scene, "shapes": [*scene["shapes"], *frames], "labels": [*scene["labels"], *words]}
        return View(spec, f"You said {say(guess)}; it is {say(truth)}.\n{view.summary}")

    return drawn


def without(view: View, hidden: Callable[[Mapping[str, Any]], bool]) -> View:
    """The picture without the traces that are `hidden`."""
    return _veiled([trace for trace in view.spec["data"] if not hidden(trace)], view.spec["layout"])


def without_work(view: View) -> View:
    """The map of a sequence without the work of its ranks."""
    return covered(view, lambda lane, x: lane == "work", "Who holds which tokens.")


def _veiled(data: list[Any], layout: dict[str, Any], title: str = "") -> View:
    """A picture without its title's second line, which may say the answer."""
    told = {name: value for name, value in layout["title"].items() if name != "subtitle"}
    if title:
        told["text"] = title
    says = f"{told['text']}. A part is veiled until you guess."
    return View({"data": data, "layout": {**layout, "title": told}}, says)


def _outside(trace: Mapping[str, Any], x: Span) -> dict[str, Any] | None:
    """A trace without its points inside; None where none is left."""
    if trace["type"] == "heatmap":
        return _cells_outside(trace, x)
    n = len(trace["x"])
    base = trace.get("base", [0] * n)
    across = [b + w / 2 if "base" in trace else w for b, w in zip(base, trace["x"], strict=True)]
    stay = [a is None or not x[0] <= a <= x[1] for a in across]  # None ends a line
    if not any(stay):
        return None
    cut = {k: list(compress(v, stay)) for k, v in trace.items() if isinstance(v, list) and len(v) == n}
    return {**trace, **cut}


def _cells_outside(trace: Mapping[str, Any], x: Span) -> dict[str, Any]:
    """A heatmap without its cells inside, and without what the mouse would read of them."""
    packed = trace["z"]  # as plotly packs an array of bytes
    _, width = map(int, packed["shape"].split(","))
    numbers: list[int | None] = list(b64decode(packed["bdata"]))
    for at in range(len(numbers)):
        if x[0] <= trace["x0"] + at % width * trace["dx"] <= x[1]:
            numbers[at] = None
    z = [numbers[start : start + width] for start in range(0, len(numbers), width)]
    return {**{k: v for k, v in trace.items() if k not in ("hovertext", "text", "customdata")}, "z": z}
