"""Sharded runs beside others' models: transformers' Llama and torch's DTensor."""

import math
import os
import warnings
from collections import Counter
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import PrepareModuleInput, RowwiseParallel, parallelize_module

import llamapar as lp
from llamapar.describe.rope import RopeScaling
from llamapar.execution.body import call_function
from llamapar.programs.parts import rope_frequencies
from module_cases import TITAN_PLAN, TitanBlock
from stepping import step_through

SMALL = lp.ModelConfig(
    dim=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    ffn_dim=48,
    vocab_size=97,
    rope_theta=10000.0,
    rope_scaling=RopeScaling(factor=8.0, original_max_seq_len=128),  # wavelengths 6, 63, 628, 6283: all cases
    name="small",
)


def filled(model, seed):
    """Random weights by Meta's names, norms around one."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for p in model.parameters():
        drawn = torch.randn(p.shape, generator=generator)
        made[p.name] = 1 + drawn / 8 if p.key == "norm" else drawn / math.sqrt(p.shape[-1])
    return made


def largest(a, b):
    """max|a - b| / max|b|; NaN is never small."""
    assert a.shape == b.shape
    return ((a - b).abs().max() / b.abs().max()).item()


# -- transformers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformers():
    """The module, kept from the network; what its dependencies warn of at import is theirs."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
            patch.setenv(name, "1")
        warnings.simplefilter("ignore")
        import transformers

        transformers.logging.set_verbosity_error()
        assert os.environ["HF_HUB_OFFLINE"] == "1"
        yield transformers


def config(transformers, model):
    """The model as a LlamaConfig, or as a Qwen2Config or Qwen3Config where it has biases or QK norms."""
    rope = {"rope_type": "default", "rope_theta": model.rope_theta}
    if (scaling := model.rope_scaling) is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_seq_len,
        }
    own = {"attention_bias": model.o_bias} if model.qk_norm else {}
    return getattr(transformers, f"{family(model)}Config")(
        **own,
        hidden_size=model.dim,
        num_hidden_layers=model.n_layers,
        num_attention_heads=model.n_heads,
        num_key_value_heads=model.n_kv_heads,
        head_dim=model.head_dim,
        intermediate_size=model.ffn_dim,
        vocab_size=model.vocab_size,
        max_position_embeddings=model.max_seq_len,
        rms_norm_eps=model.norm_eps,
        tie_word_embeddings=model.tied,
        rope_parameters=rope,
        attn_implementation="eager",
        use_cache=False,
        pad_token_id=None,  # a class that has one leaves its row of the embedding without a gradient
    )


def family(model):
    """The name of the model's classes in transformers."""
    if model.family == "seed_oss":
        return "SeedOss"
    if model.qk_norm:
        return "Qwen3"
    return "Qwen2" if model.qkv_bias else "Llama"


