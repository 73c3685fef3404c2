"""Errors of other people's code: what fairscale and torchtitan raised, and texts from public issues.

genuine.json was made by running the two. wild.jsonl holds texts that were gathered when the patterns stood:
73 of the 99 led to their category then (of the first 82, 63; of the rest, gathered after mending for
those, 10 of 17), and one of the 37 look-alikes was blamed on sharding. The bounds here are those of today.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import explain_accuracy as accuracy
import llamapar as lp
from inputs import oracle

ORACLES = Path(__file__).parent / "oracles"

GENUINE = oracle("genuine")
WILD = [json.loads(line) for line in (ORACLES / "wild.jsonl").read_text("utf-8").splitlines()]


def text_of(case: dict[str, Any]) -> str:
    """The traceback as it was: its last lines of source, and the words."""
    frames = "".join(f'  File "model.py", line 1, in forward\n    {line}\n' for line in case["code"] if line)
    return f"Traceback (most recent call last):\n{frames}{case['error']}: {case['message']}\n"


def given(case: dict[str, Any]) -> dict[str, Any]:
    return {name: case[name] for name in ("model", "layout", "seq", "world") if name in case}


@pytest.mark.parametrize("framework", ["fairscale", "torchtitan"])
def test_what_real_frameworks_raise(framework: str) -> None:
    cases = [case for case in GENUINE if case["framework"] == framework]
    assert len(cases) >= 50
    missed = []
    for case in cases:
        for text in (text_of(case), f"{case['error']}: {case['message']}"):
            best = lp.explain(text, context=given(case)).best
            if best is None or best.category not in case["categories"]:
                missed.append((case["model"], case["layout"], case["message"][:100], best and best.title))
    assert len(missed) <= 0.02 * 2 * len(cases), missed[:5]


def test_what_real_frameworks_raise_needs_no_layout() -> None:
    missed = []
    for case in GENUINE:
        told = lp.explain(text_of(case))
        tie = told.verdict == "unknown" and bool(told.needs)
        names = [d.category for d in told.diagnoses[: 3 if tie else 1]]
        if not set(case["categories"]) & set(names):
            missed.append((case["model"], case["layout"], case["message"][:100], names))
    assert len(missed) <= 0.1 * len(GENUINE), missed[:5]


def test_half_a_group_of_torchtitans_fused_weight() -> None:
    told = lp.explain("RuntimeError: shape '[1, 8192, -1, 6, 128]' is invalid for input of size 3145728")
    assert told.best.category == "kv_heads_lt_tp"
    assert told.best.equations == ("8192 × 384 = 3145728", "768 = (4 + 2)·128", "384 = 8·768/16")


@pytest.mark.parametrize(("alone", "strict", "fair"), [(False, 91, 91), (True, 86, 94)])
def test_texts_from_public_issues(alone: bool, strict: int, fair: int) -> None:
    answers = accuracy.ask(WILD, alone)
    assert len(answers) == 99
    assert sum(a.strict for a in answers) >= strict
    assert sum(a.fair for a in answers) >= fair
    assert [a.case["id"] for a in answers if accuracy.look_alike(a.case) and not a.spared] == []


def test_every_text_says_where_it_stands() -> None:
    assert all(case["url"].startswith("https://github.com/") for case in WILD)
    assert {case["message_kind"] for case in WILD} == {"verbatim", "template", "prose"}
    assert len({case["message"] for case in WILD}) == len(WILD)
