"""Predicted steps beside published ones: the pages' numbers are the benchmarks'."""

from __future__ import annotations

import json
import re
import statistics
from functools import cache
from typing import Any

import pytest

import _page
import cost_accuracy
import llamapar as lp
import paper_memory
import table4
from llamapar.timing.profiles import PROFILES


@cache
def rows() -> list[Any]:
    return [row for row in cost_accuracy.published("both") if row.cost]


@pytest.mark.soak
def test_the_course_draws_the_benchmarks_rows() -> None:
    """Notebook 09 is complete without the benchmark: in a container, or copied elsewhere."""
    assert json.loads(cost_accuracy.COURSE.read_text(encoding="utf-8")) == cost_accuracy.course()


@pytest.mark.parametrize("script", [cost_accuracy, table4, paper_memory], ids=lambda script: script.__name__)
def test_a_page_has_what_its_script_computes(script: Any) -> None:
    name = script.__name__
    assert _page.page(name).read_text("utf-8") == _page.filled(name, script.tables()), "--page"


def test_every_row_of_table_4_is_read_in_each_way() -> None:
    found: dict[str, list[Any]] = {}
    for one in table4.readings():
        found.setdefault(one.says, []).append(one)
    assert [len(rows) for rows in found.values()] == [3] * len(table4.OPEN) + [1] * len(table4.DOCUMENTS)
    assert [f"{100 * one.measured:.1f}" for one in found["as assumed"]] == ["43.5", "40.4", "38.4"]


def test_the_rows_that_table_4_decides_are_within_two_points() -> None:
    near = [abs(row.causal - row.measured) for row in table4.readings() if row.says == "as assumed"]
    assert max(near[:2]) <= 0.02


def test_steps_are_as_near_as_was_asked() -> None:
    unseen = [abs(row.error) for row in rows() if row.half == "unseen"]
    assert statistics.median(unseen) <= 0.08
    assert all(abs(row.error) <= 0.08 for row in rows() if row.name.startswith("mlperf"))


# -- profiles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", list(PROFILES))
def test_no_constants_near_a_profiles_fit_its_rows_better(trainer: str) -> None:
    """Found by `--fit` on the half that may be seen; the other half says how near it is."""
    made, rows = PROFILES[trainer], cost_accuracy.rows_of(trainer, "seen")

    def error(slower: float, host: float) -> float:
        return statistics.mean(map(abs, cost_accuracy.refitted(rows, slower, host)))

    own = error(made.slower, made.host)
    near = [(made.slower + step, made.host) for step in (-0.01, 0.01)]
    near += [(made.slower, made.host + step) for step in (-1e-4, 1e-4) if made.host]
    assert all(own <= error(*constants) for constants in near)
    assert error(1.0, 0.0) > 2 * own


def test_a_profile_is_as_near_on_other_rows_as_it_says() -> None:
    made = PROFILES["nanotron"]
    errors = cost_accuracy.refitted(cost_accuracy.rows_of("nanotron", "unseen"), made.slower, made.host)
    said = re.findall(r"[\d.]+(?= %)", made.others)
    assert f"79 rows: median {said[0]}%, p90 {said[1]}%, " in cost_accuracy.spread(errors)


def test_a_profile_is_a_term_of_its_own() -> None:
    known = {"seq_len": 8192, "global_batch": 2048, "recompute": "none"}
    layout = lp.Layout(tp=8, pp=16, dp=64, virtual_stages=8)
    bare, fitted = (lp.cost("llama3.1-405b", layout, **known, profile=p) for p in (None, "nanotron"))
    busy = sum(bare.layer.seconds)
    assert sum(fitted.layer.seconds) == pytest.approx(PROFILES["nanotron"].slower * busy)
    assert "as fitted" in fitted.seconds
