"""The recipe court: its fixture, and what it says where a command refuses."""

from math import prod

import pytest

import recipes
from llamapar.describe.options import OPTIONS

ROWS = recipes.recipes()
OWN = {"name", "trainer", "published", "source"}
FIGURES = {"step_seconds", "tokens_per_s_per_gpu", "tflops_per_gpu", "max_reserved_gib", "peak_gb"}


def test_recipes_are_many_and_each_says_where_it_stands():
    assert len(ROWS) == len({row["name"] for row in ROWS}) >= 60
    assert {maker for row in ROWS for maker in recipes.MAKERS if row["name"].startswith(maker)} == {
        *recipes.MAKERS
    }
    for row in ROWS:
        assert row["source"], row["name"]
        assert {*row["published"]} <= FIGURES, row["name"]
        assert {*row} <= {*OPTIONS} | OWN, row["name"]
        assert prod(row.get(axis, 1) for axis in ("tp", "cp", "pp", "dp")) == row["gpus"], row["name"]


def named(name):
    return next(row for row in ROWS if row["name"] == name)


def test_a_recipe_is_judged_by_every_command():
    row = named("ultrascale-8B-8")
    (one,) = recipes.verdicts([row])
    assert one.refusals == {}
    assert one.trainer
    assert 1 <= one.place <= one.listed
    assert 0 < one.held[0] <= one.held[1] <= one.held[2]
    assert one.peak == row["published"]["peak_gb"] * 10**9
    assert one.measured == pytest.approx(256 * 4096 / row["published"]["tokens_per_s_per_gpu"] / 8)
    assert recipes.refused([one]) == [
        "| command | recipes | reason, of the first | which |",
        "| --- | --- | --- | --- |",
    ]
    assert recipes.summary([one])[2].startswith("| 1 | 0 | 1 | ")
