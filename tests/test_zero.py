"""ZeRO: who holds which rows, what the collectives make of them, and whole runs of every stage."""

from collections import Counter
from itertools import product

import pytest
import torch

import llamapar as lp
import torch_fsdp
from by_torch import check_gradients
from llamapar import Layout
from llamapar.describe.models import model as find_model
from llamapar.execution.body import as_shared, inputs
from llamapar.place.shards import SHARED_FROM, Shards
from llamapar.programs import PROGRAMS
from llamapar.records.tables import human
from llamapar.spmd import compat
from llamapar.spmd.gradients import reduce_gradients
from llamapar.spmd.setting import Setting
from llamapar.spmd.zero import Gathered, zero_group
from sent import check_sent
from stepping import SteppedRanks

SMALL = lp.ModelConfig(
    dim=32, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=8, ffn_dim=40, vocab_size=60, name="small"
)
"""Its 60 rows of vocabulary are cut unevenly by 8 ranks."""


pytestmark = pytest.mark.usefixtures("no_ranks_left")

THIRDS = find_model("tiny").replace(dim=48, n_heads=6, n_kv_heads=3, ffn_dim=70, name="thirds")
"""A model that neither tp=3 nor four shards divide evenly."""

GROUPS = [
    Layout(dp=3),
    Layout(cp=4),
    Layout(dp=4, cp=2, tp=2),
    Layout(dp=4, dp_replicate=4, cp=2),
    Layout(dp=4, dp_replicate=2, tp=2),
    Layout(dp=2, cp=2, tp=2, order="tp-dp-cp-pp"),
    Layout(dp=4, dp_replicate=2, cp=2, tp=3),
]
NAMES = ("layers.0.feed_forward.w1.weight", "norm.weight", "layers.0.attention.wk.weight")


@pytest.mark.parametrize("layout", GROUPS, ids=lambda layout: f"{layout} {layout.order}")
def test_a_rank_has_its_place_in_its_group(layout):
    shards = Shards(layout)
    for rank in range(layout.world):
        coord = layout.coord_of(rank)
        group = layout.group("dp-cp", rank)
        copies = [r for r in group if layout.coord_of(r).dp // layout.dp_shard == coord.dp // layout.dp_shard]
        assert len(copies) == shards.ranks
        assert copies.index(rank) == shards.place(coord.dp, coord.cp)
        expected = torch.arange(10).chunk(shards.ranks)  # torch's own cut
        mine = expected[copies.index(rank)].tolist() if copies.index(rank) < len(expected) else []
        assert list(shards.rows(10, coord._asdict())) == mine


@pytest.mark.parametrize("layout", GROUPS, ids=lambda layout: f"{layout} {layout.order}")
def test_gathering_and_its_backward(layout):
    setting = Setting(THIRDS, layout.replace(zero=3), seq_len=48)
    shards = setting.shards
    with SteppedRanks(setting) as ranks:
        group = zero_group(ranks.mesh, setting)
        for name in NAMES:
            whole = ranks.cut(name, lambda name=name: setting.make(name, setting.weights()[name]))
            own = group.own(whole).detach().requires_grad_()
            gathered = group.gathered(name, own)
            _equal(ranks.values(gathered), ranks.values(whole))
            (gathered * gathered).sum().backward()
            _equal(ranks.values(own.grad), {r: 2 * shards.ranks * t for r, t in ranks.values(own).items()})
        mesh, axis = group.sharing
        for rank in range(layout.world):
            coord = layout.coord_of(rank)
            assert compat.coord_of(mesh, rank)[axis] == shards.place(coord.dp, coord.cp)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("layout", GROUPS, ids=lambda layout: f"{layout} {layout.order}")
def test_gradients_are_summed_over_all_copies(layout, zero):
    setting = Setting(THIRDS, layout.replace(zero=zero, sequence_parallel=False), seq_len=48)
    with SteppedRanks(setting) as ranks:
        given = {
            name: ranks.cut(name, lambda name=name: setting.make(name, setting.weights()[name])).detach()
            for name in NAMES
        }
        for name, made in reduce_gradients(ranks.mesh, setting, given).items():
            whole = ranks.values(given[name])
            expected = {
                rank: layout.cp * setting.gradient(name, t, layout.coord_of(rank)._asdict())
                for rank, t in whole.items()
            }
            _equal(ranks.values(made), expected)


def _equal(made, expected):
    assert made.keys() == expected.keys()
    for rank, own in made.items():
        torch.testing.assert_close(own, expected[rank], rtol=1e-6, atol=0)


# -- torch's fully_shard as witness ----------------------------------------------------------------


def test_torchs_fully_shard_makes_the_same_gradients(counts):
    layouts = [
        {"tp": 2, "dp": 2, "sequence_parallel": False},
        {"cp": 2, "dp": 4, "dp_replicate": 2},
        {"dp": 8},
    ]
    for layout in layouts[: counts(1, 3, 3)]:
        options = {"dtype": "float64", "engine": "processes", "seq_len": 16}
        result = lp.run("llama", SMALL, {**layout, "zero": 3}, **options)
        check_gradients(result, torch_fsdp.by_torch, rtol=1e-15)


# -- memory ----------------------------------------------------------------------------------------

TERMS = {"parameters": "parameters", "gradients": "gradients", "optimizer state": "optimizer states"}
LARGER = [Layout(tp=2, cp=2, dp=2), Layout(cp=2, dp=4, dp_replicate=2)]


@pytest.mark.parametrize(
    ("layout", "zero"),
    [
        *product([Layout(dp=4)], range(4)),
        (LARGER[0], 3),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in product(LARGER, range(4))),
    ],
    ids=str,
)
def test_what_torch_holds_is_what_is_said(layout, zero):
    """Parameters as a run holds them, the gradients that it ends with, and the state that AdamW makes."""
    layout, model = layout.replace(zero=zero), SMALL.replace(vocab_size=64)
    result = lp.run("llama", model, layout, seq_len=16)
    task = result.task
    said = lp.memory(model, layout, seq_len=16, dtype="float32").stages[0]
    with SteppedRanks(task.setting) as ranks:
        held = as_shared(ranks.mesh, task.setting, inputs(task, ranks.cut))
        tensors = held.leaves if isinstance(held, Gathered) else held
        for rank in range(layout.world):
            coord, of_rank = layout.coord_of(rank), lp.zero(model, layout, rank=rank)
            parameters = {name: compat.of_rank(tensors[name], rank) for name in task.setting.weights()}
            torch_has = {
                "parameters": _bytes(parameters.values()),
                "gradients": _bytes(result.gradients[rank].values()),
                "optimizer state": _adam(task, coord._asdict(), parameters),
            }
            for what, had in torch_has.items():
                assert had == said.bytes(TERMS[what]), (rank, what)
                assert had == of_rank.held(what, task.setting.shards.place(coord.dp, coord.cp))


