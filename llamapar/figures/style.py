"""The common look of all pictures: palette, patterns, template and layout as plain plotly JSON.

A figure is a dict of plain lists, numbers and strings, because importing plotly to build one costs seconds. A
picture has no background, and a text colour that is readable on light and dark pages, because plotly's
renderer in a cell does not follow the theme. A panel, and the style sheet of the project's own JupyterLab,
give the text the page's colour. A picture saved as a PNG has a white background (PAPER, TEXT).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from html import escape
from typing import Any

from llamapar.describe.models import ModelConfig

Spec = dict[str, Any]

COLOURS = {"tp": "#0072B2", "cp": "#E69F00", "pp": "#009E73", "dp": "#CC79A7"}
"""One colour per mesh axis, kept through the course (Okabe and Ito's colour-blind-safe palette)."""

TP_LIGHT = "#56B4E9"
"""Second shade of TP, where neighbours alternate."""

RAMPS = {"cp": ("#F7D28B", "#8A5200"), "pp": ("#9BDCC4", "#00614A")}
"""Lightest and darkest shade of an axis, where each of its ranks has its own."""

LIT = "#7A6BD8"
"""The rank that is looked at, and no axis: a violet that shows on a light and on a dark page."""

STEP_DARK = 0.55
"""Part of a ramp that lies between neighbours that are told apart."""

WARN = "#D55E00"
PAD = "#9A9A9A"
PAPER, TEXT = "#FFFFFF", "#212121"
"""White paper and the ink on it; the ink is also that of words on a light bar."""

LINE = "#797979"
"""Text, and lines that are not data: the grey whose contrast is the same, 4.3, on white and on #111111."""

GRID = "rgba(128,128,128,0.28)"
BANDS = ("rgba(128,128,128,0.14)", "rgba(128,128,128,0.34)")
FONT = '-apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'

_STROKE = "rgba(255,255,255,0.85)"
PAD_PATTERN = {"shape": "/", "fgcolor": _STROKE, "size": 7, "solidity": 0.25, "fillmode": "overlay"}
COPY_PATTERN = {"shape": ".", "fgcolor": _STROKE, "size": 6, "solidity": 0.35, "fillmode": "overlay"}

HEIGHT = 420
TOP, BOTTOM, RIGHT = 68, 90, 34
"""Margins in pixels, the same in all pictures: where one replaces another and they change, or where
plotly expands them, plotly.js 4.1 leaves axis titles where they were. On the right stands the toolbar."""

TITLE_SIZE = 14
NOTE_SIZE = 12
TITLE_WIDTH, NOTE_WIDTH = 44, 56
"""Most characters of a line: plotly wraps nothing, and a cell may be 380 pixels wide, less the toolbar."""

_ABOVE, _RAISED, _LEGEND_ROW = 13, 10, 19
"""Pixels: over a title, by how much plotly raises one of several lines, and of a row of the legend."""

_LINE_HEIGHT = 1.3
"""plotly's distance of two lines, in sizes of their font."""


def template() -> Spec:
    """Defaults shared by all pictures, so that no trace or axis repeats them."""
    axis = {
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "ticks": "",
        "tickangle": 0,
        "title": {"font": {"size": 12}, "standoff": 6},
        "tickfont": {"size": 11},
    }
    flat = {"hoverinfo": "text", "showlegend": False}
    return {
        "data": {
            "bar": [{"type": "bar", **flat, "marker": {"line": {"width": 0}}}],
            "scatter": [{"type": "scatter", **flat}],
            "heatmap": [{"type": "heatmap", "showscale": False}],
        },
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 12, "color": LINE},
            "title": {
                "x": 0.01,
                "xanchor": "left",
                "yanchor": "top",
                "font": {"size": TITLE_SIZE},
            },
            "margin": {"r": RIGHT, "t": TOP, "b": BOTTOM, "autoexpand": False},
            "hoverlabel": {"bgcolor": "#333333", "font": {"size": 12, "color": "#ffffff"}},
            "hovermode": "closest",
            "barmode": "overlay",
            "legend": {
                "orientation": "h",
                "x": -0.05,
                "y": -0.17,
                "yanchor": "top",
                "font": {"size": 11},
                "tracegroupgap": 0,
                "itemsizing": "constant",
                "itemclick": False,
                "itemdoubleclick": False,
            },
            "modebar": {
                "orientation": "v",
                "bgcolor": "rgba(0,0,0,0)",
                "color": LINE,
                "activecolor": COLOURS["tp"],
            },
            "separators": ".,",
            "xaxis": {**axis, "ticklabelstandoff": 3},
            "yaxis": {**axis, "ticklabelstandoff": 5},
            "bargap": 0,
        },
    }


