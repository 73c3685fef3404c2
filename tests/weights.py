"""Small checkpoints for tests: presets scaled down, values of random bits, and files as others write them."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from llamapar import PRESETS, ModelConfig
from llamapar.describe.modelfile import config_json, params_json

DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
}

VOCAB = {128256: 176, 32000: 125, 152064: 297, 1024: 64}
"""Vocabularies scaled down: one that 16 ranks divide, two odd ones, and a power of two."""


def small(name: str, **changes: Any) -> ModelConfig:
    """A preset a few hundred KB big: its heads, KV heads, tying and biases, heads 4 wide, 3 layers."""
    preset = PRESETS[name]
    sizes = {"dim": 4 * preset.n_heads, "n_layers": 3, "ffn_dim": 240, "vocab_size": VOCAB[preset.vocab_size]}
    return preset.replace(**sizes | changes)


def tiny(**changes: Any) -> ModelConfig:
    """The smallest one that 4 ranks can share, with an odd vocabulary."""
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 16, "vocab_size": 101}
    return PRESETS["tiny"].replace(**sizes | changes)


@cache
def values(model: ModelConfig, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> dict[str, torch.Tensor]:
    """Every tensor by its Hugging Face name: random bits, so that NaNs of every kind are among them."""
    bits = torch.Generator().manual_seed(seed)

    def filled(shape: tuple[int, ...]) -> torch.Tensor:
        size = math.prod(shape) * dtype.itemsize
        raw = torch.randint(0, 256, (size,), generator=bits, dtype=torch.uint8)
        return raw.view(dtype).reshape(shape)

    return {p.hf_name: filled(p.shape) for p in model.parameters()}


@cache
def counted(model: ModelConfig) -> dict[str, torch.Tensor]:
    """Every tensor by its Hugging Face name, every element a number of its own."""
    sizes = [math.prod(p.shape) for p in model.parameters()]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return {
        p.hf_name: torch.arange(start + 1, start + 1 + math.prod(p.shape), dtype=torch.float32).reshape(
            p.shape
        )
        for p, start in zip(model.parameters(), starts, strict=True)
    }


def raw(tensor: torch.Tensor) -> bytes:
    """A tensor's bytes."""
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def alike(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether two state dicts hold the same names, shapes, dtypes and bytes."""
    return a.keys() == b.keys() and all(
        (a[n].dtype, a[n].shape, raw(a[n])) == (b[n].dtype, b[n].shape, raw(b[n])) for n in a
    )


def save_hf(folder: Path, model: ModelConfig, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """A Hugging Face folder, written by safetensors' own library."""
    folder.mkdir(parents=True)
    tensors = values(model) if tensors is None else tensors
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_json(model)))
    return folder


def save_meta(folder: Path, model: ModelConfig, shards: list[dict[str, torch.Tensor]]) -> Path:
    """A folder as Meta's, written by torch.save."""
    folder.mkdir(parents=True)
    for rank, tensors in enumerate(shards):
        torch.save({n: t.clone() for n, t in tensors.items()}, folder / f"consolidated.{rank:02d}.pth")
    (folder / "params.json").write_text(json.dumps(params_json(model)))
    return folder


def load(file: Path) -> dict[str, torch.Tensor]:
    """A file by the library that its format belongs to."""
    if file.suffix == ".pth":
        found: dict[str, torch.Tensor] = torch.load(file, weights_only=True)
        return found
    loaded: dict[str, torch.Tensor] = load_file(file)
    return loaded


def loaded(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Every file of tensors in a folder, by name."""
    files = sorted(p for p in folder.iterdir() if p.suffix in (".pth", ".safetensors"))
    return {file.name: load(file) for file in files}


def together(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of all files of an uncut checkpoint."""
    return {name: tensor for tensors in loaded(folder).values() for name, tensor in tensors.items()}


def contents(folder: Path) -> dict[str, bytes]:
    """Every byte of a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def permuted(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Meta's rows of Q or K in Hugging Face's order.

    `permute` of huggingface/transformers v4.46.0, models/llama/convert_llama_weights_to_hf.py.
    """
    rows, rest = weight.shape[0], weight.shape[1:]
    return weight.view(n_heads, rows // n_heads // 2, 2, *rest).transpose(1, 2).reshape(rows, *rest)


def flip(file: Path, at: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << bit
    file.write_bytes(data)


def exactly(text: str) -> str:
    """`match=` for a whole message."""
    return rf"\A{re.escape(text)}\Z"
