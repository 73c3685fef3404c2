"""Modules that a user brings, under torch's plans, transformers' own and cuts by hand; slips are named."""

import json
import math
import re
from collections import OrderedDict
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn.parallel import DistributedDataParallel

import llamapar as lp
import module_cases as cases
from llamapar.execution import module_reading as parts

TP2 = lp.Layout(tp=2)


def run(make, layout=TP2, plan=cases.cut_by_hand, **options):
    options.setdefault("dtype", "float64")
    return lp.compare(make, plan, layout, **options)


def parameters(result):
    return [row for row in result.rows if row.kind == "gradient"]


def row(result, name):
    return next(row for row in parameters(result) if row.name == name)


def keep(module, mesh):
    """A plan that cuts nothing."""


class Two(nn.Module):
    """Two linear layers, and a buffer that the forward changes."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("<b>calls", torch.zeros(1))

    def forward(self, x):
        self.get_buffer("<b>calls").add_(1)
        return self.b(torch.relu(self.a(x)))


TWO = {"a": ColwiseParallel(), "b": RowwiseParallel()}
X = {"x": torch.arange(96.0).view(4, 3, 8).sin()}

# -- equal -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_module_cut_by_hand_equals_the_whole_one(engine):
    result = run(cases.Decoder, engine=engine)
    assert result.ok, result
    assert result.summary == (
        f"Decoder  tp=2 cp=1 pp=1 dp=1 (2 ranks, {engine}, cpu): equal to the whole module"
    )
    names = [name for name, _ in cases.Decoder().named_parameters()]
    assert [row.name for row in parameters(result)] == names
    assert result.max_grad_error < 1e-12
    assert result.max_error < 1e-12
    wq, w13 = row(result, "layers.0.attention.wq.weight"), row(result, "layers.1.mlp.w13.weight")
    assert (wq.whole, wq.here, wq.placement) == ((32, 32), (16, 32), "dim 0 by tp")
    assert w13.placement == "dim 0: rank 0 0–23, 48–71; rank 1 24–47, 72–95"
    assert row(result, "norm.weight").placement == "copy"
    assert {row.how for row in parameters(result)} == {"in full"}
    assert result.trace.by_kind == [
        {"axis": "tp", "kind": "all_reduce", "count": 12, "bytes": 82048},
        {"axis": "tp", "kind": "all_gather", "count": 1, "bytes": 8192},
    ]


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_the_same_by_parallelize_module(sequence_parallel):
    result = run(cases.Plain, plan=cases.plan_of_plain(sequence_parallel))
    assert result.ok, result
    assert (result.max_grad_error or 1) < 1e-12
    assert row(result, "layers.0.attention.wo.weight").placement == "dim 1 by tp"
    kinds = {c["kind"] for c in result.trace.by_kind}
    assert ("reduce_scatter" in kinds) == sequence_parallel


def test_a_block_as_in_torchtitan():
    """Its rotary table is a complex buffer, which Module.to(float64) would break."""
    result = run(cases.TitanModel, plan=cases.TITAN_MODEL_PLAN)
    assert result.ok, result
    assert (result.max_grad_error or 1) < 1e-12
    assert result.module.buffers == {"layers.0.freqs_cis": (64, 4)}
    alone = run(cases.TitanBlock, plan=_sequence_cut, inputs=lambda: torch.randn(2, 16, cases.DIM))
    assert alone.ok, alone


def _sequence_cut(module, mesh):
    """The block's plan, from a whole input to a whole output."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleInputOutput, parallelize_module

    around = PrepareModuleInputOutput(
        input_layouts=(Replicate(),),
        desired_input_layouts=(Shard(1),),
        use_local_input=True,
        output_layouts=(Shard(1),),
        desired_output_layouts=(Replicate(),),
    )
    parallelize_module(module, mesh["tp"], {"": around, **cases.TITAN_PLAN})


@pytest.mark.parametrize(("tp", "dtype", "tied"), [(2, "float64", True), (4, "float32", False)])
def test_a_transformers_llama_under_its_own_plan(tp, dtype, tied):
    pytest.importorskip("transformers", reason="transformers is not installed")
    result = run(partial(_llama, tied), {"tp": tp}, "auto", dtype=dtype)
    assert result.ok, result
    assert (result.max_grad_error or 1) < (1e-12 if dtype == "float64" else 2e-5)
    assert row(result, "model.layers.1.self_attn.q_proj.weight").placement == "dim 0 by tp"
    assert row(result, "model.layers.1.mlp.down_proj.weight").placement == "dim 1 by tp"
    head = row(result, "lm_head.weight")
    assert head.placement == ("tied to model.embed_tokens.weight" if tied else "dim 0 by tp")
    assert result.module.tied == ({"lm_head.weight": "model.embed_tokens.weight"} if tied else {})


