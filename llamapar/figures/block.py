"""A rank's part of a step: the model as layers × heads, its data as batch × tokens, and the cuts.

A step is a block of four dims, and four dims are two rectangles: PP and TP cut the model, DP and CP the data.
A rank does the lit part of the one for the lit part of the other. A solid block was tried: its batch has no
direction left, and the rank lies hidden inside. Where cuts would lie too close not all are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

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

PANELS = (("pp", "tp", "model", [0, 0.44]), ("dp", "cp", "data", [0.56, 1]))
"""The axis that cuts down, the one that cuts across, what they cut, and where it stands."""

LINES = 32
"""Most cuts drawn over a dim."""

PIECES = 64
"""Most pieces of a rank that are drawn."""

BAND = 0.32
"""Opacity of what one axis leaves to the rank; where two of them cross is its own."""


def picture(record: RankGrid, share: Share) -> tuple[Spec, str]:
    """Two rectangles cut by two axes each: a band is what a cut leaves, the rank where two cross."""
    data, axes = list[Spec](), Spec()
    edge = dict.fromkeys(("showgrid", "showticklabels"), False) | dict.fromkeys(("showline", "mirror"), True)
    above = {"yref": "y domain", "yanchor": "bottom"}
    own = f"{_stroke(style.LIT, '■')} rank {record.rank:,}"
    heads = [parts.label(own, 1, 1, xref="paper", xanchor="right", xshift=style.RIGHT, **above)]
    for (down, across, title, domain), n in zip(PANELS, ("", "2"), strict=True):
        y, x = share.parts[down], share.parts[across]
        held = f"rank {record.rank:,} · {y.held} · {x.held}"
        drawn = [
            *(_band(part, x, y, getattr(record.coord, part.axis)) for part in (y, x)),
            *(_cuts(part, x, y) for part in (y, x)),
            _boxes(x.pieces, y.pieces, style.LIT, held, line={"width": 2, "color": style.LIT}),
        ]
        data += [trace | {"xaxis": f"x{n}", "yaxis": f"y{n}"} for trace in drawn]
        ends = {"anchor": f"y{n}", "domain": domain}, {"anchor": f"x{n}", "domain": [0, 0.88]}
        axes[f"xaxis{n}"] = parts.axis(
            _named(x, "<br>"), [0, x.whole], linecolor=style.LINE, **edge, **ends[0]
        )
        axes[f"yaxis{n}"] = parts.axis(
            _named(y, " · "), [y.whole, 0], linecolor=style.LINE, **edge, **ends[1]
        )
        heads.append(parts.label(title, 0, 1, xref=f"x{n} domain", xanchor="left", **above))
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
    """A key to a colour, in a text."""
    return f'<span style="color:{colour}"><b>{shape}</b></span>'


def _named(part: Part, between: str) -> str:
    """ "━ PP 16 × 8 · 126 layers": the axis's stroke, its ranks, the pieces of each, and what they cut."""
    several = f" × {len(part.splits) // part.ways}" if len(part.splits) > part.ways else ""
    name = f"{_stroke(style.COLOURS[part.axis], '━')} {part.axis.upper()} {part.ways}{several}"
    return f"{name}{between}{plural(part.size, part.word)}"


def _boxes(across: Sequence[range], down: Sequence[range], colour: str, words: str, **more: object) -> Spec:
    """Filled rectangles, one for each pair of pieces, as one trace; of very many not all."""
    some = ([pieces[i] for i in cut(len(pieces), PIECES)] for pieces in (across, down))
    pairs = list(product(*some))
    x = [at for one, _ in pairs for at in (one.start, one.stop, one.stop, one.start, one.start, None)]
    y = [at for _, one in pairs for at in (one.start, one.start, one.stop, one.stop, one.start, None)]
    return parts.scatter("lines", x, y, fill="toself", hoveron="fills", fillcolor=colour, text=words, **more)


def _band(part: Part, x: Part, y: Part, at: int) -> Spec:
    """What one axis leaves to the rank, over the whole of the other dim; nothing where it does not cut."""
    across, down = ((part.pieces if dim is part else [range(dim.whole)]) for dim in (x, y))
    words = f"{part.axis.upper()} rank {at} · {part.held}"
    look = {"line": {"width": 0}, "opacity": BAND}
    return _boxes(across if part.ways > 1 else [], down, style.COLOURS[part.axis], words, **look)


def _cuts(part: Part, x: Part, y: Part) -> Spec:
    """Lines between the parts of a dim, across the other dim."""
    every = parts.step(len(part.splits), LINES)
    ends = [part.splits[i - 1].stop for i in range(every, len(part.splits), every)]
    along = [at for end in ends for at in (end, end, None)]
    over = [0, (y if part is x else x).whole, None] * len(ends)
    places = (along, over) if part is x else (over, along)
    return parts.scatter(
        "lines", *places, hoverinfo="skip", line={"width": 1, "color": style.COLOURS[part.axis]}
    )


def _thinned(share: Share) -> str:
    """Which cuts are not all drawn; empty where all are."""
    many = {axis: parts.step(len(part.splits), LINES) for axis, part in share.parts.items()}
    said = [f"1 in {every} of {axis.upper()}" for axis, every in many.items() if every > 1]
    return f"cuts drawn: {', '.join(said)}" if said else ""


def _summary(record: RankGrid, share: Share) -> str:
    each = [
        f"  {axis.upper()} rank {getattr(record.coord, axis)} of {part.ways}: {part.text}, {part.held}"
        for axis, part in share.parts.items()
    ]
    return parts.lines(
        f"rank {record.rank} of {record.layout.world:,} in {style.name_of(share.model)}: {share.text}",
        each,
        share.reason,
    )