def _bytes(tensors):
    return sum(t.untyped_storage().nbytes() for t in tensors)


def _adam(task, coord, parameters):
    """Bytes of the moments that torch's AdamW makes of a rank's parameters, or its slices of them."""
    shards = task.setting.shards
    own = [p.detach() for p in parameters.values()]
    if shards.cuts("optimizer state") and not shards.cuts("parameters"):
        own = [task.setting.shard(p, coord) for p in own]
    for p in own:
        p.requires_grad_().grad = torch.ones_like(p)
    adam = torch.optim.AdamW(own)
    adam.step()
    return _bytes(state[name] for state in adam.state.values() for name in ("exp_avg", "exp_avg_sq"))


@pytest.mark.parametrize("again", [True, False])
def test_gathered_parameters_are_kept_only_where_that_is_asked(again):
    options = {"seq_len": 16, "reshard_after_forward": again, "backward": False}
    task = lp.run("llama", SMALL, Layout(dp=4, zero=3), **options).task
    with SteppedRanks(task.setting) as ranks:
        held = as_shared(ranks.mesh, task.setting, inputs(task, ranks.cut))
        assert isinstance(held, Gathered)
        weights = held.only([name for name in held if name in task.setting.weights()])
        given = {name: held[name] for name in ("tokens", "positions", "targets")}
        with held.forward():
            made = PROGRAMS["llama"].function(ranks.mesh, task.setting, **given, weights=weights)
        kept = [name for ref, (name, _) in held._dropped.items() if not ref.expired()]
        assert isinstance(made, dict)
        assert kept == []
        assert len(held._dropped) == (len(task.setting.weights()) if again else 0)
        assert len(held._kept) == (0 if again else len(task.setting.weights()))