def _llama(tied=False, **sizes):
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**(small | sizes), tie_word_embeddings=tied))


def _zero(module, mesh):
    from torch.distributed.fsdp import fully_shard

    for layer in module.get_submodule("layers").children():
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(module, mesh=mesh["dp"])


def test_fully_shard_on_real_ranks_and_its_refusal_elsewhere():
    result = run(cases.Plain, {"dp": 2}, _zero, engine="processes")
    assert result.ok, result
    assert (result.max_grad_error or 1) < 1e-12
    assert row(result, "layers.0.w1.weight").placement == "dim 0 by dp"
    assert result.rows[0].placement == "dim 0 by dp"
    assert [c["axis"] for c in result.trace.by_kind] == ["dp", "dp"]
    with pytest.raises(
        lp.LlamaparError, match=r"^engine='local' cannot run this: RuntimeError: .*resize_"
    ) as e:
        run(cases.Plain, {"dp": 2}, _zero)
    assert e.value.choose == ("engine='processes'",)


def test_over_dp_each_rank_has_the_gradient_of_its_own_sequences():
    result = run(cases.Decoder, {"tp": 2, "dp": 2})
    assert result.ok, result
    assert {row.how for row in parameters(result)} == {"a summand: mean over dp"}
    words = "gradients: each rank has a summand: mean over dp, in the trainer, as its data parallelism does"
    assert f"{len(parameters(result))} {words}" in result.text()
    summed = run(Two, {"tp": 2, "dp": 2}, TWO, inputs=X, loss=lambda y: y.pow(2).sum())
    assert summed.ok
    assert {row.how for row in parameters(summed)} == {"a summand: sum over dp"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lower_precision_is_compared_with_what_it_rounds(dtype):
    result = run(cases.Decoder, dtype=dtype, engine="processes")
    assert result.ok, result
    assert 0 < (result.max_grad_error or 0) < result.tolerance
    if dtype == "float32":
        return
    slip = partial(cases.cut_by_hand, at="layers.1.mlp", slip="no sum")
    broken = run(cases.Decoder, plan=slip, dtype=dtype, engine="processes")
    assert (broken.ok, broken.where) == (False, "layers.1.mlp")


# -- wrappers --------------------------------------------------------------------------------------


def _wrap(module, mesh, wrapper):
    """The module of which each layer, or under DistributedDataParallel the whole, is inside a wrapper."""
    if wrapper == "DistributedDataParallel":
        return DistributedDataParallel(module, process_group=mesh.get_group("dp"))
    layers = module.get_submodule("layers")
    for name, layer in list(layers.named_children()):
        wrapped = torch.compile(layer) if wrapper == "torch.compile" else checkpoint_wrapper(layer)
        setattr(layers, name, wrapped)
    return torch.compile(module) if wrapper == "torch.compile" else module  # type: ignore[return-value]


def _wrapped(module, mesh, wrapper, slip):
    cases.cut_by_hand(module, mesh, "layers.1.attention", slip)
    return _wrap(module, mesh, wrapper)


@pytest.mark.parametrize(
    ("wrapper", "engine"),
    [
        ("DistributedDataParallel", "processes"),
        ("torch.compile", "processes"),
        pytest.param("torch.compile", "local", marks=pytest.mark.soak),
        ("checkpoint_wrapper", "local"),
    ],
)
def test_wrappers_are_seen_through(wrapper, engine):
    layout = {"tp": 2, "dp": 2 if wrapper == "DistributedDataParallel" else 1}
    right = run(cases.Decoder, layout, partial(_wrapped, wrapper=wrapper, slip=""), engine=engine)
    assert right.ok, right
    assert [row.name for row in parameters(right)] == [name for name, _ in cases.Decoder().named_parameters()]
    assert {row.how for row in parameters(right)} == {"in full"}
    assert not any("parameters of its own" in note for note in right.notes)
    for slip in ("no sum", "no sum on the way back"):
        wrong = run(cases.Decoder, layout, partial(_wrapped, wrapper=wrapper, slip=slip), engine=engine)
        assert (wrong.ok, wrong.where) == (False, "layers.1.attention"), wrong


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated"
)  # torch uses it, as it is compiled with
def test_a_wrapper_that_make_puts_there_is_seen_through():
    """Also one that the plan does not know of, and the module's own name for a part is no wrapper's."""

    def make():
        inner = checkpoint_wrapper(Two())
        return torch.compile(nn.Sequential(OrderedDict(module=inner)))  # type: ignore[return-value]

    result = run(make, plan=keep, inputs=(X["x"],))
    assert result.ok, result
    assert result.summary.startswith("Sequential ")
    assert [row.name for row in parameters(result)][:2] == ["module.a.weight", "module.a.bias"]
    assert "torch.compile is left out: the code runs as it is written" in result.notes


