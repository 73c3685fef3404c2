"""The texts that were raised for the purpose, and those of public reports: their form and their labels.

raised.jsonl was made by tests/oracles/make_raised.py of the recipes in raised.toml; reported.jsonl is cited.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from llamapar.diagnosis.vocabulary import CATEGORIES, SUBTYPES, VERDICTS

ORACLES = Path(__file__).parent / "oracles"
sys.path.insert(0, str(ORACLES.parent.parent / "benchmarks"))

import explain_accuracy as accuracy  # noqa: E402

RAISED, REPORTED = (
    [json.loads(line) for line in (ORACLES / f"{name}.jsonl").read_text("utf-8").splitlines()]
    for name in ("raised", "reported")
)
NEW = {"mesh_mismatch"}  # a kind of "other" that has no name in the vocabulary
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


@pytest.mark.parametrize(
    ("verdict", "category", "confidence", "parallel", "wrong"),
    [
        ("sharding", "fsdp_uneven", 0.9, True, True),
        ("sharding", "fsdp_uneven", 0.3, True, False),
        ("sharding", "kv_heads_lt_tp", 0.9, True, False),
        ("sharding", "kv_heads_lt_tp", 0.9, False, True),
        ("not_sharding", "kv_heads_lt_tp", 0.3, True, True),
        ("not_sharding", "fsdp_uneven", 0.9, False, False),
        ("unknown", "fsdp_uneven", 0.9, True, False),
    ],
)
def test_what_counts_as_asserted_wrong(
    verdict: str, category: str, confidence: float, parallel: bool, wrong: bool
) -> None:
    best = SimpleNamespace(category=category, confidence=confidence)
    told = SimpleNamespace(verdict=verdict, best=best, diagnoses=(best,), needs=("tp",))
    case = {"category": "kv_heads_lt_tp", "parallel_caused": parallel, "diagnosable_from": "text"}
    assert accuracy.Answer(case, told, alone=True, seconds=0).asserted_wrong is wrong


@pytest.mark.parametrize(
    ("needs", "asks"), [(("tp",), True), (("layout",), True), (("seq_len",), False), ((), False)]
)
def test_what_counts_as_asking_for_the_right_fact(needs: tuple[str, ...], asks: bool) -> None:
    told = SimpleNamespace(verdict="unknown", diagnoses=(), needs=needs)
    case = {"category": "kv_heads_lt_tp", "decides": ["tp", "n_kv_heads"], "diagnosable_from": "text+layout"}
    assert accuracy.Answer(case, told, alone=True, seconds=0).asks is asks
