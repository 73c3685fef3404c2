"""`lp.watch` on the page without an install: its stand-in of torch, cell by cell against torch."""

import base64
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import watch_tapes
from llamapar.execution.following import source_of
from llamapar.execution.watching import followed
from llamapar.panels.watch_panel import watch
from llamapar.programs import program
from llamapar.programs.cases import CASES as OPENED

PROJECT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).parent
SITE = PROJECT / "site"
FOLDERS = (SITE / "watch", SITE / "watch" / "standins", SITE / "standins", PROJECT)
spec = importlib.util.spec_from_file_location("films", SITE / "watch" / "films.py")
assert spec
assert spec.loader
films = importlib.util.module_from_spec(spec)
spec.loader.exec_module(films)

ON_STANDINS = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}

CLOSE = 1e-9
PROGRAMS = ("attention", "mlp", "block", "embedding", "loss", "meta_attention", "mlp_unfused")
LAYOUTS = (
    {"tp": 2, "cp": 2},
    {"tp": 8},
    {"cp": 2, "dp": 2},
    {"cp": 4, "tp": 2},
    {"tp": 2, "dp": 2, "sequence_parallel": False},
)


def text(name):
    return source_of(followed(program(name)))


def edit(name, old, new):
    own = text(name)
    assert old in own
    return own.replace(old, new)


CASES = {}
LONGER = set[str]()
"""Cases that are left to `make deep`: each program has two or three of the layouts in `make test`."""
for at, (name, layout) in enumerate(product(PROGRAMS, LAYOUTS)):
    if not (name == "meta_attention" and layout.get("tp") == 8):  # has no KV head of each rank's own
        words = f"{name} " + " ".join(f"{axis}={n}" for axis, n in layout.items())
        CASES[words] = {"program": name, "layout": layout}
        LONGER |= {words} if at % 2 else set()
for name in PROGRAMS:
    CASES[f"{name} random"] = {"program": name, "layout": {"tp": 2, "cp": 2}, "data": "random"}
for name in ("attention", "block", "meta_attention"):
    for option, value, layout in (
        ("cp_method", "ring", {"tp": 2, "cp": 4}),
        ("chunking", "contiguous", {"cp": 4}),
    ):
        CASES[f"{name} {value}"] = {"program": name, "layout": layout, "options": {option: value}}
FAULTS = {
    "drop_all_reduce": ("attention", {"tp": 2, "cp": 2, "sequence_parallel": False}, {}),
    "tile_kv": ("attention", {"tp": 16}, {"kv_replication": True}),
    "contiguous_positions": ("attention", {"cp": 2}, {}),
    "shards_out_of_order": ("mlp", {"dp": 2, "zero": 3}, {}),
    "pad_in_softmax": ("loss", {"tp": 8}, {}),
}
for fault, (name, layout, options) in FAULTS.items():
    CASES[fault] = {"program": name, "layout": layout, "options": options, "fault": fault}
_TP = {"tp": 2, "sequence_parallel": False}
_CP = {"tp": 2, "cp": 2}
EDITS = {
    "without the sum": ("attention", _TP, "return row_output(partial, mesh, setting)", "return partial"),
    "without the gather": ("attention", _CP, "x = column_input(x, mesh, setting)", "x = x"),
    "heads torn": ("attention", _CP, "split_heads(x @ wk.mT, ", "split_heads(x @ wk[:6].mT, "),
    "a loop": (
        "mlp",
        _CP,
        "return row_output(",
        "for i in range(3):\n        x = x + i\n    return row_output(",
    ),
    "sizes that differ": ("mlp", _TP, "(x @ w3.mT)", "(x[:, :5] @ w3.mT)"),
    "a product torn": ("mlp", _TP, "hidden @ w2.mT", "hidden @ w2"),
    "softmax": ("mlp", _TP, "F.silu(x @ w1.mT)", "F.softmax(x @ w1.mT, -1)"),
    "a name unknown": ("block", _TP, "return x + mlp(", "return y + mlp("),
    "no such token": (
        "embedding",
        _TP,
        "return row_output(",
        "rows = F.embedding(local + 1000, tok_embeddings)\n    return row_output(",
    ),
}
for name, (own, layout, old, new) in EDITS.items():
    CASES[name] = {"program": own, "layout": layout, "source": edit(own, old, new)}


RAISE = ("heads torn", "sizes that differ", "a product torn", "a name unknown", "no such token")
BREAK = ("drop_all_reduce", "tile_kv", "contiguous_positions", "shards_out_of_order", "without the sum")


