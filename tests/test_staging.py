"""A pipeline that is watched: its operations, what is sent, the update after it, each beside a run's own."""

import json

import pytest
import torch

import llamapar as lp
from inputs import few
from llamapar import Layout
from llamapar.execution.body import reference
from llamapar.execution.following import source_of
from llamapar.execution.watching import VOCAB_PADDING, followed, watch_task, watched
from llamapar.panels.film import film
from llamapar.place.orders import ORDERS
from llamapar.programs import PROGRAMS
from llamapar.programs.teaching import MARKS, ROWS, word
from stepping import of_micro_batch

EIGHT = Layout(pp=2, tp=2, dp=2)


def tape_of(program, layout, **options):
    return watched(watch_task(program, None, layout, options=options))


def run_of(task, program):
    """lp.run of the same program, on the same layout, with the same tensors."""
    setting = task.setting
    run = lp.run(
        program,
        setting.model,
        setting.layout,
        inputs=dict(task.given),
        seq_len=setting.seq_len,
        global_batch=setting.global_batch,
        micro_batches=setting.micro_batches,
        schedule=setting.schedule,
        padding=VOCAB_PADDING,
        dtype="float64",
        force=True,
    )
    assert run.ok
    return run


def kinds(step):
    return {axis: (place.kind, place.dim) for axis, place in step.places.items()}


def operations(tape):
    """The first step of each operation of the schedule, in order."""
    found = [s for s in tape.steps if not s.depth and " of micro-batch " in s.code and "at stage" in s.code]
    return list({step.code: step for step in reversed(found)}.values())[::-1]


def sends(tape):
    return [(n, s) for n, s in enumerate(tape.steps) if s.event and s.event.kind == "send"]


def near(own, other):
    return own.shape == other.shape and own.double().allclose(other.double(), rtol=1e-9, atol=1e-12)


# -- teaching data -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", few([Layout(pp=2), Layout(pp=4, tp=2), Layout(tp=4, pp=2)], 1), ids=str)
def test_each_stage_draws_letters_of_its_own(layout):
    """The word itself is at the end, by the reference on one process, not by what is watched."""
    task = watch_task("llama", None, layout)
    setting, model = task.setting, task.setting.model
    letters = word(setting, model.dim - ROWS - MARKS)
    tape = watched(task)
    row = torch.arange(setting.seq_len) * ROWS // setting.seq_len
    for stage in range(layout.pp - 1):
        made = next(s for s in operations(tape) if s.code.startswith(f"{stage}F0,"))
        x = torch.cat([made.values[rank][0] for rank in sorted(made.values)])[:, ROWS + MARKS :]
        layers = {i for pp_rank in range(stage + 1) for s in setting.stages_on(pp_rank) for i in s.layers}
        for i, letter in enumerate(letters):
            dots = letter[: ROWS - 1].sum(0) > 0  # columns of the letter
            drawn = x[:, dots].sum() / letter[row][:, dots].sum()
            assert (drawn > 1) if i % model.n_layers in layers else (drawn < 0.5)
    logits = reference(of_micro_batch(task, 0)).outputs["logits"]
    wanted = 4 * word(setting, model.vocab_size).sum(0)[row]
    assert logits[0].allclose(wanted, rtol=0.15, atol=1e-9)  # the attention's faint letters are in the norm


def test_micro_batches_have_marks_of_their_own():
    tape = tape_of("llama", Layout(pp=2), micro_batches=4)
    seen = [s.values[0][0, :, ROWS : ROWS + MARKS] for s in operations(tape) if s.code[:2] == "0F"]
    assert [int(mark.mean(0).argmax()) for mark in seen] == [0, 1, 2, 3]


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["teaching", "random"])
@pytest.mark.parametrize("layout", few([Layout(pp=2, cp=2, tp=2, zero=3), EIGHT, Layout(pp=4)], 1), ids=str)
def test_numbers_and_collectives_are_those_of_a_run(layout, data):
    task = watch_task("llama", None, layout, data=data, options={"micro_batches": 4})
    run, tape = run_of(task, "llama"), watched(task)
    for name in ("loss", "logits"):
        parts = [s for s in tape.steps if (s.name, s.depth) == (name, 0)]
        assert len(parts) == 4
        for rank in parts[0].values:
            whole = torch.cat([part.values[rank] for part in parts])
            assert near(whole, run.outputs[rank][name])
    for report in run.reports:
        for name, gradient in report.gradients.items():
            last = [s for s in tape.steps if s.name == f"{name}.grad" and report.rank in s.values][-1]
            assert near(last.values[report.rank], gradient), name
    sent = [s.events[r][0] for _, s in sends(tape) for r in s.events]
    for rank in range(layout.world):
        ran = [e for e in run.reports[rank].trace.events if e.kind == "send"]
        assert sorted(e.sent for e in ran) == sorted(e.sent for e in sent if e.group[0] == rank)
    for step in tape.steps:
        assert not step.fault
        assert step.at, step.code
        assert "own" not in {place.kind for place in step.places.values()}, step.code


