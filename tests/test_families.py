"""Families of models: each is what transformers builds of its config.json, and all others are refused."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import llamapar as lp
from families_page import page
from inputs import oracle
from llamapar.count.saved import kept_of_layer
from llamapar.count.wire import block_parts
from llamapar.describe.families import FAMILIES, OWN
from llamapar.describe.modelfile import config_json, params_json
from llamapar.describe.placement import PARAMETERS
from llamapar.place.cut import Cut
from weights import save_hf

ROWS = oracle("families")
CASES = [row for row in ROWS if "model_type" in row and "config_json" in row]
MIXTURES = [row for row in ROWS if "mixture" in row]
SURVEY = {row["model_type"]: row for row in ROWS if "class" in row}
IDS = [f"{case['model_type']}: {case['what']}" for case in CASES]
DOCS = Path(__file__).parents[1] / "docs"


def models():
    """A small model of each family, by its model_type."""
    return {case["model_type"]: lp.model(case["config_json"]) for case in CASES}


# -- tensor by tensor ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_family_has_the_tensors_and_the_defaults_of_transformers(case):
    model = lp.model(case["config_json"])
    rope = model.rope_scaling
    assert (model.max_seq_len, model.norm_eps) == (case["max_seq_len"], case["norm_eps"])
    assert [rope.kind if rope else "default", model.rope_theta, rope and rope.factor] == case["rope"]
    theirs = dict(case["other"])
    for i in range(case["layers"]):
        theirs |= {f"model.layers.{i}.{name}": shape for name, shape in case["layer"]}
    mine = {}
    for p in model.parameters():  # projections that share a tensor lie in it one after another
        rows, *columns = p.shape
        mine[p.hf_name] = [mine.get(p.hf_name, [0])[0] + rows, *columns]
    assert mine == theirs
    assert model.n_params == sum(map(math.prod, theirs.values()))
    assert len({p.name for p in model.parameters()}) == len([*model.parameters()])


@pytest.mark.parametrize(
    ("kind", "sizes", "total"),
    [  # the config.json and the parameters of each model's card on Hugging Face
        ("phi3", (3072, 32, 32, 32, 8192, 32064), 3.82),  # microsoft/Phi-3-mini-4k-instruct
        ("phi3", (5120, 40, 40, 10, 17920, 100352), 14.7),  # microsoft/phi-4
        ("glm4", (4096, 40, 32, 2, 13696, 151552), 9.40),  # THUDM/GLM-4-9B-0414
    ],
)
def test_a_family_with_merged_projections_has_the_published_total(kind, sizes, total, tmp_path):
    keys = (
        "hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size vocab_size"
    )
    config = {"model_type": kind, **dict(zip(keys.split(), sizes, strict=True))}
    assert lp.model(config).n_params / 1e9 == pytest.approx(total, rel=0.003)
    assert lp.cost(config, tp=2, dp=2, seq_len=4096).step_seconds > 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(lp.CheckpointError, match=f"{kind} has several projections in one tensor"):
        lp.checkpoint.inspect(tmp_path)


def test_every_family_is_witnessed_and_named_by_transformers():
    mixed = {case["mixture"] for case in MIXTURES}
    assert mixed == {name for name, family in FAMILIES.items() if family.experts}
    mixed.add("llama4")  # which wraps one of them
    assert {case["model_type"] for case in CASES} == FAMILIES.keys() - mixed
    assert len(FAMILIES) >= 25
    for name, family in FAMILIES.items():
        if name in mixed:
            continue
        built = {case["config_json"]["architectures"][0] for case in CASES if case["model_type"] == name}
        assert built <= set(family.architectures)
        assert family.wraps or name in SURVEY
    turned = {case["model_type"] for case in CASES if case["what"] == "switches the other way round"}
    # InternLM 3 has no biases without those of the MLP; the others are read by what they wrap.
    assert FAMILIES.keys() - turned - mixed == {"internlm3", "gemma3", "mistral3"}


@pytest.mark.parametrize("kind", [kind for kind in SURVEY if kind not in FAMILIES])
def test_every_other_causal_model_of_transformers_is_refused(kind):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    for said in ({"model_type": kind}, {"architectures": [SURVEY[kind]["class"]], "model_type": kind}):
        with pytest.raises(lp.ModelError, match=r"^model_type='.*' is not known"):
            lp.model({**sizes, "vocab_size": 100, **said})


# -- keys that change tensors ------------------------------------------------------------------------

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


# -- what is done with them ----------------------------------------------------------------------------


DENSE = [name for name in OWN if not FAMILIES[name].experts]


@pytest.mark.parametrize("name", DENSE)
def test_a_family_is_counted_cut_and_written(name):
    model = models()[name].replace(n_layers=2, n_kv_heads=2, n_heads=4, head_dim=80, name=name)
    assert {p.key for p in model.parameters()} <= set(PARAMETERS)
    layer = [p.key for p in model.parameters() if p.layer == 0]
    # The norms of a block, in their place among attention and MLP.
    places = [[key for key in keys if key in ("norm", "wq", "w1")] for keys in (block_parts(model), layer)]
    assert places[0] == places[1]
    for rank in range(2):
        cut = Cut(model, lp.Layout(tp=2))
        norms = [p for p in model.parameters() if "norm" in p.key]
        assert all(cut.local_shape(p, rank) == p.shape for p in norms)
    # The shards of a whole tensor add up, norms and o_bias apart, which every rank holds.
    whole = sum(p.numel for p in model.parameters() if "norm" in p.key or p.key == "bo")
    ranks = sum(math.prod(cut.local_shape(p, r)) for p in model.parameters() for r in range(2))
    assert ranks == model.n_params + whole
    assert lp.check(model, tp=2, gpus=2).ok
    assert lp.memory(model, tp=2, seq_len=256).text()
    if name != "llama" or not model.qk_norm:
        assert lp.ModelConfig.from_hf(config_json(model), name).replace(rope_scaling=None) == model.replace(
            rope_scaling=None
        )
    if name != "llama":
        with pytest.raises(lp.ModelError, match=rf"^family={name} of {name}: params\.json has no such field"):
            params_json(model)


@pytest.mark.parametrize(
    ("name", "norms"), [("llama", 2), ("gemma2", 4), ("olmo2", 2), ("cohere", 1), ("olmo", 2)]
)
def test_norms_keep_their_inputs(name, norms):
    """OLMo's two have no weights and keep as much."""
    for kernels in ("eager", "fused"):
        rows = {row.part: row.formula for row in kept_of_layer(kernels, "none", models()[name])}
        assert rows["norms"].startswith(f"{norms} * (")
        assert ("QK norms" in rows) == models()[name].qk_norm
    width = {row.part: row.formula for row in kept_of_layer("fused", "none", models()["olmo2"])}["QK norms"]
    assert width == "(q + k) * item + 2 * rows * 4"  # one number for each token, not for each head


