"""The first moves in an Explorer: whatever is touched first or second, only what was touched can be refused.

Each control is moved once, and each pair of controls, from the Explorer as it opens.
"""

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

import llamapar as lp
from inputs import drawn
from llamapar.panels.controls import EXPLORER, TABS
from llamapar.panels.explorer_panel import Explorer
from llamapar.panels.state import State
from wire import receive

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "00_start_here.ipynb"
CONTROLS = {c["name"]: c for group in EXPLORER for c in group["controls"] if c["kind"] != "file"}
CONTROLS["tab"] = {"name": "tab", "kind": "choice", "options": list(TABS.items())}
MODELS = ["llama3.2-1b", "qwen2.5-7b", "llama3.1-70b"]

Moves = tuple[tuple[str, Any], ...]


def opened_by_notebook():
    """The controls that the first Explorer of the course sets."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    [call] = re.findall(r"lp\.explorer\((.*)\)", "".join(line for cell in cells for line in cell["source"]))
    return dict(re.findall(r'(\w+)="([^"]*)"', call))


OPENINGS = {"bare": {}, "of notebook 00": opened_by_notebook(), "of one's own": {"preset": "llama3.1-8b"}}


def values_of(control, now):
    """Where a hand may put a control: its other choices, or half and twice its number."""
    kind, name = control["kind"], control["name"]
    if kind == "choice":
        return [value for value, _ in control["options"] if value not in (now, "custom")]
    if kind == "bool":
        return [not now]
    if kind == "text":
        return ["1000, 5000, 2192", "4096"]
    least = 0 if name in ("rank", "time", "step") else 1
    return sorted({max(least, (now or 2) // 2), 2 * (now or 1)} - {now})


def singles(state):
    for name, control in CONTROLS.items():
        for value in values_of(control, state.values[name]):
            yield ((name, value),)


def pairs(state):
    """Two controls after each other, each to one of its values."""
    draw = random.Random(52)
    for one, other in itertools.permutations(CONTROLS, 2):
        yield tuple(
            (name, draw.choice(values_of(CONTROLS[name], state.values[name]))) for name in (one, other)
        )


NOUNS = "GPU|rank|stage|layer|head|sequence|node|error|warning|note"
ONE_OF_MANY = re.compile(rf"(?<![x×] )\b1 ((?:{NOUNS})s|(micro-)?batches)\b")
"""What no text says: "1 GPUs"."""

CAUSES = {"layer_split": {"LP301", "LP303", "LP309"}, "batch_tokens": {"LP002", "LP404"}}
"""A control → rules that it breaks, in words that do not name it."""


def is_named(name, value, code, text, field):
    """Whether what is wrong is said of a control that was moved."""
    if name in ("framework", field) or code in CAUSES.get(name, ()) or re.search(rf"\b{name}\b", text):
        return True  # a trainer has rules of its own
    if isinstance(value, str) and value:
        return value in text.lower()  # "ZBV with virtual_stages=8"
    return type(value) is int and value > 1 and bool(re.search(rf"\b(?:{value}|{value:,})\b", text))


def assert_no_surprise(state, moves):
    """A picture of the present state, and no error but of what was moved."""
    outcome = state.outcome
    wrong = (
        [(f.code, f.message, "") for f in outcome.report.arithmetic if f.severity == "error"]
        if outcome.report
        else []
    )
    if outcome.problem:
        wrong.append(("", str(outcome.problem), outcome.problem.field))
    for code, text, field in wrong:
        assert any(is_named(name, value, code, text, field) for name, value in moves), (moves, text)
    assert outcome.report is not None or wrong
    later = state.values["tab"] in ("plan", "run")  # drawn when something was found or has run
    assert (outcome.view is None) == bool(outcome.problem or later), moves
    said = [
        outcome.status,
        state.gave,
        state.published,
        *(f"{a.text}; {a.note}; {a.more}" for a in state.answers),
    ]
    said.append("".join(text for text, _ in state.sentence))
    said += [outcome.view.summary] if outcome.view else []
    said += [f"{f.message}; {f.why}" for f in outcome.report.findings] if outcome.report else []
    for text in said:
        assert not ONE_OF_MANY.search(text), (moves, text)
    if outcome.report and outcome.report.memory and outcome.report.memory.severity == "error":
        assert "every rule passes" not in [answer.note for answer in state.answers]
    if not wrong:
        assert [a.question for a in state.answers if a.text == "not known" and "; try " not in a.more] == []


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("cases", [singles, pairs])
def test_a_move_surprises_nobody(opening, cases, counts):
    """Of 2,162 pairs `make soak` tries 400 from each opening, and `make deep` all."""
    first = State.opened(OPENINGS[opening])
    for moves in drawn(cases(first), counts(25, 80, 2200)):
        state = first
        for name, value in moves:
            problem = None
            try:
                state = state.move({name: value})
            except lp.LayoutError as refused:  # what leaves no job changes nothing, and has a way out
                problem = refused
            assert problem is None or problem.choices, (moves, problem)
        assert_no_surprise(state, moves)


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_model_is_chosen_first_and_after_each_way_to_another_job(opening):
    panel = Explorer(**OPENINGS[opening])
    ways = [
        {"kind": "set", "changes": {"preset": MODELS[0]}},
        {"kind": "reset"},
        *({"kind": "set", "changes": {"job": job}} for job in lp.JOBS),
        {"kind": "set", "changes": {"job": ""}},
        {"kind": "set", "changes": {"tp": 2}},
        {"kind": "undo"},
    ]
    for way in ways:
        assert receive(panel, **way) is None
        assert_no_surprise(panel._state, ())
        for model in MODELS:
            assert receive(panel, kind="set", changes={"preset": model}) is None
            assert_no_surprise(panel._state, ())
            assert panel.payload["figure"] is not None
            assert panel.payload["values"]["preset"] == model
            receive(panel, kind="undo")
