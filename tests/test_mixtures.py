"""Mixtures of experts: counted in parameters, judged in everything but the experts, and never totalled."""

import json
import tomllib
from pathlib import Path

import pytest

import llamapar as lp
from inputs import oracle
from llamapar.panels.answers import answers
from llamapar.panels.state import State
from llamapar.rules.job_text import exported

ROWS = [row for row in oracle("families") if "mixture" in row]

KEYS = "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size"
CONFIGS = tomllib.loads(Path(__file__).with_name("mixtures.toml").read_text("utf-8"))
QWEN3, MIXTRAL, GPT_OSS, DEEPSEEK, LLAMA4 = (
    {**dict(zip([*KEYS.split(), "vocab_size"], row.pop("size"), strict=True)), **row}
    for row in CONFIGS.values()
)
WIDER = {"hidden_size": 6144, "num_hidden_layers": 56, "num_attention_heads": 48}
EVERY_SECOND = {"num_local_experts": 128, "interleave_moe_layer_step": 2, "moe_layers": [*range(1, 48, 2)]}

PUBLISHED = {
    # The config.json on Hugging Face; its weights' number of parameters where the card has one; the total
    # and what one token uses, in billions: from the model cards, for gpt-oss from arXiv:2508.10925 table 1,
    # which leaves the embedding (0.58 billion) out of the second.
    "Qwen3-235B-A22B": (QWEN3, 235_093_634_560, "model card", 235, 22),
    "Mixtral-8x7B": (MIXTRAL, 46_702_792_704, "mistral.ai/news/mixtral-of-experts", 46.7, 12.9),
    "Mixtral-8x22B": (
        MIXTRAL | WIDER | {"intermediate_size": 16384, "vocab_size": 32768},
        0,
        "mistral.ai/news/mixtral-8x22b",
        141,
        39,
    ),
    "gpt-oss-120b": (GPT_OSS, 0, "arXiv:2508.10925", 116.83, 5.13 + 0.58),
    "gpt-oss-20b": (
        GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32},
        0,
        "arXiv:2508.10925",
        20.91,
        3.61 + 0.58,
    ),
    "DeepSeek-V3": (DEEPSEEK, 0, "arXiv:2412.19437", 671, 37),
    "Llama-4-Scout": (LLAMA4, 0, "model card, with a vision tower of 1.1 billion", 108, 17),
    "Llama-4-Maverick": (LLAMA4 | EVERY_SECOND, 0, "model card", 400, 17),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_what_the_publisher_says(name):
    config, exact, _, total, active = PUBLISHED[name]
    model = lp.model(config)
    assert exact in (0, model.n_params)
    assert model.n_params / 1e9 == pytest.approx(total, rel=0.005)
    assert model.active_params / 1e9 == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize("row", ROWS, ids=[row["mixture"] for row in ROWS])
def test_a_mixture_has_the_parameters_that_transformers_builds(row):
    model = lp.model(row["config_json"])
    theirs = dict(row["other"])
    for i in range(5):
        theirs |= {f"model.layers.{i}.{name}": shape for name, shape in row["layer"]}
    assert {p.hf_name: list(p.shape) for p in model.parameters()} == theirs
    assert model.n_params == row["numel"]
    if row["mixture"] == "llama4_text":
        wrapped = lp.model({"model_type": "llama4", "text_config": row["config_json"]})
        assert wrapped == model.replace(name="llama4 (text)")


# -- what is judged ------------------------------------------------------------------------------------


def dense(config):
    """A dense model with a mixture's attention."""
    return lp.model(config).replace(family="llama", qk_norm=False, experts=None)


def test_attention_is_counted_as_that_of_a_dense_model():
    asked = {"tp": 4, "cp": 2, "seq_len": 4096}
    mixed, whole = (lp.traffic("attention", m, **asked) for m in (MIXTRAL, dense(MIXTRAL)))
    assert mixed.terms == whole.terms
    asked |= {"pp": 2, "recompute": "none", "framework": "megatron-lm"}
    mine, theirs = (lp.memory(m, **asked).worst for m in (MIXTRAL, dense(MIXTRAL)))
    terms, others = ({t.name: t.bytes for t in stage.terms} for stage in (mine, theirs))
    for name in ("activations: norms", "activations: attention", "activations: embedding"):
        assert terms.get(name) == others.get(name)
    ffn = 3 * 4096 * 14336 * 16 // 4  # of a stage's 16 layers, over tp
    assert others["parameters"] - terms["parameters"] == 2 * ffn
    assert "activations: MLP" not in terms


# -- what is refused -----------------------------------------------------------------------------------


def test_a_checkpoint_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(lp.ModelError, match=r"^the checkpoint of .* is not known"):
        lp.checkpoint.inspect(tmp_path)


# -- the other doors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [QWEN3, DEEPSEEK], ids=["qwen3", "deepseek"])
def test_the_explorer_says_what_is_not_judged(config):
    model = lp.model(config)
    state = State.opened({"preset": model, "tp": 4, "dp": 64, "gpus": 256, "seq_len": 8192})
    legal, fits, fast, travels = answers(state.outcome.report, state.values)
    assert (legal.text, legal.note) == ("Yes", "its experts are not judged")
    assert {fits.text, fast.text, travels.text} == {"not known"}
    assert fits.note.endswith("GiB, without its experts")
    assert model.unjudged in fast.more
    for tab in ("heads", "vocab", "sequence", "stages", "memory", "ranks", "pipeline"):
        assert state.change({"tab": tab}).outcome.problem is None
    for tab in ("time", "run", "plan"):
        problem = state.change({"tab": tab}).outcome.problem
        assert problem is not None
        assert "because it is a mixture of experts" in problem.what
    assert state.restore(state.line).model() == model.replace(rope_scaling=None)


def test_copied_python_and_command_are_the_same_model():
    model = lp.model(QWEN3)
    job = lp.Job.of(model, tp=4)
    made = {}
    exec(exported("Python", job), made)
    assert made["report"].job.model == model
    assert "'experts': " not in exported("CLI", job)
    assert '"experts": {"count": 128' in exported("CLI", job)
