"""Errors of other people's code: what fairscale and torchtitan raised as they ran (genuine.json)."""

import pytest

import llamapar as lp
from inputs import oracle

GENUINE = oracle("genuine")


def given(case):
    return {name: case[name] for name in ("model", "layout", "seq", "world") if name in case}


@pytest.mark.parametrize("framework", ["fairscale", "torchtitan"])
def test_what_real_frameworks_raise(framework):
    """By the words alone; test_explain_raised.py asks of the whole tracebacks."""
    cases = [case for case in GENUINE if case["framework"] == framework]
    assert len(cases) >= 50
    missed = []
    for case in cases:
        best = lp.explain(f"{case['error']}: {case['message']}", context=given(case)).best
        if best is None or best.category not in case["categories"]:
            missed.append((case["model"], case["layout"], case["message"][:100], best and best.title))
    assert len(missed) <= 0.02 * len(cases), missed[:5]
