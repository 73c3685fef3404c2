"""parameters.json: every parameter of the preset models, by Hugging Face transformers.

    pip install torch==2.13.0 transformers==5.23.0
    python oracles/make_parameters.py

Each model is built from its published config.json fields on the meta device. `total` counts
tied weights once; `layer` lists one layer's parameters and `other` those outside the layers, as
[name, shape]. `config_json` holds the fields as the model's config.json spells them, `hf_config`
the same model as this transformers version writes it (rope_parameters). `published` is the
parameter count on the model page, or half the bytes of its bf16 safetensors index; null where
nothing was published.

The config.json facts were read in copies of the Hub's files: Llama 3.1 and 3.3 in
ai-dynamo/aiconfigurator (model_configs/); Llama 3.1 8B and 70B, 3.2 and Mistral in mlc-ai/mlc-llm
(python/mlc_llm/model/model_preset.py); Qwen2.5 7B in citsjtu2020/LLM-Prof (sglang/Model_Config.md);
all but mp16 agree with Lightning-AI/litgpt (litgpt/config.py), whose notes name the Hub's files.
Llama 2 on the Hub said 2048 positions at first (huggingface/transformers issue 24986), then 4096.
"""

import copy
from typing import Any

import torch
import transformers

from fixture import write

LLAMA = {"model_type": "llama", "tie_word_embeddings": False, "rms_norm_eps": 1e-05}
LLAMA2 = {**LLAMA, "vocab_size": 32000, "max_position_embeddings": 4096, "rope_scaling": None}
LLAMA3 = {
    **LLAMA,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rope_scaling": None,
}


def llama31(factor: float) -> dict[str, Any]:
    scaling = {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    return {**LLAMA3, "max_position_embeddings": 131072, "rope_scaling": scaling}


LLAMA31 = llama31(8.0)
LLAMA32 = {**llama31(32.0), "tie_word_embeddings": True}
MISTRAL = {
    "model_type": "mistral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
}
QWEN25 = {
    "model_type": "qwen2",
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}

# hidden, layers, heads, KV heads, FFN; the rest of config.json; the published parameter count.
MODELS: dict[str, tuple[tuple[int, ...], dict[str, Any], int | None]] = {
    "llama3-8b": ((4096, 32, 32, 8, 14336), LLAMA3, 8_030_261_248),
    "llama3-70b": ((8192, 80, 64, 8, 28672), LLAMA3, 70_553_706_496),
    "llama3.1-8b": ((4096, 32, 32, 8, 14336), LLAMA31, 8_030_261_248),
    "llama3.1-70b": ((8192, 80, 64, 8, 28672), LLAMA31, 70_553_706_496),
    "llama3.1-405b": ((16384, 126, 128, 8, 53248), LLAMA31, 405_853_388_800),
    "llama3.1-405b-mp16": ((16384, 126, 128, 16, 53248), LLAMA31, None),
    "llama3.2-1b": ((2048, 16, 32, 8, 8192), {**LLAMA32, "head_dim": 64}, 1_235_814_400),
    "llama3.2-3b": ((3072, 28, 24, 8, 8192), {**LLAMA32, "head_dim": 128}, 3_212_749_824),
    "llama3.3-70b": ((8192, 80, 64, 8, 28672), LLAMA31, 70_553_706_496),
    "llama2-7b": ((4096, 32, 32, 32, 11008), LLAMA2, 6_738_415_616),
    "llama2-13b": ((5120, 40, 40, 40, 13824), LLAMA2, 13_015_864_320),
    "llama2-70b": ((8192, 80, 64, 8, 28672), LLAMA2, 68_976_648_192),
    "mistral-7b": ((4096, 32, 32, 8, 14336), MISTRAL, 7_241_732_096),
    "qwen2.5-7b": ((3584, 28, 28, 4, 18944), {**QWEN25, "rms_norm_eps": 1e-06}, 7_615_616_512),
    "qwen2.5-72b": ((8192, 80, 64, 8, 29568), {**QWEN25, "rms_norm_eps": 1e-05}, 72_706_203_648),
}
DIMS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
)
KEPT = (  # of config.to_dict()
    *DIMS,
    "attention_bias",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "mlp_bias",
    "model_type",
    "rms_norm_eps",
    "rope_parameters",
    "sliding_window",
    "tie_word_embeddings",
    "use_sliding_window",
    "vocab_size",
)
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
}


def case(name: str) -> dict[str, Any]:
    dims, rest, published = MODELS[name]
    fields = {**dict(zip(DIMS, dims, strict=True)), **rest}
    config_class, model_class = CLASSES[fields["model_type"]]
    asked = copy.deepcopy(fields)  # transformers writes into the rope_scaling it is given
    asked.pop("model_type")
    config = config_class(**asked)
    with torch.device("meta"):
        model = model_class(config)
    shapes = [[name, list(p.shape)] for name, p in model.named_parameters()]  # tied ones once
    written = config.to_dict()
    first = "model.layers.0."
    return {
        "model": name,
        "class": model_class.__name__,
        "config_json": {**fields, "architectures": [model_class.__name__], "hidden_act": "silu"},
        "hf_config": {key: written[key] for key in KEPT if key in written},
        "total": sum(p.numel() for p in model.parameters()),
        "published": published,
        "layer": [[name.removeprefix(first), s] for name, s in shapes if name.startswith(first)],
        "other": [[name, s] for name, s in shapes if not name.startswith("model.layers.")],
    }


if __name__ == "__main__":
    write(__file__, [case(name) for name in MODELS], packages=("torch", "transformers"))
