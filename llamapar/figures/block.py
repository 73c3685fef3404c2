"""A rank's part of a step: the model as layers × heads, its data as batch × tokens, and the cuts.

A step is a block of four dims, drawn as two rectangles: PP and TP cut the model, DP and CP the data. A rank
does the highlighted part of the model for the highlighted part of the data. A solid block was tried, but it
has no direction left for the batch, and the rank is hidden inside. Cuts that would be too close are thinned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llamapar.describe.splits import Split
from llamapar.place.cut import Cut
from llamapar.place.rank_grid import RankGrid
from llamapar.place.share import BATCH_PART, Part, Share, share_of
from llamapar.records.tables import Plain, cut, plural

from . import draw, style
from .style import Spec

HIGH, BELOW = 146, 46
"""Pixels of the rectangles and of what stands under them: low enough for the head of a lesson."""

LEAST = 240
"""Pixels of width in which it can be read."""

HEIGHT = style.TOP + HIGH + BELOW

PANELS = (("pp", "tp", "model", [0, 0.44]), ("dp", "cp", "data", [0.56, 1]))
"""The axis that cuts down, the one that cuts across, what they cut, and where it stands."""

LINES, FEW = 32, 16
"""Most parts of a dim with a line at each cut, in the picture and in a small drawing; of more, half as many
lines leave the rank in sight."""

PIECES = 64
"""Most pieces of a rank that are drawn."""

BAND = 0.32
"""Opacity of what one axis leaves to the rank; where two of them cross is its own."""

Box = tuple[range, range]
"""Rows of the dim across and of the dim down; a cut is a box that is empty along the dim it cuts."""


def picture(record: RankGrid, share: Share) -> tuple[Spec, str]:
    """Two rectangles, each cut by two axes: a cut leaves bands, and the rank lies where two bands cross."""
    data, axes = list[Spec](), Spec()
    edge = dict.fromkeys(("showgrid", "showticklabels"), False) | dict.fromkeys(("showline", "mirror"), True)
    above = {"yref": "y domain", "yanchor": "bottom"}
    own = f"{_stroke(style.LIT, '■')} rank {record.rank:,}"
    head = draw.label("", 1, 1, xref="paper", xanchor="right", xshift=style.RIGHT, **above)
    heads = [head | {"text": own}]  # its markup is our own: a coloured square
    for (down, across, title, domain), n in zip(PANELS, ("", "2"), strict=True):
        y, x = share.parts[down], share.parts[across]
        said = {
            part.axis: f"{part.axis.upper()} rank {getattr(record.coord, part.axis)} · {part.held}"
            for part in (y, x)
        }
        said[""] = f"rank {record.rank:,} · {y.held} · {x.held}"
        drawn = [_trace(*mark, said[mark[1]]) for mark in _marks(x, y, LINES)]
        data += [trace | {"xaxis": f"x{n}", "yaxis": f"y{n}"} for trace in drawn]
        ends = {"anchor": f"y{n}", "domain": domain}, {"anchor": f"x{n}", "domain": [0, 0.88]}
        axes[f"xaxis{n}"] = draw.axis(
            _part_label(x, "<br>"), [0, x.whole], linecolor=style.LINE, **edge, **ends[0]
        )
        axes[f"yaxis{n}"] = draw.axis(
            _part_label(y, " · "), [y.whole, 0], linecolor=style.LINE, **edge, **ends[1]
        )
        heads.append(draw.label(title, 0, 1, xref=f"x{n} domain", xanchor="left", **above))
    layout = style.layout(
        "block",
        f"Rank {record.rank:,} of {record.layout.world:,} in {style.name_of(share.model)}",
        "; ".join(filter(None, (share.text, share.reason, _thinned(share)))),
        warn=bool(share.reason),
        height=HEIGHT,
        annotations=heads,
        meta={"least": LEAST},
        **axes,
    )
    layout["margin"] |= {"l": 30, "b": BELOW}
    return {"data": data, "layout": layout}, _summary(record, share)


def _stroke(colour: str, shape: str) -> str:
    """A colour key inside a text."""
    return f'<span style="color:{colour}"><b>{shape}</b></span>'


def _part_label(part: Part, between: str) -> str:
    """ "━ PP 16 × 8 · 126 layers": the axis's stroke, its ranks, the size of each piece, and the dim that is
    cut.
    """
    several = f" × {len(part.splits) // part.ways}" if len(part.splits) > part.ways else ""
    name = f"{_stroke(style.COLOURS[part.axis], '━')} {part.axis.upper()} {part.ways}{several}"
    return f"{name}{between}{plural(part.size, part.word)}"


# -- where it lies ---------------------------------------------------------------------------------


def _marks(x: Part, y: Part, most: int) -> list[tuple[str, str, list[Box]]]:
    """The marks over a rectangle, from bottom to top, as kind, axis and boxes.

    "band": an axis's part for the rank, across the whole other dim. "cut": lines between the parts of a dim.
    "own": the rank's part; "all" if neither axis cuts.
    """
    marks = []
    for part in (y, x):
        # What one axis alone leaves to the rank: its pieces, across the whole of the other dim.
        alone = [dim if dim is part else replace(dim, pieces=(range(dim.whole),)) for dim in (x, y)]
        marks.append(("band", part.axis, _crossed(*alone) if part.ways > 1 else []))
    marks += [("cut", part.axis, _cuts(part, x, y, most)) for part in (y, x)]
    return [*marks, ("own" if x.ways * y.ways > 1 else "all", "", _crossed(x, y))]


def _crossed(x: Part, y: Part) -> list[Box]:
    """A box for each pair of the rank's pieces; a large number of boxes is thinned."""
    across, down = ([part.pieces[i] for i in cut(len(part.pieces), PIECES)] for part in (x, y))
    return [(one, other) for one in across for other in down]


