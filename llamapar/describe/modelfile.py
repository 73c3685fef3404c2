"""A model's dimensions written as Hugging Face's config.json and as Meta's params.json."""

from __future__ import annotations

from itertools import product

from llamapar.errors import Choice, ModelError

from .families import FAMILIES, HF_SIZES, Family, ffn_dim_from
from .models import ModelConfig
from .rope import RopeScaling


def config_json(model: ModelConfig) -> dict[str, object]:
    """A complete config.json (huggingface/transformers v5.23.0, configuration_llama.py), with its class."""
    model.require_judged("the config.json")
    own = family(model)
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": model.rope_theta}
    if s := model.rope_scaling:
        rope |= {
            "rope_type": s.kind,
            "original_max_position_embeddings": s.original_max_seq_len,
            **{name: getattr(s, name) for name in ("factor", "low_freq_factor", "high_freq_factor")},
        }
    return {
        "architectures": [own.architectures[0]],
        "model_type": own.name,
        **{key: getattr(model, field) for field, key in HF_SIZES.items()},
        "rope_parameters": rope,
        "layer_norm_eps" if "layer_norm_eps" in own.keys else "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tied,
        **{key: all(getattr(model, field) for field in fields) for key, fields in own.flags.items()},
    }


def family(model: ModelConfig) -> Family:
    """The transformers class that has the model's tensors; biases on some projections only mean Qwen2."""
    of_fields = "llama"
    if model.qkv_bias and not model.o_bias:
        of_fields = "qwen2"
    if model.qk_norm:
        of_fields = "qwen3"
    return FAMILIES[of_fields if model.family == "llama" else model.family]


def params_json(model: ModelConfig) -> dict[str, object]:
    """The object of a params.json, from which `ModelConfig.from_meta` reads the same dimensions.

    Raises ModelError for what Meta's format cannot express: another head_dim, biases, QK norms, a family.
    """
    checks = {
        "family": model.family != "llama",
        "head_dim": model.head_dim * model.n_heads != model.dim,
        "qkv_bias": model.qkv_bias or model.o_bias,
        "qk_norm": model.qk_norm,
    }
    for what in [name for name, other in checks.items() if other]:
        raise ModelError(
            f"{what}={getattr(model, what)} of {model.name}: params.json has no such field",
            "head_dim is dim / n_heads there, no projection has a bias, and queries and keys no norm",
            [Choice.of(format="hf")],
            what,
        )
    multiplier, multiple = _ffn(model.dim, model.ffn_dim)
    scaling = None
    if getattr(model.rope_scaling, "kind", "") == RopeScaling().kind:
        scaling = model.rope_scaling
    made = {
        "dim": model.dim,
        "n_layers": model.n_layers,
        "n_heads": model.n_heads,
        "n_kv_heads": model.n_kv_heads,
        "vocab_size": model.vocab_size,
        "multiple_of": multiple,
        "norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "ffn_dim_multiplier": multiplier,
        "use_scaled_rope": scaling and True,
        "rope_scaling_factor": scaling and scaling.factor,
    }
    return {key: value for key, value in made.items() if value is not None}


def _ffn(dim: int, ffn_dim: int) -> tuple[float | None, int]:
    """A multiplier and multiple_of that give the FFN width: published ones if possible, else constructed."""
    # The multipliers that Meta published, the plain one first, so that a real model gets back its own
    # numbers.
    for multiplier, multiple in product((None, 1.3, 1.2, 1.4, 1.5, 1.0), (256, 1024, 4096)):
        if ffn_dim_from(dim, multiplier, multiple) == ffn_dim:
            return multiplier, multiple
    # Rounding up to a multiple of ffn_dim itself lands exactly on it.
    return ffn_dim / int(2 * (4 * dim) / 3), ffn_dim
