"""Inside a layer, and around a ring: the steps are the program's, by its trace, its tape and lp.traffic."""

import pytest

import llamapar as lp
from llamapar.describe.hardware import hardware
from llamapar.timing.layer import Conditions, layer
from test_figures import stored_size

LAYOUTS = {
    "both": lp.Layout(tp=2, cp=2),
    "no sequence parallelism": lp.Layout(tp=2, cp=2, sequence_parallel=False),
    "tp alone": lp.Layout(tp=2),
    "cp alone": lp.Layout(cp=4),
}
RUN = {"seq_len": 32, "dtype": "bfloat16", "global_batch": 1}


@pytest.mark.parametrize("cp_method", ["all_gather", "ring", "ulysses", "ulysses:2"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_collectives_are_those_that_the_program_ran(name, cp_method):
    """In its order, pass by pass, with their bytes, as a run recorded them."""
    layout = LAYOUTS[name]
    found = lp.inside("tiny", layout, seq_len=32, cp_method=cp_method)
    trace = lp.run("block", "tiny", layout, force=True, cp_method=cp_method, **RUN).trace
    for phase in ("forward", "backward"):
        ran = [(e.kind, e.axis, e.sent) for e in trace.events if e.phase == phase]
        said = [
            (term.kind, term.axis, term.sent // term.count)
            for _, step in found.of(phase)
            for term in step.sent
            for _ in range(term.count)
        ]
        # A ring's rounds are between those of the attention, and autograd orders the ways back of Q, K and V.
        key = list if cp_method == "all_gather" else sorted
        assert key(said) == key(ran), phase
        for axis in ("tp", "cp"):
            assert sum(s.bytes for _, s in found.of(phase) if s.axis == axis) == trace.bytes(axis, phase)


@pytest.mark.parametrize("cp_method", ["ulysses", "ulysses:2"])
def test_traded_heads_have_the_shapes_of_a_run(cp_method):
    found = lp.inside("tiny", tp=2, cp=4, seq_len=32, cp_method=cp_method)
    steps = {(step.row.name, step.row.sends): step.shapes[0] for _, step in found.of("forward")}
    trace = lp.run("block", "tiny", {"tp": 2, "cp": 4}, cp_method=cp_method, force=True, **RUN).trace
    for shape in steps["q, k, v", "tokens to heads"].values():
        assert shape in trace.shapes
    assert steps["heads", "heads to tokens"]["heads"] == (1, 8, 8, 8)
    assert ("k, v", "K and V") in steps or cp_method == "ulysses"


def test_what_a_rank_holds_is_what_the_tape_shows():
    layout = lp.Layout(tp=2, cp=2)
    found = lp.inside("tiny", layout, seq_len=32)
    tape = lp.tape("block", "tiny", layout, seq_len=32)
    named = {"x": ("x", "x"), "q, k, v": ("q", "q"), "w1, w3": ("hidden", "hidden"), "sum": ("return", "x")}
    compared = 0
    for _, step in found.of("forward"):
        on_tape, tensor = named.get(step.row.name, ("", ""))
        for line in tape.steps:
            if (line.name, line.code) == (on_tape, step.code[1]):
                assert line.local[0] == step.shapes[0][tensor], step.name
                compared += 1
    assert compared == 10  # the way in, and out, is the same line in attention and MLP, and each meets both


@pytest.mark.parametrize("cp_method", ["all_gather", "ring", "ulysses:16"])
def test_bytes_are_those_of_traffic_and_seconds_those_of_cost(cp_method):
    layout, asked = lp.Layout(tp=8, cp=16, dp=8, pp=16), {"seq_len": 131072, "cp_method": cp_method}
    asked |= {"kv_replication": True}
    found = lp.inside("llama3.1-405b", layout, rank=6043, **asked)
    one = layout.replace(dp=1, pp=1)
    sent = lp.traffic("block", "llama3.1-405b", one, dtype="bfloat16", **asked)
    how = Conditions(hardware("h100-80gb"), recompute="none", cp_method=cp_method)
    timed = layer(how, lp.model("llama3.1-405b"), layout, 131072, 1)
    for phase, seconds in zip(("forward", "backward"), timed.seconds, strict=True):
        assert found.seconds(phase) == pytest.approx(seconds, rel=1e-9)
        for axis in ("tp", "cp"):
            steps = [step.bytes for _, step in found.of(phase) if step.axis == axis]
            assert sum(steps) == sent.bytes(axis, phase) > 0


def test_every_step_quotes_a_line_and_says_what_it_waits_for():
    for cp_method in ("all_gather", "ring", "ulysses"):
        for step in lp.inside("tiny", {"tp": 2, "cp": 2}, seq_len=32, cp_method=cp_method).steps:
            assert step.code[0].startswith("programs/")
            assert step.row.line in step.code[1]
            assert step.waits
    gather = lp.inside("tiny", {"tp": 2, "cp": 2}, seq_len=32).steps[3]
    assert (gather.name, gather.waits) == ("all-gather k, v", "q, k, v on every rank of its CP group")


PAPER = lp.inside("llama3.1-405b", {"tp": 8, "cp": 16, "pp": 16, "dp": 8}, seq_len=131072, rank=6043)


@pytest.mark.parametrize(
    "record",
    [PAPER, PAPER.at(4), PAPER.at(16), lp.inside("llama3-8b", {"cp": 8}, seq_len=8192, cp_method="ring")],
    ids=["whole", "at 4", "at 16", "ring"],
)
def test_the_picture_joins_the_ranks_of_a_group_and_no_others(record):
    drawn = lp.view(record)
    assert drawn.figure.to_plotly_json()
    assert stored_size(drawn) < 40_000
    places = drawn.spec["layout"]["xaxis"]["ticktext"]
    ranks = [int(text.removeprefix("rank ").partition("<")[0]) for text in places]
    assert len(ranks) == 4
    steps = dict(record.of(record.phase))
    joined = {}
    for trace in drawn.spec["data"]:
        if trace.get("mode") == "lines+markers":
            ends = [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if x is not None]
            for (start, y), (end, _) in zip(ends[::2], ends[1::2], strict=True):
                joined.setdefault(round(y + 0.42), set()).add((ranks[start], ranks[end]))
    assert joined.keys() == {n for n, step in steps.items() if step.sent}
    for n, pairs in joined.items():
        step = steps[n]
        near = {(a, b) for a in ranks for b in ranks if a != b and b in record.layout.group(step.axis, a)}
        stride = record.layout.stride(step.axis)
        assert pairs == (near if step.kind != "ring" else {(a, b) for a, b in near if b - a == stride})


def test_what_comes_after_the_cursor_is_pale():
    for step in (0, 4):
        pale = [trace for trace in lp.view(PAPER.at(step)).spec["data"] if trace.get("opacity", 1) < 1]
        assert {y for trace in pale for y in trace["y"] if y == round(y or 0)} == (
            set(range(5, 13)) if step else set()
        )
    note = lp.view(PAPER.at(4)).summary.splitlines()[-1]
    assert note.startswith("step 4 of 24, all-gather k, v: 2 × 31.5 MB over CP; waits for q, k, v on every")
    assert note.endswith("k, v = whole_sequence(k, mesh, setting), whole_sequence(v, mesh, setting)")


def test_the_explorer_steps_through_and_stays_in_the_layer():
    panel = lp.explorer(tab="layer", tp=8, cp=16, pp=16, dp=8, seq_len=131072, step=16, rank=6043)
    assert panel.payload["summary"] == lp.view(PAPER.at(16)).summary
    assert panel.payload["figure"]["layout"]["meta"] == {"steps": 24}
    panel.set(tp=1, cp=1, seq_len=8192, pp=1, dp=1)
    assert "step 14 of 14" in panel.payload["summary"]  # the last there is
    panel.undo()
    assert panel.job.layout.tp == 8


def test_the_sequence_tab_has_documents_and_goes_around_a_ring():
    panel = lp.explorer(tab="sequence", tp=1, cp=4, pp=1, dp=1, seq_len=8192, documents="1000, 5000, 2192")
    said = lp.sequence({"cp": 4}, 8192, documents=(1000, 5000, 2192))
    assert panel.payload["summary"] == lp.view(said).summary
    panel.set(cp_method="ring", step=3)
    assert panel.payload["steps"]["step"] == [0, 1, 2, 3, 4]
    assert panel.payload["summary"] == lp.view(said.at(2)).summary
    assert "ring step 1 of 4" in lp.view(said.at(0)).summary
    panel.set(documents="3072", step=0)
    assert "3 documents" in panel.payload["summary"]  # of 3,072, and what is left
    for wrong in ("1", "0", "x", "8,8", True, [], 10**5000):
        panel.set(documents=wrong)
        assert panel.payload["problem"]["what"], wrong
        assert panel.payload["figure"] is None
    panel.set(documents=None)
    assert panel.payload["figure"]
