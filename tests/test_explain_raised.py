"""The texts that were raised for the purpose, and those of public reports: their form and their labels.

raised.jsonl was made by tests/oracles/make_raised.py of the recipes in raised.toml; reported.jsonl is cited.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from llamapar.diagnosis.vocabulary import CATEGORIES, SUBTYPES, VERDICTS

ORACLES = Path(__file__).parent / "oracles"
RAISED, REPORTED = (
    [json.loads(line) for line in (ORACLES / f"{name}.jsonl").read_text("utf-8").splitlines()]
    for name in ("raised", "reported")
)
NEW = {"tensor_mixed_with_dtensor", "mesh_mismatch"}  # kinds of "other" that have no name in the vocabulary
TRUTH = {"sharding": True, "not_sharding": False, "unknown": None}


@pytest.mark.parametrize("cases", [RAISED, REPORTED], ids=["raised", "reported"])
def test_labels_are_words_of_the_vocabulary(cases: list[dict]) -> None:
    assert len({case["id"] for case in cases}) == len(cases)
    assert len({case["message"] for case in cases}) == len(cases)
    for case in cases:
        assert case["category"] in {*CATEGORIES, "none"}, case["id"]
        assert case["subtype"] in {*SUBTYPES, *NEW, None}, case["id"]
        assert case["verdict"] in VERDICTS, case["id"]
        assert case["verdict"] == "unknown" or TRUTH[case["verdict"]] is case["parallel_caused"], case["id"]
        if case["verdict"] == "unknown":  # then something else decides, and it is named
            assert case["diagnosable_from"] != "text", case["id"]
            assert case["decides"], case["id"]


def test_every_text_has_its_recipe_and_its_library() -> None:
    recipes = tomllib.loads((ORACLES / "raised.toml").read_text("utf-8"))["text"]
    assert [recipe["id"] for recipe in recipes] == [case["id"] for case in RAISED]
    for recipe, case in zip(recipes, RAISED, strict=True):
        assert (recipe["category"], recipe["verdict"]) == (case["category"], case["verdict"]), case["id"]
        assert case["library"].split()[0] == case["framework"], case["id"]


def test_every_report_is_cited() -> None:
    assert all(case["url"].startswith("https://github.com/") for case in REPORTED)
