"""The Explorer's four answers, its Time and Plan tabs, and its steps back and forth, without a browser."""

import random
from typing import Any

import pytest

import llamapar as lp
from llamapar.panels.controls import EXPLORER as SCHEMA
from llamapar.panels.slider_steps import steps_of
from llamapar.panels.state import State
from wire import AT_8K, receive

SMALL = {"tp": 2, "pp": 1, "dp": 2, "gpus": 4, "seq_len": 4096, "zero": 1}


def texts(panel, which="now"):
    return [answer["text"] for answer in panel.answers[which]]


def test_all_answers_take_one_sequence_length():
    """Without one the model's longest, in numbers and pictures; and each answer says so."""
    for model, longest in (("llama3-8b", 8192), ("llama3.1-8b", 131072)):
        panel, said = lp.explorer(model, tab="memory"), lp.explorer(model, tab="memory", seq_len=longest)
        assert texts(panel) == texts(said)
        assert panel.payload["summary"] == said.payload["summary"]
        assumed = " (no length is set: the model's longest)"
        fits, fast = (answer["more"] for answer in panel.answers["now"][1:3])
        assert fits.endswith(f" GiB with {longest:,} tokens{assumed}: it does not fit an h100-80gb")
        assert f" {longest:,} tokens{assumed} takes" in fast
        assert fast.replace(assumed, "") == said.answers["now"][2]["more"]
    assert panel.answers["now"][1]["verdict"] == "no"  # weights and states alone are too much
    panel = lp.explorer("llama3.2-1b")
    _, fits, *_ = panel.answers["now"]
    assert " GiB with 131,072 tokens (no length" in fits["more"]
    assert fits["verdict"] == "unsure"  # a shorter one may fit
    panel.set(seq_len=131072)
    assert panel.answers["now"][1]["verdict"] == "no"
    panel.set(tp=8, cp=8, seq_len=None)
    assert panel.answers["now"][1]["verdict"] == "yes"  # so does every shorter one


def test_the_time_tab_draws_the_pinned_layout_beside():
    panel = lp.explorer(**AT_8K, tab="time")
    one = panel.payload["figure"]
    panel.pin()
    panel.set(micro_batch=1, global_batch=2048)
    cost = lp.cost("llama3.1-405b", panel.job.layout, seq_len=8192, global_batch=2048)
    bars = [trace for trace in panel.payload["figure"]["data"] if trace["type"] == "bar"]
    assert sum(trace["x"][0] for trace in bars) == pytest.approx(cost.step_seconds)
    assert [len(trace["x"]) for trace in bars] == [2] * len(bars)
    assert [trace["x"][1] for trace in bars] == [trace["x"][0] for trace in one["data"][:-1]]
    assert panel.answers["pinned"]["answers"][2]["text"] != texts(panel)[2]
    panel.swap()
    assert panel.payload["values"]["global_batch"] is None
    assert panel.payload["values"]["tab"] == "time"
    panel.pin()
    assert panel.answers["pinned"] is None


def test_steps_go_back_and_forth_and_keep_what_is_looked_at():
    panel = lp.explorer()
    panel.set(tab="time")
    assert panel.past == 0
    panel.set(tp=4)
    panel.set(model=lp.PRESETS["llama3.1-8b"])
    panel.set(tab="heads")
    for _ in range(3):  # one more than there is
        receive(panel, kind="undo")
    assert (panel.job.layout.tp, panel.job.model.name, panel.payload["values"]["tab"]) == (
        8,
        "llama3.1-405b",
        "heads",
    )
    receive(panel, kind="redo")
    receive(panel, kind="redo")
    assert (panel.job.layout.tp, panel.job.model.name, panel.future) == (4, "llama3.1-8b", 0)
    receive(panel, kind="reset")
    assert panel.job.layout == lp.explorer().job.layout
    receive(panel, kind="undo")
    assert panel.job.layout.tp == 4
    panel.set(dp=2)
    assert panel.future == 0


def test_the_plan_tab_searches_beside_the_panel_and_adopts():
    panel = lp.explorer("llama3.2-1b", **SMALL, tab="plan", global_batch=8)
    panel.set(tp=1)  # the panel goes on meanwhile, and the question is the same
    assert panel.wait(60)
    found = panel.found
    assert found is not None
    assert panel.planned["state"] == "done"
    said = lp.plan("llama3.2-1b", gpus=4, seq_len=4096, global_batch=8, top=120)
    assert [one.layout for one in found.layouts] == [one.layout for one in said.layouts]
    points = panel.planned["figure"]["data"][1]
    assert points["y"] == pytest.approx([one.cost.step_seconds for one in said.layouts])
    assert said.layouts[-1].why in points["hovertext"][-1]
    place = len(said.layouts) - 1
    receive(panel, kind="adopt", place=place)
    chosen = said.layouts[place]
    assert panel.job.layout.replace(sequence_parallel=None) == chosen.layout.replace(sequence_parallel=None)
    assert panel.payload["values"]["micro_batch"] == chosen.job.micro_batch
    assert panel.wait(0)
    mark = panel.planned["figure"]["data"][2]
    assert mark["y"] == pytest.approx([chosen.cost.step_seconds])
    assert panel.planned["title"] in panel.snapshot().summary
    with pytest.raises(lp.LlamaparError, match=f"place={place + 1}: there are"):
        panel.adopt(place + 1)


