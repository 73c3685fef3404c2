"""Predicted bytes beside what torch holds: parameters, gradients, Adam, and what autograd saves."""

import math
import weakref
from contextlib import contextmanager
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import fully_shard
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import llamapar as lp
from inputs import drawn
from llamapar.count.exact import layer_terms
from llamapar.count.saved import kept_of_end
from llamapar.count.sizes import Sizes
from llamapar.count.terms import Term
from llamapar.describe.placement import PARAMETERS
from llamapar.execution import execute
from llamapar.execution.body import asked_shapes, call_function
from llamapar.execution.engines import local
from llamapar.execution.pipeline_rank import PipelineRank
from llamapar.execution.run_options import RunOptions
from llamapar.spmd import compat
from llamapar.spmd.compat import by_rank
from llamapar.spmd.setting import kind
from stepping import step_through

SMALL = lp.model("tiny").replace(
    dim=32, n_layers=2, n_heads=8, n_kv_heads=4, head_dim=4, ffn_dim=48, vocab_size=96, name="small"
)


class Kept:
    """One tensor that a graph keeps: alive as long as the graph needs it."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()  # a node must not be held by its own output


@contextmanager
def saving():
    """What autograd, of the calls in here, still holds for its backward when it is asked."""
    seen = []

    def pack(tensor):
        kept = Kept(tensor)
        seen.append(weakref.ref(kept))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        yield lambda: [kept.tensor for ref in seen if (kept := ref()) is not None]


def kept_by(call):
    """What the call made, and the tensors that autograd then still holds for its backward."""
    with saving() as held:
        made = call()
    return made, held()


def storages(tensors, without):
    """Bytes of the tensors' storages, each once, those of `without` left out."""
    apart = {t.untyped_storage()._cdata for t in without}
    held = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(size for place, size in held.items() if place not in apart)


def saved_on_ranks(program, model, layout, **options):
    """Bytes that autograd keeps for the backward of a program, by rank, in the local engine."""
    task, _, _ = execute.prepare(program, model, RunOptions(lp.Layout.of(layout), **options))
    ranks = step_through(program, model, layout, **options)
    tensors = dict(ranks.tensors)
    whole = tensors.pop("weights", None)
    with ranks:
        _made, kept = kept_by(
            lambda: call_function(
                partial(task.program.function, ranks.mesh, task.setting), tensors | (whole or {})
            )
        )
        found = []
        for rank in range(task.setting.layout.world):
            params = [by_rank(t)[rank] for name, t in tensors.items() if is_parameter(name)]
            own = [pieces[rank] if (pieces := by_rank(t)) else t for t in kept]
            found.append(storages(own, params))
    ranks.close()
    return found


def is_parameter(name):
    return kind(name) in PARAMETERS


