"""One rank among all: the machine as nodes with the rank's four groups, and the groups enlarged below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from llamapar.describe.layout import AXES
from llamapar.place.rank_grid import RankGrid
from llamapar.records.tables import plural

from . import draw, rank_grid, style
from .chart import Chart
from .style import Spec

TILES = 2**11
"""Most tiles of the machine: past it a tile is several nodes."""

WINDOW = 8
"""Members of a group that stand enlarged, the chosen one among them."""

ABOVE, BELOW = [0.5, 1.0], [0.0, 0.4]
"""Parts of the height: the machine, and the neighbourhood."""

WIDE, HIGH = 560, 200
"""About the size of the machine in pixels: only the size of its markers depends on it."""


@dataclass(frozen=True)
class Machine:
    """A grid with its nodes. node: number of ranks that share NVLink. sent: axis → words about its bytes."""

    grid: RankGrid
    node: int
    sent: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        return -(-self.grid.layout.world // self.node)

    @cached_property
    def tile(self) -> int:
        """Ranks of a tile: one node, or several."""
        return self.node * draw.step(self.nodes, TILES)

    @property
    def tiles(self) -> int:
        return -(-self.grid.layout.world // self.tile)

    @property
    def cols(self) -> int:
        """Tiles in a row: a power of two, at least as large as the number of rows."""
        # A power of two keeps the index of a fast axis in straight columns, as its strides are powers of
        # two mostly.
        return next(2**n for n in range(12) if 4**n >= self.tiles or 2**n >= self.tiles)

    @property
    def rows(self) -> int:
        return -(-self.tiles // self.cols)

    def place(self, rank: int) -> tuple[int, int]:
        """(x, y) of a rank's tile: y is the first rank of its row, x the offset in the row."""
        row, col = divmod(rank // self.tile, self.cols)
        return col * self.tile, row * self.cols * self.tile

    def spans(self, axis: str) -> int:
        """Nodes that contain the chosen rank's group."""
        return len({rank // self.node for rank in self.grid.peers[axis]})


def picture(record: Machine) -> tuple[Spec, str]:
    """The nodes above, the four groups below; a click on either chooses another rank."""
    grid, lay = record.grid, record.grid.layout
    groups = [axis for axis in reversed(AXES) if len(grid.peers[axis]) > 1]
    data = [_tiles(record), *(_markers(record, axis) for axis in groups), _here(record)]
    row_of = {axis: row for row, axis in enumerate(reversed(groups))}
    frames = list[Spec]()
    for axis, row in row_of.items():
        data.append(_members(record, axis, row))
        frames += _frames(record, axis, row)
    whole = record.cols * record.tile
    tile = "node" if record.tile == record.node else f"block of {record.tile // record.node:,} nodes"
    what = f"one tile is a {tile}, {plural(record.tile, 'rank')}"
    place = rank_grid.at_axes(grid, grid.rank, " · ", rank_grid.UNBROKEN)
    named = draw.ticks(list(row_of.values()), [axis.upper() for axis in row_of])
    wide, high = [-record.tile / 2, whole - record.tile / 2], [(record.rows - 0.5) * whole, -whole / 2]
    said = {axis: ", ".join(filter(None, (_reach(record, axis), record.sent.get(axis, "")))) for axis in AXES}
    return Chart(
        kind="machine",
        title=f"Rank {grid.rank:,} of {lay.world:,}: {place}",
        note=f"{plural(record.nodes, 'node')} of {record.node} GPUs; {what}; below, one frame is a node",
        data=data,
        layout={
            "height": 540,
            "widest": "DP",
            "legend_rows": 2,
            "xaxis": draw.axis("", wide, anchor="y", visible=False),
            "yaxis": draw.axis("", high, domain=ABOVE, anchor="x", visible=False),
            "xaxis2": draw.axis("", [-0.1, WINDOW + 3], anchor="y2", visible=False),
            "yaxis2": draw.axis(
                "", [max(3.5, len(groups) - 0.5), -0.5], domain=BELOW, anchor="x2", showgrid=False, **named
            ),
            "shapes": frames,
            "annotations": [_group_label(record, axis, row) for axis, row in row_of.items()],
        },
        head=f"rank {grid.rank} of {lay.world:,} stands in node {grid.rank // record.node} of "
        f"{record.nodes:,}: {rank_grid.at_axes(grid, grid.rank, ' ', '=')}",
        remarks=[
            f"  {axis.upper()} group: {rank_grid.group_words(grid, axis)}; {said[axis]}" for axis in AXES
        ],
    ).drawn()


# -- the machine -------------------------------------------------------------------------------


def _tiles(record: Machine) -> Spec:
    cells = bytes(place < record.tiles for place in range(record.rows * record.cols))
    gap = 1 if record.cols <= 64 else 0
    hover = f"{plural(record.tile, 'rank')} from %{{y:d}} + %{{x:d}}"
    return draw.grid(cells, record.cols, record.tile, ("rgba(0,0,0,0)", style.BANDS[0]), hover, gap=gap)


def _size(record: Machine) -> float:
    """Pixels of a marker in a tile."""
    return round(min(14.0, max(5.0, 0.75 * min(WIDE / record.cols, HIGH / record.rows))), 1)


def _markers(record: Machine, axis: str) -> Spec:
    """The tiles that contain peers on an axis, with their number."""
    peers = record.grid.peers[axis]
    count = Counter(record.place(rank) for rank in peers)
    places = list(count)
    every = -(-len(places) // rank_grid.MARKERS)
    places = places[::every]
    hover = [
        f"{plural(count[place], f'{axis.upper()} peer')} at ranks from {sum(place):,}" for place in places
    ]
    drawn = "" if every == 1 else f" ({len(places)} drawn)"
    look = {"symbol": rank_grid.SYMBOLS[axis], "size": _size(record), "color": style.COLOURS[axis]}
    x, y = [place[0] for place in places], [place[1] for place in places]
    name = f"{axis.upper()} · {plural(len(peers), 'rank')}{drawn}"
    return draw.scatter("markers", x, y, marker=look, hovertext=hover, cliponaxis=False, **draw.legend(name))


def _here(record: Machine) -> Spec:
    x, y = record.place(record.grid.rank)
    ring: Spec = {
        "symbol": "circle-open",
        "size": _size(record) + 5,
        "color": style.LIT,
        "line": {"width": 3},
    }
    hover = f"rank {record.grid.rank:,}, node {record.grid.rank // record.node:,}"
    more = {"hovertext": [hover], "cliponaxis": False, **draw.legend(f"rank {record.grid.rank:,}")}
    return draw.scatter("markers", [x], [y], marker=ring, **more)


# -- the neighbourhood -------------------------------------------------------------------------


def _window(record: Machine, axis: str) -> list[int]:
    """Members next to the chosen rank, at most WINDOW of them."""
    group = record.grid.peers[axis]
    first = min(max(0, group.index(record.grid.rank) - WINDOW // 2), max(0, len(group) - WINDOW))
    return list(group[first : first + WINDOW])


def _members(record: Machine, axis: str, row: int) -> Spec:
    """A box for each member, with its number."""
    members = _window(record, axis)
    own = [3 if rank == record.grid.rank else 0 for rank in members]
    return {
        "type": "bar",
        "orientation": "h",
        "xaxis": "x2",
        "yaxis": "y2",
        "y": [row] * len(members),
        "base": [place + 0.08 for place in range(len(members))],
        "x": [0.84] * len(members),
        "width": 0.56,
        "text": [str(rank) for rank in members],
        **draw.INSIDE,
        "customdata": members,
        "hovertext": [
            f"rank {rank:,}, node {rank // record.node:,} · {rank_grid.at_axes(record.grid, rank, ' ')}"
            for rank in members
        ],
        "marker": {"color": style.COLOURS[axis], "line": {"width": own, "color": style.LIT}},
    }


def _frames(record: Machine, axis: str, row: int) -> Iterator[Spec]:
    """A frame around members that are adjacent in one node."""
    members = _window(record, axis)
    start = 0
    for place in range(1, len(members) + 1):
        if place == len(members) or members[place] // record.node != members[start] // record.node:
            ends = {"x0": start + 0.02, "x1": place - 0.02, "y0": row - 0.42, "y1": row + 0.42}
            line = {"width": 1.5, "color": style.LINE}
            yield {"type": "rect", "xref": "x2", "yref": "y2", **ends, "line": line}
            start = place


def _group_label(record: Machine, axis: str, row: int) -> Spec:
    """The words beside a group: its extent and its bytes."""
    members, reach = len(record.grid.peers[axis]), _reach(record, axis)
    if members > WINDOW:
        reach += f", {WINDOW} drawn"
    text = "\n".join(filter(None, (reach, record.sent.get(axis, ""))))
    refs = {"xref": "x2", "yref": "y2", "xanchor": "left", "align": "left", "font": {"size": 11}}
    return draw.label(text, min(WINDOW, members) + 0.15, row, **refs)


def _reach(record: Machine, axis: str) -> str:
    spans = record.spans(axis)
    where = "in one node" if spans == 1 else f"in {spans:,} nodes"
    return f"{plural(len(record.grid.peers[axis]), 'rank')} {where}"
