"""Times of a step: the formulas, their witnesses, and what must hold for any layout."""

import json
import math
import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import llamapar as lp
from llamapar.describe.hardware import HARDWARE, hardware
from llamapar.timing.layer import Conditions, layer
from llamapar.timing.step import rings_of

PAPER = lp.Layout(tp=8, pp=16, dp=128, virtual_stages=8)
STEP = {"seq_len": 8192, "global_batch": 2048, "recompute": "none"}


def paper(**changes):
    return lp.cost("llama3.1-405b", PAPER, **STEP | changes)


# -- the record ------------------------------------------------------------------------------------


def test_terms_add_up_and_each_is_its_formula(run):
    found = paper()
    assert found.step_seconds == pytest.approx(sum(found.seconds.values()))
    names = {"max": max, "min": min, "ceil": math.ceil}
    for term in (*found.terms, *found.layer.forward.values(), *found.layer.backward.values()):
        assert term.value == pytest.approx(eval(term.formula, names, dict(term.inputs)))
        assert term.formula in str(found) or term not in found.terms
        assert term.source, term.name
    assert found.interval[0] < found.step_seconds < found.interval[1]
    words = "--tp 8 --pp 16 --dp 128 --virtual-stages 8 --seq-len 8192 --global-batch 2048 --recompute none"
    status, out, _ = run(f"cost --model llama3.1-405b {words} --json")
    said = json.loads(out)
    assert status == 0
    assert said["step_seconds"] == pytest.approx(found.step_seconds)
    assert said["terms"] == pytest.approx(found.seconds)
    assert {"step_seconds", "interval", "caveat", "mfu", "tokens_per_second_per_gpu", "terms"} <= said.keys()
    assert said["tokens_per_second_per_gpu"] * said["step_seconds"] * 16384 == pytest.approx(2048 * 8192)


def test_conventions_of_mfu_differ_by_attention_and_by_what_is_computed_again():
    causal, full, again = (paper(flops=name, recompute="full") for name in ("causal", "full", "recomputed"))
    tokens, attention = 2048 * 8192, 126 * 8192 * 16384
    assert full.flops - causal.flops == 6 * attention * tokens
    layers = 126 * 3_187_671_040  # its matmuls: a layer without norms
    assert again.flops - causal.flops == (2 * layers + 2 * attention) * tokens


# -- witnesses -------------------------------------------------------------------------------------


def test_flops_are_those_of_the_published_formula():
    """Megatron's 72·B·s·l·h²·(1 + s/6h + V/12lh), for a model whose three matrices are two of 4h
    (arXiv:2104.04473 appendix; full attention)."""
    h, layers, s, vocab = 6144, 12, 2048, 51200
    model = lp.ModelConfig(
        name="gpt", dim=h, n_layers=layers, n_heads=48, n_kv_heads=48, ffn_dim=8 * h // 3, vocab_size=vocab
    )
    found = lp.cost(model, lp.Layout(), seq_len=s, global_batch=4, flops="full")
    published = 72 * 4 * s * layers * h * h * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert found.flops == pytest.approx(published, rel=1e-9)


def test_flops_of_a_layer_are_those_that_torch_counts():
    """FlopCounterMode over a block of this project and its reference, forward and backward. Of a CPU's kernel
    of attention it knows nothing, so that those FLOPs are taken off ours."""
    counters = pytest.importorskip("torch.utils.flop_counter")
    model = lp.model("tiny")
    with counters.FlopCounterMode(display=False) as counter:
        lp.run("block", model, lp.Layout(), seq_len=32, global_batch=1, device="cpu")
    two, one = (
        lp.cost(model.replace(n_layers=n), lp.Layout(), seq_len=32, global_batch=1).flops for n in (2, 1)
    )
    assert counter.get_total_flops() == 2 * (two - one - 6 * 32 * 32 * model.q_dim)


