"""A type checker in a user's own file: it refuses wrong option names and types, and passes right ones.

One file has a line for every option of every public function, once with the option's default and once with a
value of no type that it takes. mypy reads it once, with the settings of `make lint`, whose cache it shares.
"""

import inspect
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import llamapar as lp
from llamapar.late import RESULTS, imported
from test_public import FUNCTIONS

PROJECT = Path(lp.__file__).parent.parent
tool = runpy.run_path(str(PROJECT / "tools" / "keywords.py"), run_name="keywords")

NEEDED = {
    "": "Clinic, Clinic().set, Explorer, Explorer().set, record, watch_errors",
    "'tiny'": "check, explorer, ffn, heads, loading, model, require, shrink, stages, vocab, zero",
    "'tiny', seq_len=8": "cost, inside, memory, reconcile",
    "'tiny', 8, seq_len=8, global_batch=8": "plan",
    "settings": "check: settings, cost: settings, plan: settings",
    "'mlp', 'tiny'": "run, tape",
    "'mlp', 'tiny', seq_len=8": "traffic",
    "torch.nn.Identity, 'auto'": "compare",
    "'mlp'": "watch",
    "'heads'": "live",
    "'1f1b', micro_batches=8": "schedule",
    "'a'": "checkpoint.inspect, checkpoint.verify",
    "'a', 'b'": "checkpoint.gather, checkpoint.reshard, checkpoint.shard",
    "'a.toml'": "read_settings",
    "'text'": "clinic, explain",
    "cost": "reasons, view",
    "print": "debug",
    "None": "ranks",
    "None, 8": "sequence",
}
IMPORTED = ("Checkpoint", "Clinic", "Cost", "Explorer", "Plan", "Reconciliation", "Tape")
"""Types that the lines below name, and import from their rooms."""

CALLS = {name: needed for needed, names in NEEDED.items() for name in names.split(", ")}
"""A public function, or a panel → the arguments that it needs."""

RIGHT = (
    'lp.check("tiny", {"tp": 2}, cp=2, seq_len=8192, padding=lp.Padding(8), framework="torchtitan")',
    'lp.check(settings, layout={"tp": 4}, gpus=8)',
    "lp.cost(settings, seq_len=8)",
    'lp.explain("text", "Llama-2-70b-hf", tp="1->2")',
    'lp.explorer("llama3-8b", tp=4, seq_len="16k", documents="8, 8")',
    'lp.live("schedule", name="zbv", virtual_stages=2)',
    'lp.run("llama", "tiny", pp=2, schedule=lp.schedule("zbv", pp=2, micro_batches=4), documents=(8, 8))',
    'assert_type(lp.run("mlp", "tiny", tp=2), Result)',
    'assert_type(lp.run("mlp", "tiny", tp=2).ok, bool)',
    'assert_type(lp.compare(lambda: torch.nn.Linear(4, 4), "auto", tp=2), Result)',
    'assert_type(lp.run("mlp", "tiny", tp=2).outputs, dict[int, dict[str, Tensor]])',
    'assert_type(lp.tape("mlp", "tiny", tp=2), Tape)',
    'assert_type(lp.check("tiny", tp=2), lp.Report)',
    "assert_type(lp.check(settings), lp.Report)",
    'assert_type(lp.cost("tiny", seq_len=8).step_seconds, float)',
    "assert_type(lp.plan(settings), Plan)",
    'assert_type(lp.explain("text"), lp.Explanation)',
    'assert_type(lp.reconcile("tiny", seq_len=8), Reconciliation)',
    'assert_type(lp.checkpoint.shard("a", "b", tp=2), Checkpoint)',
    'assert_type(lp.explorer("tiny").job.layout, lp.Layout)',
)

