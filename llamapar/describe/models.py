"""A Llama-style model as numbers: dimensions, presets, readers and the parameter inventory.

Field names are Meta's and torchtitan's (`dim`, `n_kv_heads`, …). A ModelConfig is always consistent
in itself; whether a layout can cut it is for `lp.check` to say.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from llamapar.errors import MAX_SIZE, Choice, ModelError, flag, one_of, real, shown, whole

from .configfile import exists, given, is_json, need, read_object
from .modelnames import preset_name
from .rope import RopeScaling

MAX_DIM = 2**24
MAX_VOCAB = 2**27
MAX_HEADS = 2**16
MAX_LAYERS = 2**14


@dataclass(frozen=True)
class Parameter:
    """One tensor of the model, unsharded.

    key: the row of the placement table (`placement.PARAMETERS`) that says how it is cut.
    layer: index of its transformer layer, or None for the embedding, the final norm and the head.
    """

    name: str
    hf_name: str
    shape: tuple[int, ...]
    key: str
    layer: int | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions of a dense Llama-style transformer.

    dim: width of the residual stream. ffn_dim: width of the SwiGLU hidden layer.
    n_kv_heads: key/value heads (GQA), each shared by n_heads / n_kv_heads query heads.
    head_dim: width of a head; 0 or None means dim / n_heads.
    max_seq_len: the longest context, in tokens, that the model was made for.
    tied: the output head shares the embedding's tensor.
    qkv_bias, o_bias: biases on the attention projections (Qwen2 has the first).

    Raises ModelError, naming the field, for dimensions that no such model can have.
    """

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    ffn_dim: int
    vocab_size: int
    head_dim: int = 0
    max_seq_len: int = 8192
    rope_theta: float = 500000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tied: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    name: str = "custom"

    def __post_init__(self) -> None:
        put = object.__setattr__
        limits = {"dim": MAX_DIM, "n_layers": MAX_LAYERS, "n_heads": MAX_HEADS, "n_kv_heads": MAX_HEADS}
        limits |= {"ffn_dim": MAX_DIM, "vocab_size": MAX_VOCAB, "max_seq_len": MAX_SIZE}
        for field, high in limits.items():
            put(self, field, whole(field, getattr(self, field), 1, high, ModelError))
        width = 0 if self.head_dim is None else self.head_dim
        put(self, "head_dim", whole("head_dim", width, 0, MAX_DIM, ModelError))
        if self.head_dim == 0:
            if self.dim % self.n_heads:
                near = self.dim // self.n_heads * self.n_heads
                raise ModelError(
                    f"n_heads={self.n_heads} does not divide dim={self.dim}",
                    "head_dim = dim / n_heads must be a whole number when it is not given",
                    [*(Choice.of(dim=n) for n in (near, near + self.n_heads) if n), Choice.of(head_dim=128)],
                    "dim",
                )
            put(self, "head_dim", self.dim // self.n_heads)
        if self.n_heads % self.n_kv_heads:
            fewer = [d for d in range(self.n_kv_heads, 0, -1) if self.n_heads % d == 0][:1]
            raise ModelError(
                f"n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads}",
                "each KV head serves the same whole number of query heads",
                [Choice.of(n_kv_heads=n) for n in (*fewer, self.n_heads)],
                "n_kv_heads",
            )
        for field in ("tied", "qkv_bias", "o_bias"):
            flag(field, getattr(self, field), ModelError)
        real("rope_theta", self.rope_theta, 1.0, 1e12, ModelError)
        real("norm_eps", self.norm_eps, 0.0, 1.0, ModelError)
        if self.rope_scaling is not None and not isinstance(self.rope_scaling, RopeScaling):
            raise ModelError(
                f"rope_scaling={shown(self.rope_scaling)}: a RopeScaling or None is needed",
                field="rope_scaling",
            )
        if not isinstance(self.name, str):
            raise ModelError(f"name={shown(self.name)}: a text is needed", field="name")

    # -- derived sizes -------------------------------------------------------------------------

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.n_heads // self.n_kv_heads

    @property
    def q_dim(self) -> int:
        """Rows of wq: n_heads x head_dim."""
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Rows of wk and of wv: n_kv_heads x head_dim."""
        return self.n_kv_heads * self.head_dim

    # -- the inventory -------------------------------------------------------------------------

    def _layer_tensors(self) -> list[tuple[str, str, str, tuple[int, ...]]]:
        """(key, Meta name, HF name, shape) of the tensors of one layer."""
        d, f, q, kv = self.dim, self.ffn_dim, self.q_dim, self.kv_dim
        rows: list[tuple[str, str, str, tuple[int, ...]]] = [
            ("norm", "attention_norm.weight", "input_layernorm.weight", (d,)),
            ("wq", "attention.wq.weight", "self_attn.q_proj.weight", (q, d)),
            ("wk", "attention.wk.weight", "self_attn.k_proj.weight", (kv, d)),
            ("wv", "attention.wv.weight", "self_attn.v_proj.weight", (kv, d)),
            ("wo", "attention.wo.weight", "self_attn.o_proj.weight", (d, q)),
        ]
        if self.qkv_bias:
            rows += [
                ("bq", "attention.wq.bias", "self_attn.q_proj.bias", (q,)),
                ("bk", "attention.wk.bias", "self_attn.k_proj.bias", (kv,)),
                ("bv", "attention.wv.bias", "self_attn.v_proj.bias", (kv,)),
            ]
        if self.o_bias:
            rows.append(("bo", "attention.wo.bias", "self_attn.o_proj.bias", (d,)))
        rows += [
            ("norm", "ffn_norm.weight", "post_attention_layernorm.weight", (d,)),
            ("w1", "feed_forward.w1.weight", "mlp.gate_proj.weight", (f, d)),
            ("w2", "feed_forward.w2.weight", "mlp.down_proj.weight", (d, f)),
            ("w3", "feed_forward.w3.weight", "mlp.up_proj.weight", (f, d)),
        ]
        return rows

    def parameters(self) -> Iterator[Parameter]:
        """Every tensor, in the order of the forward pass; a tied head is not stored twice."""
        vocab = (self.vocab_size, self.dim)
        yield Parameter("tok_embeddings.weight", "model.embed_tokens.weight", vocab, "tok_embeddings")
        for i in range(self.n_layers):
            for key, meta, hf, shape in self._layer_tensors():
                yield Parameter(f"layers.{i}.{meta}", f"model.layers.{i}.{hf}", shape, key, i)
        yield Parameter("norm.weight", "model.norm.weight", (self.dim,), "norm")
        if not self.tied:
            yield Parameter("output.weight", "lm_head.weight", vocab, "output")

    @cached_property
    def layer_params(self) -> int:
        """Parameters of one transformer layer."""
        return sum(math.prod(shape) for *_, shape in self._layer_tensors())

    @cached_property
    def n_params(self) -> int:
        """Parameters of the whole model, a tied embedding counted once."""
        ends = self.vocab_size * self.dim * (1 if self.tied else 2)
        return self.n_layers * self.layer_params + self.dim + ends

    def replace(self, **changes: Any) -> ModelConfig:
        """A copy with some fields changed; head_dim follows dim and n_heads unless it is given."""
        for name in changes:
            one_of("model field", name, self.__dataclass_fields__, ModelError)
        if {"dim", "n_heads"} & changes.keys() and "head_dim" not in changes:
            changes["head_dim"] = 0
        return replace(self, **changes)

    # -- readers -------------------------------------------------------------------------------

    @classmethod
    def from_hf(cls, source: str | Path | Mapping[str, Any], name: str = "") -> ModelConfig:
        """From a Hugging Face `config.json`: a path, a folder that holds one, or its dict.

        A text that starts with "{" is read as JSON. Raises ModelError for a broken file, a missing
        or impossible field, or a model that is not a dense Llama-style one.
        """
        raw, found = read_object(source, "config.json")
        kind = raw.get("model_type", "llama")
        one_of("model_type", kind, _HF_TYPES, ModelError)
        if raw.get("mlp_bias"):
            raise ModelError("mlp_bias=true: biases in the MLP are not laid out here", field="mlp_bias")
        heads = need(raw, "num_attention_heads", "config.json")
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        if not isinstance(rope, Mapping):
            raise ModelError(f"rope_scaling={shown(rope)}: an object is needed", field="rope_scaling")
        bias = flag("attention_bias", raw.get("attention_bias", False), ModelError)
        return cls(
            dim=need(raw, "hidden_size", "config.json"),
            n_layers=need(raw, "num_hidden_layers", "config.json"),
            n_heads=heads,
            n_kv_heads=given(raw, "num_key_value_heads", heads),
            ffn_dim=need(raw, "intermediate_size", "config.json"),
            vocab_size=need(raw, "vocab_size", "config.json"),
            head_dim=given(raw, "head_dim", 0),
            max_seq_len=given(raw, "max_position_embeddings", 2048),
            rope_theta=given(rope, "rope_theta", given(raw, "rope_theta", 10000.0)),
            rope_scaling=RopeScaling.from_hf(rope),
            norm_eps=given(raw, "rms_norm_eps", 1e-6),
            tied=given(raw, "tie_word_embeddings", False),
            qkv_bias=bias or kind == "qwen2",
            o_bias=bias,
            name=name or found or str(kind),
        )

    @classmethod
    def from_meta(
        cls, source: str | Path | Mapping[str, Any], name: str = "", vocab_size: int | None = None
    ) -> ModelConfig:
        """From Meta's `params.json`: a path, a folder that holds one, or its dict.

        vocab_size: for Llama 2, whose params.json says -1 and leaves it to the tokenizer.
        The FFN width follows llama-models (`ffn_dim_from`). Raises ModelError.
        """
        raw, found = read_object(source, "params.json")
        dim = whole("dim", need(raw, "dim", "params.json"), 1, MAX_DIM, ModelError)
        vocab = vocab_size if vocab_size is not None else need(raw, "vocab_size", "params.json")
        if vocab == -1:
            raise ModelError(
                "vocab_size=-1: this params.json leaves the vocabulary to the tokenizer",
                "Llama 2's tokenizer has 32000 pieces, Llama 3's 128256",
                [Choice.of(vocab_size=32000)],
                "vocab_size",
            )
        scaled = flag("use_scaled_rope", raw.get("use_scaled_rope", False), ModelError)
        heads = need(raw, "n_heads", "params.json")
        unscaled = 8192 if raw.get("rope_theta") else 4096  # Llama 3, and Llama 2, which does not say it
        return cls(
            dim=dim,
            n_layers=need(raw, "n_layers", "params.json"),
            n_heads=heads,
            n_kv_heads=given(raw, "n_kv_heads", heads),
            ffn_dim=ffn_dim_from(dim, given(raw, "ffn_dim_multiplier", None), given(raw, "multiple_of", 256)),
            vocab_size=vocab,
            max_seq_len=131072 if scaled else unscaled,
            rope_theta=given(raw, "rope_theta", 10000.0),
            rope_scaling=RopeScaling(factor=given(raw, "rope_scaling_factor", 8.0)) if scaled else None,
            norm_eps=given(raw, "norm_eps", 1e-5),
            name=name or found or "meta",
        )


ModelLike = str | Path | Mapping[str, Any] | ModelConfig
"""What a public function takes for a model; `model` reads it: a name, a file or folder, a dict, or itself."""


def ffn_dim_from(dim: int, multiplier: float | None, multiple_of: int) -> int:
    """FFN width from Meta's params.json, with both of its integer truncations.

    llama-models, models/llama3/model.py:214-218 @a9c89c471f793423afd4cc3ca8671d6e56fe64cb.
    """
    whole("multiple_of", multiple_of, 1, MAX_DIM, ModelError)
    width = int(2 * (4 * dim) / 3)
    if multiplier is not None:
        width = int(real("ffn_dim_multiplier", multiplier, 1e-6, 1e6, ModelError) * width)
    return multiple_of * math.ceil(width / multiple_of)


def model(source: ModelLike) -> ModelConfig:
    """The model named by `source`: a preset's name or its publisher's, a JSON file or its folder, or a dict.

    Meta's params.json and Hugging Face's config.json are told apart by their keys.
    Raises ModelError with the nearest preset names when nothing fits.
    """
    if isinstance(source, ModelConfig):
        return source
    if isinstance(source, str) and source.lower() in PRESETS:
        return PRESETS[source.lower()]
    if isinstance(source, Mapping):
        return _from_any(source, source)
    if not isinstance(source, (str, Path)):
        raise ModelError(
            f"model={shown(source)}: a preset's name, a path or a dict is needed", "", [*PRESETS][:3], "model"
        )
    if is_json(source) or exists(source):
        raw, _ = read_object(source, "config.json", "params.json")
        return _from_any(raw, source)
    name = preset_name(str(source))
    if name in PRESETS and isinstance(source, str):
        return PRESETS[name]
    near = difflib.get_close_matches(name[:100], PRESETS, n=3, cutoff=0.3)
    raise ModelError(
        f"model={shown(source, 200)} is neither a preset nor a file",
        f"presets are {', '.join(PRESETS)}",
        near or list(PRESETS)[:3],
        "model",
    )


def _from_any(raw: Mapping[str, Any], source: Any) -> ModelConfig:
    if "hidden_size" in raw:
        return ModelConfig.from_hf(source)
    if "ffn_dim" in raw:  # our own field names
        for key in raw:
            one_of("model field", key, ModelConfig.__dataclass_fields__, ModelError)
        for key in ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size"):
            need(raw, key, "the model's dict")
        return ModelConfig(**raw)
    if "dim" in raw:
        return ModelConfig.from_meta(source)
    raise ModelError(
        f"no model in this JSON: keys {shown(sorted(map(str, raw)))}",
        "a config.json has hidden_size, a params.json has dim",
        field="model",
    )


_HF_TYPES = ("llama", "mistral", "qwen2")


# -- presets -----------------------------------------------------------------------------------


def _presets() -> dict[str, ModelConfig]:
    """Dimensions as published: llama-models sku_list.py @8c88b8c0, the models' config.json files."""
    scaled, small = RopeScaling(), RopeScaling(factor=32.0)
    llama3 = {"vocab_size": 128256}
    llama31 = {"vocab_size": 128256, "max_seq_len": 131072, "rope_scaling": scaled}
    llama32 = {"vocab_size": 128256, "max_seq_len": 131072, "rope_scaling": small, "tied": True}
    llama2 = {"vocab_size": 32000, "max_seq_len": 4096, "rope_theta": 10000.0}
    mistral = {"vocab_size": 32000, "max_seq_len": 32768, "rope_theta": 10000.0}
    qwen25 = {"vocab_size": 152064, "max_seq_len": 131072, "rope_theta": 1e6, "qkv_bias": True}
    rows: list[tuple[str, tuple[int, int, int, int, int], dict[str, Any]]] = [
        # name, (dim, n_layers, n_heads, n_kv_heads, ffn_dim), the rest
        ("llama3-8b", (4096, 32, 32, 8, 14336), llama3),
        ("llama3-70b", (8192, 80, 64, 8, 28672), llama3),
        ("llama3.1-8b", (4096, 32, 32, 8, 14336), llama31),
        ("llama3.1-70b", (8192, 80, 64, 8, 28672), llama31),
        ("llama3.1-405b", (16384, 126, 128, 8, 53248), llama31),
        ("llama3.1-405b-mp16", (16384, 126, 128, 16, 53248), llama31),
        ("llama3.2-1b", (2048, 16, 32, 8, 8192), llama32),
        ("llama3.2-3b", (3072, 28, 24, 8, 8192), llama32),
        ("llama3.3-70b", (8192, 80, 64, 8, 28672), llama31),
        ("llama2-7b", (4096, 32, 32, 32, 11008), llama2),
        ("llama2-13b", (5120, 40, 40, 40, 13824), llama2),
        ("llama2-70b", (8192, 80, 64, 8, 28672), llama2),
        ("mistral-7b", (4096, 32, 32, 8, 14336), mistral),
        ("qwen2.5-7b", (3584, 28, 28, 4, 18944), {**qwen25, "norm_eps": 1e-6}),
        ("qwen2.5-72b", (8192, 80, 64, 8, 29568), qwen25),
        ("tiny", (128, 4, 16, 8, 384), {"vocab_size": 1024, "max_seq_len": 4096}),
    ]
    return {
        name: ModelConfig(dim=d, n_layers=n, n_heads=h, n_kv_heads=kv, ffn_dim=f, name=name, **rest)
        for name, (d, n, h, kv, f), rest in rows
    }


PRESETS: dict[str, ModelConfig] = _presets()
"""Models by name; `tiny` is ours, small enough to run on any machine."""
