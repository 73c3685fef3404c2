"""The rank grid: every rank is a cell, one is chosen, and its peers on the four axes are marked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from llamapar.describe.layout import AXES, Layout
from llamapar.place.rank_grid import RankGrid
from llamapar.records.tables import plural

from . import block, draw, style
from .chart import Chart
from .style import Spec

MARKERS = 128
"""Most peers drawn on one axis."""

SYMBOLS = {"tp": "circle", "cp": "square", "pp": "diamond", "dp": "triangle-up"}

NUMBERED = 64
"""Most ranks of a grid that says each one's number in its cell."""

CLOSE = 9
"""Pixels between neighbours under which a peer is drawn as a line."""

WIDE, HIGH = 600, 270
"""About the size of the grid in pixels: only the choice of markers depends on it."""


UNBROKEN = "\u00a0"
"""Between an axis and its index in a title, which wraps elsewhere."""


class Bands(NamedTuple):
    """Cells along a side in bands of `width`; `axis` names them if a band is one index of it.

    every: number of bands for each tick, and for each change of shade.
    """

    width: int
    axis: str
    every: int = 1

    def shade(self, place: int) -> int:
        """0 or 1: the shade at a position along the side."""
        return place // (self.width * self.every) % 2 if self.width else 0


def picture(record: RankGrid) -> tuple[Spec, str]:
    """The grid, or with a model the chosen rank's part of it."""
    if record.share:
        return block.picture(record, record.share)
    return all_ranks(record, {})


def all_ranks(record: RankGrid, said: Mapping[str, str], nodes: str = "") -> tuple[Spec, str]:
    """Cells in bands by mesh axis, with the chosen rank's groups as markers, one trace for each axis.

    said: axis → further words about its group. nodes: the end of the note, about where groups stand.
    """
    across, down = _bands(record)
    drawn = {axis: _drawn(record, axis) for axis in AXES}
    peers = [_peers(record, axis, drawn[axis]) for axis in AXES if drawn[axis]]
    groups = {
        axis: "; ".join(filter(None, (_group(record, axis, drawn[axis]), said.get(axis)))) for axis in AXES
    }
    data = [*_cells(record, across, down), *peers, _chosen(record), *_numbers(record)]
    lay = record.layout
    each = plural(record.block, "rank")
    return Chart(
        kind="ranks",
        title=f"Rank {record.rank:,} of {lay.world:,}: {at_axes(record, record.rank, ' · ', UNBROKEN)}",
        note=f"order {lay.order}, fastest first; {cell(record)}{nodes}",
        data=data,
        layout=_sides(record, across, down),
        head=[
            f"rank {record.rank} of {lay.world:,} in order {lay.order} (fastest first): "
            f"{at_axes(record, record.rank, ' ', '=')}",
            f"{plural(record.rows, 'row')} of {plural(record.cols, 'cell')}, {each} to a cell",
        ],
        remarks=[f"  {axis.upper()} group: {words}" for axis, words in groups.items()],
    ).drawn()


def _sides(record: RankGrid, across: Bands, down: Bands) -> Spec:
    """Both axes of the grid."""
    side = _side(record, down, record.rows, record.block * record.cols, "first rank of the row")
    return {
        "widest": str(record.layout.world - 1) if not down.axis else "",
        "xaxis": _side(record, across, record.cols, record.block, "rank, counted from the row's first"),
        "yaxis": side | {"range": side["range"][::-1], "ticklabelstandoff": 10},  # clear of markers
    }


def cell(record: RankGrid) -> str:
    """The rank, or ranks, of a cell of the grid."""
    if record.block == 1:
        return "one cell is one rank"
    return f"one cell is a block of {record.block:,} ranks"


# -- cells -------------------------------------------------------------------------------------


def _wide(layout: Layout) -> list[str]:
    """The axes with more than one rank, fastest first."""
    return [axis for axis in layout.axes if layout.size(axis) > 1]


