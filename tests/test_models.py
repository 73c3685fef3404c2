"""Model dimensions: presets, exact counts, the parameter inventory and the readers of JSON configs."""

import json
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given

import llamapar as lp
from inputs import BAD_COUNTS, Hostile, models, oracle
from llamapar.describe.catalog import entries
from llamapar.describe.families import MAX_DIM, ffn_dim_from
from llamapar.describe.modelfile import config_json
from llamapar.describe.models import MAX_HEADS, MAX_LAYERS, MAX_VOCAB, public_models
from soon import within

DATA = Path(__file__).parent / "data"
PARAMETERS = {case["model"]: case for case in oracle("parameters")}
CONFIGS = {case["model"]: case for case in oracle("configs")}

PUBLISHED = tomllib.loads(Path(__file__).with_name("published_parameters.toml").read_text("utf-8"))


# -- presets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_public_models_have_their_published_counts(name):
    assert lp.model(name).n_params == PUBLISHED[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_inventory_is_that_of_transformers(name):
    model = lp.model(name)
    same_inventory(model, PARAMETERS[name])
    assert model.n_params == PARAMETERS[name]["total"]
    assert PARAMETERS[name]["published"] in (None, model.n_params)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_counted_as_transformers_counts_it(name):
    """Of every class that is read: files in public repositories, published numbers, the classes' defaults."""
    model = lp.model(CONFIGS[name]["config_json"])
    assert model.n_params == CONFIGS[name]["total"]
    same_inventory(model, CONFIGS[name])


@pytest.mark.parametrize(
    "entry", [e for e in entries() if e.counted and e.name != "tiny"], ids=lambda entry: entry.name
)
def test_every_public_model_has_a_witness(entry):
    model = lp.model(entry.name)
    own = (model.n_params, sorted(list(p.shape) for p in model.parameters() if p.layer == 0))
    witnesses = [*PARAMETERS.values(), *CONFIGS.values()]
    assert own in [(c["total"], sorted(shape for _, shape in c["layer"])) for c in witnesses]


def same_inventory(model, case):
    """Every name and shape; layer 0's names are those of every layer."""
    ours = [(p.hf_name, list(p.shape), p.layer) for p in model.parameters()]
    assert {(n, tuple(s)) for n, s, layer in ours if layer is None} == {
        (n, tuple(s)) for n, s in case["other"]
    }
    for i in range(model.n_layers):
        first = f"model.layers.{i}."
        held = {(n.removeprefix(first), tuple(s)) for n, s, layer in ours if layer == i}
        assert held == {(n, tuple(s)) for n, s in case["layer"]}
    assert len({p.name for p in model.parameters()}) == len(ours)


@pytest.mark.parametrize("spelling", ["config_json", "hf_config"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_config_json_reads_as_the_preset(name, spelling):
    """`config_json` is the file on the Hub, `hf_config` what transformers 5 writes."""
    raw = PARAMETERS[name][spelling]
    assert lp.ModelConfig.from_hf(raw, name=name) == lp.model(name)
    assert lp.model(raw).replace(name=name) == lp.model(name)
    assert lp.model(json.dumps(raw)).name == raw["model_type"]


# -- Meta's params.json ----------------------------------------------------------------------------

META = ("llama3-8b", "llama3.1-70b", "llama3.1-405b", "llama3.2-1b", "llama3.2-3b")


@pytest.mark.parametrize("name", META)
def test_params_json_reads_as_the_preset(name):
    """Meta's file says neither that the head is tied nor how far RoPE is stretched."""
    preset = lp.model(name)
    for source in (DATA / name, DATA / name / "params.json", str(DATA / name)):
        read = lp.model(source)
        assert read.name == name
        assert read == preset.replace(tied=False, rope_scaling=read.rope_scaling)
        assert (read.rope_scaling is None) == (preset.rope_scaling is None)


def test_ffn_width_truncates_twice():
    assert ffn_dim_from(8, 3.0, 1) == int(3.0 * int(64 / 3)) == 63  # not int(3 * 64 / 3) = 64
    assert ffn_dim_from(8, 1.15, 1) == 24  # 1.15 · 21 = 24.15, not rounded up
    assert ffn_dim_from(4096, None, 1024) == math.ceil(10922 / 1024) * 1024


# -- hostile and broken files ----------------------------------------------------------------------

GOOD = PARAMETERS["llama3-8b"]["config_json"]


def refused(source, read=lp.model):
    """The ModelError for `source`, raised within a second."""
    with within(1), pytest.raises(lp.ModelError, match=r"\w") as refusal:
        read(source)
    assert refusal.value.field
    assert "\n" not in refusal.value.what
    assert len(str(refusal.value)) < 1000
    return refusal.value


BROKEN_TEXT = {
    "truncated": json.dumps(GOOD)[:60],
    "empty": "",
    "list": "[1, 2]",
    "text": '"llama"',
    "number": "8",
    "null": "null",
    "comma": '{"hidden_size": 4096,}',
    "nested lists": "[" * 10**5,
    "nested objects": '{"hidden_size": ' * 10**5,
    "nested value": '{"hidden_size": ' + "[" * 10**5 + "]" * 10**5 + "}",
    "digits": '{"hidden_size": 1' + "0" * 5000 + "}",
    "other JSON": '{"name": "a notebook", "cells": []}',
}


@pytest.mark.parametrize("kind", BROKEN_TEXT)
def test_a_broken_file_is_refused(kind, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(BROKEN_TEXT[kind])
    error = refused(path)
    assert error.field == "model"
    assert "config.json" in error.what or "JSON" in error.what
    if BROKEN_TEXT[kind][:1] in ("{", "["):
        assert refused(BROKEN_TEXT[kind]).field == "model"


HF_SIZES = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
HF_SIZES |= {"num_key_value_heads": "n_kv_heads", "intermediate_size": "ffn_dim", "vocab_size": "vocab_size"}
HF_SIZES |= {"max_position_embeddings": "max_seq_len"}


@pytest.mark.parametrize("kind", [k for k in BAD_COUNTS if k != "none"])
@pytest.mark.parametrize("key", HF_SIZES)
def test_a_bad_value_names_its_field(key, kind):
    assert refused({**GOOD, key: BAD_COUNTS[kind]}).field == HF_SIZES[key]


@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps", "tie_word_embeddings", "attention_bias"])
@pytest.mark.parametrize(
    "value", ["1e-5", float("nan"), pytest.param(10**400, id="absurd"), [1], Hostile(), -1]
)
def test_a_bad_setting_names_its_field(key, value):
    names = {"rms_norm_eps": "norm_eps", "tie_word_embeddings": "tied"}
    assert refused({**GOOD, key: value}).field == names.get(key, key)


# -- what a config says that is not counted --------------------------------------------------------

LLAMA = {key: value for key, value in GOOD.items() if key not in ("model_type", "architectures")}


@pytest.mark.parametrize(
    "key", ["num_local_experts", "num_experts", "moe_layers", "mlp_only_layers", "pruned_heads"]
)
@pytest.mark.parametrize("nothing", [None, False, 0, "", [], {}])
def test_a_key_that_says_nothing_is_passed_over(key, nothing):
    assert lp.model({**GOOD, key: nothing}) == lp.model(GOOD)


DEFAULTS = {"llama": 32, "mistral": 8, "qwen2": 32, "qwen3": 32}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_kv_heads_that_are_not_said_are_the_classes_own(kind):
    raw = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert lp.model({**raw, "model_type": kind}).n_kv_heads == DEFAULTS[kind]
    assert lp.model({**raw, "model_type": kind, "num_key_value_heads": None}).n_kv_heads == 32
    wide = lp.model({**raw, "model_type": kind, "num_attention_heads": 64})
    assert wide.n_kv_heads == (64 if kind == "llama" else DEFAULTS[kind])
    assert wide.head_dim == (128 if kind == "qwen3" else 64)


@pytest.mark.parametrize("kind", DEFAULTS)
def test_biases_are_those_of_the_class(kind):
    """attention_bias is Llama's and Qwen3's; Qwen2 always has three, Mistral none."""
    raw = {**LLAMA, "model_type": kind}
    if kind in ("llama", "qwen3"):
        assert bias_keys({**raw, "attention_bias": True}) == ["bq", "bk", "bv", "bo"]
    else:
        assert refused({**raw, "attention_bias": True}).field == "attention_bias"
    assert bias_keys({**raw, "attention_bias": False}) == ["bq", "bk", "bv"] * (kind == "qwen2")


def bias_keys(raw):
    return [p.key for p in lp.model(raw).parameters() if p.layer == 0 and p.name.endswith(".bias")]


def test_mistrals_params_json_says_its_width():
    """mistral-inference's form: hidden_dim and head_dim, which Meta's leaves to other numbers."""
    raw = dict(dim=5120, n_layers=40, n_heads=32, n_kv_heads=8, head_dim=128, hidden_dim=14336)
    raw |= dict(norm_eps=1e-05, vocab_size=131072, rope_theta=1000000.0)
    assert lp.model(raw) == lp.model("mistral-nemo").replace(name="meta", max_seq_len=8192)


# -- the table of public models --------------------------------------------------------------------


def test_one_table_serves_presets_and_explain():
    assert [entry.name for entry in entries() if entry.preset] == list(lp.PRESETS)
    known = public_models()
    for name, preset in lp.PRESETS.items():
        assert known.get(name) is (None if name == "tiny" else preset)
    names = [name for entry in entries() for name in (entry.name, *entry.others)]
    assert len(set(names)) == len(names), "each name stands once"
    assert {*names} - {"tiny"} == {*known}


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_a_public_name_is_a_model_or_says_why_not(entry):
    if entry.counted:
        found = lp.model(entry.name)
        assert found.name == entry.name
        assert (found.qkv_bias, found.qk_norm) == (entry.kind == "qwen2", entry.kind == "qwen3")
    else:
        assert (
            refused(entry.name).what == f"of {entry.name} only the dimensions are known here, for lp.explain"
        )


# -- ModelConfig itself ----------------------------------------------------------------------------

TINY = {"dim": 64, "n_layers": 2, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 128, "vocab_size": 100}
LIMITS = dict.fromkeys(("dim", "ffn_dim", "head_dim"), MAX_DIM)
LIMITS |= {"n_layers": MAX_LAYERS, "n_heads": MAX_HEADS, "n_kv_heads": MAX_HEADS, "vocab_size": MAX_VOCAB}


@pytest.mark.parametrize("kind", BAD_COUNTS)
@pytest.mark.parametrize("field", LIMITS)
def test_model_config_refuses_bad_sizes(field, kind):
    if field == "head_dim" and kind in ("zero", "none"):  # both say: dim / n_heads
        assert lp.ModelConfig(**{**TINY, field: BAD_COUNTS[kind]}).head_dim == 8
        return
    with pytest.raises(lp.ModelError, match=f"^{field}(=| is empty)") as refusal:
        lp.ModelConfig(**{**TINY, field: BAD_COUNTS[kind]})
    assert refusal.value.field == field
    low = 0 if field == "head_dim" else 1
    assert f"{field} must be a whole number from {low} to {LIMITS[field]}" in str(refusal.value)


@given(models())
def test_the_inventory_adds_up(model):
    parameters = list(model.parameters())
    assert sum(p.numel for p in parameters) == model.n_params
    assert sum(p.numel for p in parameters if p.layer == 0) == model.layer_params
    assert {p.layer for p in parameters} == {None, *range(model.n_layers)}
    assert len({p.hf_name for p in parameters}) == len(parameters)
    assert any(p.key == "output" for p in parameters) is not model.tied
    assert model.q_dim == model.kv_dim * model.group_size


# -- publishers' names ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "qwen3-8b"])
def test_a_folder_of_the_name_stands_before_the_model(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(config_json(lp.model("tiny"))))
    assert lp.model(name).dim == 128


META_JSON = json.loads((DATA / "llama3.1-70b" / "params.json").read_text())
ARRAYS = {"config.json": GOOD, "params.json": META_JSON}


@pytest.mark.parametrize("where", ARRAYS)
@pytest.mark.parametrize("numbers", [[1, 2], []])
def test_an_array_of_several_numbers_is_no_value(where, numbers):
    array = pytest.importorskip("numpy").array(numbers)
    assert lp.model(ARRAYS[where]).dim in (4096, 8192)
    for key in ARRAYS[where]:
        with pytest.raises(lp.ModelError, match=rf"^'{key}'=array\(.*\): ndarray is no value of a {where}$"):
            lp.model({**ARRAYS[where], key: array})