# -- the map ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", range(4))
def test_the_map_says_who_holds_what(zero):
    made = lp.zero("tiny", Layout(tp=2, cp=2, dp=4, dp_replicate=2, zero=zero), rank=13, parameter="w2")
    assert [made.rank_at(place) for place in range(made.ways)] == [9, 11, 13, 15]
    for what, first in SHARED_FROM.items():
        rows = [made.rows(what, place) for place in range(made.ways)]
        expected = [range(32 * i, 32 * i + 32) for i in range(4)] if zero >= first else [range(128)] * 4
        assert rows == expected
    axes = lp.view(made).spec["layout"]
    for axis, what in zip(("xaxis", "xaxis2", "xaxis3"), SHARED_FROM, strict=True):
        assert axes[axis]["title"]["text"] == f"{what}<br>{human(made.held(what, 0))} in all"
    whole = lp.zero("tiny", Layout(tp=2)).held("parameters", 0)
    assert made.held("parameters", 3) == (whole // 4 if zero == 3 else whole)
    assert made.as_dict()["held"]["parameters"] == [made.held("parameters", 0)] * 4


@pytest.mark.parametrize("zero", range(4))
def test_the_map_says_what_travels(zero):
    """What the formulas of a run have, without tp's, and the update that a run does not make."""
    layout = Layout(tp=2, cp=2, dp=2, zero=zero)
    moves = lp.zero(SMALL, layout).moves
    terms = lp.traffic("llama", SMALL, layout, seq_len=16).terms
    parameters = {p.key for p in SMALL.parameters()}
    sent = sum(t.sent for t in terms if t.part in parameters and t.axis != "tp")
    assert sum(m.bytes for m in moves if m.when != "update") == sent
    updates = [m for m in moves if m.when == "update"]
    assert [m.kind for m in updates] == (["all_gather"] if zero in (1, 2) else [])


@pytest.mark.parametrize("zero", range(4))
def test_the_map_of_bfloat16_sends_what_a_step_was_seen_to_send(zero):
    """Gradients are summed in float32, weights gathered in their own format."""
    known = {"seq_len": 8, "micro_batches": 1, "device": "cpu", "dtype": "bfloat16"}
    trace = lp.run("step", SMALL, Layout(dp=2, zero=zero), **known).traces[0]
    seen, said = Counter[str](), Counter[str]()
    for event in trace.events:
        if event.payload > 8:  # less is the norm's sum of squares
            seen[event.kind] += event.sent
    for move in lp.zero(SMALL, Layout(dp=2, zero=zero), dtype="bfloat16").moves:
        said[move.kind] += move.bytes
    assert seen == said


# -- one fact of a trainer -------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [2, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("pp", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_memory_traffic_and_a_run_agree_on_when_gradients_become_shards(pp, zero):
    """Whole until the last micro-batch and sent once, or shards after each of them and sent as often."""
    layout = Layout(pp=pp, dp=2, zero=zero)
    known = {"seq_len": 16, "dtype": "float32"}
    sent = {}
    for many in (1, 3):
        known["global_batch"] = 2 * many
        run = lp.run("step", "tiny", layout, micro_batches=many, device="cpu", **known)
        assert run.ok
        check_sent(run)
        sent[many] = sum(e.sent for e in run.trace.events if e.kind == "reduce_scatter")
    held = lp.memory("tiny", layout, **known).stages[0]
    if pp == 1:
        assert (sent[3], held.bytes("unreduced gradients")) == (3 * sent[1], 0)
    else:
        assert sent[3] == sent[1]
        whole = lp.memory("tiny", layout.replace(zero=1), **known).stages[0]
        assert held.bytes("gradients", "unreduced gradients") == whole.bytes("gradients")


def test_a_trainer_that_is_not_known_may_keep_gradients_whole():
    """Some trainers keep them whole until the last micro-batch; with one micro-batch nothing waits."""
    layout, known = Layout(dp=8, zero=3), {"seq_len": 4096, "recompute": "full"}
    open_, one = (lp.memory("llama3-8b", layout, global_batch=n, **known) for n in (32, 8))
    waits = lp.model("llama3-8b").n_params * 4 * 7 // 8
    ways = [{way.trainer: way.worst.bytes("unreduced gradients") for way in m.others} for m in (open_, one)]
    assert (max(ways[0].values()), min(ways[0].values()), set(ways[1].values())) == (waits // 2, 0, {0})
    assert open_.high_bytes > one.high_bytes
    said = {
        name: lp.memory("llama3-8b", layout, global_batch=32, **known, framework=name).worst
        for name in ("transformers", "torchtitan", "deepspeed")
    }
    waiting = {name: held.bytes("unreduced gradients") for name, held in said.items()}
    assert waiting == {"transformers": waits // 2, "torchtitan": 0, "deepspeed": 0}


def test_all_forwards_first_keep_one_stage_of_gradients_whole():
    layout = Layout(pp=2, dp=4, virtual_stages=2, zero=2)
    held = {
        name: lp.memory("llama3-8b", layout, seq_len=64, global_batch=16, schedule=name).stages[0]
        for name in ("looped-bfs", "interleaved-1f1b")
    }
    one, both = (found.bytes("unreduced gradients") for found in held.values())
    assert both / 2 < one < both