def _every(part: Part, most: int) -> int:
    """The number of parts between two lines."""
    return 1 if len(part.splits) <= most else draw.step(len(part.splits), most // 2)


def _cuts(part: Part, x: Part, y: Part, most: int) -> list[Box]:
    """Lines between the parts of a dim, across the other dim."""
    every = _every(part, most)
    ends = [part.splits[i - 1].stop for i in range(every, len(part.splits), every)]
    at = [range(end, end) for end in ends]
    return [(one, range(y.whole)) if part is x else (range(x.whole), one) for one in at]


def of_each_rank(of: Cut, batch: int) -> list[Plain]:
    """The small block of each rank of a layout, for this number of sequences in a step."""
    layout, maps = of.layout, (of.heads, of.sequence, of.stages, Split(batch, of.layout.dp))
    shares = (share_of(layout.coord_of(rank), *maps, "sequence") for rank in range(layout.world))
    return [small(share, rank, layout.world) for rank, share in enumerate(shares)]


def small(share: Share, rank: int, world: int) -> Plain:
    """The block of one of `world` ranks for a drawing of a few pixels, without plotly.

    rank: in words. panels: the two rectangles. Each has its sides, down and across, as axis, whether it cuts,
    and words; the rank's part in words, if an axis cuts; and marks from bottom to top: a kind ("band", "cut",
    "own", or "all" if nothing is cut), an axis, and x, y, width and height as fractions of the rectangle.
    """
    panels = []
    for down, across, _, _ in PANELS:
        y, x = sides = share.parts[down], share.parts[across]
        shown = list[list[object]]()
        for kind, axis, boxes in _marks(x, y, FEW):
            for one, other in boxes:
                at, size = (
                    (one.start / x.whole, other.start / y.whole),
                    (len(one) / x.whole, len(other) / y.whole),
                )
                shown.append([kind, axis, *(draw.number(round(place, 4)) for place in (*at, *size))])
        panels.append(
            {
                "sides": [[part.axis, part.ways > 1, _side(part)] for part in sides],
                "held": [part.held for part in sides if part.ways > 1],
                "marks": shown,
            }
        )
    return {"rank": f"rank {rank:,} of {world:,}", "panels": panels}


def _side(part: Part) -> str:
    """ "TP 8 cuts 128 heads"; for an uncut dim, its size."""
    what = "the batch" if part.word == BATCH_PART else plural(part.size, part.word)
    return f"{part.axis.upper()} {part.ways} cuts {what}" if part.ways > 1 else what


# -- in words and as plotly draws it ---------------------------------------------------------------


def _trace(kind: str, axis: str, boxes: Sequence[Box], words: str) -> Spec:
    """Marks of one kind and axis: lines, or filled rectangles with `words` as hover text."""
    colour = style.COLOURS.get(axis, style.LIT)
    if kind == "cut":
        x, y = ([at for box in boxes for at in (box[k].start, box[k].stop, None)] for k in (0, 1))
        return draw.scatter("lines", x, y, hoverinfo="skip", line={"width": 1, "color": colour})
    # Each rectangle is a closed line, and None parts it from the next within one trace.
    x = [at for one, _ in boxes for at in (one.start, one.stop, one.stop, one.start, one.start, None)]
    y = [at for _, one in boxes for at in (one.start, one.start, one.stop, one.stop, one.start, None)]
    band: Spec = {"line": {"width": 0}, "opacity": BAND}
    look = band if axis else {"line": {"width": 2, "color": colour}}
    return draw.scatter("lines", x, y, fill="toself", hoveron="fills", fillcolor=colour, text=words, **look)


def _thinned(share: Share) -> str:
    """The axes whose cuts are not all drawn; empty if all are."""
    many = {axis: _every(part, LINES) for axis, part in share.parts.items()}
    said = [f"1 in {every} of {axis.upper()}" for axis, every in many.items() if every > 1]
    return f"cuts drawn: {', '.join(said)}" if said else ""


def _summary(record: RankGrid, share: Share) -> str:
    each = [
        f"  {axis.upper()} rank {getattr(record.coord, axis)} of {part.ways}: {part.text}, {part.held}"
        for axis, part in share.parts.items()
    ]
    return draw.lines(
        f"rank {record.rank} of {record.layout.world:,} in {style.name_of(share.model)}: {share.text}",
        each,
        share.reason,
    )