UPDATED = [Layout(dp=2, zero=2), Layout(dp=2, cp=2, zero=3), Layout(pp=2, tp=2), EIGHT]


@pytest.mark.parametrize("layout", few(UPDATED, 2), ids=lambda layout: f"{layout} zero={layout.zero}")
def test_an_update_is_that_of_a_run(layout):
    task = watch_task("step", None, layout)
    run, tape = run_of(task, "step"), watched(task)
    for report in run.reports:
        for name, own in report.first.items():
            steps = [s for s in tape.steps if (s.phase, s.name) == ("update", name)]
            [*_, last] = (s.values[report.rank] for s in steps if report.rank in s.values)
            assert near(last, own), name
        [norm] = [s for s in tape.steps if s.name == "norm" and report.rank in s.values]
        assert near(norm.values[report.rank], report.curve["norms"])
    for step in tape.steps:
        assert step.at, step.code
        assert "own" not in {place.kind for place in step.places.values()}, step.code


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_an_update_is_of_the_own_shard(zero):
    tape = tape_of("step", Layout(dp=2, zero=zero))
    of = [(s, kinds(s)["dp"]) for s in tape.steps if s.name.startswith("layers.0.feed_forward.w1.weight")]
    whole, shard = ("copy", None), ("piece", 0)
    sums = [held for s, held in of if s.name.endswith(".grad")]
    weights = [(s.phase, held) for s, held in of if not s.name.endswith(".grad")]
    kind = {s.event.kind for s, _ in of if s.event and s.event.axis == "dp"}
    if zero == 1:  # all-reduce, the rank's shard, and the updated weight gathered
        assert sums == [("summand", None), whole, shard]
        assert weights == [("forward", whole), ("update", shard), ("update", whole)]
        assert kind == {"all_reduce", "all_gather"}
        assert {len(sent) for s in tape.steps for sent in s.events.values()} == {1}  # no step's but its own
    elif zero == 2:
        assert sums[0] == ("summand", None)
        assert set(sums[1:]) == {shard}
        assert weights == [("forward", whole), ("update", shard), ("update", whole)]
        assert kind == {"reduce_scatter", "all_gather"}
    else:  # gathered before it is used, and kept as a shard
        assert set(sums[1:]) == {shard}
        assert weights == [("forward", shard), ("forward", whole), ("update", shard)]
        assert kind == {"reduce_scatter", "all_gather"}


def test_later_steps_are_beside_those_of_one_process():
    tape = tape_of("step", Layout(pp=2, dp=2, zero=2), steps=2)
    assert sum(s.name == "norm" for s in tape.steps) == 2 * 2
    assert all(step.at for step in tape.steps)
    assert all(place.kind != "own" for step in tape.steps for place in step.places.values())


# -- operations --------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", few(ORDERS, 2))
def test_operations_are_those_of_the_schedule(schedule):
    """Each on the ranks of its stage alone, in the order of its row, and in time over all rows."""
    task = watch_task("llama", None, Layout(pp=2, tp=2), options={"schedule": schedule, "micro_batches": 4})
    tape, table = watched(task), task.setting.schedule
    line, made = table.timeline(), operations(tape)
    times = {str(action): start for rank in range(2) for action, start, _ in line.runs(rank)}
    names = [step.code.partition(",")[0] for step in made]
    assert [times[name] for name in names] == sorted(times[name] for name in names)
    for pp_rank in range(2):
        own = [a for a in table.ranks[pp_rank] if not (a.kind == "I" and a.stage == 0)]  # makes nothing
        here = [step for step in made if tape.coords[min(step.values)]["pp"] == pp_rank]
        assert [step.code.partition(",")[0] for step in here] == [str(action) for action in own]
        for step in here:
            assert [tape.coords[r]["pp"] for r in step.values] == [pp_rank] * 2
    assert not tape.errors


