"""A rank's part of a step: the model as layers × heads, its data as batch × tokens, and the cuts.

A step is a block of four dims, and four dims are two rectangles: PP and TP cut the model, DP and CP the data.
A rank does the lit part of the one for the lit part of the other. A solid block was tried: its batch has no
direction left, and the rank lies hidden inside. Where cuts would lie too close not all are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from llamapar.place.rank_grid import RankGrid
from llamapar.place.share import Part, Share
from llamapar.records.tables import cut, plural

from . import parts, style
from .style import Spec

HIGH, BELOW = 146, 46
"""Pixels of the rectangles and of what stands under them: low enough for the head of a lesson."""

LEAST = 240
"""Pixels of width in which it can be read."""

HEIGHT = style.TOP + HIGH + BELOW

PANELS = (("pp", "tp", "the model", [0, 0.44]), ("dp", "cp", "the data of a step", [0.56, 1]))
"""The axis that cuts down, the one that cuts across, what they cut, and where it stands."""

LINES = 32
"""Most cuts drawn over a dim."""

PIECES = 64
"""Most pieces of a rank that are drawn."""

BAND = 0.32
"""Opacity of what one axis leaves to the rank; where two of them cross is its own."""


def picture(record: RankGrid, share: Share) -> tuple[Spec, str]:
    """Two rectangles cut by two axes each: a band is what a cut leaves, the rank where two cross."""
    data, axes, heads = list[Spec](), Spec(), list[Spec]()
    for i, (down, across, title, domain) in enumerate(PANELS):
        y, x, n = share.parts[down], share.parts[across], "2" if i else ""
        refs = {"xaxis": f"x{n}", "yaxis": f"y{n}"}
        data += [
            *(_band(record, part, part is x, (x, y), **refs) for part in (y, x)),
            *(_cuts(part, part is x, (x, y), **refs) for part in (y, x)),
            _own(record, x, y, **refs),
        ]
        edge = {
            "showgrid": False,
            "showline": True,
            "mirror": True,
            "linecolor": style.LINE,
            "showticklabels": False,
        }
        edges = edge | {"domain": domain, "anchor": f"y{n}"}, edge | {"domain": [0, 0.88], "anchor": f"x{n}"}
        axes[f"xaxis{n}"] = parts.axis(_named(x, "<br>"), [0, x.whole], **edges[0])
        axes[f"yaxis{n}"] = parts.axis(_named(y, " · "), [y.whole, 0], **edges[1])
        where = {"xref": f"x{n} domain", "yref": f"y{n} domain", "xanchor": "left", "yanchor": "bottom"}
        heads.append(parts.label(title, 0, 1, **where))
    lay = record.layout
    layout = style.layout(
        "block",
        f"Rank {record.rank:,} of {lay.world:,} in {style.name_of(share.model)}",
        "; ".join(filter(None, (share.text, share.reason, _thinned(share)))),
        warn=bool(share.reason),
        height=HEIGHT,
        annotations=heads,
        **axes,
    )
    layout["meta"] = {"least": LEAST}
    layout["margin"] |= {"l": 30, "b": layout["margin"]["b"] - style.BOTTOM + BELOW}
    return {"data": data, "layout": layout}, _summary(record, share)


def _named(part: Part, between: str) -> str:
    """ "━ TP 8 · 128 heads", the stroke in the axis's colour."""
    stroke = f'<span style="color:{style.COLOURS[part.axis]}"><b>━</b></span>'
    return f"{stroke} {part.axis.upper()} {part.ways}{between}{plural(part.size, part.word)}"


def _boxes(across: Sequence[range], down: Sequence[range], **more: object) -> Spec:
    """Filled rectangles, one for each pair of pieces, as one trace; of very many not all."""
    x: list[int | None] = []
    y: list[int | None] = []
    for one in [across[i] for i in cut(len(across), PIECES)]:
        for other in [down[i] for i in cut(len(down), PIECES)]:
            x += [one.start, one.stop, one.stop, one.start, one.start, None]
            y += [other.start, other.start, other.stop, other.stop, other.start, None]
    return parts.scatter("lines", x, y, fill="toself", hoveron="fills", **more)


def _band(record: RankGrid, part: Part, upright: bool, dims: tuple[Part, Part], **refs: str) -> Spec:
    """What one axis leaves to the rank, over the whole of the other dim; nothing where it does not cut."""
    across, down = (range(dim.whole) for dim in dims)
    own = part.pieces if part.ways > 1 else ()
    pieces = (own, (down,)) if upright else ((across,), own)
    words = f"{part.axis.upper()} rank {getattr(record.coord, part.axis)} · {part.held}"
    line = {"width": 0}
    return _boxes(*pieces, fillcolor=style.COLOURS[part.axis], opacity=BAND, line=line, text=words, **refs)


def _own(record: RankGrid, x: Part, y: Part, **refs: str) -> Spec:
    """What both axes leave; its outline keeps a sliver in sight."""
    line, words = {"width": 2, "color": style.LIT}, f"rank {record.rank:,} · {y.held} · {x.held}"
    return _boxes(x.pieces, y.pieces, fillcolor=style.LIT, line=line, text=words, **refs)


def _cuts(part: Part, upright: bool, dims: tuple[Part, Part], **refs: str) -> Spec:
    """Lines between the parts of a dim, across the other dim."""
    far = dims[1 if upright else 0].whole
    every = parts.step(len(part.splits), LINES)
    ends = [part.splits[i - 1].stop for i in range(every, len(part.splits), every)]
    along, over = [at for end in ends for at in (end, end, None)], [0, far, None] * len(ends)
    line = {"width": 1, "color": style.COLOURS[part.axis]}
    return parts.scatter(
        "lines", *((along, over) if upright else (over, along)), line=line, hoverinfo="skip", **refs
    )


def _thinned(share: Share) -> str:
    """Which cuts are not all drawn; empty where all are."""
    many = {axis: parts.step(len(part.splits), LINES) for axis, part in share.parts.items()}
    said = [f"1 in {every} of {axis.upper()}" for axis, every in many.items() if every > 1]
    return f"cuts drawn: {', '.join(said)}" if said else ""


def _summary(record: RankGrid, share: Share) -> str:
    lay, at = record.layout, record.coord
    each = [
        f"  {axis.upper()} rank {getattr(at, axis)} of {lay.size(axis)}: {part.text}, {part.held}"
        for axis, part in share.parts.items()
    ]
    return parts.lines(
        f"rank {record.rank} of {lay.world:,} in {style.name_of(share.model)}: {share.text}",
        each,
        share.reason,
    )
