"""Building blocks of pictures: rows, axes, bars, lines and labels, and lists for the summary."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from llamapar.records.tables import cut, plural

from . import style
from .style import Spec

SHOWN = 128
"""Most ranks (or stages) drawn one by one: past it the first ones and the last."""

LISTED = 7
"""Lines of a summary that list ranks, one more where some are left out."""


class Rows(NamedTuple):
    """n ranks (or stages, nodes). All are drawn; if there are too many, only the first and the last."""

    n: int
    most: int = SHOWN
    word: str = "rank"

    @property
    def drawn(self) -> list[int]:
        return cut(self.n, self.most)

    def place(self, i: int) -> int:
        """The position of a drawn row: its own number, but the last comes after a gap of one."""
        return i if self.n <= self.most or i < self.most - 1 else self.most

    @property
    def places(self) -> list[int]:
        """The positions of the drawn rows."""
        return [self.place(i) for i in self.drawn]

    @property
    def left_out(self) -> str:
        """The sentence about rows that are not drawn; empty if all are."""
        if self.n <= self.most:
            return ""
        return f"drawn are the first {self.most - 1} of {plural(self.n, self.word)}, and the last"

    def axis(self, title: str) -> Spec:
        """An axis with a position for each drawn row; the last is marked if some are left out."""
        ends = [-0.5, self.place(self.n - 1) + 0.5]
        if self.n <= self.most:
            places = list(range(0, self.n, step(self.n, 16)))
            return axis(title, ends, **ticks(places))
        # Ticks end a little before the gap, so that their numbers do not run into the last one's.
        places = list(range(0, self.most - 8, step(self.most, 8)))
        return axis(title, ends, **ticks([*places, self.most], [*places, self.n - 1]))

    def listing(self, line: Callable[[int], str], most: int = LISTED) -> list[str]:
        """Lines of a summary, at most `most` + 1; "…" stands for those left out."""
        # "…" would take the line of the only one that it leaves out.
        if self.n <= most + 1:
            return [f"  {line(i)}" for i in range(self.n)]
        return [*(f"  {line(i)}" for i in range(most - 1)), "  …", f"  {line(self.n - 1)}"]


def lines(*parts: str | Iterable[str]) -> str:
    """A summary made of lines and lists of lines, without empty ones."""
    each = ([part] if isinstance(part, str) else part for part in parts)
    return "\n".join(line for some in each for line in some if line)


# -- axes ------------------------------------------------------------------------------------------


def axis(title: str, ends: Sequence[float] = (), **more: object) -> Spec:
    """An axis with its title, from the first of `ends` to the second if given."""
    return {"title": {"text": title}, **({"range": list(ends)} if ends else {}), **more}


def positions(title: str, ends: Sequence[int], **more: object) -> Spec:
    """An axis of rows, tokens or the like; the density of numbers depends on the largest."""
    form = ",d"  # d3's: whole numbers, rounded if they are too long
    if max(ends) >= 10**7:
        form = ".4~s"
    return axis(title, ends, **{"nticks": 6, "tickformat": form, **more})


def ticks(places: Sequence[float], texts: Sequence[object] | None = None) -> Spec:
    """Ticks at exactly these positions of an axis, named by position or by `texts`."""
    named = [str(text) for text in (places if texts is None else texts)]
    return {"tickmode": "array", "tickvals": list(places), "ticktext": named}


def downward(axis: Spec) -> Spec:
    """The same axis with its first rank on top."""
    return {**axis, "range": axis["range"][::-1], "showgrid": False}


def named(names: Sequence[object], beyond: float = 0.1, **more: object) -> Spec:
    """The axis of rows that have names, the first on top, with `beyond` of a row free at both ends."""
    ends = [-0.5 - beyond, len(names) - 0.5 + beyond]
    labels = [style.escaped([str(name)]) for name in names]
    return downward(axis("", ends, **ticks(range(len(names)), labels), **more))


def step(n: int, most: int) -> int:
    """The smallest power of two that leaves at most `most` steps in n."""
    size = 1
    while n > size * most:
        size *= 2
    return size


def number(value: float) -> float:
    """The shortest form of a number: an integer without decimals, else nine decimals."""
    return int(value) if value == int(value) else round(value, 9)


# -- bars ------------------------------------------------------------------------------------------


INSIDE = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
"""Of a trace whose bars have words in their middle."""


class Bar(NamedTuple):
    """A horizontal bar on `row` from `start` to `stop`, with its hover text."""

    row: float
    start: float
    stop: float
    hover: str


def bars(made: Iterable[Bar], n: int, marker: Spec, **more: object) -> Spec:
    """One trace for all bars with one look, on n rows."""
    made = list(made)
    return {
        "type": "bar",
        "orientation": "h",
        "y": [bar.row for bar in made],
        "base": [bar.start for bar in made],
        "x": [number(bar.stop - bar.start) for bar in made],
        "width": bar_width(n),
        "hovertext": [bar.hover for bar in made],
        "marker": marker,
        **more,
    }


def columns(x: Sequence[float], y: Sequence[float], width: float, marker: Spec, **more: object) -> Spec:
    """Vertical bars from 0."""
    return {"type": "bar", "x": x, "y": y, "width": width, "marker": marker, **more}


def scatter(mode: str, x: Sequence[float | None], y: Sequence[float | None], **more: object) -> Spec:
    """Points, connected according to `mode`: "markers", "lines", "text"; None separates two lines."""
    return {"type": "scatter", "mode": mode, "x": x, "y": y, **more}


def points(mode: str, places: Iterable[tuple[float, float]], **more: object) -> Spec:
    """The same of places (x, y)."""
    x, y = [*zip(*places, strict=True)] or ((), ())
    return scatter(mode, list(x), list(y), **more)


def bar_width(n: int) -> float:
    """The fraction of a row that its bar fills, among n rows: all of it if a row has only a few pixels.

    Always given, because plotly's default is the smallest distance in a trace.
    """
    return 0.82 if n <= 48 else 1


def legend(name: str) -> Spec:
    """A trace's name, shown in the legend."""
    return {"name": name, "showlegend": True}


# -- cells -----------------------------------------------------------------------------------------


def packed(cells: bytes, cols: int) -> Spec:
    """Rows of `cols` small numbers, in the form of a heat map."""
    shape = f"{len(cells) // cols}, {cols}"
    return {"dtype": "u1", "bdata": base64.b64encode(cells).decode(), "shape": shape}


# -- lines and labels ------------------------------------------------------------------------------


def rule(along: str, at: float, across: str = "paper", **line: object) -> Spec:
    """A dashed line at one value of the axis `along`, "x" or "y", across the whole of `across`."""
    other = "y" if along == "x" else "x"
    ends = {f"{along}0": at, f"{along}1": at, f"{other}0": 0, f"{other}1": 1, f"{other}ref": across}
    return {"type": "line", **ends, "line": {"width": 2, "dash": "dash", **line}}


def label(text: str, x: float, y: float, **more: object) -> Spec:
    """Words at a position, without an arrow; lines are separated by a newline."""
    return {"text": style.escaped(text.splitlines()), "x": x, "y": y, "showarrow": False, **more}


def limit(text: str, x: float, y: float, **more: object) -> Spec:
    """The words above the right end of a line that should not be exceeded."""
    font = {"size": 11, "color": style.WARN}
    return label(text, x, y, xanchor="right", yanchor="bottom", font=font, **more)
