"""The Explorer's Run tab without a browser: what runs, what is shown of it, and that it can be stopped."""

import json
import random
import time

import pytest

import llamapar as lp
import llamapar.execution.execute
from inputs import few
from llamapar import programs
from llamapar.describe.options import OPTIONS
from llamapar.errors import LlamaparError
from llamapar.execution.engines import local
from llamapar.execution.run_options import RunOptions
from llamapar.execution.ticking import operations, ranks_ticked
from llamapar.panels.background import CANCELLED, DONE, FAILED, IDLE, RUNNING, WRITING
from llamapar.panels.controls import DEFAULTS, ENGINES, STEP
from llamapar.panels.controls import EXPLORER as SCHEMA
from llamapar.panels.explorer_panel import Explorer
from llamapar.panels.runs import about, expected_duration
from llamapar.programs import faults
from llamapar.spmd import setting
from test_explorer import HOSTILE
from test_imports import loaded
from wire import receive

TINY = {
    "preset": "tiny",
    "tp": 2,
    "cp": 1,
    "pp": 1,
    "dp": 1,
    "seq_len": 1024,
    "program": "attention",
    "tab": "run",
}
LONG = {"preset": "llama3.1-8b", "tp": 8, "cp": 4, "pp": 1, "dp": 2, "program": "llama", "tab": "run"}
"""Half a minute on a small machine, so that it is always stopped."""

METHODS = OPTIONS["cp_method"].choices

STOPPED = 2.0
"""Seconds within which a cancelled run has ended."""


def outcome(panel):
    """What the browser is shown of the result."""
    assert panel.wait(120)
    found = json.loads(json.dumps(panel.running, allow_nan=False))["result"]
    assert found is not None, panel.running
    return dict(found)


def table(panel, name):
    return next(t for t in outcome(panel)["tables"] if t["name"] == name)


def until(panel, done, what):
    deadline = time.monotonic() + 60
    while not done(panel.running):
        assert time.monotonic() < deadline, f"{what}: {panel.running}"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def tiny():
    """A quick run that has ended."""
    panel = lp.explorer(**TINY)
    assert panel.wait(120)
    return panel


# -- what starts a run, and what does not ----------------------------------------------------------


def test_the_names_of_choices_are_those_that_run_knows():
    told = "the name of a program goes into _PROGRAMS of llamapar/describe/option_rows.py"
    assert {p for p in programs.PROGRAMS if "_" not in p} == set(OPTIONS["program"].choices), told
    assert set(llamapar.panels.runs._WORK) < set(OPTIONS["program"].choices)
    assert {*ENGINES, "torchrun"} == set(OPTIONS["engine"].choices)
    assert tuple(setting.DTYPES) == OPTIONS["dtype"].choices
    assert tuple(faults.FAULTS) == OPTIONS["fault"].choices


def test_opening_and_moving_import_no_torch_and_start_nothing():
    moves = (
        "import llamapar as lp\np = lp.explorer()\n"
        "for tab in ('heads', 'vocab', 'sequence', 'stages', 'ranks', 'run'):\n    p.set(tab=tab, tp=4)\n"
        "assert p.running['state'] == 'idle', p.running\n"
        "assert p.result is None\np.snapshot()"
    )
    assert loaded(moves, "torch", "llamapar.execution.execute") == set()


def test_a_quick_run_follows_the_controls(tiny):
    panel = lp.explorer(**TINY)
    until(panel, lambda now: now["state"] == DONE, "first run")
    panel.set(tp=4)
    assert outcome(panel)["ok"] is True
    assert panel.result is not None
    assert panel.result.layout.tp == 4
    panel.set(tab="heads")
    panel.set(tab="run")
    assert panel.running["state"] == DONE  # nothing changed, so nothing runs again


