"""Live pictures without a browser: every rung is what the map itself says, whatever the page sends."""

import json
import pickle
import random
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

import llamapar as lp
from llamapar.panels.ladders import MOST_RUNGS, Subject
from llamapar.panels.ladders_of_jobs import JOBS
from llamapar.panels.ladders_of_maps import MAPS
from llamapar.panels.live_panel import SUBJECTS
from llamapar.panels.page import for_browser
from wire import deliver

WIDE = lp.model("llama3-8b").replace(name="yours", n_kv_heads=4)
PAPER = {"model": "llama3.1-405b", "tp": 8, "pp": 16, "dp": 128}

OPENED = [
    ("heads", {"model": "llama3.1-405b", "tp": 16}),
    ("heads", {"model": "llama3.2-3b", "tp": 5, "kv_replication": True}),
    ("heads", {"model": "llama3.1-405b", "tp": 32, "kv_replication": True, "interleave": False}),
    ("vocab", {"model": "llama3-8b", "tp": 12, "padding": "megatron-lm"}),
    ("sequence", {"cp": 3, "seq_len": 8191, "chunking": "contiguous"}),
    ("stages", {"model": "llama3.1-405b", "pp": 16, "virtual_stages": 2}),
    ("ranks", {"tp": 8, "pp": 16, "dp": 128, "rank": 12345}),
    ("ranks", {"tp": 2, "cp": 3, "order": "cp-tp-pp-dp"}),
    ("block", {"model": "llama3.1-405b", "tp": 8, "cp": 16, "pp": 16, "dp": 8, "rank": 4711}),
    ("block", {"model": "llama3.2-3b", "tp": 3, "dp": 2, "seq_len": 100, "global_batch": 7}),
    ("schedule", {"pp": 4, "micro_batches": 8}),
    ("schedule", {"name": "flexible", "pp": 4, "micro_batches": 12, "nc": 6}),
    ("memory", PAPER),
    ("memory", {"model": "llama3-8b", "tp": 2, "cp": 2, "zero": 3, "dp": 4, "framework": "torchtitan"}),
    ("zero", {**PAPER, "zero": 2}),
    ("zero", {"model": "llama3-8b", "zero": 3, "dp": 6, "cp": 2}),
    ("cost", {**PAPER, "recompute": "none"}),
    ("traffic", {"model": "llama3-8b", "tp": 8, "cp": 2, "dp": 4}),
    ("traffic", {**PAPER, "program": "step"}),
    ("inside", {"model": "llama3.1-405b", "tp": 8, "cp": 2, "cp_method": "ring"}),
]
LADDERS = [(what, arguments, knob) for what, arguments in OPENED for knob in SUBJECTS[what].knobs]


def test_every_live_picture_is_opened_here():
    missing = {*MAPS, *JOBS} - {what for what, _ in OPENED}
    assert not missing, "add calls to OPENED"


def test_every_session_knows_the_same_pictures() -> None:
    code = "from llamapar.panels.live_panel import SUBJECTS; print(*SUBJECTS)"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert fresh.split() == [*SUBJECTS] == [*MAPS, *JOBS, "collective", "overlap", "roofline"]


@pytest.mark.parametrize(("what", "arguments", "knob"), LADDERS)
def test_each_rung_is_what_its_own_line_of_code_gives(what, arguments, knob):
    panel = lp.live(what, **arguments, knob=knob)
    values = [rung["value"] for rung in panel.ladder]
    assert len(set(values)) == len(values) <= MOST_RUNGS + 1
    assert values == sorted(values) or isinstance(values[0], str)
    assert arguments.get(knob, SUBJECTS[what].opens[knob]) in values
    for rung in panel.ladder:
        if rung["figure"] is None:
            with pytest.raises(lp.LayoutError, match=re.escape(rung["problem"])):
                eval(rung["code"], {"lp": lp})
            continue
        record = eval(rung["code"], {"lp": lp})
        drawn = lp.view(record)
        assert record.call.arguments[knob] == rung["value"]
        assert str(record.call) == rung["code"]
        assert (rung["figure"], rung["summary"]) == (drawn.spec, drawn.summary)
        assert rung["problem"] == getattr(record, "reason", rung["problem"])
        assert rung["gives"]
        assert rung["says"].endswith(".")
    assert panel.record == eval(panel.code, {"lp": lp})
    assert panel.get_state("ladder")["ladder"] == panel.ladder, "plain values travel as they are"
    assert json.loads(json.dumps(panel.get_state("payload"), allow_nan=False))