def test_what_tp_and_cp_send_is_what_traffic_says():
    model, lay = lp.model("llama3-8b"), lp.Layout(tp=4, cp=2)
    how = Conditions(HARDWARE["h100-80gb"], recompute="none")
    made = layer(how, model, lay, 8192, 2)
    sent = lp.traffic("block", model, lay, seq_len=8192, global_batch=2, dtype="bfloat16")
    for axis, name in (("tp", "exposed TP"), ("cp", "exposed CP")):
        for phase, terms in (("forward", made.forward), ("backward", made.backward)):
            assert terms[name].inputs["sent"] == sent.bytes(axis, phase), (axis, phase)


@pytest.mark.parametrize("stages", [1, 2])
def test_the_bubble_is_the_schedules(stages):
    """Equal stages: (pp - 1)/(v·m) of the work (arXiv:2104.04473 section 2.2)."""
    model = lp.model("llama3-8b").replace(vocab_size=8)
    lay = lp.Layout(tp=8, pp=4, virtual_stages=stages)
    found = lp.cost(model, lay, seq_len=8192, global_batch=16, layer_split="equal")
    busy = next(term for term in found.terms if term.name == "pipeline idle").inputs["busy"]
    assert found.seconds["pipeline idle"] / busy == pytest.approx(3 / 16 / stages, rel=1e-3)


def test_zero_moves_what_its_paper_says():
    """Stage 1: gradients in float32 and parameters in bfloat16 once, (n - 1)/n of each."""
    model = lp.model("llama3-8b")
    found = lp.cost(model, lp.Layout(dp=64), seq_len=8192, global_batch=64)
    term = next(term for term in found.terms if term.name == "exposed DP")
    shards, copies = rings_of(Conditions(HARDWARE["h100-80gb"]), lp.Layout(dp=64), 1)
    assert (shards.size, shards.inside, copies.size) == (64, 8, 1)
    rate = shards.rate(HARDWARE["h100-80gb"])
    assert term.inputs["scatter"] == pytest.approx(4 * model.n_params * 63 / 64 / rate)
    assert term.inputs["gather"] == pytest.approx(2 * model.n_params * 63 / 64 / rate)


# -- what the paper argues -------------------------------------------------------------------------


