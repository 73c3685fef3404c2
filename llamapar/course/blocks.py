"""The small block at the head of a lesson: the model and its data, what the axes cut, and one rank's part.

It is drawn as SVG, which is sharp at any size and needs no paper of its own. The numbers are those of the
library's picture of `lp.ranks` with a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

import llamapar as lp
from llamapar.figures import block as figure
from llamapar.figures import style

WIDE, HIGH, BETWEEN = 128, 56, 8
"""Pixels of a rectangle, and between the two: a phone leaves 270 to a cell, and JupyterLab shrinks no SVG."""

EDGE, LINE = 3, 16
"""Pixels around everything, and from a line of words to the next."""

LONGEST = 44
"""Most characters of the line above the rectangles."""

WIDTH = 2 * (EDGE + WIDE) + BETWEEN


@dataclass(frozen=True)
class SmallBlock:
    """A drawing as SVG, and the same in words."""

    svg: str
    summary: str

    def __repr__(self) -> str:
        return self.summary

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.summary, "image/svg+xml": self.svg}


def block(model: lp.ModelLike, rank: int = 0, **how: Any) -> SmallBlock:
    """The small block of a model. how: the degrees of a layout, and what else `lp.ranks` takes."""
    record = lp.ranks(rank=rank, model=model, **how)
    assert record.share is not None
    found = figure.small(record.share, record.rank, record.layout.world)
    held = " · ".join(words for panel in found["panels"] for words in panel["held"]) or "the whole step"
    words = f"{found['rank']}: {held}"
    head = words if len(words) <= LONGEST else found["rank"]
    lit = f'<path fill="{style.LIT}" d="M{EDGE} {EDGE + 1}h9v9h-9z"/>'
    drawn = [lit, _text(EDGE + 14, EDGE + 10, head)]
    for k, panel in enumerate(found["panels"]):
        drawn += _panel(panel, EDGE + k * (WIDE + BETWEEN), EDGE + LINE)
    below = EDGE + LINE + HIGH
    sides = [(k, *side) for panel in found["panels"] for k, side in enumerate(panel["sides"])]
    for k, axis, cuts, named in sides:
        if cuts:
            below += LINE
            stroke = f"M{EDGE} {below - 6}h9" if k == 0 else f"M{EDGE + 4} {below - 10}v9"  # as its cuts run
            drawn.append(f'<path d="{stroke}" stroke="{style.COLOURS[axis]}" stroke-width="3"/>')
            drawn.append(_text(EDGE + 14, below - 2, named))
    others = [named for _, _, cuts, named in sides if not cuts]
    if others:
        below += LINE
        words = f"not cut: {', '.join(others)}" if len(others) < len(sides) else "nothing is cut"
        drawn.append(_text(EDGE, below - 2, words))
    height = below + EDGE
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img"'
    look = f'font-family="{escape(style.FONT)}" font-size="11" fill="{style.LINE}"'
    summary = f"{found['rank']} in {style.name_of(record.share.model)}: {held}"
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {look}>'
    return SmallBlock("\n".join([opened, f"<title>{escape(summary)}</title>", *drawn, "</svg>"]), summary)


def _panel(panel: dict[str, Any], left: float, top: float) -> list[str]:
    """A rectangle with its marks."""
    drawn = []
    for (kind, axis), marks in groupby(panel["marks"], key=lambda mark: mark[:2]):
        drawn.append(
            f'<path d="{"".join(_box(mark[2:], left, top) for mark in marks)}" {_look(kind, axis)}/>'
        )
    frame = _box((0, 0, 1, 1), left, top)
    return [*drawn, f'<path d="{frame}" fill="none" stroke="{style.LINE}"/>']


def _look(kind: str, axis: str) -> str:
    if kind in ("own", "all"):
        return f'fill="{style.LIT}" stroke="{style.LIT}"' + ' opacity="0.5"' * (kind == "all")
    colour = style.COLOURS[axis]
    return f'stroke="{colour}"' if kind == "cut" else f'fill="{colour}" opacity="{figure.BAND}"'


def _box(place: Sequence[float], left: float, top: float) -> str:
    """A rectangle of a path; of a cut, which has no width or no height, a line."""
    x, y, wide, high = (part * size for part, size in zip(place, (WIDE, HIGH) * 2, strict=True))
    start = f"M{left + x:.4g} {top + y:.4g}"
    if not wide or not high:
        return f"{start}{f'h{wide:.4g}' if wide else f'v{high:.4g}'}"
    return f"{start}h{wide:.4g}v{high:.4g}h{-wide:.4g}z"


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(words)}</text>'