@pytest.mark.parametrize("name", sorted(lp.PRESETS))
def test_a_rung_of_heads_counts_what_torch_cuts(name):
    model = lp.model(name)
    kv, width = model.n_kv_heads, model.head_dim
    for rung in lp.live("heads", name).ladder:
        tp = rung["value"]
        assert bool(rung["problem"]) == bool(model.n_heads % tp or kv % tp)
        queries = bool(model.n_heads % tp)
        parts = torch.arange((model.n_heads if queries else kv) * width).chunk(tp)
        sizes = [len(part) for part in parts] + [0] * (tp - len(parts))
        if min(sizes) < max(sizes):
            weight = "wq" if queries else "wk"
            expected = f"{min(sizes):,} to {max(sizes):,} rows of {weight} ({width} a head)"
            assert rung["gives"] == expected
        else:
            said, word = re.fullmatch("(.+?)(?: of a| a)? (query|KV) heads?", rung["gives"]).groups()
            assert Fraction("1/2" if said == "half" else said) == Fraction(sizes[0], width)
            assert word == ("query" if queries else "KV")
        if "cuts through" in rung["says"]:
            owners = torch.cat([torch.full((len(part),), r) for r, part in enumerate(parts)])
            torn = sum(len(head.unique()) > 1 for head in owners.view(kv, width))
            assert f"through {'each' if torn == kv else torn} of the {kv} KV heads" in rung["says"]
            assert torn == len(rung_record(rung).cut_kv_heads)


def rung_record(rung):
    """The map that a rung's line of code makes."""
    return eval(rung["code"], {"lp": lp})  # type: ignore[no-any-return]


def test_a_picture_of_many_ranks_says_what_a_cell_is():
    for dp, said in ((8, "One cell is one rank."), (128, "One cell is a block of 16 ranks.")):
        panel = lp.live("ranks", tp=8, cp=16, pp=16, dp=dp)
        assert panel.ladder[3]["says"].endswith(f" {said}")
        note = panel.snapshot().spec["layout"]["title"]["subtitle"]["text"].replace("<br>", " ")
        assert f"; {said[0].lower()}{said[1:-1]}" in note
        assert panel.record.layout.world == panel.record.block * panel.record.rows * panel.record.cols


# -- together --------------------------------------------------------------------------------------


def test_a_block_says_each_part_of_the_rank():
    job = {"tp": 8, "cp": 16, "pp": 16, "dp": 8, "seq_len": 131072, "global_batch": 128}
    for knob, given in {
        "tp": ["all heads", "1/2 of the heads", "1/4 of the heads", "1/8 of the heads"],
        "cp": ["all tokens", "1/2 of the tokens"],
        "pp": ["all layers", "1/2 of the layers", "31 of 126 layers", "15 of 126 layers"],
        "dp": ["the whole batch", "1/2 of the batch"],
    }.items():
        ladder = lp.live("block", "llama3.1-405b", **job, knob=knob).ladder
        powers = [rung["gives"] for rung in ladder if (n := rung["value"]) & (n - 1) == 0]
        assert powers[: len(given)] == given
    alone = lp.live("block", "llama3-8b")
    assert alone.ladder[0]["says"] == (
        "Rank 0 of 1 works on all layers, all heads, all tokens and the whole batch."
    )


