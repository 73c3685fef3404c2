"""Maps as scenes: intervals of heads, rows, tokens or layers on their ranks, in numbers.

A page moves the numbers (`panels/map.js`), and a still draws the same ones as SVG. In a scene x is a fraction
of the width and y is in pixels, so the height never changes with the layout. A shape is a band between two
edges: its lane, the part of that lane that it is (from, to, and which copy), [x0, x1, y0, X0, X1, y1], and
its look. A seventh number is the height of the upper edge at its right end, for an edge that is not level. A
page slides a new shape from where its part of the lane stood before.

Left out: hover texts of single shapes, for a rank's words say all that it holds, and half the elements go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from urllib.parse import quote

from . import draw, style
from .draw import Rows

Scene = style.Spec
Ends = tuple[float, float]
Shape = tuple[str, float, float, int, list[float], str]
"""Lane, from, to, copy, band, look."""

Label = tuple[float, float, str, float, str]
"""x, y, words, their room as a part of the width, look."""

DECIMALS = 4
"""Of a fraction of the width: a tenth of a pixel at 1,000 pixels."""

GUTTER = 78
"""Pixels left of the ranks, for the names of the lanes; the page has the same."""

LETTER = 7
"""Pixels of a digit, and a little more: words that have less room are left out."""

WIDTH = 700
"""Pixels of a still; a page scales it to its own width."""

TORN = 48
"""Most ranks among which a cut is drawn as a torn edge: of more, an edge is as wide as the rank."""

FOOT = 20
"""Pixels under a still that says something."""


class Drawing:
    """A scene in the making: ranks side by side, each in its own column, and the lanes over them."""

    def __init__(self, kind: str, n: int, height: int, most: int = draw.SHOWN) -> None:
        self.kind = kind
        self.height = height
        self.rows = Rows(n, most)
        self.drawn = self.rows.drawn
        count = len(self.drawn)
        gap = min(0.012, 0.24 / count)
        self.columns = [
            ((i + gap * count / 2) / count, (i + 1 - gap * count / 2) / count) for i in range(count)
        ]
        self.cards: list[Shape] = []
        self.links: list[Shape] = []
        self.shapes: list[Shape] = []
        self.labels: list[Label] = []
        self.cuts: list[list[float]] = []

    def card(self, i: int, y: Ends, number_at: int) -> Ends:
        """The paper under a rank and its number; returns its column."""
        x = self.columns[i]
        n = len(self.drawn)
        self.cards.append(shape("card", (i / n, (i + 1) / n), 0, upright(x, y), "card"))
        self.label(x, number_at, f"{self.drawn[i]}", "rank")
        return x

    def column(self, i: int, top: float, number_at: int) -> Ends:
        """A rank's card from `top` to the bottom; returns what its shapes have of the width."""
        return within(self.card(i, (top, self.height - 1), number_at), 0.06, 0.94)

    def held(self, lane: str, part: Ends, above: Ends, x: Ends, y: Ends, look: str) -> None:
        """A rectangle, and a band down to it from its part of the lane `above`."""
        self.link(part, part, above[1] + 3, x, y[0] - 3)
        self.box(lane, part, x, y, look)

    def box(self, lane: str, part: Ends, x: Ends, y: Ends, look: str, copy: int = 0) -> None:
        """An upright rectangle; `part` is what it is of its lane."""
        self.shapes.append(shape(lane, part, copy, upright(x, y), look))

    def link(
        self, part: Ends, x: Ends, y: float, to: Ends, down: float, look: str = "link", copy: int = 0
    ) -> None:
        """A band from the edge x at y to the edge `to` further down."""
        self.links.append(shape("link", part, copy, [*x, y, *to, down], look))

    def slope(
        self, lane: str, x: Ends, left: float, base: tuple[Ends, float], right: float, look: str, copy: int
    ) -> None:
        """An upright band whose upper edge runs from the height `left` to `right`."""
        low, down = base
        self.shapes.append(shape(lane, x, copy, [*x, left, *low, down, right], look))

    def label(self, x: Ends, y: float, text: str, look: str) -> None:
        """Words in the middle of x, which are left out where they have no room."""
        middle = (x[0] + x[1]) / 2
        room = x[1] - x[0]
        self.labels.append((round(middle, DECIMALS), y, text, round(room, DECIMALS), look))

    def tear(self, x: Ends, rows: tuple[int, int], unit: int, y: Ends) -> None:
        """A torn edge at each end of some rows that cuts through a unit."""
        for edge, row in zip(x, rows, strict=True):
            if row % unit and len(self.drawn) <= TORN:
                self.cuts.append([round(edge, DECIMALS), *y])

    def scene(
        self,
        says: str,
        warn: bool,
        lanes: list[list[object]],
        words: Callable[[int], str],
        legend: list[list[str]],
    ) -> Scene:
        """The scene. words: of a rank, exact. lanes: [y, name, count] each. legend: [look, words] each."""
        ranks = zip(self.drawn, self.columns, strict=True)
        return {
            "kind": self.kind,
            "says": says,
            "warn": warn,
            "rest": self.rows.left_out,
            "height": self.height,
            "lanes": lanes,
            "shapes": [*self.cards, *self.links, *self.shapes],
            "cuts": self.cuts,
            "labels": self.labels,
            "ranks": [[round(a, DECIMALS), round(b, DECIMALS), words(r), r] for r, (a, b) in ranks],
            "legend": legend,
        }


