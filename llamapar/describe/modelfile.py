"""A model's dimensions written as Hugging Face's config.json and as Meta's params.json."""

from __future__ import annotations

from itertools import product

from llamapar.errors import Choice, ModelError

from .families import FAMILIES, HF_SIZES, Family, ffn_dim_from
from .models import ModelConfig
from .rope import RopeScaling


def as_hf(model: ModelConfig) -> dict[str, object]:
    """The dimensions as keys of a config.json (huggingface/transformers v5.23.0, configuration_llama.py)."""
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": model.rope_theta}
    if s := model.rope_scaling:
        rope |= {"rope_type": s.kind, "original_max_position_embeddings": s.original_max_seq_len}
        rope |= {n: getattr(s, n) for n in ("factor", "low_freq_factor", "high_freq_factor")}
    return {
        **{key: getattr(model, field) for field, key in HF_SIZES.items()},
        "rope_parameters": rope,
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tied,
        "attention_bias": model.qkv_bias and model.o_bias if family(model).biases else None,
    }


def family(model: ModelConfig) -> Family:
    """The transformers class that has the model's tensors; biases on some projections only mean Qwen2."""
    if model.qk_norm:
        return FAMILIES["qwen3"]
    return FAMILIES["qwen2" if model.qkv_bias and not model.o_bias else "llama"]


def config_json(model: ModelConfig) -> dict[str, object]:
    """A complete config.json, including its class."""
    made = family(model)
    dims = {key: value for key, value in as_hf(model).items() if value is not None}
    return {"architectures": [made.architecture], "model_type": made.name, **dims}


def params_json(model: ModelConfig) -> dict[str, object]:
    """The object of a params.json, from which `ModelConfig.from_meta` reads the same dimensions.

    Raises ModelError for what Meta's format cannot express: another head_dim, biases, QK norms.
    """
    checks = {
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
    sizes = {"dim": model.dim, "n_layers": model.n_layers, "n_heads": model.n_heads}
    sizes |= {"n_kv_heads": model.n_kv_heads, "vocab_size": model.vocab_size, "multiple_of": multiple}
    made: dict[str, object] = {**sizes, "norm_eps": model.norm_eps, "rope_theta": model.rope_theta}
    if multiplier is not None:
        made["ffn_dim_multiplier"] = multiplier
    if model.rope_scaling is not None and model.rope_scaling.kind == RopeScaling().kind:
        made["use_scaled_rope"] = True
        made["rope_scaling_factor"] = model.rope_scaling.factor
    return made


def _ffn(dim: int, ffn_dim: int) -> tuple[float | None, int]:
    """A multiplier and multiple_of that give the FFN width: published ones if possible, else constructed."""
    # The multipliers that Meta published, the plain one first, so that a real model gets back its own
    # numbers.
    for multiplier, multiple in product((None, 1.3, 1.2, 1.4, 1.5, 1.0), (256, 1024, 4096)):
        if ffn_dim_from(dim, multiplier, multiple) == ffn_dim:
            return multiplier, multiple
    # Rounding up to a multiple of ffn_dim itself lands exactly on it.
    return ffn_dim / int(2 * (4 * dim) / 3), ffn_dim