def test_so_do_pictures_of_other_parts_of_the_job():
    job = {"model": WIDE, "tp": 2, "pp": 4}
    memory, cost, zero = (
        lp.live("memory", **job, dp=2),
        lp.live("cost", **job, dp=2),
        lp.live("zero", **job, dp=2),
    )
    heads, stages = lp.live("heads", WIDE, tp=2), lp.live("stages", WIDE, pp=4)
    ranks, schedule = lp.live("ranks", tp=2, pp=4, dp=2), lp.live("schedule", pp=4, micro_batches=8)
    layer, traffic = lp.live("inside", WIDE, tp=2), lp.live("traffic", WIDE, tp=2, pp=4, dp=2)
    other = lp.live("cost", WIDE, tp=2, pp=4, dp=4)
    memory.set(tp=4, pp=8)
    for panel in (heads, cost, zero, ranks, layer, traffic):
        assert "tp=4" in panel.code
    for panel in (stages, schedule, cost, zero, ranks, traffic):
        assert "pp=8" in panel.code
    assert "tp=2, pp=4" in other.code
    memory.set(zero=3)
    assert "zero=3" in zero.code
    memory.undo()
    memory.undo()
    for panel in (heads, cost, zero, ranks, layer, traffic):
        assert "tp=2" in panel.code
    cost.set(seq_len=4096)
    assert [panel.code.count("seq_len=4096") for panel in (memory, layer, traffic)] == [1, 1, 1]


def test_undo_takes_back_one_change_after_another():
    panel = lp.live("stages", "llama3-8b", pp=4)
    for pp in (8, 2, 32):
        panel.set(pp=pp)
    assert panel.past == 3
    codes = []
    while panel.past:
        panel.undo()
        codes.append(panel.code)
    assert codes == [f"lp.stages('llama3-8b', pp={pp})" for pp in (2, 8, 4)]
    panel.undo()
    assert panel.code == "lp.stages('llama3-8b', pp=4)"


RECORDS = [
    lp.heads("llama3.1-405b", tp=16, kv_replication=True, interleave=False),
    lp.vocab("llama3-8b", tp=3, padding="megatron-lm"),
    lp.vocab("llama3-8b", tp=3, padding=lp.Padding(64, per_tp=True)),
    lp.sequence({"cp": 4, "tp": 2}, 100, chunking="contiguous"),
    lp.stages("llama3.1-405b", pp=8, layer_split="remainder last"),
    lp.ranks(lp.Layout(tp=2, cp=2, order="cp-tp-pp-dp"), 3),
    lp.ranks(tp=2, pp=3, rank=4, model=WIDE, chunking="contiguous", layer_split="remainder last"),
    lp.schedule("zbv", pp=4, micro_batches=8),
    lp.memory(WIDE, tp=2, seq_len=4096, grad_dtype="bfloat16", recompute="full", kernels="eager"),
    lp.zero("llama3-8b", dp=4, zero=3, parameter="w2", dtype="bfloat16"),
    lp.cost("llama3-8b", lp.Layout(tp=2, dp=4), seq_len=4096, global_batch=64, precision="float8"),
    lp.traffic("mlp", "llama3-8b", {"tp": 4, "sequence_parallel": False}, seq_len=4096, dtype="bfloat16"),
    lp.inside("llama3-8b", tp=2, seq_len=4096, rank=1),
    lp.cost("llama3-8b", tp=2, seq_len=4096, gpu={"base": "h100-80gb", "hbm_rate": 3e12}),
    lp.memory("llama3-8b", pp=2, seq_len=4096, layer_split=[15, 17]),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record.call))
def test_a_record_knows_its_call_and_is_shown_as_it_is(record):
    assert eval(str(record.call), {"lp": lp}) == record
    panel = record.live()
    assert panel.record == record
    assert eval(panel.code, {"lp": lp}) == record
    assert lp.live(panel.record).code == panel.code
    assert pickle.loads(pickle.dumps(panel.code)) == panel.code