@pytest.fixture(scope="module")
def on_standins(request):
    """What the page's stand-in makes of every case."""
    deep = request.config.getoption("deep")
    cases = {name: case for name, case in CASES.items() if deep or name not in LONGER}
    command = [sys.executable, "-P", str(HERE / "watch_tapes.py")]
    given = json.dumps(list(cases.values()))
    made = subprocess.run(command, env=ON_STANDINS, input=given, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return dict(zip(cases, json.loads(made.stdout), strict=True))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep) if name in LONGER else name for name in CASES]
)
def test_every_rank_s_numbers_are_torch_s(on_standins, name):
    expected, found = watch_tapes.told(CASES[name]), on_standins[name]
    assert [step["line"] for step in found] == [step["line"] for step in expected]
    for ours, torchs in zip(found, expected, strict=True):
        for what in ("shape", "places", "at", "events", "error", "fault"):
            assert ours[what] == torchs[what], (what, ours["line"])
        assert ours["values"].keys() == torchs["values"].keys()
        for rank, (shape, numbers) in torchs["values"].items():
            own_shape, own = ours["values"][rank]
            assert own_shape == shape
            assert all(map(alike, own, numbers)), (ours["line"], rank)
            assert len(own) == len(numbers)


def test_an_edit_that_cannot_be_computed_and_a_fault_are_shown_where_they_begin(on_standins):
    assert all(on_standins[name][-1]["error"] for name in RAISE)
    for name in (*RAISE, *BREAK):
        assert [step["fault"][0] for step in on_standins[name]].count("begins") == 1


def alike(own, other):
    both_nan = math.isnan(own) and math.isnan(other)
    return both_nan or own == other or abs(own - other) <= CLOSE * max(1, abs(other))


# -- the page's state --------------------------------------------------------------------------