def test_half_the_tp_brings_what_the_paper_measured():
    """Some 10 % on 2,048 GPUs ("Scaling Llama 3 Training", ISCA 2025, section 8.1); across nodes TP costs."""

    def cost(tp, **known):
        layout = lp.Layout(tp=tp, pp=16, dp=128 // tp, virtual_stages=8)
        return lp.cost("llama3.1-405b", layout, global_batch=32 * 128 // tp, seq_len=8192, **known)

    assert cost(4, recompute="none").mfu / cost(8, recompute="none").mfu == pytest.approx(1.10, abs=0.01)
    across, inside = (cost(tp, kv_replication=True).seconds["exposed TP"] for tp in (16, 8))
    assert across > inside


def test_nothing_hides_what_nanotron_sends_under_zero_1():
    """Two rings of float32 gradients and one of parameters, however long the backward beside it is."""
    known = {"seq_len": 4096, "global_batch": 256, "recompute": "none"}
    model, lay = lp.model("llama3.2-1b"), lp.Layout(dp=64, zero=1)
    found = lp.cost(model, lay, **known, framework="nanotron")
    term = next(term for term in found.terms if term.name == "exposed DP")
    sent = term.inputs["scatter"]
    assert term.inputs["gather"] == pytest.approx(sent / 2)
    copies = 6 * model.n_layers * 64
    assert term.value == pytest.approx(2.5 * sent + 3 * term.inputs["latency"] + copies * 1e-5)
    assert term.value > 10 * lp.cost(model, lay, **known).seconds["exposed DP"]
    plain = lay.replace(zero=0)
    assert (
        lp.cost(model, plain, **known, framework="nanotron").seconds["exposed DP"]
        == lp.cost(model, plain, **known).seconds["exposed DP"]
    )


def test_the_trainer_says_whether_zero_2_reduces_once_in_a_pipeline():
    """Megatron-FSDP reduces after every micro-batch, torch's pipelining after the last one."""
    lay = lp.Layout(tp=8, pp=16, dp=128, virtual_stages=8)
    known = {"seq_len": 8192, "global_batch": 2048, "recompute": "none", "layer_split": "balanced ends"}
    for framework in (None, "torchtitan", "megatron-lm"):
        known["framework"] = framework
        first, second = (
            lp.cost("llama3.1-405b", lay.replace(zero=zero), **known).seconds["exposed DP"] for zero in (1, 2)
        )
        assert second > 10 * first if framework == "megatron-lm" else second == first


def test_document_masks_make_attention_uneven():
    whole = paper()
    for share in (1.44, 0.25):
        one = paper(imbalance=share)
        assert one.seconds["attention"] == pytest.approx(share * whole.seconds["attention"])
        assert one.changed(tp=8) == one
        assert one.changed(imbalance=1.0) == whole


# -- hardware --------------------------------------------------------------------------------------


def test_every_gpu_is_told_with_its_source():
    for gpu in HARDWARE.values():
        assert gpu.source, gpu.name
        assert re.match("peaks and rates: (NVIDIA|AMD)'s, .*attention", gpu.source), gpu.name
        gpu.require_rates("bfloat16")
        assert 0 < gpu.gemm <= 1, gpu.name
        assert 0 < gpu.attention <= 1, gpu.name
    less_power = hardware("h100-96gb")  # of which it leaves what was published
    assert less_power.throttle == pytest.approx(5 / 7)
    assert less_power.bfloat16 * less_power.capped == pytest.approx(800e12, rel=1e-3)


def test_a_gpu_of_ones_own_is_the_same_data_everywhere(tmp_path, run):
    data = {"base": "h100-80gb", "memory_gib": 79.5, "watts": 600}
    own = hardware(data)
    assert (own.hbm_bytes, own.watts, own.name) == (79.5 * 2**30, 600, "h100-80gb of one's own")
    assert hardware(own.text) == own
    known = vars(HARDWARE["h100-80gb"]) | {"name": "no float8"}
    bare = {name: value for name, value in known.items() if value and "float8" not in name}
    assert hardware(hardware(bare).text) == hardware(bare)
    assert json.loads(own.text) == {"base": "h100-80gb", "hbm_bytes": own.hbm_bytes, "watts": 600.0}
    (tmp_path / "own.json").write_text(json.dumps(data))
    (tmp_path / "own.toml").write_text('base = "h100"\nmemory_gib = 79.5\nwatts = 600\n')
    texts = (json.dumps(data), str(tmp_path / "own.json"), str(tmp_path / "own.toml"))
    assert [hardware(text) for text in texts] == [own] * 3
    job = "--model llama3-8b --dp 8 --seq-len 8192"
    for line in (f"check {job}", f"memory {job}", f"cost {job}"):
        said = [run(f"{line} --gpu {shlex.quote(text)} --json") for text in texts]
        assert said[0] == said[1] == said[2]
        assert said[0][2] == ""
    assert "of h100-80gb of one's own: " in run(f"memory {job} --gpu {shlex.quote(texts[0])}")[1]
    searched = "plan --model llama3-8b --gpus 8 --seq-len 8192 --global-batch 16 --top 1"
    assert "on 8 h100-80gb of one's own: " in run(f"{searched} --gpu {shlex.quote(texts[0])}")[1]


BRIDGE = """
h100-80gb   float8 1024 8 8 2 8 1536 311 326 328
gb200-nvl72 float8 256 4 16 1 4 1536 793 818 843 864
gb300-nvl72 float8 256 4 8 1 4 1536 988 1024 1036 1048
b200-180gb  mxfp8 128 4  8 2 8   64 624  622
gb200-nvl72 mxfp8 256 4 16 1 8 1536 775  786  793  800
gb200-nvl72 nvfp4 256 4 16 1 8 1536 1076 1136 1166 1184
gb300-nvl72 mxfp8 256 2  8 2 4 1536 931  949  960  968
gb300-nvl72 nvfp4 256 4  8 1 4 1536 1333 1358 1413 1440
"""
"""Llama 3.1 405B of 8,192 tokens: GPU, precision, GPUs, TP, PP, CP, virtual stages, sequences of a step, and
tokens/s of a GPU in several releases (NVIDIA-NeMo/Megatron-Bridge docs/performance-archive.md @067f987d).
"""


@pytest.mark.parametrize("row", BRIDGE.split("\n")[1:-1])
def test_a_precision_is_as_fast_as_what_they_were_fitted_to(row):
    gpu, precision, *numbers = row.split()
    gpus, tp, pp, cp, virtual_stages, batch, *measured = map(int, numbers)
    layout = lp.Layout(tp=tp, pp=pp, cp=cp, dp=gpus // (tp * pp * cp), virtual_stages=virtual_stages)
    asked = {"global_batch": batch, "micro_batch": 1, "seq_len": 8192, "gpu": gpu}
    asked |= {"framework": "megatron-lm", "layer_split": "balanced ends", "overlap_tp": True}
    found = lp.cost("llama3.1-405b", layout, precision=precision, **asked)
    assert found.tokens_per_second_per_gpu == pytest.approx(sum(measured) / len(measured), rel=0.05)
    assert found.step_seconds < lp.cost("llama3.1-405b", layout, **asked).step_seconds


# -- what must hold --------------------------------------------------------------------------------

LAYOUTS = st.builds(
    lp.Layout,
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 8]),
    zero=st.integers(0, 3),
)
KINDS = st.fixed_dictionaries(
    {
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "precision": st.sampled_from(["bfloat16", "float8"]),
        "kernels": st.sampled_from(["fused", "eager"]),
        "flash": st.sampled_from(["fa3", "fa2", "unfused"]),
        "cp_method": st.sampled_from(["all_gather", "ring"]),
        "overlap_tp": st.booleans(),
    }
)


# With it the rank that has the head, and more parameters to share, becomes the busiest.
FASTER_LINK = {"recompute": "full", "precision": "float8", "kernels": "fused", "flash": "fa3"}
FASTER_LINK |= {"cp_method": "all_gather", "overlap_tp": False}


@settings(max_examples=40, deadline=None)
@example(lp.Layout(tp=2, cp=2, pp=4, dp=8, zero=0), FASTER_LINK, "link_rate")
@given(LAYOUTS, KINDS, st.sampled_from(["link_rate", "net_rate", "hbm_rate", "bfloat16", "float8"]))
def test_no_term_is_negative_and_more_bandwidth_never_slows(layout, kinds, rate):
    gpu = HARDWARE["h100-80gb"]
    faster = replace(gpu, **{rate: 2 * getattr(gpu, rate)})
    known = {"seq_len": 4096, "global_batch": 32, **kinds}
    now, then = (lp.cost("llama3-8b", layout, gpu=each, **known) for each in (gpu, faster))
    assert all(value >= -1e-12 for value in now.seconds.values()), now.seconds
    assert then.step_seconds <= now.step_seconds * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(LAYOUTS, KINDS)
def test_twice_the_gpus_are_never_more_than_twice_as_fast(layout, kinds):
    known = {"seq_len": 4096, "global_batch": 32, **kinds}
    now = lp.cost("llama3-8b", layout, **known)
    wider = lp.cost("llama3-8b", layout.replace(dp=2 * layout.dp), **known)
    assert wider.step_seconds >= now.step_seconds / 2 * (1 - 1e-9) - now.seconds["optimizer"]
