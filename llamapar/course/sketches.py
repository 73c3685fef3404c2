"""Pictures of ranks for the lessons' questions: without the peers of one, or with the ranks of a guess."""

from __future__ import annotations

from collections.abc import Sequence

import llamapar as lp
from llamapar.figures import View

from .guesses import as_guess
from .veils import GUESS, covered


def without_peers(layout: lp.Layout, rank: int) -> View:
    """The picture of a rank in which its peers are not marked."""
    view = lp.view(lp.ranks(layout, rank))
    return covered(view, lambda trace: " · " in str(trace.get("name", "")))


def with_ranks(layout: lp.Layout, rank: int, guessed: Sequence[float]) -> View:
    """The picture of a rank and its peers, with the ranks of a guess in orange squares."""
    view = lp.view(lp.ranks(layout, rank))
    wide = view.spec["data"][0]["dy"]
    real = [int(n) for n in guessed if n in range(layout.world)]
    marker = {"symbol": "square-open", "color": GUESS, "size": 20, "line": {"width": 3}}
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [n % wide for n in real],
        "y": [n - n % wide for n in real],
        "text": [f"rank {n}, as you said" for n in real],
        "marker": marker,
        "name": "you said",
        "showlegend": True,
    }
    said = f"You said {', '.join(map(as_guess, guessed)) or 'nothing'}."
    return View({**view.spec, "data": [*view.spec["data"], trace]}, f"{said}\n{view.summary}")