def sized(model, layout, *, seq_len, global_batch=1, **options):
    lay = lp.Layout.of(layout)
    return Sizes(lp.model(model), lay, seq_len=seq_len, micro_batch=global_batch // lay.dp, **options)


def block_bytes(sizes):
    return sum(t.bytes for t in layer_terms(sizes.activations, "eager", "none", "1", None))


# -- activations -----------------------------------------------------------------------------------

LAYOUTS = [
    {"tp": tp, "cp": cp, "dp": dp, "sequence_parallel": sp}
    for tp, cp, dp, sp in product((1, 2, 4, 8), (1, 2, 4), (1, 2), (True, False))
    if tp * cp * dp <= 8 and (sp or tp > 1)
]
CASES = [
    (layout, dtype, each, *cp)
    for layout, dtype, each, cp in product(
        LAYOUTS,
        ("float32", "bfloat16", "float64"),
        (1, 2),
        [
            *(("head-tail", way) for way in ("all_gather", "ring", "ulysses")),
            *(("contiguous", way) for way in ("all_gather", "ulysses:2")),
        ],
    )
    if layout["cp"] > 1 or cp == ("head-tail", "all_gather")
    # Each of SMALL's query heads of a TP rank goes to one of the ranks that trade.
    if "ulysses" not in cp[1] or lp.check(SMALL, layout, cp_method=cp[1], kv_replication=True).ok
]


def test_a_block_keeps_what_the_formulas_say(counts):
    for layout, dtype, each, chunking, cp_method in drawn(CASES, counts(10, 20, len(CASES))):
        seq_len = 4 * layout["cp"] * layout["tp"]
        options = {"dtype": dtype, "chunking": chunking, "cp_method": cp_method, "kv_replication": True}
        options |= {"seq_len": seq_len, "global_batch": each * layout["dp"]}
        said = block_bytes(sized(SMALL, layout, **options))
        assert saved_on_ranks("block", SMALL, layout, **options) == [said] * lp.Layout.of(layout).world, (
            layout,
            options,
        )


def test_biases_keep_nothing():
    biased = SMALL.replace(qkv_bias=True)
    options = {"seq_len": 32, "global_batch": 2, "kv_replication": True, "dtype": "float32"}
    for layout in ({"tp": 2, "cp": 2}, {"tp": 4, "dp": 2}):
        said = block_bytes(sized(biased, layout, **options))
        assert said == block_bytes(sized(SMALL, layout, **options))
        assert saved_on_ranks("block", biased, layout, **options) == [said] * lp.Layout.of(layout).world


WHOLE = list(
    product(
        ({}, {"tp": 2}, {"tp": 2, "cp": 2}, {"tp": 4, "cp": 2}, {"tp": 2, "sequence_parallel": False}),
        ("float32", "bfloat16"),
        (False, True),
    )
)


def test_a_whole_model_keeps_what_the_formulas_say(sample):
    for layout, dtype, tied in sample(WHOLE, 4):
        model = SMALL.replace(tied=tied)
        options = {"seq_len": 32, "global_batch": 1, "dtype": dtype}
        sizes = sized(model, layout, **options)
        ends = [
            Term(n, kept_of_end(n, "eager").formula, sizes.activations) for n in ("embedding", "head", "loss")
        ]
        said = model.n_layers * block_bytes(sizes) + sum(t.bytes for t in ends)
        assert set(saved_on_ranks("llama", model, layout, **options)) == {said}, (layout, dtype, tied)


TRUE_SIZE = [
    ("llama3.1-8b", {}, 8192, "bfloat16"),
    ("llama3.1-70b", {"tp": 8, "sequence_parallel": False}, 8192, "bfloat16"),
    ("llama3.1-405b", {"tp": 8}, 8192, "bfloat16"),
    ("llama3.1-405b", {"tp": 8, "cp": 16}, 131072, "bfloat16"),
    ("llama3.1-405b-mp16", {"tp": 16}, 8192, "float32"),
]


@contextmanager
def fake_block(name, layout, seq_len, dtype):
    """(sizes, tensors, block): rank 0's block on fake CPU tensors over a fake process group.

    Real shapes, no memory. block(x) is the program with all else given.
    """
    task, _, _ = execute.prepare(
        "block", name, RunOptions(lp.Layout.of(layout), seq_len=seq_len, dtype=dtype)
    )
    sizes = sized(name, layout, seq_len=seq_len, dtype=dtype)
    setting, every = task.setting, asked_shapes(task)
    shape_of = {n: s for n, s in every.items() if n.endswith("_norm")}
    shape_of["x"] = (1, sizes.activations["rows"], setting.model.dim)
    for n, cut in {"wq": 0, "wk": 0, "wv": 0, "wo": 1, "w1": 0, "w3": 0, "w2": 1}.items():
        shape = list(every[n])
        shape[cut] //= setting.layout.tp
        shape_of[n] = tuple(shape)
    with pytest.MonkeyPatch.context() as patch, compat.fake_world(setting.layout.world):
        patch.setattr(compat, "coord_of", lambda mesh, rank: {"dp": 0, "cp": 0, "tp": 0})
        mesh = compat.make_mesh(setting.layout, "cpu")
        with FakeTensorMode():
            made = {
                n: torch.empty(s, dtype=setting.torch_dtype, requires_grad=True) for n, s in shape_of.items()
            }
            made["positions"] = torch.arange(sizes.tokens_seq)

            def block(x):
                return call_function(partial(task.program.function, mesh, setting), made | {"x": x})["out"]

            yield sizes, made, block


@pytest.mark.parametrize(("name", "layout", "seq_len", "dtype"), TRUE_SIZE)
def test_a_block_at_its_true_size(name, layout, seq_len, dtype):
    """A second witness: torch's MemTracker follows every storage, whoever holds it.

    What lives after the forward besides its arguments is what the block keeps, and its output. x itself,
    which the block keeps where it is float32 already, is an argument.
    """
    with fake_block(name, layout, seq_len, dtype) as (sizes, made, block):
        out, kept = kept_by(lambda: block(made["x"]))
        weights = [t for n, t in made.items() if n not in ("x", "positions")]
        assert storages(kept, weights) == block_bytes(sizes)
        del out, kept
        with MemTracker() as tracker:
            tracker.track_external(*made.values())
            out = block(made["x"])
            [(_, held)] = tracker.get_tracker_snapshot("current").items()
            own = held["Total"] - storages(list(made.values()), [])
            assert own == block_bytes(sizes) - made["x"].nbytes * (dtype == "float32") + out.nbytes


RECOMPUTED = [({}, "bfloat16"), ({"tp": 8}, "bfloat16"), ({"tp": 8, "sequence_parallel": False}, "float32")]


@pytest.mark.parametrize(("layout", "dtype"), RECOMPUTED)
def test_a_recomputed_block(layout, dtype):
    """Under torch.utils.checkpoint, whole and by torchtitan's policy: each op's output that is kept."""
    outputs = {torch.ops.aten.mm.default, torch.ops._c10d_functional.reduce_scatter_tensor.default}
    outputs.add(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
    caches = []

    def contexts():
        matmuls = {True: 0, False: 0}

        def policy(ctx, op, *args, **kwargs):
            matmuls[ctx.is_recompute] += op == torch.ops.aten.mm.default
            second = op == torch.ops.aten.mm.default and matmuls[ctx.is_recompute] % 2 == 0
            keep = op in outputs and not second
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        made = create_selective_checkpoint_contexts(policy)
        caches.append(made[0])
        return made

    with fake_block("llama3.1-70b", layout, 2048, dtype) as (sizes, made, block):
        said = {
            mode: sum(t.bytes for t in layer_terms(sizes.activations, "eager", mode, "1", None))
            for mode in ("selective", "full")
        }
        _out, kept = kept_by(lambda: checkpoint(block, made["x"], use_reentrant=False))
        assert storages(kept, []) == said["full"]
        _out, kept = kept_by(lambda: checkpoint(block, made["x"], use_reentrant=False, context_fn=contexts))
        cache = [v.values() if isinstance(v, dict) else v for v in caches[0].storage.values()]
        held = [getattr(t, "val", t) for entry in cache for t in tree_leaves(list(entry))]
        tensors = [t for t in held if isinstance(t, Tensor)]
        assert storages([*kept, *tensors], []) == said["selective"]


def test_it_would_notice_a_tensor_more():
    x, w = torch.ones(4, 8, requires_grad=True), torch.ones(8, 8, requires_grad=True)
    _made, kept = kept_by(lambda: (x @ w).exp())
    assert storages(kept, [w]) == 2 * 4 * 8 * 4
    assert storages(kept, []) == (2 * 4 * 8 + 8 * 8) * 4
    gone, kept = kept_by(lambda: (x @ w).exp().detach())
    assert kept == []
    assert gone.requires_grad is False


# -- parameters, gradients, optimizer --------------------------------------------------------------

HELD = [
    ({"tp": tp, "sequence_parallel": sp, "cp": cp}, tied, padding)
    for tp, sp, cp, tied, padding in product(
        (1, 2, 4, 8), (True, False), (1, 2), (False, True), (None, "megatron")
    )
    if (sp or tp > 1) and tp * cp <= 8
]


def test_parameters_gradients_and_adam(sample):
    for layout, tied, padding in sample(HELD, 4):
        model = SMALL.replace(tied=tied)
        seq_len = 4 * layout["cp"] * layout["tp"]
        known = {"seq_len": seq_len, "padding": padding, "kv_replication": True, "dtype": "float32"}
        task, _, _ = execute.prepare("llama", model, RunOptions(lp.Layout.of(layout), **known))
        reports = local.run(task)
        with_ranks = step_through("llama", model, layout, **known)
        tensors = {n: t for n, t in with_ranks.tensors["weights"].items() if is_parameter(n)}
        said = lp.memory(model, {**layout, "zero": 0}, **known).worst
        for report in reports:
            weights = {n: by_rank(t)[report.rank] for n, t in tensors.items()}
            made = {n: g for n, g in report.gradients.items() if is_parameter(n)}
            assert sum(w.nbytes for w in weights.values()) == said.bytes("parameters")
            assert sum(g.nbytes for g in made.values()) == said.bytes("gradients")
            assert adam_bytes(weights, made) == said.bytes("optimizer states")
        with_ranks.close()


def adam_bytes(weights, gradients):
    """What Adam keeps after a step, its step counters apart."""
    own = {n: w.detach().clone().requires_grad_() for n, w in weights.items()}
    for name, w in own.items():
        w.grad = gradients[name]
    optimizer = torch.optim.Adam(own.values(), foreach=False)
    optimizer.step()
    return sum(t.nbytes for state in optimizer.state.values() for t in state.values() if t.dim())


@pytest.mark.parametrize("shard", [2, 3, 8, 64])
@pytest.mark.parametrize("name", ["llama3.1-8b", "llama3.2-1b"])
def test_fully_shard_holds_the_same(name, shard):
    """torch's FSDP2 over a fake process group: the first rank's piece of every parameter."""
    model = lp.model(name).replace(n_layers=2)
    module = torch.nn.Module()
    for i, p in enumerate(model.parameters()):
        weight = torch.nn.Parameter(torch.empty(p.shape, device="meta", dtype=torch.float32))
        module.register_parameter(f"p{i}", weight)
    with compat.fake_world(shard):
        fully_shard(module, mesh=torch.distributed.init_device_mesh("cpu", (shard,)))
        held = sum(math.prod(p.to_local().shape) * 4 for p in module.parameters())
    said = lp.memory(model, lp.Layout(dp=shard, zero=3), seq_len=128).worst
    assert held == said.bytes("parameters") == said.bytes("gradients")
    assert said.bytes("optimizer states") == 2 * held
    assert said.bytes("master weights") == 0


@pytest.mark.parametrize(("schedule", "times"), [("gpipe", 4), ("1f1b", 1)])
def test_logits_are_kept_for_every_micro_batch_that_the_last_stage_has_in_flight(
    monkeypatch, schedule, times
):
    """By a run of the pipeline: what is there when its last rank begins to go back."""
    found = []

    def backward(rank, *args):
        if rank.pp_rank == 1:
            found.append(sum(t.shape[-1:] == (SMALL.vocab_size,) for t in held()))
        return own(rank, *args)

    own = PipelineRank._backward
    monkeypatch.setattr(PipelineRank, "_backward", backward)
    with saving() as held:
        assert lp.run("llama", SMALL, {"pp": 2}, schedule=schedule, micro_batches=4, device="cpu").ok
    assert found[0] == times * found[-1] > 0
    known = {"seq_len": 64, "kernels": "eager"}
    stages = (
        lp.memory(SMALL, {"pp": 2}, **known, schedule=name, global_batch=many).stages[1]
        for name, many in (("1f1b", None), (schedule, 4))
    )
    one, every = (stage.bytes("logits and loss") - 64 * SMALL.vocab_size * 4 for stage in stages)
    assert every == times * one
