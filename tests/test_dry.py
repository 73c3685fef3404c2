"""The dry engine: one rank's shapes, bytes and memory, against formulas, other engines, torch's tracker."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.distributed._tools.mem_tracker import MemTracker

import llamapar as lp
from llamapar.count.exact import layer_terms
from llamapar.count.sizes import Sizes
from llamapar.describe.layout import Coord
from llamapar.execution.engines import dry
from llamapar.execution.execute import prepare
from llamapar.execution.result import Absent, Result
from llamapar.execution.run_options import RunOptions
from llamapar.spmd import compat
from llamapar.spmd.rank_mesh import RankMesh
from sent import said_of

PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)
TINY = lp.Layout(tp=2, cp=2, pp=2, dp=2)


def run(program="llama", model="tiny", layout=TINY, **options):
    result = lp.run(program, model, layout, engine="dry", **options)
    assert isinstance(result, Result)
    return result


def as_foretold(program="llama", **options):
    """A rank that sends what the formulas say of it."""
    result = run(program, **options)
    assert result.trace.by_axis == said_of(result, options.get("rank", 0)).by_axis
    return result


def assert_keeps_what_memory_says(found):
    """What autograd kept of a layer, part by part, to the byte."""
    setting = found.task.setting
    own = Sizes(
        setting.model,
        setting.layout,
        seq_len=setting.seq_len,
        micro_batch=setting.micro_batch,
        kv_replication=setting.kv_replication,
        cp_method=setting.cp_method,
        dtype=setting.dtype,
    )
    said = layer_terms({**own.activations, "kept": 4}, "eager", "none", "1", setting.model)
    forward = next(s for s in found.memory.curve.spans if s.name.startswith(("F ", "forward")))
    layers = 1 if found.name == "block" else len(found.memory.stages[0].layers)
    kept = {name: size // layers for name, size in forward.profile.after.items()}
    assert {row.name: kept.get(row.name, 0) for row in said} == {row.name: row.bytes for row in said}


def volumes(result):
    return {(c["axis"], c["kind"]): (c["count"], c["bytes"]) for c in result.trace.by_kind}


# -- rank 12,345 and its neighbour -----------------------------------------------------------------


def test_a_rank_of_the_papers_long_context_layout():
    found = as_foretold(model="llama3.1-405b", layout=PAPER, rank=12345, seq_len=131072, dtype="bfloat16")
    assert found.memory.coord == Coord(tp=1, cp=7, pp=0, dp=6)
    assert found.memory.peers["cp"] == range(12289, 12410, 8)
    assert [(s.stage, len(s.layers), s.embedding, s.head) for s in found.memory.stages] == [
        (0, 7, True, False)
    ]
    assert len(found.memory.curve.spans) == 2 * 32 + 1
    assert found.memory.curve.peak.startswith("B of micro-batch 1 on stage 0, operation 19 of 65")
    assert sum(found.memory.curve.alive.values()) == found.memory.peak_bytes
    account = lp.memory("llama3.1-405b", PAPER, seq_len=131072)
    assert found.memory.curve.start["parameters"] == account.stages[0].bytes("parameters")


@pytest.mark.parametrize(
    ("seq_len", "cp", "per_axis"), [(8192, 1, {}), (131072, 16, {"cp": (16, 503_316_480)})]
)
def test_eight_layers_of_405b_send_what_was_measured_before(seq_len, cp, per_axis):
    layout = lp.Layout(tp=8, cp=cp, pp=16)
    rank = layout.rank_of(pp=1)
    found = run(
        model="llama3.1-405b", layout=layout, rank=rank, seq_len=seq_len, micro_batches=1, dtype="bfloat16"
    )
    sent = volumes(found)
    for kind in ("all_gather", "reduce_scatter"):
        assert sent["tp", kind] == (32, 32 * seq_len // cp * 16384 * 2 * 7 // 8) == (32, 7_516_192_768)
        assert {a: sent[a, kind] for a in per_axis} == per_axis


@pytest.mark.parametrize("cp_method", ["ulysses", "ulysses:4"])
def test_a_rank_that_trades_heads_keeps_and_sends_what_the_formulas_say(cp_method):
    layout = lp.Layout(tp=2, cp=8, pp=2)
    known = {"seq_len": 8192, "dtype": "bfloat16", "micro_batches": 2, "kv_replication": True}
    found = as_foretold(model="llama3-8b", layout=layout, rank=11, cp_method=cp_method, **known)
    assert_keeps_what_memory_says(found)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zbv"])
def test_bytes_are_those_of_the_formulas_on_every_pp_rank(schedule):
    model = lp.model("tiny").replace(tied=True)
    for rank in (0, 5):
        as_foretold(model=model, rank=rank, schedule=schedule, micro_batches=4, global_batch=8)


@pytest.mark.parametrize("program", ["llama", "step"])
def test_a_rank_does_what_it_does_among_all_the_others(program):
    layout = lp.Layout(tp=2, pp=2, dp=1 + (program == "step"), zero=2)
    options = {"layout": layout, "schedule": "1f1b", "micro_batches": 3, "global_batch": 3 * layout.dp}
    whole = lp.run(program, "tiny", engine="local", **options)
    for rank in (1, 2):
        found = run(program, rank=rank, **options)
        assert found.trace.events == whole.traces[rank].events
        assert found.trace.attention == whole.traces[rank].attention
        shapes = {name: tuple(t.shape) for name, t in whole.gradients[rank].items()}
        assert {name: tuple(t.shape) for name, t in found.reports[0].gradients.items()} == shapes


def test_what_a_dry_run_lacks_says_why():
    found = run("mlp")
    for name in ("outputs", "gradients", "state"):
        with pytest.raises(
            Absent, match=f"^{name}: absent from this result\n  why  a dry run has no numbers"
        ):
            getattr(found, name)
        assert not hasattr(found, name)
    for name in ("out", "lines"):
        with pytest.raises(
            Absent, match=rf"^{name}: absent from this result\n  why  mlp is no cell\n  try  %%ranks"
        ):
            getattr(found, name)
    assert (found.rows, found.max_error, found.explanation) == ((), None, None)


@pytest.mark.parametrize("zero", [2, 3])
def test_what_zero_shares_is_sent_as_the_formulas_say(zero):
    layout = lp.Layout(tp=2, cp=2, pp=2, dp=4, zero=zero, dp_replicate=2)
    found = as_foretold(layout=layout, rank=5, micro_batches=4)
    copied = run(layout=layout.replace(zero=1), rank=5, micro_batches=4)
    assert_keeps_what_memory_says(found)
    shards = 4 if zero == 3 else 1
    assert found.memory.curve.start["parameters"] * shards == copied.memory.curve.start["parameters"]


@pytest.mark.parametrize("zero", range(4))
def test_a_training_step_goes_through_the_update(zero):
    layout = TINY.replace(zero=zero)
    for rank, dtype in ((0, "bfloat16"), (5, "float32")):
        found = as_foretold("step", layout=layout, rank=rank, steps=2, micro_batches=3, dtype=dtype)
        assert [span.name for span in found.memory.curve.spans][-2:] == [dry.SUMS, dry.UPDATE]
        account = lp.memory("tiny", layout, seq_len=found.task.setting.seq_len, dtype=dtype).stages[rank // 4]
        begins = found.memory.curve.start
        assert begins["optimizer states"] == account.bytes("optimizer states")
        if zero < 3:
            assert begins["parameters"] == account.bytes("parameters")
        elif dtype == "bfloat16":  # fully_shard's parameters are the master weights
            assert begins["master weights"] == account.bytes("parameters") == 2 * begins["parameters"]
        if zero < 3 and dtype == "bfloat16":
            assert begins["master weights"] == account.bytes("master weights")
        if zero in (0, 3) and dtype == "float32":
            assert "master weights" not in begins, "they are the parameters"
        ends = {name: n for name, n in _at_the_end(found.memory.curve).items() if name in begins}
        assert ends == begins
        assert found.notes[0] == "one of 2 steps was run: the others are alike"


def _at_the_end(curve):
    now = Counter(curve.start)
    for span in curve.spans:
        now.update(span.profile.after)
    return now


def test_a_million_ranks():
    layout = lp.Layout(tp=8, cp=4, pp=8, dp=4096)
    assert layout.world == 2**20
    as_foretold(model="llama3-8b", layout=layout, rank=2**20 - 1, seq_len=8192, micro_batches=2)


def test_the_mesh_of_one_rank_is_torchs():
    layout = lp.Layout(tp=4, cp=2, pp=3, dp=2, order="tp-cp-pp-dp")
    for rank in range(0, layout.world, 7):
        with compat.fake_world(layout.world, rank):
            theirs, ours = compat.make_mesh(layout, "cpu"), RankMesh.of(layout, rank)
            assert ours.mesh_dim_names == theirs.mesh_dim_names
            assert ours.size() == theirs.size()
            pairs = [(ours, theirs)]
            pairs.append(tuple(compat.split_axis(m, "tp", (2, 2), ("kv_head", "tp")) for m in (ours, theirs)))
            for slow, fast in (("dp", "cp"), ("cp", "dp")):
                both = [compat.joined(m, 2, slow, fast) for m in (compat.make_mesh(layout, "cpu"), ours)]
                ours.__dict__.pop("_llamapar_joined")
                for axis in ("replicas", "shards"):
                    members = dist.get_process_group_ranks(both[0].get_group(axis))
                    assert sorted(both[1].members(axis)) == sorted(members)
            for own, mesh in pairs:
                assert compat.coord_of(own, rank) == compat.coord_of(mesh, rank)
                for axis in mesh.mesh_dim_names or ():
                    assert compat.axis_size(own, axis) == compat.axis_size(mesh, axis)
                    members = dist.get_process_group_ranks(mesh.get_group(axis))
                    assert own.members(axis) == members


# -- memory ----------------------------------------------------------------------------------------


def measured(every, rank, layout=TINY, program="llama", **options):
    task, _, _ = prepare(program, "tiny", RunOptions(layout, **options))
    return dry.run(task, rank, every=every)


@pytest.mark.parametrize(("schedule", "rank", "zero"), [("1f1b", 0, 1), ("zbv", 5, 1), ("1f1b", 5, 3)])
def test_micro_batches_that_are_not_run_are_as_if_they_were(schedule, rank, zero):
    options = {"layout": TINY.replace(zero=zero), "schedule": schedule, "micro_batches": 4}
    each, known = (measured(every, rank, **options) for every in (True, False))
    assert each[0].trace == known[0].trace
    assert sum(span.measured for span in each[1].spans) == len(each[1].spans)
    assert sum(span.measured for span in known[1].spans) < len(known[1].spans)
    assert [(s.name, s.before, s.profile, s.sends) for s in each[1].spans] == [
        (s.name, s.before, s.profile, s.sends) for s in known[1].spans
    ]
    last = each[1].spans[-2]
    gradients = last.after - sum(each[1].start.values())
    whole = each[1].start["parameters"] * (4 if zero == 3 else 1)
    assert gradients == whole, "all that was kept for a backward is gone after it"


def tracked(tracker):
    return int(tracker.get_tracker_snapshot("peak")[torch.device("meta")]["Total"])


def test_the_peak_is_that_of_torchs_tracker():
    with MemTracker() as tracker:
        found = run("block", dtype="bfloat16", layout=lp.Layout(tp=2, cp=2, dp=2), rank=3)
    assert tracked(tracker) == found.memory.peak_bytes

    setting = prepare("llama", "tiny", RunOptions(TINY, micro_batches=3))[0].setting
    message = setting.micro_batch * setting.seq_len // 4 * setting.model.dim * 4
    with MemTracker() as tracker:
        _, curve = measured(True, 5, micro_batches=3)
    assert (tracked(tracker) - curve.peak_bytes) % message == 0, "shapes that stand for messages"
    assert tracked(tracker) - curve.peak_bytes <= 2 * message
    with MemTracker() as tracker:
        _, curve = measured(True, 5, TINY.replace(zero=0), program="step", micro_batches=3)
    assert curve.peak.startswith(dry.UPDATE)
    assert tracked(tracker) - curve.peak_bytes == 2 * 4, "zero, from which squares are summed, and another's"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("options", [{}, {"global_batch": 12}, {"cp_method": "ring"}])
def test_a_layer_keeps_what_memory_says_to_the_byte(dtype, options):
    for rank in (0, 5):
        assert_keeps_what_memory_says(run(dtype=dtype, micro_batches=2, rank=rank, **options))
    assert_keeps_what_memory_says(run("block", dtype=dtype, **options))


def test_what_is_alive_at_the_peak_is_named():
    found = run("llama", rank=0, schedule="gpipe", micro_batches=8, dtype="bfloat16")
    assert set(found.memory.curve.alive) >= {"parameters", "gradients", "inputs", "activations: MLP"}
    assert sum(found.memory.curve.alive.values()) == found.memory.peak_bytes
    peak = f"peak {found.memory.peak_bytes / 2**20:.2f} MiB at {found.memory.curve.peak}: gradients "
    assert str(found.memory.curve).splitlines()[-1].startswith(peak)


# -- what is shown and what is refused -------------------------------------------------------------


def test_json_has_what_the_command_promises():
    told = run(rank=5, micro_batches=2).as_dict()
    found = told["memory"] | {name: told[name] for name in ("collectives", "bytes")}
    assert (told["ok"], found["rank"], found["coord"]) == (True, 5, {"tp": 1, "cp": 0, "pp": 1, "dp": 0})
    assert {frozenset(c) for c in found["collectives"]} == {frozenset(("axis", "kind", "count", "bytes"))}
    for axis, size in found["bytes"].items():
        assert size == sum(c["bytes"] for c in found["collectives"] if c["axis"] == axis)
    assert found["peak_bytes"] == sum(found["peak"].values())
    assert found["peak_at"] == run(rank=5, micro_batches=2).memory.curve.peak
    assert [o["name"] for o in found["operations"]][:2] == [
        "F of micro-batch 0 on stage 1",
        "B of micro-batch 0 on stage 1",
    ]


def test_a_layout_that_check_refuses_can_be_forced():
    forced = run("meta_attention", "llama3-8b", lp.Layout(tp=16), force=True, rank=7)
    assert not forced.ok
    assert "ZeroDivisionError" in str(forced)


def test_ctrl_c_and_cancel_end_it():
    with pytest.raises(lp.Cancelled, match="the run was cancelled"):
        run(cancel=lambda: True)
    assert not dist.is_initialized()
    assert run(micro_batches=2).ok