def upright(x: Ends, y: Ends) -> list[float]:
    return [*x, y[0], *x, y[1]]


def shape(lane: str, part: Ends, copy: int, band: Iterable[float], look: str) -> Shape:
    numbers = [round(number, DECIMALS) for number in band]
    return lane, round(part[0], 6), round(part[1], 6), copy, numbers, look


def middle(y: Ends) -> float:
    return (y[0] + y[1]) / 2


def within(x: Ends, least: float, most: float) -> Ends:
    """The part of an interval from the fraction `least` of its length to `most`."""
    size = x[1] - x[0]
    return x[0] + least * size, x[0] + most * size


# -- stills ----------------------------------------------------------------------------------------

_COLOURS = "".join(
    f".lp-map .{axis}{k}{{fill:{colour}}}"
    for axis in style.COLOURS
    for k, colour in enumerate(
        (style.COLOURS[axis], {"tp": style.TP_LIGHT, "dp": "#EBC8DC"}.get(axis) or style.RAMPS[axis][0])
    )
)
STYLE = (
    ".lp-map{--m-ink:var(--jp-ui-font-color1,#5f6873);--m-paper:var(--jp-layout-color0,#fff);"
    "--m-card:rgba(128,128,128,.1);font:12px system-ui,-apple-system,"
    "'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    ".lp-map path{stroke:var(--m-paper);stroke-width:1}.lp-map .card{fill:var(--m-card);stroke:none}"
    f"{_COLOURS}.lp-map .link{{fill:{style.LINE};fill-opacity:.22;stroke:none}}"
    f".lp-map .far{{fill:{style.WARN};fill-opacity:.85}}.lp-map .all{{fill-opacity:.3}}"
    f".lp-map path.wrong{{fill:{style.WARN}}}.lp-map path.off{{stroke:var(--m-ink);stroke-width:2}}"
    ".lp-map .copy{stroke-width:2.5;stroke-dasharray:2 3}"
    f".lp-map .pad{{fill:{style.PAD};stroke-dasharray:2 2}}.lp-map .rest{{fill-opacity:.3}}"
    ".lp-map text{fill:var(--m-ink);text-anchor:middle;font-variant-numeric:tabular-nums}"
    ".lp-map text:is(.tp1,.cp0,.cp1,.pp0,.pp1,.dp0,.dp1,.pad,.wrong){fill:#111}.lp-map text.tp0{fill:#fff}"
    ".lp-map text.lane,.lp-map text.held{text-anchor:start}"
    f".lp-map .tear{{fill:none;stroke:{style.WARN};stroke-width:2.5}}"
    f".lp-map .veil{{fill:{style.PAD};fill-opacity:.5;stroke:none}}"
    f".lp-map .truth{{fill:none;stroke:{style.COLOURS['pp']};stroke-width:3}}"
    f".lp-map .guess{{fill:none;stroke:{style.WARN};stroke-width:3;stroke-dasharray:6 3}}"
    ".lp-map text.mark{font-weight:600;stroke:var(--m-paper);stroke-width:4;paint-order:stroke}"
)
"""The look of maps on a page and in a still. Colours of axes are the same on light and dark pages."""