def _bands(record: RankGrid) -> tuple[Bands, Bands]:
    """Bands across and down: by the slowest axis that changes inside a row, and by the slowest of all."""
    lay = record.layout
    row = record.block * record.cols
    across = Bands(0, "")
    down = Bands(0, "")
    for axis in _wide(lay):
        stride = lay.stride(axis)
        past = lay.stride(axis) * lay.size(axis)
        # The loop goes from the fastest axis to the slowest, so what is left at its end is the slowest
        # that fits.
        if stride < row and stride % record.block == 0 and row % stride == 0:
            across = Bands(stride // record.block, axis if past == row else "")
        if stride >= row and stride % row == 0:
            down = Bands(stride // row, axis)
    return _spaced(across, record.cols, 16 if across.axis else 8), _spaced(down, record.rows, 12)


def _spaced(bands: Bands, cells: int, most: int) -> Bands:
    """The same bands with at most `most` ticks over `cells` cells."""
    return bands._replace(every=draw.step(-(-cells // (bands.width or 1)), most))


def _cells(record: RankGrid, across: Bands, down: Bands) -> Iterator[Spec]:
    """The background grid: full rows, and an incomplete last row."""
    cells = -(-record.layout.world // record.block)
    full, rest = divmod(cells, record.cols)
    # Bands across and down make a chessboard: a row's shades are those of the first row, or their
    # opposite.
    even, odd = (bytes(across.shade(c) ^ flip for c in range(record.cols)) for flip in (0, 1))
    lines = [odd if down.shade(r) else even for r in range(record.rows)]
    # A heat map is a full rectangle, so an incomplete last row is one of its own.
    if full:
        yield _heatmap(record, b"".join(lines[:full]), 0, record.cols)
    if rest:
        yield _heatmap(record, lines[-1][:rest], full, rest)


def _heatmap(record: RankGrid, shades: bytes, first_row: int, cols: int) -> Spec:
    row = record.block * record.cols
    gap = 1 if record.cols <= 32 and record.rows <= 32 else 0
    cell = "rank %{y:d} + %{x:d}"
    if record.block > 1:
        upto = "up to " if record.layout.world % record.block else ""
        cell = f"{upto}{plural(record.block, 'rank')} from rank %{{y:d}} + %{{x:d}}"
    return {
        "type": "heatmap",
        "z": draw.packed(shades, cols),
        "x0": 0,
        "dx": record.block,
        "y0": first_row * row,
        "dy": row,
        "xgap": gap,
        "ygap": gap,
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[i, colour] for i, colour in enumerate(style.BANDS)],
        "hovertemplate": f"{cell}<extra></extra>",
    }


def _side(record: RankGrid, bands: Bands, cells: int, ranks: int, plain: str) -> Spec:
    """One side of the grid with `ranks` for each cell; ticks are indices of a mesh axis, else ranks."""
    wide = bands.width or 1
    ticks = range(0, cells, wide * bands.every)
    title = plain
    named = draw.ticks([cell * ranks for cell in ticks])
    if bands.axis:  # an index is written in the middle of its band
        title = f"{bands.axis} index{_inside(record, bands, ranks)}"
        places = [draw.number(cell * ranks + (wide - 1) * ranks / 2) for cell in ticks]
        named = draw.ticks(places, [cell // wide for cell in ticks])
    return draw.axis(title, [-ranks / 2, cells * ranks - ranks / 2], showgrid=False, **named)


def _inside(record: RankGrid, bands: Bands, ranks: int) -> str:
    """The content of one band in words."""
    lay = record.layout
    size = bands.width * ranks
    names = [a for a in _wide(lay) if ranks <= lay.stride(a) < size and a != bands.axis]
    if not names:
        return ""
    return f" (inside it {', then '.join(names)}: {plural(size, 'rank')})"


# -- markers -----------------------------------------------------------------------------------


def _place(record: RankGrid, rank: int) -> tuple[int, int]:
    """(x, y) of a rank's cell."""
    row, col = record.cell(rank)
    return col * record.block, row * record.block * record.cols


def _drawn(record: RankGrid, axis: str) -> list[int]:
    """Peers to draw, one for each cell and none in the chosen cell; evenly spaced if there are many.

    The distance is slightly more than even, so that they do not all lie in one column.
    """
    group = record.peers[axis]
    every = -(-len(group) // MARKERS)
    some = group if every == 1 else group[:: every + max(1, every // MARKERS)]
    # Reversed, so that of several peers in one cell the first one stands for it.
    cells = {record.cell(rank): rank for rank in reversed(some)}
    cells.pop(record.cell(record.rank), None)
    return sorted(cells.values())


def _numbers(record: RankGrid) -> list[Spec]:
    """Each rank's number, to the right of its marker, where there are few enough."""
    if record.block > 1 or record.layout.world > NUMBERED:
        return []
    places = [_place(record, rank) for rank in range(record.layout.world)]
    texts = [f"\u2003{rank}" for rank in range(record.layout.world)]
    font = {"size": 11}
    look = {"textposition": "middle right", "hoverinfo": "skip", "showlegend": False}
    return [draw.points("text", places, text=texts, textfont=font, **look)]


def _few(record: RankGrid, axis: str, drawn: list[int]) -> str:
    """ " (128 drawn)" if not all peers are drawn."""
    if len(drawn) == len(record.peers[axis]) - 1:
        return ""
    return f" ({len(drawn)} drawn)"


def _peers(record: RankGrid, axis: str, drawn: list[int]) -> Spec:
    places = [_place(record, rank) for rank in drawn]
    size = plural(len(record.peers[axis]), "rank")
    return draw.points(
        "markers",
        places,
        cliponaxis=False,
        text=[_words(record, rank) for rank in drawn],
        hovertemplate=f"rank %{{text}} · {axis.upper()} peer<extra></extra>",
        marker={"color": style.COLOURS[axis], **_symbol(record, axis, places)},
        **draw.legend(f"{axis.upper()} · {size}{_few(record, axis, drawn)}"),
    )


def _symbol(record: RankGrid, axis: str, places: list[tuple[int, int]]) -> Spec:
    """The marker of an axis; if neighbours would overlap, a line across their direction."""
    row = record.block * record.cols
    apart = [
        (abs(x1 - x0) * WIDE / row, abs(y1 - y0) * HIGH / (row * record.rows))
        for (x0, y0), (x1, y1) in itertools.pairwise(places)
    ]
    # The closest pair decides for the whole axis, because markers of one group look alike.
    across, down = min(apart, key=max, default=(WIDE, HIGH))
    if max(across, down) >= CLOSE:
        return {"symbol": SYMBOLS[axis], "size": 10, "line": {"width": 0.5, "color": "#ffffff"}}
    symbol = "line-ns-open" if across >= down else "line-ew-open"
    return {"symbol": symbol, "size": 14, "line": {"width": max(1, round(max(across, down) * 0.7, 1))}}


def _chosen(record: RankGrid) -> Spec:
    ring = {"width": 3, "color": "#000000"}
    return draw.points(
        "markers",
        [_place(record, record.rank)],
        cliponaxis=False,
        text=[f"rank {_words(record, record.rank)} · chosen"],
        marker={"symbol": "circle", "color": "#ffffff", "size": 10, "line": ring},
        **draw.legend(f"rank {record.rank}"),
    )


def _words(record: RankGrid, rank: int) -> str:
    return f"{rank} · {at_axes(record, rank, ' ')}"


def at_axes(record: RankGrid, rank: int, between: str, equals: str = " ") -> str:
    """A rank's index on every axis: "tp 1 · cp 0 · pp 3 · dp 0"."""
    at = record.layout.coord_of(rank)
    return between.join(f"{axis}{equals}{getattr(at, axis)}" for axis in AXES)


def _group(record: RankGrid, axis: str, drawn: list[int]) -> str:
    """A group's ranks in words: "8 ranks, stride 1: 0, 1, 2, … 7"."""
    group = record.peers[axis]
    if len(group) == 1:
        return f"rank {group[0]} alone"
    first = [str(rank) for rank in group[:4]]
    if len(group) > 4:
        first[3] = f"… {group[-1]}"
    size = plural(len(group), "rank")
    return f"{size}, stride {group.step}: {', '.join(first)}{_few(record, axis, drawn)}"