def half_split(w, n_heads):
    """Rows of wq or wk, or of their biases, from Meta's neighbouring pairs to two halves of a head:
    `permute` of transformers' convert_llama_weights_to_hf.py."""
    return w.view(n_heads, len(w) // n_heads // 2, 2, -1).transpose(1, 2).reshape(w.shape)


def to_hf(model, weights):
    """The weights by transformers' names."""
    heads = dict.fromkeys(("wq", "bq"), model.n_heads) | dict.fromkeys(("wk", "bk"), model.n_kv_heads)
    heads |= {"q_norm": 1, "k_norm": 1}
    return {
        p.hf_name: half_split(weights[p.name], heads[p.key]) if p.key in heads else weights[p.name]
        for p in model.parameters()
    }


def whole_logits(result):
    """[batch, seq, vocab]: the ranks' logits put where the maps say, pad columns dropped."""
    setting, lay = result.task.setting, result.layout
    full = torch.full((setting.global_batch, setting.seq_len, setting.vocab.padded), torch.nan)
    each = setting.global_batch // lay.dp
    for rank, made in result.outputs.items():
        at = lay.coord_of(rank)
        columns = setting.vocab.rank(at.tp).rows
        tokens = [p for chunk in setting.sequence.rank(at.cp).chunks for p in chunk]
        rows = full[at.dp * each : (at.dp + 1) * each]
        rows[:, tokens, columns.start : columns.stop] = made["logits"]
    return full[..., : setting.model.vocab_size]


COPIES = ({"tp": 4, "cp": 2}, {"kv_replication": True, "padding": "4*tp"})
NO_SP = ({"tp": 2, "dp": 2, "sequence_parallel": False}, {})
FARTHER = RopeScaling(factor=32.0, original_max_seq_len=128)
HF_CASES = {
    "tp2-cp2, ring": ({"tp": 2, "cp": 2}, {"cp_method": "ring", "padding": "64"}, {}),
    "tp4-cp2, KV copies, tied": (*COPIES, {"tied": True, "rope_scaling": FARTHER}),
    "tp2-dp2, no SP, no scaling": (*NO_SP, {"rope_scaling": None, "vocab_size": 96}),
    "tp4-cp2, KV copies, Qwen2's biases": (*COPIES, {"rope_scaling": None, "qkv_bias": True}),
    "tp2-dp2, no SP, Seed-OSS": (*NO_SP, {"rope_scaling": None, "qkv_bias": True, "family": "seed_oss"}),
    "tp4-cp2, KV copies, Qwen3's norms": (*COPIES, {"rope_scaling": None, "qk_norm": True}),
    "tp2-dp2, no SP, norms and all biases": (
        *NO_SP,
        {"rope_scaling": None, "qk_norm": True, "qkv_bias": True, "o_bias": True},
    ),
}


@pytest.mark.parametrize("case", HF_CASES)
def test_a_sharded_llama_is_that_of_transformers(transformers, case):
    layout, options, changes = HF_CASES[case]
    model = SMALL.replace(**changes)
    weights = filled(model, seed=1)
    generator = torch.Generator().manual_seed(2)
    tokens, targets = torch.randint(model.vocab_size, (2, 2, 64), generator=generator)

    kind = getattr(transformers, f"{family(model)}ForCausalLM")
    theirs = kind(config(transformers, model)).eval()
    leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
    logits = torch.func.functional_call(theirs, to_hf(model, leaves), (tokens,)).logits
    loss = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)
    gradients = dict(zip(leaves, torch.autograd.grad(loss.mean(), list(leaves.values())), strict=True))

    given = {"tokens": tokens, "targets": targets, **weights}
    result = lp.run("llama", model, layout, seq_len=64, global_batch=2, inputs=given, **options)
    assert result.ok
    assert largest(whole_logits(result), logits.detach()) < 1e-5
    setting = result.task.setting
    for rank, made in result.gradients.items():
        coord = result.layout.coord_of(rank)._asdict()
        own = loss.detach() if result.layout.dp == 1 else loss.detach()[coord["dp"]][None]
        torch.testing.assert_close(result.outputs[rank]["loss"], own, rtol=1e-5, atol=0)
        assert set(made) == set(weights)
        for name, gradient in made.items():
            assert largest(gradient, setting.part(name, gradients[name], coord)) < 1e-5, name


# -- RoPE's frequencies ----------------------------------------------------------------------------

SCALED = ["llama3.1-8b", "llama3.1-405b", "llama3.2-1b"]


@pytest.mark.parametrize("name", [*SCALED, "llama3-8b"])
def test_frequencies_are_those_of_transformers(transformers, name):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    model = lp.model(name)
    theirs = config(transformers, model)
    function = LlamaRotaryEmbedding.compute_default_rope_parameters
    if model.rope_scaling is not None:
        function = ROPE_INIT_FUNCTIONS["llama3"]
    expected, factor = function(theirs)
    assert factor == 1.0
    torch.testing.assert_close(
        rope_frequencies(model, torch.device("cpu")).float(), expected, rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("name", SCALED)
def test_frequencies_are_metas_formula(name):
    """`apply_scaling` of llama-models, models/llama3/model.py @a9c89c4, one number at a time in float64."""
    model = lp.model(name)
    factor, old = {"llama3.2-1b": 32}.get(name, 8), 8192
    cases = Counter[str]()
    for i, ours in enumerate(rope_frequencies(model, torch.device("cpu")).tolist()):
        frequency = 500_000.0 ** (-2 * i / model.head_dim)
        length = 2 * math.pi / frequency
        if length < old / 4:
            expected, case = frequency, "kept"
        elif length > old:
            expected, case = frequency / factor, "divided"
        else:
            smooth = (old / length - 1) / (4 - 1)
            expected, case = (1 - smooth) * frequency / factor + smooth * frequency, "between"
        cases[case] += 1
        assert ours == pytest.approx(expected, rel=1e-5)
    assert set(cases) == {"kept", "between", "divided"}


# -- torch's DTensor -------------------------------------------------------------------------------


def titan_block():
    """torchtitan's block with SMALL's epsilon and angles, in float64."""
    block = TitanBlock().double()
    for norm in (block.attention_norm, block.ffn_norm):
        norm.eps = SMALL.norm_eps
    angles = torch.arange(64)[:, None] * rope_frequencies(SMALL, torch.device("cpu"))
    block.freqs_cis = torch.polar(torch.ones_like(angles), angles)
    return block


def plan(sp):
    """torch's tensor parallelism of a Llama block, with and without sequence parallelism."""
    whole = (Replicate(),)
    without = dict.fromkeys(("attention.wo", "feed_forward.w2"), RowwiseParallel(output_layouts=Replicate()))
    without["attention"] = PrepareModuleInput(
        input_layouts=(*whole, None), desired_input_layouts=(*whole, None)
    )
    without["feed_forward"] = PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole)
    norms = ("attention_norm", "ffn_norm")
    return TITAN_PLAN if sp else {n: s for n, s in (TITAN_PLAN | without).items() if n not in norms}


