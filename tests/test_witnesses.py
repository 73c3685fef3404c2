"""Our arithmetic beside that of the real tools: tests/oracles, which the scripts of oracles/ have made."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import llamapar as lp
from inputs import oracle
from llamapar.describe.splits import LAYER_SPLITS, Padding, Split
from llamapar.frameworks import JUDGES, framework
from llamapar.records.trace import causal_pairs
from llamapar.spmd import compat

PROJECT = Path(__file__).parent.parent


def name_of(case):
    """The scalars of a case, for a test's name."""
    return "-".join(str(v) for k, v in case.items() if isinstance(v, (str, int)) and k != "message")


def test_a_fixture_names_the_script_that_makes_it():
    texts = [fixture.read_text("utf-8") for fixture in (PROJECT / "tests" / "oracles").glob("*.js*[ln]")]
    scripts = set(re.findall(r"\boracles/\w+\.(?:py|toml)", "".join(texts)))
    assert len(scripts) >= 14
    assert [script for script in scripts if not (PROJECT / script).is_file()] == []


# -- torch: chunks, head-tail, masks ---------------------------------------------------------------


def test_chunks_are_torchs():
    for case in oracle("chunks"):
        split = Split(case["n"], case["k"])
        assert [len(shard) for shard in split] == case["sizes"]
        assert [shard.start for shard in split] == case["offsets"]


HEADTAIL = oracle("headtail")


def test_head_tail_positions_are_torchs():
    for case in (c for c in HEADTAIL if "positions" in c):
        made = lp.sequence({"cp": case["cp"]}, case["seq"])
        assert made.ok
        assert [[p for chunk in r.chunks for p in chunk] for r in made.ranks] == case["positions"]


def test_what_torchs_balancer_refuses_is_not_even():
    """`context_parallel` drops the balancer without a word; the balancer itself asserts."""
    for case in (c for c in HEADTAIL if "error" in c):
        assert case["default_balancer"] is None
        if case["cp"] > 1:
            assert not lp.sequence({"cp": case["cp"]}, case["seq"]).ok
            report = lp.check("llama3-8b", cp=case["cp"], seq_len=case["seq"], framework="dtensor")
            assert [f.code for f in report.findings if f.severity == "error"] == ["LP201"]


def test_causal_work_is_that_of_a_real_mask():
    for case in (c for c in HEADTAIL if "work" in c):
        for chunking, key in (("head-tail", "head_tail"), ("contiguous", "contiguous")):
            made = lp.sequence({"cp": case["cp"]}, case["seq"], chunking=chunking)
            assert [r.pairs for r in made.ranks] == case["work"][key]
            assert sum(case["work"][key]) == made.pairs == causal_pairs(range(case["seq"]))


# -- Megatron's RankGenerator and torch's DeviceMesh -----------------------------------------------


RANKS = [
    pytest.param(case, marks=pytest.mark.soak if case["layout"]["dp"] == 128 else ())
    for case in oracle("ranks")
]
"""Of the two layouts with 16,384 ranks, which take seconds in each order, one is left to the soak."""


