"""Methods of context parallelism: their names, the heads that can be traded, and what a trade takes."""

import pytest

import llamapar as lp
from llamapar.describe.cp_methods import CpMethod, method_named, of_comm_type
from llamapar.describe.hardware import hardware
from llamapar.timing.layer import Conditions, layer
from llamapar.timing.rings import HOP, NET_HOP, START

B8 = lp.model("llama3-8b")


@pytest.mark.parametrize(
    ("said", "name", "heads", "ring"),
    [
        ("all_gather", "all_gather", 1, 1),
        ("allgather", "all_gather", 1, 1),
        ("ring", "ring", 1, 8),
        ("p2p", "ring", 1, 8),
        ("ulysses", "ulysses", 8, 1),
        ("a2a", "ulysses", 8, 1),
        ("ulysses:2", "ulysses:2", 2, 4),
        ("a2a+p2p:4", "ulysses:4", 4, 2),
        ("ulysses:16", "ulysses:16", 8, 1),
    ],
)
def test_a_method_by_each_of_its_names(said, name, heads, ring):
    found = CpMethod.of(said, 8)
    assert method_named(said) == name
    assert (found.heads, found.ring, found.gathers) == (heads, ring, name == "all_gather")


@pytest.mark.parametrize("said", ["ulisses", "ulysses:0", "ulysses:x", "ring:2", "", 4, None, ["ring"]])
def test_what_is_no_method_is_refused(said):
    with pytest.raises(lp.LayoutError, match=r"is not known\n  why  known are all_gather, ring, ulysses"):
        method_named(said)
    assert of_comm_type(said, None) is None


def test_a_fix_keeps_the_gpus_and_passes():
    report = lp.check(B8, tp=4, cp=16, cp_method="a2a", gpus=64, seq_len=131072, framework="megatron-lm")
    assert [dict(fix.changes).get("cp_method") for fix in report.fixes] == ["ulysses:2", "ring", None]
    for fix in report.fixes:
        assert fix.layout.world == 64
        assert not fix.job.untradable(False)


@pytest.mark.parametrize("method", ["ulysses", "ulysses:4", "ring"])
def test_fixes_are_found_at_the_size_of_the_papers_run(method):
    """The search tries cp up to the number of GPUs, which times the job's own pp and dp is no layout."""
    job = {"tp": 8, "pp": 16, "dp": 128, "zero": 2, "seq_len": 8192, "gpu": "h100-80gb"}
    [memory] = [f for f in lp.check("llama3.1-405b", **job, cp_method=method).findings if f.code == "LP512"]
    assert memory.fixes
    for fix in memory.fixes:
        assert fix.layout.world == 16384
        assert not fix.job.untradable(False)


SCRIPT = (
    "torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --tensor-model-parallel-size 4 "
    "--context-parallel-size 16 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --seq-length 8192 "
    "--max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 4 --swiglu --bf16 "
    "--vocab-size 128256 --tokenizer-type NullTokenizer --normalization RMSNorm "
    "--position-embedding-type rope --untie-embeddings-and-output-weights --sequence-parallel "
)


@pytest.mark.parametrize(
    ("words", "method", "errors"),
    [
        ("", None, []),
        ("--cp-comm-type p2p", "ring", []),
        ("--cp-comm-type a2a", "ulysses", ["LP206"]),
        ("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 8", "ulysses:2", []),
        ("--cp-comm-type a2a+p2p", "a2a+p2p", ["LP206"]),
        ("--cp-comm-type a2b", None, []),
    ],
)
def test_megatrons_arguments(tmp_path, words, method, errors):
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT + words)
    settings = lp.read_settings(script)
    assert settings.job.get("cp_method") == method
    assert ("cp_method" in settings.unknown) == ("a2b" in words)
    assert [finding.code for finding in lp.check(settings).errors] == errors


TRANSFORMER_ENGINE = (
    "AssertionError: cp_comm_type='a2a' requires num_heads % cp_size == 0 for Q, K, V. Found "
    "num_heads_q = 8, num_heads_kv = 2, cp_size = 16."
)
DEEPSPEED = "ValueError: Attention head count 12 is not divisible by SP size 8"


@pytest.mark.parametrize("text", [TRANSFORMER_ENGINE, DEEPSPEED])
def test_the_errors_of_others_are_explained_by_what_cuts_heads_over_cp(text):
    told = lp.explain(text)
    assert (told.verdict, told.best.category) == ("sharding", "heads_not_divisible")
    assert any('cp_method="ring"' in str(fix) for fix in told.best.fixes)


# -- time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cp", "outside"), [(4, 0), (8, 0), (16, 8)])
def test_an_all_to_all_takes_each_ranks_own_links(cp, outside):
    """7B, as many KV heads as query heads: 32 of each, dealt to cp ranks. Nothing runs beside it."""
    model, gpu = lp.model("llama2-7b"), hardware("h100-80gb")
    how = Conditions(gpu, recompute="none", cp_method="ulysses")
    term = layer(how, model, lp.Layout(cp=cp), 32768, 1).forward["exposed CP"]
    each = 32768 // cp * 4096 * 2  # bytes of Q, of K, of V and of the output
    inside = 4 * each * (min(cp, 8) - 1) / cp / (gpu.link_rate * gpu.link)
    slowest = max(inside, 4 * each * outside / cp / (gpu.net_rate * gpu.net))
    assert term.value == pytest.approx(slowest + 4 * (START + (NET_HOP if outside else HOP)), rel=1e-9)


def test_a_ring_of_groups_hides_its_keys_and_no_trade():
    gpu = hardware("h100-80gb")
    seconds = {
        way: layer(Conditions(gpu, recompute="none", cp_method=way), B8, lp.Layout(cp=8), 131072, 1)
        for way in ("ring", "ulysses:2", "ulysses")
    }
    exposed = [found.forward["exposed CP"].value for found in seconds.values()]
    assert exposed[0] == 0 < exposed[1] < exposed[2]