def test_a_search_is_stopped_with_the_best_so_far():
    panel = lp.explorer("llama3.1-70b", tp=8, pp=4, dp=2, gpus=64, tab="plan", global_batch=512)
    receive(panel, kind="cancel")
    assert panel.wait(60)
    assert panel.planned["state"] == "cancelled"
    assert "stopped" in panel.planned["summary"]
    panel.set(tab="heads")
    assert panel.payload["figure"] is not None


def test_any_order_of_steps_leaves_what_the_controls_say(soak):
    """A panel after any walk shows what a new one shows with the same controls."""
    draw = random.Random(17)
    names = [c["name"] for group in SCHEMA for c in group["controls"] if c["kind"] in ("axis", "bool")]
    panel = lp.explorer()
    for _ in range(200 if soak else 26):
        kind = draw.choice(["set", "set", "set", "undo", "redo", "pin", "swap", "reset"])
        name = draw.choice(names)
        value = 2 ** draw.randrange(8) if name in ("tp", "cp", "pp", "dp") else draw.random() < 0.5
        more = {"changes": {name: value, "tab": draw.choice(["heads", "time"])}} if kind == "set" else {}
        assert receive(panel, kind=kind, **more) is None
        values = panel.payload["values"]
        fresh = lp.explorer(
            **{k: v for k, v in values.items() if k != "preset"} | {"preset": values["preset"]}
        )
        assert texts(fresh) == texts(panel)
        assert fresh.line == panel.line
        assert fresh.payload["findings"] == panel.payload["findings"]


NO_JOB = ("job", "preset", "fault", "program", "engine")


@pytest.mark.parametrize("preset", ["llama3.1-405b", "llama3.2-1b", "qwen2.5-72b"])
def test_a_line_brings_a_job_back(preset, soak):
    """In the panel, in Python and in the command: of any job that the controls make."""
    draw = random.Random(preset)
    controls = [c for group in SCHEMA for c in group["controls"] if c["kind"] in ("choice", "bool", "axis")]
    named = [control for control in controls if control["name"] not in NO_JOB]
    for _ in range(40 if soak else 5):
        panel, changes = lp.explorer(preset), dict[str, Any]()
        for control in draw.sample(named, 6):
            choices = [value for value, _ in control.get("options", [])] or [1, 2, 4, True]
            changes[control["name"]] = draw.choice(
                [n for n in choices if (n is True) == (control["kind"] == "bool")]
            )
        dim = panel.job.model.dim if draw.random() < 0.5 else 8192
        panel.set(
            **changes | {"seq_len": 4096, "micro_batch": 2, "dim": dim}
        )  # each set is a search for fixes
        assert panel.report is not None
        again = lp.explorer(panel.line)
        assert again.report is not None
        ours = panel.report.job  # no rule asks for RoPE's scaling: a line of a custom model leaves it out
        model = ours.model if ours.model.name == preset else ours.model.replace(rope_scaling=None)
        assert again.report.job == ours.replace(model=model)
        assert again.report.judge == panel.report.judge
        assert again.line == panel.line
        receive(panel, kind="reset")
        assert receive(panel, kind="restore", text=again.line) is None
        assert panel.report.job == again.report.job


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "'' sets nothing"),
        ("--tp", "--tp has no value"),
        ("--typ 8", "option='typ' is not known"),
        ("--model 'x", "the line cannot be read: No closing quotation"),
        ("llamapar check", "'llamapar check' sets nothing"),
        ("llamapar check llama3-8b --tp 4 --cp", "'llama3-8b' is one word too many"),
        ("llamapar check --model lama3-8b --tp 4", "'lama3-8b' is neither a preset nor a file"),
    ],
)
def test_a_line_that_says_nothing_is_refused(line, told):
    panel = lp.explorer()
    problem = receive(panel, kind="restore", text=line)
    assert problem is not None
    assert told in problem["what"]
    assert panel.job.layout == lp.explorer().job.layout