WRONG = {
    'lp.explain("text", tpp=3)': 'Unexpected keyword argument "tpp" for "explain"; did you mean ',
    'lp.require("tiny", gpus="8")': (
        'Argument "gpus" to "require" has incompatible type "str"; expected "int | None"'
    ),
    'lp.cost("tiny")': 'No overload variant of "__call__" of "TakesSettings" matches argument type "str"',
    'lp.memory("tiny")': 'Missing named argument "seq_len" for "memory"',
    'lp.tape("mlp", "tiny", force=True)': 'Unexpected keyword argument "force" for "tape"',
}
"""A line → how its refusal begins."""


def signature(name):
    """The signature of a public function, of a panel, or of a panel's `set`."""
    kind, _, method = name.partition("().")
    if kind in FUNCTIONS:
        return inspect.signature(FUNCTIONS[kind])
    panel = getattr(imported(RESULTS[kind]), kind)
    return inspect.signature(getattr(panel, method or "__init__"))


def lines():
    """A line of a user's file → how its refusal begins, "" for a line that is right."""
    found = {**dict.fromkeys(RIGHT, ""), **WRONG}
    for each, needed in CALLS.items():
        name = each.partition(":")[0]
        inside = f"{needed}, " if needed else ""
        call = name if name.startswith(("Clinic", "Explorer")) else f"lp.{name}"
        found[f"{call}({needed})"] = ""
        found[f"{call}({inside}nonesuch=1)"] = 'Unexpected keyword argument "nonesuch" for '
        for option, parameter in signature(name).parameters.items():
            if parameter.kind is not parameter.KEYWORD_ONLY or f" {option}=" in f" {needed}":
                continue
            called = re.sub(r"^(\w+)\(\)\.(\w+)$", r'\2" of "\1', name).removeprefix("checkpoint.")
            refused = f'Argument "{option}" to "{called}" has incompatible type "object"'
            if name in ("check", "cost", "plan"):
                refused = 'No overload variant of "__call__" of "TakesSettings" matches'
            found[f"{call}({inside}{option}=object())"] = refused
            if isinstance(parameter.default, str | int | float | None):
                found[f"{call}({inside}{option}={parameter.default!r})"] = ""
    return found


LINES = lines()


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What mypy says of each line of the file, by its number among LINES."""
    path = tmp_path_factory.mktemp("user") / "user.py"
    head = (
        "from typing import assert_type",
        "import torch",
        "from torch import Tensor",
        "import llamapar as lp",
        "from llamapar.execution.result import Result",
        *(f"from llamapar.{RESULTS[name]} import {name}" for name in IMPORTED),
        "def f(result: Result, cost: Cost, plan: Plan, settings: lp.Settings) -> None:",
    )
    path.write_text("\n".join([*head, *(f"    {line}" for line in LINES)]) + "\n")
    command = [sys.executable, "-m", "mypy", "--no-pretty", "--no-error-summary", str(path)]
    made = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=600)
    said = defaultdict(list)
    for row in made.stdout.splitlines():
        found = re.match(r"(.*?user\.py):(\d+): error: (.*?)  \[[\w-]+\]$", row)
        if found:
            said[int(found[2]) - len(head) - 1].append(found[3])
        else:
            assert ": note: " in row, row
    assert made.returncode == 1, made.stderr
    return said


def test_every_public_function_is_called():
    assert {name.partition(":")[0] for name in CALLS} >= set(FUNCTIONS)
    assert sum(not refused for refused in LINES.values()) > 400
    assert sum(bool(refused) for refused in LINES.values()) > 400


@pytest.mark.soak
def test_a_type_checker_passes_what_is_right(answers):
    right = {i: line for i, (line, refused) in enumerate(LINES.items()) if not refused}
    assert {line: answers[i] for i, line in right.items() if i in answers} == {}


@pytest.mark.soak
def test_a_type_checker_refuses_each_wrong_line_with_its_own_message(answers):
    for i, (line, refused) in enumerate(LINES.items()):
        if refused:
            assert answers.get(i, ["nothing"])[0].startswith(refused), (line, answers.get(i))


def test_the_stub_says_what_the_table_says():
    """`python tools/keywords.py` writes it anew."""
    assert tool["STUB"].read_text(encoding="utf-8") == tool["written"]()