DRIVE = """
import json, os, sys
import films, page_python
for line in sys.stdin:
    os.environ[films.FOLDER], moves = json.loads(line)
    heard = []
    receive = page_python.begin("watch", lambda text: heard.append(json.loads(text)), films.read)
    to = heard[0]["to"]
    for changes in moves:
        heard.append({"changes": changes})
        receive(json.dumps({"to": to, "content": {"kind": "set", "changes": changes, "id": "set", "seq": 0}}))
    print(json.dumps(heard), flush=True)
"""
Driven = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three recordings of those that a page has: its first film, a fault of it, and llama."""
    found = tmp_path_factory.mktemp("films")
    first = next(films.states())
    llama = replace(first, values={**first.values, **films.FIRST, "program": "llama"})
    films.write(found, [first, first.change({"case": "drop_all_reduce"}), llama])
    return found


@pytest.fixture(scope="module")
def driven(folder):
    """Opens the page anew: what it shows at first and after each move, and the "problem" of the answer."""
    command = [sys.executable, "-P", "-c", DRIVE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ON_STANDINS, stdin=pipe, stdout=pipe, text=True) as page:
        assert page.stdin
        assert page.stdout

        def drive(*moves, recorded=folder):
            print(json.dumps([str(recorded), moves]), file=page.stdin, flush=True)
            shown = [{}]
            for message in json.loads(page.stdout.readline()):
                if "changes" in message:
                    shown.append({**shown[-1], "problem": None})
                elif "content" in message:
                    shown[-1]["problem"] = message["content"]["problem"]
                else:
                    shown[-1] |= message["state"]
            return shown

        yield drive


def begins(film):
    return [step["code"] for step in film["steps"] if step["fault"] == "begins"]


def phases(film):
    return {step["phase"] for step in film["steps"]}


def test_a_recorded_state_has_its_backward_and_an_edit_runs_forward_and_says_so(driven):
    without = edit("attention", "return row_output(partial, mesh, setting)", "return partial")
    shown = driven({"source": without}, {"source": ""}, {"tp": 4}, {"phase": "backward"})
    first, edited, back, other, _ = shown
    real = json.loads(json.dumps(watch("attention", tp=2, cp=2).get_state()))
    assert first["film"] == real["film"]
    assert first["schema"] == real["schema"]
    assert first["payload"] == real["payload"] | {"makers": False}
    assert phases(edited["film"]) == {"forward"}
    assert begins(edited["film"]) == ["return partial"]
    assert edited["payload"]["edited"]
    assert edited["payload"]["says"] == (
        "Forward only: the backward is a recording on this page, and there is none of this state. "
        "JupyterLab (make lab) runs both."
    )
    (control,) = [each for each in edited["schema"] if each["name"] == "phase"]
    assert control["options"] == [["forward", "forward"]]
    assert back["film"] == first["film"]
    assert back["payload"]["says"] == ""
    assert len(other["film"]["ranks"]) == 8
    assert "Forward only" in other["payload"]["says"]


def test_the_forward_that_the_page_computes_is_the_recorded_one(driven, tmp_path):
    (tmp_path / "index.json").write_text("[]")
    (recorded,), (computed,) = driven(), driven(recorded=tmp_path)
    steps = [step for step in recorded["film"]["steps"] if step["phase"] == "forward"]
    assert computed["film"]["steps"] == steps
    tensors = recorded["film"]["tensors"][: len(computed["film"]["tensors"])]
    for ours, torchs in zip(computed["film"]["tensors"], tensors, strict=True):
        assert ours["scale"] == pytest.approx(torchs["scale"], rel=CLOSE)
        for rank, own in torchs["ranks"].items():
            levels = [base64.b64decode(each["data"]) for each in (ours["ranks"][rank], own)]
            assert max((abs(a - b) for a, b in zip(*levels, strict=True)), default=0) <= 1
            assert ours["ranks"][rank] | {"data": ""} == own | {"data": ""}


def test_faults_are_shown_where_they_begin_recorded_or_not(driven):
    shown = driven(
        {"case": "drop_all_reduce"},
        {"case": "", "program": "mlp"},
        {"case": "drop_backward_all_reduce"},
    )
    assert begins(shown[1]["film"])
    assert phases(shown[1]["film"]) > {"forward"}
    assert shown[2]["problem"] is None
    assert begins(shown[3]["film"]) == []
    assert shown[3]["payload"]["says"].startswith(
        "No line of the forward differs with this fault. Forward only:"
    )


def test_llama_is_a_recording_whose_edits_and_other_layouts_are_refused_with_the_reason(driven):
    shown = driven(
        {"tp": 1, "dp": 2},
        {"program": "llama"},
        {"source": text("llama") + "    # edited"},
        {"pp": 4},
    )
    llama, edited, other = shown[2:]
    assert llama["problem"] is None
    assert [llama["payload"]["values"][axis] for axis in films.FIRST] == [2, 2, 1, 1]
    assert llama["payload"]["says"] == (
        "This run is a recording; JupyterLab (make lab) runs it, and what you edit."
    )
    refused = edited["payload"]["problem"]
    assert refused["what"] == "llama cannot be edited on this page: it shows a recording of llama"
    assert refused["why"] == "its stages run on PyTorch; JupyterLab runs it: make lab"
    assert edited["film"] == llama["film"]
    assert other["problem"]["what"] == "no recording of llama with tp=2 cp=2 pp=4 dp=1 on this page"
    assert other["payload"]["values"]["pp"] == 1


def test_a_puzzle_is_solved_on_the_page_or_refused_where_gradients_judge_it(driven):
    case = OPENED["write_all_reduce"]
    shown = driven(
        {"case": "write_all_reduce"}, {"source": case.solved}, {"case": "write_backward_all_reduce"}
    )
    opened, solved, refused = (each["payload"] for each in shown[1:])
    assert not opened["verdict"]["right"]
    assert opened["says"].startswith("Each rank has a summand")
    assert solved["verdict"] == {"right": True, "text": "right: all 4 ranks hold what one process computes"}
    assert shown[3]["problem"]["what"] == (
        "all-reduce of the backward: this puzzle is judged by gradients, which the page does not compute"
    )
    assert refused["values"]["case"] == "write_all_reduce"


def test_what_the_stand_in_has_not_is_named(driven):
    moves = [
        {"source": edit("attention", "return row_output(", f"x = {call}\n    return row_output(")}
        for call in ("torch.einsum('bsd->bs', x)", "x.cumsum(1)", "F.gelu(x)")
    ]
    names = ("torch.einsum", "Tensor.cumsum", "torch.nn.functional.gelu")
    for shown, name in zip(driven(*moves)[1:], names, strict=True):
        (error,) = set(shown["film"]["steps"][-1]["error"].values())
        assert error == f"NotHere: {name} is not in this page's stand-in of torch; `make lab` runs it"


def test_every_program_and_every_fault_has_a_recording(monkeypatch):
    from llamapar.panels.watch_state import WATCHED
    from llamapar.programs import FAULTS

    monkeypatch.setattr(films.WatchState, "shoot", lambda *_: {"steps": []})  # which is what takes long
    shown = list(films.states())
    assert {state.values["program"] for state in shown} == set(WATCHED)
    assert {state.broken[0] for state in shown} == {"", *FAULTS}
