"""Parameters of published models as transformers' own classes count them, in total and tensor by tensor.

    python oracles/make_configs.py          needs torch and transformers

The numbers of each config.json stand in configs.txt with where they were read: files in public repositories,
by repository, commit and path; litgpt's table of the models that it converts; or the model's own page
("published"). Nothing is downloaded: the classes are built on the meta device. Some files, of test suites,
have one layer.
"""

from pathlib import Path
from typing import Any

import torch
import transformers

from fixture import write

MODELS = Path(__file__).with_name("configs.txt")
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "head_dim",
)
SWITCHES = ("tie_word_embeddings", "attention_bias")
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
}


def case(row: str, source: str) -> dict[str, Any]:
    name, kind, sizes, switches, *path = row.split("|")
    said = dict(zip(SIZES, sizes.split(), strict=True))
    given: dict[str, Any] = {key: int(value) for key, value in said.items() if value != "-"}
    for key, value in zip(SWITCHES, switches.split(), strict=True):
        if value != "-":
            given[key] = value == "yes"
    config_class, model_class = CLASSES[kind]
    with torch.device("meta"):
        model = model_class(config_class(**given))
    shapes = [[name, list(p.shape)] for name, p in model.named_parameters()]  # tied ones once
    first = "model.layers.0."
    return {
        "model": name,
        "source": " ".join([source, *path]),
        "config_json": {"model_type": kind, "architectures": [model_class.__name__], **given},
        "total": sum(p.numel() for p in model.parameters()),
        "layer": [[name.removeprefix(first), s] for name, s in shapes if name.startswith(first)],
        "other": [[name, s] for name, s in shapes if not name.startswith("model.layers.")],
    }


def cases() -> list[dict[str, Any]]:
    made, source = [], ""
    for row in MODELS.read_text().splitlines():
        if row.startswith("="):
            source = row.removeprefix("= ")
        elif not row.startswith("#"):
            made.append(case(row, source))
    return made


if __name__ == "__main__":
    write(__file__, cases(), packages=("torch", "transformers"))