def test_distributed_data_parallel_is_refused_where_it_cannot_run():
    with pytest.raises(lp.LlamaparError, match=r"^engine='local' cannot run this: RuntimeError: ") as e:
        run(cases.Decoder, {"dp": 2}, partial(_wrap, wrapper="DistributedDataParallel"))
    assert e.value.choose[0].startswith("engine='processes'")


# -- inputs and losses -----------------------------------------------------------------------------


def test_inputs_by_keyword_by_place_and_by_a_function():
    for inputs in (X, (X["x"],), lambda: X, lambda: torch.randn(4, 3, 8)):
        assert run(Two, plan=TWO, inputs=inputs).ok
    both = run(Two, plan=TWO, inputs=X, loss=lambda y, inputs: (y * inputs["x"]).mean())
    assert both.ok
    assert "the forward changes buffers: <b>calls" in both.text()


def test_tokens_read_both_edge_rows_of_every_rank():
    seen = []
    run(cases.Plain, {"tp": 2, "dp": 2}, keep, loss=partial(_seeing, seen))
    tokens = seen[0]  # the whole module's
    assert tokens.shape == (4, 16)
    assert all({0, 31, 32, 63} <= set(sequence.tolist()) for sequence in tokens)


def _seeing(seen, y, inputs):
    seen.append(inputs["tokens"])
    return y.square().mean()


# -- slips -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slip", [*cases.ASKED, *cases.OWN], ids=lambda slip: slip.name)
def test_a_slip_is_found_and_named(slip):
    result = run(slip.make, plan=slip.plan, engine="processes")
    assert not result.ok
    assert result.where in slip.named, result
    if slip.name in PLACED:
        name, placement = PLACED[slip.name]
        assert row(result, name).placement == placement


PLACED = {
    "a slice off by one": ("layers.0.attention.wk.weight", "dim 0: rank 0 0–7; rank 1 7–14; no rank has 15"),
    "swapped pieces of wv": ("layers.1.attention.wv.weight", "dim 0: rank 0 8–15; rank 1 0–7"),
}
"""How a parameter that is cut wrong is said to be cut."""


def test_gradients_that_are_a_multiple_are_said_to_be():
    slip = next(slip for slip in cases.OWN if slip.name == "gradients twice as large")
    result = run(slip.make, plan=slip.plan, engine="processes")
    assert result.difference.pattern == "2 × the right one (2 = tp)"
    right = run(slip.make)
    assert lp.compare(right, result).where.startswith("line layers.1.mlp.w13: output's gradient of ")
    other = run(slip.make, dict(tp=2, dp=2))
    assert lp.compare(right, other).ok
    with pytest.raises(lp.LlamaparError, match=r"^the first run's 1 sequence over dp=2: they do not divide"):
        lp.compare(run(slip.make, global_batch=1), other)
    assert "gradients equal back to norm; layers.1.mlp: backward: what it gives to " in result.text()
    assert str(result.call).startswith("lp.compare(")
    first = partial(cases.cut_by_hand, at="layers.0.mlp", slip="sum on the way back too")
    assert run(cases.Decoder, plan=first).where == "layers.0.mlp"  # what comes next gives no gradient back


def test_a_number_that_is_none_differs():
    def spoil(module, mesh):
        module.register_forward_hook(lambda module, given, y: y * float("nan"))

    result = run(Two, plan=spoil, inputs=X)
    assert not result.ok
    assert result.max_error == math.inf
    assert {row.error for row in parameters(result)} == {math.inf}


def test_a_plan_that_unties_weights_is_named():
    kept = run(partial(cases.Plain, tied=True), plan=keep)
    assert kept.ok
    assert row(kept, "output.weight").placement == "tied to embedding.weight"
    assert "no parameter is cut: every rank has the whole module" in kept.notes
    untied = run(partial(cases.Plain, tied=True), plan=cases.plan_of_plain(), engine="processes")
    assert [row.name for row in untied.rows if not row.ok] == ["embedding.weight", "output.weight"]
    words = "of its own use alone: the plan unties it from embedding.weight"
    assert row(untied, "output.weight").how == words
    assert "tied: output.weight is embedding.weight" in untied.text()