@pytest.mark.parametrize(
    ("changes", "quick"),
    [
        ({}, True),
        ({"tp": 4, "cp": 2}, True),
        ({"tp": 4, "cp": 2, "program": "block"}, True),
        ({"tp": 4, "cp": 2, "program": "llama"}, False),
        ({"cp": 8, "cp_method": "ring"}, False),
        ({"engine": "processes"}, False),
        ({"preset": "llama3.1-8b", "tp": 16}, True),
        ({"preset": "llama3.1-405b", "tp": 8}, False),
        ({"preset": "llama3.1-405b", "tp": 128}, True),  # refused at once
    ],
)
def test_quick_is_little_work_on_few_ranks(changes, quick):
    state = lp.explorer(**TINY | {"tab": "heads"})._state.change(changes)
    assert state.plan().quick is quick


# -- what is shown ---------------------------------------------------------------------------------


def test_shows_errors_tape_trace_and_device(tiny):
    shown = outcome(tiny)
    assert shown["ok"] is True
    assert shown["verdict"].startswith("equal to the unsharded model: largest error of outputs ")
    assert shown["verdict"].endswith("where 2e-05 counts as equal (2 ranks, engine local on cpu)")
    assert [note for note in shown["notes"] if note.startswith("device cpu: ")]
    assert [t["name"] for t in shown["tables"]] == ["tape", "errors", "volumes"]
    tape, errors, volumes = shown["tables"]
    assert ["q", "[2, 64, 16, 8]", "[2, 64, 8, 8]", "dim 2 by tp"] in [row[:4] for row in tape["rows"]]
    assert [row[1] for row in errors["rows"]] == ["out", "x", "wq", "wk", "wv", "wo"]
    assert volumes["rows"] == [["tp", "4", "65,536", "65,536", "0", "131,072"]]
    assert [t["wrong"] for t in shown["tables"]] == [[], [], []]
    assert shown["figure"]["data"]


def test_the_genuine_error_stands_beside_the_reason():
    panel = lp.explorer(**TINY | {"preset": "llama3.1-8b", "tp": 16})
    shown = outcome(panel)
    assert shown["ok"] is False
    assert shown["verdict"] == "ranks 0–15 of 16 raised RuntimeError (engine local on cpu)"
    assert [card["what"] for card in shown["cards"]] == [
        "ranks 0–15: RuntimeError: shape '[2, 64, -1, 8]' is invalid for input of size 512"
    ]
    why = shown["cards"][0]["why"]
    assert why.startswith("at attention:")
    assert "k = split_heads(x @ wk.mT, setting.model.head_dim)" in why
    assert why.endswith(
        "tp=16 does not divide n_kv_heads=8 (small llama3.1-8b): a rank would need half a KV head; "
        "tp may be 1, 2, 4, 8"
    )
    tape = table(panel, "tape")
    assert tape["wrong"] == [len(tape["rows"]) - 1]
    assert tape["rows"][-1][:3] == ["k", "[2, 64, 8, 8]", "raises on ranks 0–15"]


@pytest.mark.parametrize("name", few(OPTIONS["fault"].choices, 3, others="deep"))
def test_each_fault_is_shown_where_it_shows(name):
    fault = faults.FAULTS[name]
    layout = {axis: fault.layout.get(axis, 1) for axis in ("tp", "cp", "pp", "dp")}
    preset = "llama3.2-1b" if fault.model else "tiny"
    panel = lp.explorer(**TINY | layout | {"preset": preset})
    panel.cancel()
    panel.set(
        program=fault.program,
        fault=name,
        zero=fault.layout.get("zero", 2),
        dp_replicate=fault.layout.get("dp_replicate", 1),
        sequence_parallel=fault.layout.get("sequence_parallel", True),
        kv_replication=fault.needs.get("kv_replication", False),
        cp_method=fault.needs.get("cp_method", "all_gather"),
        padding="8",
        n_kv_heads=8,
        vocab_size=1001,
    )
    if name == "send_receive_crossed":
        with pytest.raises(LlamaparError, match="the pipeline stands still: no rank can go on"):
            panel.run()
        assert "waiting for activations of micro-batch 0" in panel.running["problem"]["why"]
        return
    if "documents" in fault.needs:  # which the Explorer's runs have none of, and say so
        assert panel.run().ok is True
        assert "it shows in attention with documents=(3, 13), seq_len=16" in str(panel.running)
        return
    assert panel.run().ok is False
    shown = outcome(panel)
    assert shown["verdict"].startswith("DIFFERS from the unsharded model")
    assert table(panel, "errors")["wrong"]
    assert [note for note in shown["notes"] if note == f"{name}: still right is {fault.looks_fine}"]


