"""A Llama-style model as numbers: dimensions, presets, readers and the parameter inventory.

Field names are Meta's and torchtitan's (`dim`, `n_kv_heads`, …). A ModelConfig is always consistent in
itself; whether a layout can cut it is for `lp.check` to say. The experts of a mixture are numbers beside it
(`Experts`); quantised models are not covered.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from llamapar.errors import MAX_SIZE, Choice, Fields, ModelError, flag, one_of, real, shown, whole

from .catalog import entries
from .configfile import Values, exists, is_json, object_of, read_object, required
from .experts import Experts
from .families import FAMILIES, MAX_DIM, OWN, TENSORS, from_config_json, from_params_json
from .modelnames import preset_name
from .rope import RopeScaling

MAX_VOCAB = 2**27
MAX_HEADS = 2**16
MAX_LAYERS = 2**14


_OF_THE_REST = "lp.check, lp.memory and lp.ranks, which are of the rest"


@dataclass(frozen=True)
class Parameter:
    """One tensor of the model, unsharded.

    key: the row of the placement table (`placement.PARAMETERS`) that says how it is cut.
    layer: index of its transformer layer; None for the embedding, the final norm and the head.
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
class ModelConfig(Fields, word="model field", error=ModelError):
    """Dimensions of a Llama-style transformer.

    dim: width of the residual stream. ffn_dim: width of the SwiGLU hidden layer.
    n_kv_heads: key/value heads (GQA), each shared by n_heads / n_kv_heads query heads.
    head_dim: width of a head; 0 or None means dim / n_heads.
    max_seq_len: the longest context, in tokens, that the model was made for.
    tied: the output head shares the embedding's tensor.
    qkv_bias, o_bias: biases on the attention projections (Qwen2 has the first).
    qk_norm: norms of the queries and keys, over each head (Qwen3) or over their whole width (OLMo 2).
    family: the model_type of transformers whose norms it has, a row of families.toml; "llama" for all models
    that the other fields describe, Mistral and Qwen among them.
    experts: of a mixture, or None. Its layers' FFNs are then in `n_params` and not in `parameters`.

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
    qk_norm: bool = False
    family: str = "llama"
    experts: Experts | None = None
    name: str = "custom"

    def __post_init__(self) -> None:
        # The class is frozen, and what is stored is the checked value, for example 8 for numpy's 8.
        put = object.__setattr__
        # Far past any real model; they catch slips and files made to exhaust memory.
        limits = {"dim": MAX_DIM, "n_layers": MAX_LAYERS, "n_heads": MAX_HEADS, "n_kv_heads": MAX_HEADS}
        limits |= {"ffn_dim": MAX_DIM, "vocab_size": MAX_VOCAB, "max_seq_len": MAX_SIZE}
        for field, high in limits.items():
            put(self, field, whole(field, getattr(self, field), 1, high, ModelError))
        width = 0
        if self.head_dim is not None:
            width = self.head_dim
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
            # The next smaller number that divides, or as many KV heads as query heads, which always do.
            fewer = [d for d in range(self.n_kv_heads, 0, -1) if self.n_heads % d == 0][:1]
            raise ModelError(
                f"n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads}",
                "each KV head serves the same whole number of query heads",
                [Choice.of(n_kv_heads=n) for n in (*fewer, self.n_heads)],
                "n_kv_heads",
            )
        experts: object = self.experts
        if experts is not None and not isinstance(experts, Experts):
            put(self, "experts", Experts(**Values(object_of(experts, "experts"))))
        for field in ("tied", "qkv_bias", "o_bias", "qk_norm"):
            flag(field, getattr(self, field), ModelError)
        one_of("family", self.family, OWN, ModelError)
        if self.family != "llama" and self.qk_norm != FAMILIES[self.family].fields.get("qk_norm", False):
            raise ModelError(
                f"qk_norm={self.qk_norm} is not so in {self.family}",
                "the family says which norms a model has",
                [Choice.of(qk_norm=not self.qk_norm)],
                "qk_norm",
            )
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
    def head_layers(self) -> float:
        """Compute of the head in layers, by their parameters: Q, K and V of full heads, and the FFN."""
        return self.vocab_size / (4 * self.q_dim + 3 * self.ffn_dim)

    @property
    def kv_dim(self) -> int:
        """Rows of wk and of wv: n_kv_heads x head_dim."""
        return self.n_kv_heads * self.head_dim

    @cached_property
    def lacks(self) -> str:
        """What the model has beyond Llama's layer, which `lp.run` does not compute; empty for most."""
        return FAMILIES[self.family].lacks

    @property
    def norms_width(self) -> bool:
        """Whether its QK norms are over the whole width of Q and K instead of over each head."""
        return "q_norm" in FAMILIES[self.family].dims

    # -- a mixture of experts --------------------------------------------------------------------

    @property
    def unjudged(self) -> str:
        """What of a mixture is counted in parameters and not judged, in words; empty for a dense model."""
        if self.experts is None:
            return ""
        own = self.experts
        layers = f"{len(own.layers(self.n_layers))} of {self.n_layers} layers"
        each = f"{own.count} experts"
        if own.shared:
            each += f" and {own.shared} shared"
        each += f" of width {own.width:,}, {own.active} for a token"
        share = f"{self.expert_params:,} of {self.n_params:,} parameters"
        text = f"FFNs with {each}, in {layers}: {share}"
        if own.latent:
            return f"multi-head latent attention (MLA), and {text}"
        return text

    def require_judged(self, what: str, instead: object = _OF_THE_REST) -> None:
        """Raises ModelError for a mixture, of which `what` would be without its experts."""
        if self.experts:
            raise ModelError(
                f"{what} of {self.name} is not known, because it is a mixture of experts",
                f"not judged: {self.unjudged}",
                [instead],
                "model",
            )

    # -- the inventory -------------------------------------------------------------------------

    def _layer_tensors(self) -> list[tuple[str, str, str, tuple[int, ...]]]:
        """(key, Meta name, HF name, shape) of every tensor in one layer."""
        own = FAMILIES[self.family]
        found: list[tuple[str, str, str, tuple[int, ...]]] = []
        beside: tuple[str, ...] = ()
        if self.experts:
            beside = ("feed_forward.",)
            if self.experts.latent:
                beside = ("feed_forward.", "attention.")
        for meta, (key, hf, dims, where) in TENSORS.items():
            if meta.startswith(beside):
                continue
            # A norm comes with its name in the family's row, a bias or a QK norm with a field of the model.
            if where in own.names or getattr(self, where, not where):
                renamed = own.names.get(meta.split(".")[-2])
                shape = tuple(getattr(self, dim) for dim in own.dims.get(key, dims).split())
                found.append((key, meta, f"{renamed}.weight" if renamed else hf, shape))
        return found

    def parameters(self) -> Iterator[Parameter]:
        """Every tensor, in the order of the forward pass; a tied head is not listed again.

        Of a mixture, those that are judged: without the FFNs of its layers, and without MLA.
        """
        vocab = (self.vocab_size, self.dim)
        yield Parameter("tok_embeddings.weight", "model.embed_tokens.weight", vocab, "tok_embeddings")
        for i in range(self.n_layers):
            for key, meta, hf, shape in self._layer_tensors():
                yield Parameter(f"layers.{i}.{meta}", f"model.layers.{i}.{hf}", shape, key, i)
        if "norm" in FAMILIES[self.family].names:
            yield Parameter("norm.weight", "model.norm.weight", (self.dim,), "norm")
        if not self.tied:
            yield Parameter("output.weight", "lm_head.weight", vocab, "output")

    @cached_property
    def layer_params(self) -> int:
        """Parameters of one transformer layer; of a mixture, those that are judged."""
        return sum(math.prod(shape) for *_, shape in self._layer_tensors())

    @cached_property
    def expert_params(self) -> int:
        """Parameters of a mixture that are counted and not judged; 0 for a dense model."""
        if self.experts:
            return self.experts.numel(self.dim, self.ffn_dim, self.n_layers)
        return 0

    @property
    def active_params(self) -> int:
        """Parameters that compute one token: without the experts that the router does not choose for it."""
        if self.experts is None:
            return self.n_params
        active = self.experts.numel(self.dim, self.ffn_dim, self.n_layers, active=True)
        return self.n_params - self.expert_params + active

    @property
    def final_norm(self) -> int:
        """Parameters of the norm before the head: dim, or 0 where norms have no weights."""
        return self.dim * ("norm" in FAMILIES[self.family].names)

    @cached_property
    def n_params(self) -> int:
        """Parameters of the whole model; a tied embedding counts once."""
        ends = self.vocab_size * self.dim * (1 if self.tied else 2)
        return self.n_layers * self.layer_params + self.expert_params + self.final_norm + ends

    def replace(self, **changes: object) -> ModelConfig:
        """A copy with some fields changed; head_dim follows dim and n_heads unless it is given."""
        # The stored head_dim belongs to the old sizes; 0 derives it anew.
        if {"dim", "n_heads"} & changes.keys() and "head_dim" not in changes:
            changes["head_dim"] = 0
        return replace(self, **Values(changes))

    # -- readers -------------------------------------------------------------------------------

    @classmethod
    def from_hf(cls, source: str | Path | Mapping[str, object], name: str = "") -> ModelConfig:
        """A model from a Hugging Face `config.json`: a path, a folder that holds one, or its dict.

        A text that starts with "{" is read as JSON. Raises ModelError for a broken file, a missing or
        impossible field, or a model that is not a Llama-style one.
        """
        raw, found = read_object(source, "config.json")
        return cls(**from_config_json(raw, name or found))

    @classmethod
    def from_meta(
        cls, source: str | Path | Mapping[str, object], name: str = "", vocab_size: int | None = None
    ) -> ModelConfig:
        """A model from Meta's `params.json`: a path, a folder that holds one, or its dict.

        vocab_size: needed for Llama 2, whose params.json says -1 and leaves it to the tokenizer.
        The FFN width follows llama-models (`ffn_dim_from`). Raises ModelError.
        """
        raw, found = read_object(source, "params.json")
        return cls(**from_params_json(raw, vocab_size) | {"name": name or found or "meta"})