_DARK = "@media(prefers-color-scheme:dark){.lp-map{--m-ink:#747b85;--m-paper:#111}}"
"""A still does not see its page: on a dark system that may be white, as of nbconvert, so words are of a grey
that reads on both (4.3 to 1 on white, 4.4 to 1 on black)."""


def svg(scene: Scene) -> str:
    """The scene as an SVG that needs no script and no fonts; a page scales it as a whole."""
    wide = WIDTH - GUTTER - 2
    high = scene["height"]
    of_look: dict[str, str] = {}  # one path for all shapes of a look, in the order in which they first stand
    for *_, band, look in scene["shapes"]:
        of_look[look] = of_look.get(look, "") + outline(band, wide)
    bands = (f'<path class="{look}" d="{path}"/>' for look, path in of_look.items())
    texts = [
        f'<text class="{look}" x="{x * wide:.4g}" y="{y:g}">{escape(text)}</text>'
        for x, y, text, look in _fitting(scene["labels"], wide)
    ]
    for y, name, count in scene["lanes"]:
        lines = [(y - 3, name), (y + 13, count)] if count else [(y, name)]
        texts += [f'<text class="lane" x="{-GUTTER}" y="{at:g}">{escape(text)}</text>' for at, text in lines]
    foot = FOOT if scene["rest"] else 0
    texts.append(f'<text x="{wide / 2 - GUTTER / 2:g}" y="{high + 14}">{escape(scene["rest"])}</text>')
    tears = "".join(f"M{x * wide:.5g} {y:g}V{end:g}" for x, y, end in scene["cuts"])
    box = f'viewBox="{-GUTTER} 0 {WIDTH} {high + foot}" width="{WIDTH}" height="{high + foot}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lp-map" {box} role="img">'
        f"<title>{escape(scene['says'])}</title><style>{STYLE}{_DARK}</style>"
        f'{"".join(bands)}<path class="tear" d="{tears}"/>{"".join(texts)}</svg>'
    )


def image(scene: Scene) -> str:
    """The still as an image in HTML: JupyterLab strips inline SVG from a notebook that it does not trust."""
    data = quote(svg(scene).replace('"', "'"), safe=" =/:;,'(){}@!+*")
    says = escape(scene["says"])
    return f'<img alt="{says}" style="max-width:100%" src="data:image/svg+xml,{data}">'


def _fitting(labels: Sequence[Label], wide: float) -> Iterable[tuple[float, float, str, str]]:
    """The labels that have room; of the numbers of ranks every second, fourth …"""
    ranks = [(LETTER * len(text) + 6) / (room * wide) for _, _, text, room, look in labels if look == "rank"]
    every = 1
    while ranks and max(ranks) > every:
        every *= 2
    seen = 0
    for x, y, text, room, look in labels:
        if look == "rank":
            fits = seen % every == 0
            seen += 1
        else:
            fits = room * wide >= LETTER * len(text) + 2
        if fits:
            yield x, y, text, look


def outline(band: list[float], wide: float) -> str:
    """The path of a band with straight sides; map.js bends them."""
    x0, x1, y0, X0, X1, y1, *right = band
    if (x0, x1) == (X0, X1) and not right:
        return f"M{x0 * wide:.4g} {y0:g}H{x1 * wide:.4g}V{y1:g}H{x0 * wide:.4g}Z"
    corners = (x0, y0), (x1, (right or [y0])[0]), (X1, y1), (X0, y1)
    return "M" + "L".join(f"{x * wide:.4g} {y:.4g}" for x, y in corners) + "Z"