def test_a_call_is_no_part_of_what_a_record_says():
    one, other = lp.heads("llama3-8b", tp=8), lp.heads("llama3-8b", lp.Layout(tp=8, dp=2))
    assert one == other
    assert (repr(one), hash(one)) == (repr(other), hash(other))
    assert [str(one.call), str(other.call)] == [
        "lp.heads('llama3-8b', tp=8)",
        "lp.heads('llama3-8b', tp=8, dp=2)",
    ]
    line = lp.schedule("1f1b", pp=4, micro_batches=8).timeline(backward=1.5)
    assert str(line.call) == "lp.schedule('1f1b', pp=4, micro_batches=8).timeline(backward=1.5)"
    assert str(lp.inside("llama3-8b", tp=2, seq_len=64).at(3).call).endswith(", seq_len=64).at(3)")
    assert replace(one, tp=4).call is None, "what was changed by hand was not made by that call"
    assert str(lp.reasons(lp.cost("tiny", tp=2, seq_len=64)).call) == (
        "lp.reasons(lp.cost('tiny', tp=2, seq_len=64))"
    )


def test_what_cannot_be_shown_is_refused_with_what_can():
    with pytest.raises(
        lp.LayoutError, match="known are heads, vocab, sequence, stages, ranks, block, schedule, mem"
    ):
        lp.live("head")
    made = r"cannot be shown live\n  why  live pictures are made by lp\.heads, lp\.vocab"
    for record in (
        lp.ffn("llama3-8b", tp=2),
        lp.schedule("1f1b", pp=2, micro_batches=4).timeline(),
        replace(lp.ranks(tp=2), rank=1),
    ):
        with pytest.raises(lp.LayoutError, match=f"^{type(record).__name__} {made}"):
            record.live()
    with pytest.raises(lp.LlamaparError, match="sequence takes no model: it is the same for all"):
        lp.live("sequence", "llama3-8b")
    with pytest.raises(
        lp.LayoutError, match="argument='cp' is not known\n  why  known are model, tp, kv_rep"
    ):
        lp.live("heads", "llama3-8b", cp=2)
    with pytest.raises(lp.LayoutError, match="'tp' is not known\n  why  known are kind, ranks, mib, gpu\n"):
        lp.live("collective", tp=2)
    assert lp.live("collective", ranks=16).code == "lp.course.collective(ranks=16)"
    with pytest.raises(lp.LayoutError, match="knob='dp' is not known\n  why  known are tp, pp, zero"):
        lp.live("memory", "llama3-8b", knob="dp")
    panel = lp.live("heads", "llama3-8b", tp=8)
    with pytest.raises(lp.LayoutError, match="tp must be a whole number from 1"):
        panel.set(tp=0)
    assert panel.code == "lp.heads('llama3-8b', tp=8)", "a refused change changes nothing"
    layer = lp.live("inside", "llama3-8b", tp=8)
    with pytest.raises(lp.LayoutError, match="tp=3 does not divide n_heads=32"):
        layer.set(tp=3)
    assert layer.code == "lp.inside('llama3-8b', tp=8, seq_len=8192)"


def test_a_step_that_the_function_refuses_stands_there_with_its_reason():
    panel = lp.live("inside", "llama3-8b", tp=8)
    panel.set(tp=16)
    assert panel.record is None
    assert panel.payload["values"]["tp"] == 16
    said = panel.snapshot().summary.splitlines()
    assert "> TP 16: refused ✕ tp=16 does not divide n_kv_heads=8" in said
    assert said[-1] == "tp=16 does not divide n_kv_heads=8: a rank computes with whole heads."
    assert "image" not in str(panel._repr_mimebundle_()[0].keys())
    panel.undo()
    assert panel.record == lp.inside("llama3-8b", tp=8, seq_len=8192)


def test_another_knob_has_another_ladder_and_the_same_picture():
    panel = lp.live("memory", **PAPER)
    before, shown = panel.code, panel.snapshot().spec
    panel.set(knob="recompute")
    assert [rung["name"] for rung in panel.ladder] == ["none", "selective", "full"]
    assert (panel.payload["knob"], panel.past) == ("recompute", 0)
    assert panel.record == eval(before, {"lp": lp})
    assert panel.snapshot().spec == shown
    panel.set(recompute="full", knob="pp")
    assert panel.payload["knobs"] == [
        ["tp", "TP", "TP 8"],
        ["pp", "PP", "PP 16"],
        ["zero", "ZeRO", "ZeRO 1"],
        ["recompute", "recompute", "recompute: full"],
    ]
    panel.undo()
    assert panel.code == before