CONFIG: Spec = {
    "displaylogo": False,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d", "sendChartToCloud"],
}
"""How plotly.js shows a picture. Not "responsive": plotly's renderer in JupyterLab follows the width
itself, and with both the first picture of a page shrinks to 29 pixels when the window changes."""


def layout(
    kind: str,
    title: str,
    note: str = "",
    *,
    widest: str = "",
    warn: bool = False,
    height: int = HEIGHT,
    legend_rows: int = 2,
    **more: object,
) -> Spec:
    """Layout of a picture of `kind`, with a title and a note under it.

    widest: the longest label of the y axis, which needs space. height: in pixels; title and note need a line
    each. legend_rows: number of legend rows in a narrow cell.
    """
    titles = _wrapped(title, TITLE_WIDTH)
    notes = _wrapped(note, NOTE_WIDTH)
    wrapped = TITLE_SIZE * max(0, len(titles) - 1) + NOTE_SIZE * max(0, len(notes) - 1)
    taller = round(_LINE_HEIGHT * wrapped)
    legend = _LEGEND_ROW * (legend_rows - 2)
    height += taller + legend
    above = _ABOVE + (_RAISED if len(titles) > 1 else 0)
    head: Spec = {"text": escaped(titles), "y": round(1 - above / height, 4)}
    if note:
        font = {"size": NOTE_SIZE, **({"color": WARN} if warn else {})}
        head["subtitle"] = {"text": escaped(notes), "font": font}
    return {
        "template": template(),
        "height": height,
        "uirevision": kind,
        "title": head,
        "margin": {"l": 40 + 7 * max(2, len(widest)), "t": TOP + taller, "b": BOTTOM + legend},
        **more,
    }


def _wrapped(text: str, most: int) -> list[str]:
    """The text in as few lines as `most` characters allow, all about equally long."""
    count = len(textwrap.wrap(text, most))
    # The narrowest width with as few lines: lines of about equal length look like one text.
    tries = (textwrap.wrap(text, width) for width in range(max(1, len(text) // max(1, count)), most + 1))
    return next((lines for lines in tries if len(lines) == count), [])


def escaped(lines: Iterable[str]) -> str:
    """Lines in plotly's form, a little HTML; a panel reads them back and wraps them itself.

    Names come from users, and plotly would make a link of one. So titles and labels are escaped, here alone.
    """
    return "<br>".join(escape(line, quote=False) for line in lines)


def name_of(model: ModelConfig) -> str:
    """The model's name in one short line."""
    name = " ".join(model.name.split()) or "model"
    return name if len(name) <= 32 else name[:31] + "…"


def ramp(axis: str, i: int, n: int) -> str:
    """Shade i of n of an axis, light to dark; the axis's own colour if there is only one."""
    if n < 2:
        return COLOURS[axis]
    ends = [[int(end[k : k + 2], 16) for k in (1, 3, 5)] for end in RAMPS[axis]]
    mixed = [round(low + (high - low) * i / (n - 1)) for low, high in zip(*ends, strict=True)]
    return "#{:02X}{:02X}{:02X}".format(*mixed)


def alternate(axis: str, i: int, n: int) -> str:
    """Alternating shades, so that neighbours differ in lightness: even ones light, odd ones dark."""
    if n < 3:
        return ramp(axis, i, n)
    # Neighbours differ by STEP_DARK, and what is left of the ramp tells further ranks apart.
    darker = STEP_DARK * (i % 2) + (1 - STEP_DARK) * (i // 2) / ((n + 1) // 2)
    return ramp(axis, round(1000 * darker), 1001)
