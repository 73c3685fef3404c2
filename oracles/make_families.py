"""families.json: tensors of each family of families.toml by transformers, and a survey; docs/families.md.

    pip install torch==2.13.0 transformers==5.23.0
    python oracles/make_families.py

Nothing is downloaded: models are built on the meta device. A family is built with the class's defaults and
two layers, with nothing but sizes, so that the class's defaults count, with every switch the other way round,
and with nulls. Of a model that wraps a language model, the tensors beside it are left out. Of a mixture of
experts all parameters are counted, and those outside its MLPs are listed, which for MLA are norms and ends.

The survey builds every causal model_type with its defaults and compares the first layer and the ends with
Llama's: `more` are tensors that Llama does not have, `fewer` those that only Llama has; up to four of each.
"""

import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from families_page import page
from fixture import write

ROWS = tomllib.loads(
    (Path(__file__).parents[1] / "llamapar" / "describe" / "families.toml").read_text(encoding="utf-8")
)["families"]
DOCS = Path(__file__).parents[1] / "docs"
SIZES = {"hidden_size": 320, "num_hidden_layers": 2, "intermediate_size": 96}
# Every class's default number of KV heads divides 160, and its pad token is below 200,000.
SIZES |= {"num_attention_heads": 160, "vocab_size": 200_000}
SWITCHES = ("tie_word_embeddings", "attention_bias", "attention_out_bias")
HIDDEN = ("_name_or_path", "transformers_version", "architectures", "vision_config")
LAYER = "model.layers.0."
BESIDE = r"\.(mlp|block_sparse_moe|feed_forward)\.|\.sinks$"


def built(config: Any, auto: Any = AutoModelForCausalLM) -> torch.nn.Module:
    with torch.device("meta"):
        return auto.from_config(config)


def tensors(model: torch.nn.Module) -> dict[str, list[int]]:
    """Name → shape of the parameters, tied ones once; of a wrapped model by the names that it has alone."""
    found = {name: list(p.shape) for name, p in model.named_parameters()}
    if any(name.startswith("model.language_model.") for name in found):
        found = {n.replace("model.language_model.", "model."): s for n, s in found.items()}
        found = {n: s for n, s in found.items() if not n.startswith(("model.vision", "model.multi"))}
    return found


def case(kind: str, what: str, given: dict[str, Any]) -> dict[str, Any]:
    """A family with a config: what it says, and the tensors that transformers builds of it."""
    wraps = ROWS[kind].get("wraps")
    config = CONFIG_MAPPING[kind](**given)
    model = built(config, AutoModelForImageTextToText if wraps else AutoModelForCausalLM)
    found = tensors(model)
    layer = {n.removeprefix(LAYER): s for n, s in found.items() if n.startswith(LAYER)}
    inner = config.get_text_config()
    layers = inner.num_hidden_layers
    for i in range(layers):  # every layer has the tensors of the first
        own = {n.removeprefix(f"model.layers.{i}."): s for n, s in found.items() if f".layers.{i}." in n}
        assert own == layer, (kind, what, i)
    whole = {k: v for k, v in config.to_diff_dict().items() if k not in HIDDEN}
    read = (whole if what == "the class's defaults" else given) | {"model_type": kind}
    rope = inner.rope_parameters.get("full_attention", inner.rope_parameters)
    return {
        "model_type": kind,
        "what": what,
        "max_seq_len": inner.max_position_embeddings,
        "norm_eps": getattr(inner, "rms_norm_eps", getattr(inner, "layer_norm_eps", 1e-5)),
        "rope": [rope["rope_type"], rope["rope_theta"], rope.get("factor")],
        "config_json": {**read, "architectures": [type(model).__name__]},
        "layers": layers,
        "layer": sorted(layer.items()),
        "other": sorted((n, s) for n, s in found.items() if not n.startswith("model.layers.")),
    }


def cases(kind: str) -> list[dict[str, Any]]:
    """A family by its defaults, by sizes alone, with its switches turned, and with nulls."""
    usual = CONFIG_MAPPING[kind]()
    turned = {key: not getattr(usual, key) for key in SWITCHES if getattr(usual, key, None) is not None}
    asked = {
        "the class's defaults": {"num_hidden_layers": 2},
        "sizes alone": SIZES,
        "switches the other way round": SIZES | turned | {"num_key_value_heads": 2, "head_dim": 24},
        "no number of KV heads": SIZES | {"num_key_value_heads": None},
        "no head width": SIZES | {"num_key_value_heads": 2, "head_dim": None},
    }
    if kind == "gemma3":
        text = {"hidden_size": 96, "num_hidden_layers": 2, "intermediate_size": 160}
        asked = {"sizes as they are published": {"text_config": text}}
    if kind in ("phi3", "glm4"):  # what their rows say beyond others' is in these
        asked = {what: asked[what] for what in ("sizes alone", "switches the other way round")}
    if kind == "mistral3":
        text = SIZES | {"num_key_value_heads": 2, "head_dim": 16}
        asked = {
            f"{inner}, tied: {tied}": {
                "text_config": {**text, "model_type": inner},
                "tie_word_embeddings": tied,
            }
            for inner in ("mistral", "ministral3")
            for tied in (True, False)
        }
    found = []
    for what, given in asked.items():
        try:
            found.append(case(kind, what, given))
        except (ValueError, TypeError, StrictDataclassError) as problem:  # no such model
            print(f"{kind}, {what}: {str(problem).splitlines()[-1].strip()[:90]}")
    return found