def test_steps_on_a_ladder_count_nothing_anew(monkeypatch):
    panel = lp.live("memory", WIDE, tp=8)
    made = []
    rung = Subject._rung

    def counted(subject, values, knob):
        made.extend([knob] if subject is SUBJECTS["memory"] else [])  # pictures of other tests may follow
        return rung(subject, values, knob)

    monkeypatch.setattr(Subject, "_rung", counted)
    for tp in (4, 1, 2, 8):
        panel.set(tp=tp)
    assert made == []


HOSTILE = [
    *(0, -1, 2.5, "8", "", "<script>alert(1)</script>", None, True, False, [], {}, [[1]], [1, 2]),
    *(10**30, -(10**30), 10**5000, float("nan"), float("inf"), "x" * 10_000, "\ud800", {"tp": 8}),
]


def test_whatever_a_page_sends_is_answered_once_and_the_picture_stands(counts):
    draw = random.Random(7)
    panels = [lp.live(what, **arguments) for what, arguments in OPENED]
    for number in range(counts(200, 600, 2000)):
        panel = draw.choice(panels)
        name = draw.choice([*panel.payload["values"], "what", "", "cp", "knob"])
        value = draw.choice([*HOSTILE, 1, 2, 3, 16, "llama3-8b", "none", "tp", "full", "pp"])
        kind = draw.choice(("set", "set", "set", "undo", "nonsense"))
        deliver(panel, {"kind": kind, "id": f"p-{number}", "seq": 0, "changes": {name: value}})
        if panel.record is not None:
            assert eval(panel.code, {"lp": lp}) == panel.record
        assert for_browser(panel.payload) == panel.payload
        assert panel.payload["values"][panel.payload["knob"]] in [r["value"] for r in panel.ladder]


def test_a_line_brings_back_every_picture_with_its_knob():
    panel = lp.live("heads", tp=3)
    for what, subject in SUBJECTS.items():
        other = lp.live(what)
        knob = list(subject.knobs)[-1]
        other.set(knob=knob)
        other.set(**{knob: other._state.ladder[-1].value})
        panel.restore(other.line)  # from another subject, too
        assert panel.line == other.line
        assert panel._state.values == other._state.values
        assert panel.snapshot().summary == other.snapshot().summary
    own = lp.ModelConfig(dim=128, n_layers=4, n_heads=16, n_kv_heads=8, ffn_dim=384, vocab_size=1024)
    panel.restore(lp.live("heads", own, tp=16).line)
    assert panel._state.values["model"] == own
    panel.undo()
    assert panel._state.what == list(SUBJECTS)[-1]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("__import__('os')", "cannot be read"),
        ("lp.live(x)", "cannot be read"),
        ("lp.live('heads', " + "(" * 5000, "cannot be read"),
        ("lp.live('heads', tp=" + "9" * 5000 + ")", "cannot be read"),
        ("lp.heads('tiny')", "the line calls lp.heads"),
        ("lp.live(lp.run('mlp'))", "'lp.run' is no value here"),
        ("lp.live('heads', lp.ModelConfig(di=3))", "'lp.ModelConfig' is no value here"),
        ("lp.live(lp.heads('tiny', tq=3))", "'lp.heads' is no value here"),
        ("lp.live('heads', tq=3)", "argument='tq' is not known"),
        ("lp.live('heads', tp=[1])", "tp must be a whole number"),
    ],
)
def test_a_line_that_says_no_picture_is_refused_and_nothing_moves(line, what):
    panel = lp.live("heads", tp=2)
    before = panel.line
    with pytest.raises(lp.LlamaparError, match=re.escape(what)):
        panel.restore(line)
    assert panel.line == before