@pytest.mark.parametrize(
    ("line", "mended"),
    [
        ("llamapar check llama3-8b --tp 4", "llamapar check --model llama3-8b --tp 4"),
        ("llamapar check --model=lama3-8b --tp 4", "llamapar check --model=llama3-8b --tp 4"),
        ("--model llama3-8b --tp 4 --seqlen 4096", "--model llama3-8b --tp 4 --seq-len 4096"),
    ],
)
def test_a_word_too_many_or_misspelt_is_mended_by_a_button(line, mended):
    panel = lp.explorer()
    problem = receive(panel, kind="restore", text=line)
    assert problem is not None
    assert problem["choose"][0] == [mended, {"line": mended}]
    assert receive(panel, kind="restore", text=mended) is None
    assert (panel.job.model.name, panel.job.layout.tp) == ("llama3-8b", 4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tp": 16, "dp": 4, "framework": "vllm"},
        {
            "layer_split": "remainder last",
            "virtual_stages": 1,
            "gpus": 12288,
            "pp": 12,
            "chunking": "contiguous",
        },
        {"layer_split": "equal", "virtual_stages": 1, "gpus": 896, "pp": 14, "cp": 1, "global_batch": None},
    ],
)
def test_the_sentence_is_what_the_maps_of_the_controls_say(changes):
    state = State.opened({}).change(changes)
    report = state.outcome.report
    assert report
    job, at = report.job, report.job.layout.coord_of(state.values["rank"])
    split = report.judge.layer_split if report.judge and not job.layer_split else job.layer_split
    stages = lp.stages(job.model, job.layout, layer_split=split or "balanced ends").stages
    layers = sum(len(stage.layers) for stage in stages if stage.rank == at.pp)
    tokens = lp.sequence(job.layout, job.seq_len, chunking=state.values["chunking"]).rank(at.cp).chunks
    rows = lp.heads(job.model, job.layout).rank(at.tp).q_rows
    batch = f"{job.sequences // job.layout.dp} of {job.sequences} sequences" if job.sequences else ""
    held = {
        "tp": f"{len(rows) // job.model.head_dim} of 128 query heads",
        "pp": f"{layers} of 126 layers",
        "cp": f"{sum(map(len, tokens)):,} of 131,072 tokens" if job.layout.cp > 1 else "all 131,072 tokens",
        "dp": batch or f"1/{job.layout.dp} of the batch",
    }
    assert {axis: text for text, axis in state.sentence if axis} == held
    said = f"Rank {state.values['rank']:,} computes {held['tp']} in {held['pp']}, on {held['cp']} of "
    said += f"{held['dp']}."
    assert "".join(text for text, _ in state.sentence) == said


def test_where_the_layout_is_refused_the_reason_stands_in_the_sentence_s_place():
    panel = lp.explorer()
    panel.set(tp=16)
    assert panel.payload["sentence"] == [
        ("", ""),
        ("tp=16", "tp"),
        (" does not divide n_kv_heads=8: a rank would need half a KV head.", ""),
    ]
    assert panel.snapshot().summary.startswith("tp=16 does not divide n_kv_heads=8: a rank would need half")
    panel.set(tp=8, rank=10**6)
    assert panel.payload["sentence"] == [("rank=1000000: rank must be a whole number from 0 to 16383.", "")]


def test_a_slider_s_steps_keep_a_model_whole():
    """Each dim at each of its steps is a model with the others as they are."""
    for preset in lp.PRESETS:
        state = State.opened({"preset": preset})
        steps = steps_of(state.values, state.base)
        for name in ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size"):
            assert state.values[name] in steps[name]
            for value in steps[name]:
                model = state.change({name: value}).model()
                assert getattr(model, name) == value
                assert model.head_dim % 2 == 0
    off = State.opened({}).change({"dim": "x", "n_heads": None, "vocab_size": 128_257})
    steps = steps_of(off.values, off.base)
    assert 16384 in steps["dim"]
    assert {128_256, 128_257} <= {*steps["vocab_size"]}


# -- beside a pinned job ---------------------------------------------------------------------------


def test_a_pinned_job_s_answers_stand_beside_these():
    panel = lp.explorer()
    first = texts(panel)
    panel.pin()
    panel.set(tp=4)
    assert panel.answers["pinned"]["title"] == "llama3.1-405b tp=8 cp=16 pp=16 dp=8"
    assert texts(panel, "now")[1:] != first[1:]
    pinned = [answer["text"] for answer in panel.answers["pinned"]["answers"]]
    assert pinned == first
    panel.swap()
    assert (texts(panel), panel.answers["pinned"]["title"]) == (first, "llama3.1-405b tp=4 cp=16 pp=16 dp=16")