@pytest.mark.parametrize("case", RANKS, ids=lambda c: f"{c['order']}-{c['layout']}")
def test_groups_are_megatrons_and_torchs(case):
    lay = lp.Layout(**case["layout"], order=case["order"])
    assert lay.world == case["world"]
    for axis, said in case["groups"].items():
        every = dict.fromkeys(lay.group(axis, rank) for rank in range(lay.world))
        groups = [list(group) for group in every]
        assert (len(groups), groups[0], groups[-1]) == (said["count"], said["first"], said["last"])
        text = json.dumps(groups, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest() == said["sha256"]
        assert groups == said.get("all", groups)


# First groups at TP=CP=PP=DP=2, from each framework's own mesh, run.
FIRST_GROUPS = {
    **{key: {"tp": 1, "cp": 2, "dp": 4, "pp": 8} for key in ("megatron-lm", "torchtitan", "nanotron")},
    **{key: {"tp": 1, "cp": 2, "dp": 8, "pp": 4} for key in ("picotron", "llama-models", "vllm")},
    "colossalai": {"tp": 2, "cp": 1, "dp": 8, "pp": 4},
}


def test_rank_orders_of_the_frameworks():
    for name, first in FIRST_GROUPS.items():
        order = framework(name).order
        assert order is not None
        lay = lp.Layout(tp=2, cp=2, pp=2, dp=2, order=order)
        assert {axis: lay.group(axis, 0)[1] for axis in lp.AXES} == first
    slowest = {f.name: f.order.split("-")[-1] for f in JUDGES.values() if f.order}  # two families
    pp = {"megatron-lm", "torchtitan", "nanotron", "transformers"}
    assert slowest == {name: "pp" if name in pp else "dp" for name in slowest}
    assert pp <= set(slowest)


# -- vocabularies: fairscale, Megatron, ColossalAI, vLLM -------------------------------------------

PADDED_BY = {"megatron": Padding(128, True), "colossalai": Padding(64, True), "vllm": Padding(64)}


@pytest.mark.parametrize("case", oracle("vocab"), ids=name_of)
def test_vocabulary_ranges_are_the_tools_own(case):
    model = lp.model("llama3-8b").replace(vocab_size=case["vocab"])
    layout = {"tp": case["tp"]}
    if case["tool"] == "fairscale":
        made = lp.vocab(model, layout)
    else:
        own = PADDED_BY[case["tool"]]
        assert framework(case["tool"]).padding == own
        made = lp.vocab(model, layout, padding=Padding(case["divisible_by"], own.per_tp))
        assert made.padded == case["padded"]
    if "error" in case:
        assert not made.ok
        verdict = framework("fairscale").judge("LP105", lp.Job.of(model, layout))
        assert (verdict.verdict, verdict.message) == ("crash at init", case["message"])
    else:
        assert made.ok
        assert [[r.rows.start, r.rows.stop] for r in made.ranks] == case["ranges"]


# -- layers: torchtitan, ColossalAI, picotron, vLLM, Megatron --------------------------------------

SPLIT_OF = {
    "torchtitan": "balanced ends",
    "colossalai": "remainder middle",
    "picotron": "remainder first",
    "vllm": "remainder before last",
    "megatron": "equal",
}


def refusals(case, **known):
    """What the framework says, by our evidence, to the layers and stages of a case."""
    layout = {"pp": case["pp"], "virtual_stages": case["v"]}
    model = lp.model("llama3-8b").replace(n_layers=case["layers"])
    report = lp.check(model, layout, framework=case["tool"], **known)
    assert report.judge is not None
    return {f.frameworks[report.judge.name].message for f in report.findings if f.severity == "error"}


@pytest.mark.parametrize("case", oracle("layers"), ids=name_of)
def test_layers_per_stage_are_the_tools_own(case):
    split = SPLIT_OF[case["tool"]]
    assert framework(case["tool"]).layer_split == split
    known = {}
    if case.get("account"):
        split = known["layer_split"] = "balanced ends"
    stages = case["pp"] * case["v"]
    if "counts" in case:
        assert LAYER_SPLITS[split](case["layers"], stages) == case["counts"]
        if case["tool"] in ("torchtitan", "megatron"):  # the others leave stages empty without a word
            assert refusals(case, **known) == set()
        return
    said = refusals(case, **known)
    if case["tool"] == "torchtitan" or case.get("account"):
        assert said == {case["message"]}
    else:  # Megatron without its flags: training/arguments.py speaks before the core that was asked
        assert said
        assert all("divisible" in text for text in said)
    if case["tool"] != "megatron":
        with pytest.raises(lp.LayoutError, match="stages for"):
            LAYER_SPLITS[split](case["layers"], stages)


# Layers per stage as (stages, layers) runs.
PIPELINES = {
    (32, 3): {
        **{key: [(2, 11), (1, 10)] for key in ("torchtitan", "vllm", "colossalai", "picotron")},
        "transformers": [(2, 10), (1, 12)],
        "megatron-lm": [],
    },
    (126, 16): {
        **{key: [(1, 7), (14, 8), (1, 7)] for key in ("torchtitan", "vllm", "colossalai")},
        "picotron": [(14, 8), (2, 7)],
        "transformers": [(15, 7), (1, 21)],
        "megatron-lm": [],
    },
}


@pytest.mark.parametrize(("layers", "pp"), PIPELINES)
def test_pipelines_of_the_frameworks(layers, pp):
    model = lp.model("llama3.1-405b").replace(n_layers=layers)
    for name, runs in PIPELINES[layers, pp].items():
        made = lp.stages(model, {"pp": pp}, layer_split=name)
        assert (name, made.runs) == (name, runs)
        report = lp.check(model, {"pp": pp}, framework=name)
        assert report.ok == bool(runs)
    flags = lp.check(model, {"pp": pp}, framework="megatron", layer_split="balanced ends")
    assert flags.ok == ((layers + 2) % pp == 0)


def test_405b_on_megatron_works_where_its_126_layers_divide():
    def fits(**known):
        asked = {"framework": "megatron", **known}
        return [pp for pp in range(1, 19) if lp.check("llama3.1-405b", {"pp": pp}, **asked).ok]

    assert fits() == [1, 2, 3, 6, 7, 9, 14, 18]
    assert fits(layer_split="balanced ends") == [1, 2, 4, 8, 16]


# -- what an issue tells -----------------------------------------------------------------------------


def test_issue_48307_of_transformers():
    """Batch 4, 178 tokens, 4 KV heads of 128 at TP=8: 45,568 elements = 4 · 178 · 64."""
    model = lp.model("llama3-8b").replace(n_kv_heads=4)
    report = lp.check(model, {"tp": 8}, seq_len=178, micro_batch=4, framework="transformers")
    said = {f.code: f.frameworks["transformers"].message for f in report.findings}
    assert said["LP104"] == "shape '[4, 178, -1, 128]' is invalid for input of size 45568"


# -- torch itself, run -----------------------------------------------------------------------------


def test_uneven_vocabulary_shards_work_in_dtensor():
    """10 rows over 3 ranks: embedding and head give what the whole model gives."""

    def model():
        return torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 10, bias=False)).double()

    reference, tokens, whole = model(), torch.arange(10), Replicate()
    plan = {
        "0": RowwiseParallel(input_layouts=whole, output_layouts=whole),
        "1": ColwiseParallel(output_layouts=whole),
    }
    with compat.fake_world(3), LocalTensorMode(3), torch.no_grad():
        sharded = model()
        sharded.load_state_dict(reference.state_dict())
        parallelize_module(sharded, init_device_mesh("cpu", (3,), mesh_dim_names=("tp",)), plan)
        held = sharded[0].weight.to_local()
        shapes = {rank: tuple(part.shape) for rank, part in held._local_tensors.items()}
        assert shapes == {r: (len(rows), 8) for r, rows in enumerate(Split(10, 3))}
        assert torch.allclose(sharded(tokens).reconcile(), reference(tokens), rtol=1e-12)
    report = lp.check(lp.model("tiny").replace(vocab_size=1025), tp=8, framework="dtensor")
    assert [(f.code, f.severity) for f in report.findings] == [("LP105", "note")]