@pytest.mark.parametrize("name", ["gemma2", "olmo", "cohere", "qwen3"])
def test_traffic_of_zero_counts_each_norm(name):
    """A block's gathers are of all of its parameters, however many norms it has."""
    model = models()[name].replace(n_layers=1, name=name)
    sent = lp.traffic("block", model, dp=2, zero=3, seq_len=64, dtype="float32")
    gathered = sum(t.payload * t.count for t in sent.terms if t.kind == "all_gather" and t.phase == "forward")
    assert gathered == model.layer_params * 4


@pytest.mark.parametrize("name", [name for name in OWN if not FAMILIES[name].lacks])
def test_a_family_without_a_lack_runs(name):
    small = {"dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "ffn_dim": 48}
    model = models()[name].replace(**small, vocab_size=64)
    assert lp.run("llama", model, tp=2, dtype="float64", seq_len=16).ok


@pytest.mark.parametrize("name", ["gemma2", "olmo", "olmo2", "hunyuan_v1_dense", "cohere"])
def test_a_checkpoint_of_a_family_is_cut_and_put_together(name, tmp_path):
    small = {"dim": 32, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "ffn_dim": 48, "vocab_size": 64}
    model = models()[name].replace(**small, name=name)
    source = save_hf(tmp_path / name, model)
    cut = lp.checkpoint.shard(source, tmp_path / "cut", tp=2, pp=2)
    back = lp.checkpoint.gather(cut.path, tmp_path / "back" / name).path
    theirs, mine = (load_file(folder / "model.safetensors") for folder in (source, back))
    assert theirs.keys() == mine.keys() == {p.hf_name for p in model.parameters()}
    assert all(theirs[key].view(torch.uint8).equal(mine[key].view(torch.uint8)) for key in theirs)
    assert lp.model(back).family == name
    with pytest.raises(lp.ModelError, match=f"^family={name} of {name}: "):
        lp.checkpoint.shard(source, tmp_path / "meta", tp=2, format="meta")


# -- the page ------------------------------------------------------------------------------------------


def test_the_page_of_families_is_what_the_script_writes():
    assert (DOCS / "families.md").read_text(encoding="utf-8") == page(ROWS)