def test_a_layout_larger_than_the_machine_is_refused_with_both_numbers():
    panel = lp.explorer(**TINY | {"preset": "llama3.1-405b", "tp": 128})
    assert panel.wait(60)
    assert panel.running["state"] == FAILED
    problem = panel.running["problem"]
    assert problem["what"] == "128 ranks, and at most 64 run on one machine"
    assert "bytes; " in problem["why"]
    assert problem["choose"]
    assert panel.result is None
    with pytest.raises(lp.LayoutError, match="128 ranks, and at most 64 run on one machine"):
        panel.run()


def test_whatever_goes_wrong_is_shown(monkeypatch):
    def fails(**_):
        raise MemoryError("no room")

    monkeypatch.setattr(llamapar.execution.execute, "run", fails)
    panel = lp.explorer(**TINY)
    assert panel.wait(60)
    assert panel.running["problem"]["what"] == "MemoryError: no room"
    with pytest.raises(LlamaparError, match="MemoryError: no room"):
        panel.run()
    monkeypatch.undo()
    assert panel.run().ok


def test_the_snapshot_is_the_same_on_every_machine(tiny):
    text = tiny.snapshot().summary
    assert "attention of small tiny, tp=2 cp=1 pp=1 dp=1 (engine local): done" in text
    assert "equal to the unsharded model within 2e-05" in text
    assert "rank 0: 4 collectives: tp 131,072 B" in text
    assert "dim 2 by tp" in text
    assert "device" not in text
    again = lp.explorer(**TINY)
    assert again.snapshot().summary == text  # waits for the run
    assert again.snapshot().spec == tiny.snapshot().spec != {"data": [], "layout": {}}


# -- one at a time, and it can be stopped ----------------------------------------------------------


def test_a_run_is_cancelled_within_two_seconds(sample, soak):
    panel = lp.explorer(**LONG | ({"preset": "llama3.1-405b"} if soak else {}))
    for wait in sample([0.0, 0.05, 0.3, 1.0, 2.5, 5.0], 2):  # counting, cutting, forward, …
        receive(panel, kind="run")
        until(panel, lambda now: now["fraction"], "progress")
        time.sleep(wait)
        asked = time.monotonic()
        receive(panel, kind="cancel")
        assert panel.wait(60)
        assert time.monotonic() - asked < STOPPED
        there = panel.running["result"] is not None  # only its tape was cancelled then
        assert panel.running["state"] == (DONE if there else CANCELLED)
        assert (panel.result is not None) is there
    panel.set(**TINY)
    assert outcome(panel)["ok"] is True


def test_a_result_stays_where_its_tape_is_cancelled_and_another_run_can_begin():
    panel = lp.explorer(**TINY | {"program": "block", "tp": 4, "cp": 4})
    assert (panel.running["state"], panel.running["quick"]) == (IDLE, False), (
        "what is long waits for its button"
    )
    seen = []

    def cancel_the_tape(change):
        now = change.new
        seen.append((now["state"], now["phase"], now["result"] is not None))
        if now["state"] == WRITING:
            panel.cancel()

    panel.observe(cancel_the_tape, "running")
    receive(panel, kind="run")
    assert panel.wait(60)
    assert (WRITING, "the result is there; writing its shape tape", True) in seen
    assert seen[-1] == (DONE, "its shape tape was cancelled", True)
    assert outcome(panel)["verdict"].startswith("equal to the unsharded model")
    assert "tape" not in [part["name"] for part in outcome(panel)["tables"]]
    assert panel.result is not None
    assert panel.result.tape.failed is None  # whole, not the part that was written
    panel.unobserve(cancel_the_tape, "running")
    told = []
    panel.observe(lambda change: told.append(change.new["fraction"]), "running")
    assert panel.run().ok
    assert table(panel, "tape")["rows"]
    far = [fraction for fraction in told if fraction is not None]
    assert far == sorted(far)
    assert 0 < far[0] < far[-1] <= 1


