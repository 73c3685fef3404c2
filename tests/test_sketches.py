"""llamapar/course/sketches.py: what a veil leaves out of a picture of several parts, where a guess is."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llamapar as lp
from llamapar.course.exercises import EXERCISES, PREDICTIONS
from llamapar.course.sketches import with_ranks, without_peers
from llamapar.panels.page import for_browser

PAIRS = "8 tokens in order: how many pairs does rank 1 make?"
SMALL = lp.Layout(tp=2, cp=2, pp=2, dp=2)


def marked_points(spec: Any) -> list[tuple[float, float]]:
    """Where the picture of ranks marks one, as (column, first rank of the row)."""
    points = [
        zip(trace["x"], trace["y"], strict=True) for trace in spec["data"] if trace.get("mode") == "markers"
    ]
    return [point for of_trace in points for point in of_trace]


def test_a_rank_without_its_peers_is_marked_alone() -> None:
    marked = marked_points(lp.view(lp.ranks(SMALL, 13)).spec)
    assert sorted(marked) == [(0, 12), (1, 4), (1, 8), (1, 12), (3, 12)]
    veiled = without_peers(SMALL, 13)
    assert marked_points(veiled.spec) == [(1, 12)]
    assert "peer" not in json.dumps(for_browser(veiled.spec))


@pytest.mark.parametrize(
    ("guess", "points"),
    [([14, 5], [(2, 12), (1, 4)]), ([], []), ([16, -1, 2.5], []), ([0, 99], [(0, 0)]), (["a", [1]], [])],
)
def test_ranks_that_are_guessed_are_drawn_where_they_stand_and_no_other(
    guess: list[Any], points: list[tuple[float, float]]
) -> None:
    view = with_ranks(SMALL, 13, guess)
    own = next(trace for trace in view.spec["data"] if trace.get("name") == "you said")
    assert list(zip(own["x"], own["y"], strict=True)) == points
    assert view.summary.splitlines()[0].startswith("You said ")


@pytest.mark.parametrize("name", [PAIRS, "last over first"])
def test_the_work_of_ranks_is_veiled_and_nothing_else(name: str) -> None:
    item = (PREDICTIONS | EXERCISES)[name]()
    assert item.picture
    assert item.veiled
    before, after = item.veiled.spec, item.picture.spec
    own = [trace for trace in before["data"] if trace.get("xaxis") == "x2"]
    assert own == [{"x": [None], "y": [None], "xaxis": "x2", "yaxis": "y2"}]
    others = [trace for trace in after["data"] if trace.get("xaxis") != "x2"]
    assert [trace for trace in before["data"] if trace.get("xaxis") != "x2"] == others
    assert before["layout"]["xaxis2"]["showticklabels"] is False
    assert before["layout"]["shapes"][0]["xref"] == "x2 domain"


@pytest.mark.parametrize(("guess", "end"), [(10, 10 / 18), (36, 2), (10**9, None), (0, 0), (-3, 0)])
def test_a_number_of_pairs_is_drawn_beside_the_bar_of_its_rank(guess: int, end: float | None) -> None:
    item = PREDICTIONS[PAIRS]()
    view = item.marked(guess)
    true, *own = view.spec["layout"]["shapes"]
    assert (true["x0"], true["x1"], true["xref"]) == (0, 26 / 18, "x2")
    wide = view.spec["layout"]["xaxis2"]["range"][1]
    if end == 0:
        assert own == []
    else:
        assert own[0]["line"]["dash"] == "dash"
        assert own[0]["x1"] == pytest.approx(end) if end else own[0]["x1"] > 3
        assert own[0]["x1"] < wide
    assert view.summary.startswith(f"You said {guess:g} pairs; it is 26.")


@pytest.mark.parametrize(
    ("question", "true", "frames"),
    [
        (
            "128,256 rows, 8 ranks: who owns token 100,000?",
            (96192, 112224),
            {5: (80160, 96192), 9: None, 5.5: None},
        ),
        (
            "How many rows of the matrix does rank 1 hold at stage 3?",
            (32, 64),
            {32: (32, 64), 96: (32, 128), 128: (0, 128), 500: (0, 128)},  # stay in the matrix
        ),
        ("At TP 16, how many of the 1,024 rows of wk does a rank get?", (0, 8), {128: (0, 16)}),
    ],
)
def test_rows_that_are_guessed_are_framed_beside_the_true_ones(
    question: str, true: tuple[int, int], frames: dict[float, tuple[int, int] | None]
) -> None:
    item = PREDICTIONS[question]()
    for guess, ends in frames.items():
        shapes = item.marked(guess).spec["layout"]["shapes"]
        drawn = [(s["x0"], s["x1"], s["line"]["dash"]) for s in shapes]
        assert drawn == [(*true, "solid"), *([(*ends, "dash")] if ends else [])]