MIXTURES = tomllib.loads("""
qwen3_moe = [
    { num_experts = 6, num_experts_per_tok = 2, moe_intermediate_size = 24, decoder_sparse_step = 1 },
    { num_experts = 6, num_experts_per_tok = 2, moe_intermediate_size = 24, decoder_sparse_step = 2 },
]
mixtral = [{ num_local_experts = 3, num_experts_per_tok = 2 }]
gpt_oss = [
    { num_local_experts = 3, num_experts_per_tok = 2, attention_bias = true },
    { num_local_experts = 3, num_experts_per_tok = 2, attention_bias = false },
]
[[deepseek_v3]]
n_routed_experts = 16
n_shared_experts = 2
num_experts_per_tok = 2
n_group = 4
moe_intermediate_size = 24
first_k_dense_replace = 1
q_lora_rank = 40
kv_lora_rank = 28
qk_nope_head_dim = 10
qk_rope_head_dim = 6
v_head_dim = 14
num_key_value_heads = 4
[[llama4_text]]
num_local_experts = 3
num_experts_per_tok = 1
intermediate_size_mlp = 80
interleave_moe_layer_step = 1
no_rope_layers = [1, 1, 1, 0, 1]
[[llama4_text]]
num_local_experts = 3
num_experts_per_tok = 1
intermediate_size_mlp = 80
interleave_moe_layer_step = 2
no_rope_layers = [1, 1, 1, 0, 1]
""")
"""Type of a mixture → what its configs say beside the sizes."""


def mixtures() -> list[dict[str, Any]]:
    """Mixtures with five layers."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 210_000}
    found = []
    for kind, several in MIXTURES.items():
        for own in several:
            given = sizes | ({} if kind == "deepseek_v3" else {"head_dim": 16}) | own
            model = built(CONFIG_MAPPING[kind](**given))
            shapes = tensors(model)
            judged = {name: shape for name, shape in shapes.items() if not re.search(BESIDE, name)}
            if kind == "deepseek_v3":
                judged = {name: shape for name, shape in judged.items() if "self_attn" not in name}
            config = given | {"model_type": kind, "architectures": [type(model).__name__]}
            numel = sum(p.numel() for p in model.parameters())
            layer = {n.removeprefix(LAYER): s for n, s in judged.items() if n.startswith(LAYER)}
            other = {n: s for n, s in judged.items() if ".layers." not in n}
            assert len(judged) == 5 * len(layer) + len(other)  # every layer has the judged ones of the first
            row = {"mixture": kind, "numel": numel, "layer": sorted(layer.items())}
            row["other"] = sorted(other.items())
            found.append(row | {"config_json": config})
    return found


def survey() -> list[dict[str, Any]]:
    """How every causal model_type of transformers differs from Llama in its first layer and its ends."""

    def ends(kind: str) -> dict[str, list[int]]:
        config = CONFIG_MAPPING[kind](num_hidden_layers=2)
        found = {n: list(p.shape) for n, p in built(config).named_parameters(remove_duplicate=False)}
        return {n.removeprefix(LAYER): s for n, s in found.items() if not re.search(r"layers\.[1-9]", n)}

    llama, rows = ends("llama"), []
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        row: dict[str, Any] = {"model_type": kind, "class": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]}
        try:
            own = ends(kind)
        except Exception as problem:  # a class that needs more than defaults, or another package
            rows.append(row | {"not_built": type(problem).__name__})
            continue
        more, fewer = sorted(own.keys() - llama.keys()), sorted(llama.keys() - own.keys())
        rows.append(row | {"more": more[:4], "fewer": fewer[:4], "counts": [len(more), len(fewer)]})
    return rows


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    dense = [kind for kind, row in ROWS.items() if "experts" not in row and kind != "llama4"]
    made = [one for kind in dense for one in cases(kind)] + mixtures() + survey()
    write(__file__, made, packages=("torch", "transformers"))
    DOCS.joinpath("families.md").write_text(page(made, transformers.__version__), encoding="utf-8")