def kinds(comm):
    """What CommDebugMode counted, by our names."""
    ours = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
    ours |= {"all_reduce": "all_reduce", "all_to_all_single": "all_to_all"}
    return Counter({ours[op.__name__]: n for op, n in comm.get_comm_counts().items()})


@pytest.mark.parametrize("sp", [True, False])
def test_torchs_own_tensor_parallelism_is_the_same_block(sp):
    layout = {"tp": 2, "dp": 2, "sequence_parallel": sp}
    options = {"seq_len": 16, "global_batch": 4, "dtype": "float64"}
    result = lp.run("block", SMALL, layout, **options)
    assert result.ok
    setting = result.task.setting
    block = titan_block()
    names = {name.removesuffix(".weight").rpartition(".")[2]: name for name, _ in block.named_parameters()}
    with torch.no_grad():
        for name, full in names.items():
            block.get_parameter(full).copy_(setting.make(name, setting.shape(name)))

    with step_through("block", SMALL, layout, **options) as ranks:
        block = parallelize_module(block, ranks.mesh["tp"], plan(sp))
        x = ranks.tensors["x"]
        cotangent = ranks.cut("residual", lambda: setting.make("cotangent", setting.shape("residual")))
        with lp.record() as trace, CommDebugMode() as comm:
            y = block(x)
            ((y * cotangent).sum() / 4).backward()
        found = {"out": ranks.values(y), "x": ranks.values(x.grad)}
        for name, full in names.items():
            gradient = block.get_parameter(full).grad
            if isinstance(gradient, DTensor):  # a norm's is a sum not yet made
                summed = [Replicate()] if gradient.placements[0].is_partial() else gradient.placements
                gradient = gradient.redistribute(placements=summed).to_local()
            found[name] = ranks.values(gradient)
    for rank in range(4):
        assert largest(found["out"][rank], result.outputs[rank]["out"]) < 1e-12
        assert largest(found["x"][rank], result.gradients[rank]["x"]) < 1e-12
        for name in names:  # the sum over dp is left to the data parallelism
            made = found[name][rank] + found[name][(rank + 2) % 4]
            assert largest(made, result.gradients[rank][name]) < 1e-12, name

    ours = [e for e in result.trace.events if e.phase != "gradients"]
    said = Counter((e.phase, e.kind, e.axis, e.group, e.payload) for e in trace.events)
    assert said == Counter((e.phase, e.kind, e.axis, e.group, e.payload) for e in ours)
    assert len(ours) == (8 if sp else 4)
    assert kinds(comm) == Counter(e.kind for e in trace.events)
    predicted = lp.traffic("block", SMALL, layout, **options)
    for phase in ("forward", "backward"):
        assert trace.trace.bytes("tp", phase) == predicted.bytes("tp", phase) > 0


@pytest.mark.parametrize("cp_method", ["all_gather", "ring"])
def test_torchs_counter_sees_the_collectives_that_ours_sees(cp_method):
    options = {"seq_len": 16, "cp_method": cp_method}
    ranks = step_through("block", SMALL, {"tp": 2, "cp": 2}, **options)
    with ranks, lp.record() as trace, CommDebugMode() as comm:
        block = partial(lp.programs.PROGRAMS["block"].function, ranks.mesh, ranks.setting)
        call_function(block, ranks.tensors)["out"].sum().backward()
    # torch has a ring's sends as an all-to-all.
    ours = Counter("all_to_all" if e.kind == "send" else e.kind for e in trace.events)
    assert kinds(comm) == ours
    assert len(trace.events) == {"all_gather": 12, "ring": 16}[cp_method]