def test_a_send_is_a_step_on_the_next_stage():
    tape = tape_of("llama", EIGHT, micro_batches=4)
    found = sends(tape)
    assert len(found) == 8
    forward = [(n, s) for n, s in found if s.phase == "forward"]
    assert {s.name for _, s in forward} == {"x"}
    assert {s.name for _, s in found if s.phase == "backward"} == {"x.grad"}
    for _, step in forward:
        [read] = step.reads
        source = tape.steps[read]
        assert {r: e.group for r, [e] in step.events.items()} == {2: (0, 2), 3: (1, 3), 6: (4, 6), 7: (5, 7)}
        for rank, [event] in step.events.items():
            assert step.values[rank].equal(source.values[event.group[0]])
            assert event.sent == event.payload == step.values[rank].nbytes
        assert kinds(step) == {"dp": ("piece", 0), "tp": ("piece", 1)}


def test_an_operation_reads_what_was_sent_and_its_lines_stand_before_it():
    tape = tape_of("llama", Layout(pp=2), micro_batches=2)
    arrived = {s.code: n for n, s in sends(tape)}
    at = next(n for n, s in enumerate(tape.steps) if s.code.startswith("1F0,"))
    assert tape.steps[at].reads == (arrived["send activations of micro-batch 0 for stage 1"],)
    lines = [s for s in tape.steps[:at] if s.depth and s.where.startswith("1F0 llama_stage:")]
    assert [s.name for s in lines] == ["targets", "x", "x", "logits"]
    assert lines[1].reads == tape.steps[at].reads
    back = next(s for s in tape.steps if s.code.startswith("0B1,"))
    assert arrived["send gradients of micro-batch 1 for stage 0"] in back.reads


# -- the page's data ---------------------------------------------------------------------------


@pytest.mark.parametrize(("program", "layout"), [("llama", EIGHT), ("step", Layout(pp=2, dp=2, zero=3))])
def test_the_film_is_plain(program, layout):
    made = film(tape_of(program, layout))
    assert json.loads(json.dumps(made)) == made
    assert made["axes"] == {axis: layout.size(axis) for axis in ("tp", "cp", "pp", "dp")}
    assert made["source"] == source_of(followed(PROGRAMS[program]))
    lines = made["source"].splitlines()
    named = [step for step in made["steps"] if step["line"]]
    assert len(named) > 8
    assert all(step["code"] in lines[step["line"] - 1] for step in named)


def test_rows_move_to_the_next_stage_and_the_caption_says_so():
    made = film(tape_of("llama", EIGHT, micro_batches=2))
    step = next(s for s in made["steps"] if s["event"] and s["event"]["kind"] == "send")
    assert (step["axis"], step["depth"]) == ("pp", 0)
    own = 8 * 40 * 8  # tokens, columns, bytes
    assert step["event"] == {
        "kind": "send",
        "axis": "pp",
        "groups": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "bytes": own,
    }
    assert [(m["from"], m["to"]) for m in step["moves"]] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert all(m["rows"] == m["at"] == [0, 8] for m in step["moves"])
    assert step["caption"] == (
        "Send over PP: `x` goes from ranks 0, 1, 4, 5 to ranks 2, 3, 6, 7. A rank sends 2,560 bytes. "
        "Each rank has its own sequences (DP) and its own tokens (TP) of `x`."
    )
    first = next(s for s in made["steps"] if s["code"].startswith("0F0,"))
    assert set(made["tensors"][first["made"][0]]["ranks"]) == {"0", "1", "4", "5"}
    alone = film(tape_of("llama", Layout(pp=2), micro_batches=2))
    by_code = {s["code"]: s["caption"] for s in alone["steps"]}
    assert by_code["1F1, the forward of micro-batch 1 at stage 1"] == (
        "Rank 1 runs 1F1, the forward of micro-batch 1 at stage 1."
    )


# -- edits -------------------------------------------------------------------------------------

STAGE = source_of(followed(PROGRAMS["llama"]))


def test_an_edit_of_the_stage_is_shown_where_it_begins():
    layout = Layout(pp=2, tp=2, sequence_parallel=False)
    right = watched(watch_task("llama", None, layout))
    source = STAGE.replace("layer_weights(weights, layer))", "layer_weights(weights, layer)) + stage.stage")
    same = watched(watch_task("llama", None, layout, source=source), right)
    assert not any(step.fault for step in same.steps)  # one process does it too
    source = STAGE.replace(
        '"loss": cross_entropy(logits, targets, mesh, setting)', '"loss": logits.sum((1, 2))'
    )
    assert source != STAGE
    tape = watched(watch_task("llama", None, layout, source=source), right)
    [first] = [step for step in tape.steps if step.fault == "begins"]
    assert (first.name, first.code) == ("loss", "1F0, the forward of micro-batch 0 at stage 1")
    assert first.why == "a summand over TP where it should be a copy"