ModelLike = str | Path | Mapping[str, object] | ModelConfig
"""What a public function accepts as a model: a name, a file or folder, a dict, or a ModelConfig."""


def model(source: ModelLike) -> ModelConfig:
    """The model that `source` names: a preset's or publisher's name, a JSON file or its folder, or a dict.

    The keys tell Meta's params.json from Hugging Face's config.json. Raises ModelError with the nearest
    preset names if nothing matches.
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
    # A file wins over a public name, so a folder called like a model is read as the folder.
    if is_json(source) or exists(source):
        raw, _ = read_object(source, "config.json", "params.json")
        return _from_any(raw, source)
    name = preset_name(str(source))
    if isinstance(source, str) and (found := _public(source.lower()) or _public(name)):
        return found
    near = difflib.get_close_matches(name[:100], PRESETS, n=3, cutoff=0.3)
    raise ModelError(
        f"model={shown(str(source), 200)} is neither a preset nor a file",
        f"presets are {', '.join(PRESETS)}",
        near or list(PRESETS)[:3],
        "model",
    )


def _from_any(raw: Mapping[str, object], source: str | Path | Mapping[str, object]) -> ModelConfig:
    if "hidden_size" in raw or "text_config" in raw:
        return ModelConfig.from_hf(source)
    if "ffn_dim" in raw:  # our own field names
        ModelConfig._refuse_unknown(raw)
        for key in ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size"):
            required(raw, key, "the model's dict")
        return ModelConfig(**Values(raw))
    if "dim" in raw:
        return ModelConfig.from_meta(source)
    raise ModelError(
        f"no model in this JSON: keys {shown(sorted(map(str, raw)))}",
        "a config.json has hidden_size, a params.json has dim",
        field="model",
    )


# -- public models -----------------------------------------------------------------------------

PRESETS: dict[str, ModelConfig] = {e.name: ModelConfig(**e.fields) for e in entries() if e.preset}
"""Preset models by name; `tiny` is this project's own, small enough to run on any machine."""


@cache
def public_models() -> dict[str, ModelConfig]:
    """Every model of the table except `tiny`, by each of its names; of some only the dimensions are right."""
    return {
        name: PRESETS.get(entry.name) or ModelConfig(**entry.fields)
        for entry in entries()
        for name in (entry.name, *entry.others)
        if name != "tiny"
    }


def _public(name: str) -> ModelConfig | None:
    """The table's model of exactly this name, or None. ModelError if its parameters cannot be counted."""
    entry = next((entry for entry in entries() if entry.name == name), None)
    if entry is None:
        return None
    if entry.counted:
        return PRESETS.get(name) or public_models()[name]
    raise ModelError(
        f"of {name} only the dimensions are known here, for lp.explain",
        "its tensors are of no family that is read, or the table lacks its experts or its RoPE",
        ["its config.json"],
        "model",
    )