def test_an_error_has_its_submodule_and_every_ranks_traceback():
    for engine in ("local", "processes"):
        result = run(Two, plan={"a": ColwiseParallel()}, inputs=X, engine=engine)
        assert sorted(result.errors) == [0, 1]
        assert result.where == "b"
        assert all("mat1 and mat2 shapes cannot be multiplied" in text for text in result.tracebacks.values())
        assert result.summary.endswith("raised RuntimeError in b")


# -- showing ---------------------------------------------------------------------------------------


def test_the_record_as_text_html_and_json():
    result = run(Two, plan=TWO, inputs=X)
    head, *lines = result.text().splitlines()[1:]
    assert head.split("  ")[0] == "what"
    assert re.fullmatch(r"output +out +\[\] +\[\] +whole on each rank +\de[-+]\d\d +equal", lines[0])
    assert re.fullmatch(
        r"gradient +a.weight +\[16, 8\] +\[8, 8\] +dim 0 by tp +\de[-+]\d\d +in full", lines[2]
    )
    assert "<b>calls" in result.text()
    assert "&lt;b&gt;calls" in result._repr_html_()
    assert "<b>calls" not in result._repr_html_()
    told = json.loads(json.dumps(result.as_dict()))
    assert told["ok"]
    assert told["module"]["buffers"] == {"<b>calls": [1]}
    assert told["module"]["changed_buffers"] == ["<b>calls"]
    assert told["rows"][2]["placement"] == "dim 0 by tp"
    assert told["bytes"] == {"tp": 768}


# -- refused ---------------------------------------------------------------------------------------


def halves(module, mesh):
    """A plan that leaves each rank half of the output's columns."""
    n, b = 4, module.get_submodule("b")
    at = mesh.get_local_rank("tp") * n
    for name in ("weight", "bias"):
        setattr(b, name, nn.Parameter(b.get_parameter(name).detach().narrow(0, at, n)))


# -- parts -----------------------------------------------------------------------------------------


def test_a_part_is_found_by_its_numbers():
    whole = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    assert parts.part_of(whole, whole) == (range(12), range(5))
    assert parts.part_of(whole[3:7], whole) == (range(3, 7), range(5))
    assert parts.part_of(whole[1::3], whole) == ((1, 4, 7, 10), range(5))
    assert parts.part_of(whole[:, 1:3], whole) == (range(12), range(1, 3))
    assert parts.part_of(whole[4:8, 2:4], whole) == (range(4, 8), range(2, 4))
    assert parts.part_of(whole[:0], whole) == (range(0), range(5))
    assert parts.part_of(whole[:6].flip(0), whole) == ((5, 4, 3, 2, 1, 0), range(5))
    assert parts.part_of(whole.flip(0), whole) is None
    assert parts.part_of(whole[:4] + 1, whole) is None


def test_parts_are_said_in_words():
    def words(layout, *rows):
        return parts.parts_in_words({r: (own, range(5)) for r, own in enumerate(rows)}, layout, (12, 5))

    assert words(TP2, range(6), range(6, 12)) == "dim 0 by tp"
    assert words(TP2, range(12), range(12)) == "copy"
    assert words(TP2, range(0, 12, 6), range(6, 12)) == "dim 0: rank 0 0, 6; rank 1 6–11; no rank has 1–5"
    thirds = [range(r * 3, r * 3 + 3) for r in range(4)]
    both = lp.Layout(tp=2, dp=2)
    assert words(both, *thirds) == "dim 0 by dp and tp"
    assert words(both, *(thirds[r] for r in (0, 2, 1, 3))) == "dim 0 by tp and dp"
    assert words(lp.Layout(tp=5), *(range(r * 3, min(12, r * 3 + 3)) for r in range(5))) == "dim 0 by tp"
    lost = {0: (range(12), range(5)), 1: None}
    assert parts.parts_in_words(lost, TP2, (12, 5)) == (
        "rank 1: holds no part of the whole that can be found"
    )


def test_a_gradient_is_full_or_a_summand():
    whole = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    copies = dict.fromkeys((0, 1), (range(4), range(3)))

    def fit(a, b):
        return parts.reading({0: a, 1: b}, whole, lp.Layout(tp=2), 1e-6, {"tp": ("sum",)}, copies)

    assert fit(whole, whole).summed == {}
    assert fit(whole / 3, whole * 2 / 3).words == "a summand over tp"
    assert fit(2 * whole, 2 * whole).words == "DIFFERS"
    assert fit(whole, whole.flip(0)).words == "DIFFERS"
    assert fit(whole * float("nan"), whole).error == float("inf")