def test_the_latest_wins():
    panel = lp.explorer(**LONG)
    receive(panel, kind="run")
    until(panel, lambda now: now["fraction"], "progress")
    begun = []
    panel.observe(lambda change: begun.append((change.new["title"], change.new["state"])), "running")
    for tp in (1, 2, 4, 2, 1, 4):
        panel.set(**TINY | {"tp": tp})
    assert outcome(panel)["ok"] is True
    assert panel.result is not None
    assert panel.result.layout.tp == 4
    ended = [title for title, state in begun if state not in (RUNNING, WRITING, IDLE)]
    assert ended == ["attention of small tiny, tp=4 cp=1 pp=1 dp=1"]


COUNTED = [
    *(
        (program, {"cp": 2, "cp_method": m}, 0.2)
        for program in ("attention", "loss", "block")
        for m in METHODS
    ),
    ("llama", {"pp": 2, "micro_batches": 2, "seq_len": 8}, 0.15),
]


@pytest.mark.parametrize(("program", "options", "near"), COUNTED)
def test_the_expected_count_is_near_the_real_one(program, options, near):
    made = 0

    def count():
        nonlocal made
        made += ranks_ticked(layout.world // layout.pp)

    degrees = {axis: options[axis] for axis in ("cp", "pp") if axis in options}
    layout = lp.Layout(tp=2, **degrees)
    more = {name: value for name, value in options.items() if name not in degrees}
    task = llamapar.execution.execute.prepare(program, "tiny", RunOptions(layout, **more))[0]
    local.run(task, tick=count)
    assert operations(task) == pytest.approx(made, rel=near)


def test_a_pipeline_runs_with_as_many_stages_as_the_layout_has():
    state = lp.explorer(**TINY | {"tab": "heads", "program": "llama", "pp": 4})._state
    plan = state.plan()
    assert (plan.layout.pp, plan.options["schedule"], plan.options["micro_batches"]) == (4, "1f1b", 8)
    assert not [note for note in plan.notes if "pp=" in note]
    many = state.change({"micro_batches": 64}).plan()
    assert many.options["micro_batches"] == 16
    assert "micro_batches=64 runs as 16" in many.notes[0]
    assert "micro_batches" not in str(state.change({"micro_batches": 64, "pp": 1}).plan().notes)
    assert "schedule" not in state.change({"program": "attention", "engine": "dry"}).plan().options
    large = state.change({"preset": "llama3.1-405b", "tp": 8, "pp": 16}).plan()
    assert large.layout.pp == 8  # 64 ranks are what a machine bears
    assert "pp=16 runs as 8" in large.notes[0]


def test_an_interrupt_cancels(monkeypatch):
    panel = lp.explorer(**LONG)
    monkeypatch.setattr(type(panel._runner), "wait", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        panel.run()
    monkeypatch.undo()
    assert panel.wait(60)
    assert panel.running["state"] == CANCELLED


def test_a_run_of_a_cell_and_of_the_panel_wait_for_each_other():
    panel = lp.explorer(**LONG)
    receive(panel, kind="run")
    until(panel, lambda now: now["fraction"], "progress")
    panel.set(**TINY | {"fault": "drop_all_reduce", "sequence_parallel": False})
    for _ in range(2):
        assert lp.run("attention", "tiny", {"tp": 2}).ok
        assert lp.tape("attention", "tiny", {"tp": 2}).failed is None
    assert outcome(panel)["ok"] is False


def test_real_processes_run_and_stop():
    panel = lp.explorer(**TINY | {"engine": "processes"})
    assert panel.running["state"] == IDLE
    assert panel.run().engine == "processes"
    assert outcome(panel)["ok"] is True
    panel.set(**LONG | {"preset": "llama3.1-405b", "tp": 4, "cp": 1})  # four seconds and more
    receive(panel, kind="run")
    until(panel, lambda now: "running on" in now["phase"], "start")
    time.sleep(0.3)
    asked = time.monotonic()
    panel.cancel()
    assert panel.wait(60)
    assert time.monotonic() - asked < 2 * STOPPED
    assert panel.running["state"] == CANCELLED


def test_random_moves_never_raise(counts):
    draw = random.Random(16)
    panel = lp.explorer(**TINY)
    controls = [c for group in SCHEMA for c in group["controls"] if c["kind"] == "choice"]
    small = TINY | {
        name: DEFAULTS[name] for name in ("engine", "fault", "dtype", "padding", "layer_split", "order")
    }
    small |= {name: DEFAULTS[name] for name in ("chunking", "cp_method", "framework", "zero", *STEP)}
    for _move in range(counts(40, 60, 1_000)):
        roll = draw.random()
        control = draw.choice(controls)
        if roll < 0.3:
            change = {draw.choice(["tp", "cp", "dp"]): draw.choice([1, 2, 3, 4, 8, 16, 128, 2**20])}
        elif roll < 0.6:
            change = {control["name"]: draw.choice([value for value, _ in control["options"]])}
        elif roll < 0.65:
            change = {control["name"]: draw.choice(HOSTILE)}
        elif roll < 0.75:
            change = {"tab": draw.choice(["heads", "run"])}
        else:
            change = small
        receive(panel, kind="set", changes=change)
        if draw.random() < 0.1:
            receive(panel, kind=draw.choice(["cancel", "run"]))
        json.dumps(panel.running, allow_nan=False)
        time.sleep(draw.choice([0, 0, 0.02, 0.2]))
    panel.cancel()
    assert panel.wait(60)
    assert panel.running["state"] != RUNNING
    panel.set(**small | {"tp": 8})  # what was cancelled is not run again by being set again
    panel.set(tp=4)
    assert outcome(panel)["ok"] is True


# -- one rank at true size -------------------------------------------------------------------------


def test_a_dry_run_is_of_one_rank_at_true_size():
    panel = Explorer(preset="llama3.1-405b", tp=8, cp=16, pp=16, dp=8, seq_len=131072, tab="run")
    panel.set(program="llama", engine="dry", dtype="bfloat16", rank=12473, micro_batches=16)
    plan = panel._state.plan()
    assert (plan.quick, plan.notes) == (False, ()), (
        "no move of a control starts it, and nothing is made small"
    )
    result = panel.run()
    assert result.engine == "dry"
    assert result.memory.coord == (1, 7, 1, 6)
    found = outcome(panel)
    assert found["verdict"] == result.summary
    assert found["summary"] == lp.view(result).summary
    assert table(panel, "volumes")["title"] == "Bytes that rank 12473 sends"
    assert result.memory.curve.sentence in table(panel, "memorycurve")["title"]
    assert table(panel, "tape")["title"].endswith("shapes of 27 of 1024 ranks")
    assert result.summary in panel.snapshot().summary
    panel = Explorer(**TINY)
    panel.set(engine="dry", rank=1)
    assert panel.run().summary.startswith("attention  tp=2 cp=1 pp=1 dp=1 (rank 1 of 2, dry): ")
    panel.set(rank=7)
    with pytest.raises(LlamaparError, match="rank"):
        panel.run()


# -- how long it takes ---------------------------------------------------------------------------


def test_a_run_is_expected_to_take_what_one_like_it_took():
    small, twice, far = (lp.explorer(**TINY | {"tp": tp})._state.plan() for tp in (2, 4, 64))
    other = lp.explorer(**TINY | {"program": "mlp"})._state.plan()
    assert (twice.work, far.work) == (2 * small.work, 32 * small.work)
    unknown = "no run like it was timed yet"
    assert expected_duration(small, []) == unknown
    assert expected_duration(small, [(small, 9.0), (small, 4.2)]) == "about 4 s, as the last time"
    assert expected_duration(twice, [(small, 4.2)]) == "about 8 s, by one of 2 ranks that took 4.2 s"
    assert (
        expected_duration(small, [(far, 60.0), (twice, 200.0)])
        == "about 2 min, by one of 4 ranks that took 2e+02 s"
    )
    assert expected_duration(far, [(small, 4.2)]) == unknown  # too far apart to be told from one another
    assert expected_duration(other, [(small, 4.2)]) == unknown
    assert about(0.2) == "less than a second"
