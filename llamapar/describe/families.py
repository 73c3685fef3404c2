"""Reading a config.json or params.json completely: keys that the parameter count does not cover are refused.

keys.txt lists the covered keys. Any other key may stand for tensors that are not counted, so it raises an
error, unless its value is null, false, 0 or empty.

families.toml says which models of huggingface/transformers (v5.23.0) are read from a config.json, a table for
each model_type, and
the tensors of a layer. oracles/make_families.py builds every one of them on the meta device;
tests/test_families.py compares tensor by tensor.

architectures  names of the class in a config.json; the first one is written. Another class is refused.
fields         fields of a ModelConfig where the config.json leaves out their key: the defaults of the class
               (without one, a size must be given), and what the class always has. `family` is "llama" if
               fields
               of a ModelConfig say all that differs from Llama; else it is the model_type.
rope           the class's RoPE where the config.json says nothing about RoPE.
flags          key of a config.json → the fields of a ModelConfig that it sets.
keys           further keys that add no tensor. What is neither here nor in keys.txt is refused.
must           keys that add or remove tensors → the only value that is counted.
names          norm of a layer, and "norm" for the model's last one → its name in Hugging Face's files, and
               other tensors that have another name than Llama's. A norm that is not here is not in the model.
               Or a row of [norms], which says so of several families.
dims           tensor → its dims where they are not those of `tensors`: a QK norm over the whole width of Q
               and K.
lacks          what lp.run does not compute; it refuses the model and says this.
wraps          model_types of the language model in "text_config"; the other tensors are not counted.
experts        of a mixture: field of `Experts` → its key, or its value. `dense` is the key of the width of
               layers without experts, where it is not intermediate_size.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llamapar.errors import Choice, ModelError, flag, one_of, real, shown, whole

from .configfile import Values, given, object_of, required
from .experts import LATENT, experts_from
from .rope import RopeScaling

MAX_DIM = 2**24


@dataclass(frozen=True)
class Family:
    """A model_type of huggingface/transformers, by a row of families.toml, whose top explains each word."""

    name: str
    architectures: Sequence[str]
    fields: Values
    rope: Values
    flags: Mapping[str, Sequence[str]]
    keys: str
    must: Values
    names: Mapping[str, str]
    dims: Mapping[str, str]
    lacks: str
    wraps: Sequence[str]
    experts: Values


_DATA = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))


def _family(name: str, row: Values) -> Family:
    """A row of families.toml, with what it leaves out, and with the norms of which it gives the place."""
    usual = _DATA["usual"]
    names = row.get("names", usual["names"])
    named = {
        "fields": usual["fields"] | row.get("fields", {}),
        "names": _DATA["norms"][names] if isinstance(names, str) else names,
    }
    return Family(name, **(usual | row | named))


FAMILIES = {name: _family(name, row) for name, row in _DATA["families"].items()}
"""model_type → its class in transformers."""

TENSORS: dict[str, list[str]] = _DATA["tensors"]
"""Tensor of a layer, by Meta's name → its key, Hugging Face's name, dims, and the field it comes with."""

OWN = tuple(n for n, f in FAMILIES.items() if f.fields.get("family", n) == n and not f.wraps)
"""What a ModelConfig may say as its family."""

HF_SIZES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_seq_len": "max_position_embeddings",
}
"""Field of a ModelConfig → its key in a config.json."""

LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")
"""Values of layer_types: which tokens a layer attends to, which changes no tensor."""

MIXTURE = "experts of a form that is not counted here"
_EXPERTS = re.compile(r"(^|_)(moe|experts?|router)(_|$)")
_QUANTISED = re.compile(r"quant.*|compression_config")


def from_config_json(raw: Mapping[str, object], name: str) -> Values:
    """Fields of a ModelConfig from a config.json; without a `name`, the family's. Raises ModelError.

    Of a model that wraps a language model, such as Gemma 3 with its vision tower, the language model alone.
    """
    unread = _unread(raw, "config.json")
    family = FAMILIES[_model_type(raw)]
    if unread.pop("mlp_bias", None):
        raise ModelError("mlp_bias=true: biases in the MLP are not laid out here", field="mlp_bias")
    # A key that only some classes know stays unread for the others, and a true value is refused.
    own = {*family.keys.split(), *family.flags, *family.must, *map(str, family.experts.values())}
    if "latent" in family.experts:
        own |= {*LATENT}
    _refuse({key: value for key, value in unread.items() if key not in own}, "config.json")
    for key in [key for key, value in family.must.items() if raw.get(key, value) is not value]:
        raise ModelError(
            f"{key}={shown(raw[key])}: {family.name} is counted with {shown(family.must[key])} only",
            "the key adds or removes tensors",
            field=key,
        )
    if family.wraps:
        text = object_of(raw.get("text_config"), "text_config")
        kind = one_of("model_type", text.get("model_type", family.wraps[0]), family.wraps, ModelError)
        inner = {"tie_word_embeddings": raw.get("tie_word_embeddings"), **text, "model_type": kind}
        return from_config_json(inner, f"{name or family.name} (text)")
    layers = raw.get("layer_types") or ()
    for layer in layers if isinstance(layers, (list, tuple)) else (layers,):
        one_of("layer_types", layer, LAYER_TYPES, ModelError)
    # transformers 5 writes rope_parameters, earlier versions rope_scaling, with rope_theta beside it.
    usual = {}
    if "rope_theta" not in raw:
        usual = family.rope
    rope = object_of(raw.get("rope_parameters") or raw.get("rope_scaling") or usual, "rope_scaling")
    # Where layers with a sliding window have a RoPE of their own, that of the others counts.
    rope = object_of(rope.get("full_attention", rope), "rope_scaling")
    fields = dict(family.fields)
    for key, wanted in family.flags.items():
        if key in raw:
            fields |= dict.fromkeys(wanted, flag(key, raw[key] or False, ModelError))
    # An explicit null means as many as query heads, and dim / n_heads; a missing key the class's own default.
    derived = {"n_kv_heads": given(raw, "num_attention_heads", fields.get("n_heads")), "head_dim": 0}
    known = derived | {f: v for f, v in fields.items() if f not in derived or HF_SIZES[f] not in raw}
    sizes = {
        field: given(raw, key, known[field]) if field in known else required(raw, key, "config.json")
        for field, key in HF_SIZES.items()
    }
    experts = dict(family.experts)
    dense = experts.pop("dense", HF_SIZES["ffn_dim"])
    if experts:
        sizes["ffn_dim"] = required(raw, dense, "config.json")
    return {
        "family": family.name,
        **fields,
        **sizes,
        "experts": experts_from(raw, experts),
        "name": name or family.name,
        "rope_theta": given(
            rope, "rope_theta", given(raw, "rope_theta", family.rope.get("rope_theta", 10000.0))
        ),
        "rope_scaling": RopeScaling.from_hf(rope),
        "norm_eps": given(raw, "rms_norm_eps", given(raw, "layer_norm_eps", fields["norm_eps"])),
        "tied": given(raw, "tie_word_embeddings", fields["tied"]),
    }


def from_params_json(raw: Mapping[str, object], vocab_size: int | None) -> Values:
    """Fields of a ModelConfig from Meta's or Mistral's params.json. Raises ModelError."""
    _refuse(_unread(raw, "params.json"), "params.json")
    sizes = {key: required(raw, key, "params.json") for key in ("dim", "n_layers", "n_heads")}
    dim = whole("dim", sizes["dim"], 1, MAX_DIM, ModelError)
    vocab = vocab_size if vocab_size is not None else required(raw, "vocab_size", "params.json")
    if vocab == -1:
        raise ModelError(
            "vocab_size=-1: this params.json leaves the vocabulary to the tokenizer",
            "Llama 2's tokenizer has 32000 pieces, Llama 3's 128256",
            [Choice.of(vocab_size=32000)],
            "vocab_size",
        )
    scaled = flag("use_scaled_rope", raw.get("use_scaled_rope", False), ModelError)
    rope = {"rope_type": "llama3" if scaled else None, "factor": raw.get("rope_scaling_factor")}
    # Meta's files do not say the context; only Llama 3's say rope_theta.
    context = 4096  # of Llama 2, which does not say rope_theta
    if raw.get("rope_theta"):
        context = 8192
    if scaled:
        context = 131072
    width = raw.get("hidden_dim")  # Mistral says it
    if width is None:
        width = ffn_dim_from(dim, raw.get("ffn_dim_multiplier"), given(raw, "multiple_of", 256))
    return {
        **sizes,
        "n_kv_heads": given(raw, "n_kv_heads", sizes["n_heads"]),
        "head_dim": given(raw, "head_dim", 0),
        "ffn_dim": width,
        "vocab_size": vocab,
        "max_seq_len": context,
        "rope_theta": given(raw, "rope_theta", 10000.0),
        "rope_scaling": RopeScaling.from_hf(rope),
        "norm_eps": given(raw, "norm_eps", 1e-5),
    }


def ffn_dim_from(dim: int, multiplier: object, multiple_of: object) -> int:
    """The FFN width from Meta's params.json, with both of its integer truncations.

    Source: llama-models, models/llama3/model.py:214-218 @a9c89c471f793423afd4cc3ca8671d6e56fe64cb.
    """
    multiple = whole("multiple_of", multiple_of, 1, MAX_DIM, ModelError)
    # Meta truncates here and again after the multiplier: rounding once at the end gives another width.
    width = int(2 * (4 * dim) / 3)
    if multiplier is not None:
        width = int(real("ffn_dim_multiplier", multiplier, 1e-6, 1e6, ModelError) * width)
    return multiple * math.ceil(width / multiple)


def _model_type(raw: Mapping[str, object]) -> str:
    """The family named by model_type and architectures; "llama" if neither is given."""
    kind = raw.get("model_type")
    classes = raw.get("architectures")
    if not classes:
        return one_of("model_type", "llama" if kind is None else kind, FAMILIES, ModelError)
    # One class in a list is the usual form; anything else is compared whole and then refused.
    named = classes
    if isinstance(classes, (list, tuple)) and len(classes) == 1:
        named = classes[0]
    # Llama's class also reads some others, so its own row, the first, comes last here and wins.
    by_class = {n.lower(): f.name for f in reversed(FAMILIES.values()) for n in f.architectures}
    found = None
    if isinstance(named, str):
        found = by_class.get(named.lower())
    if kind is None and found is None:
        one_of("architectures", named, [n for f in FAMILIES.values() for n in f.architectures], ModelError)
    own = FAMILIES[one_of("model_type", found if kind is None else kind, FAMILIES, ModelError)]
    if not isinstance(named, str) or named.lower() not in [n.lower() for n in own.architectures]:
        raise ModelError(
            f"architectures={shown(named)} with model_type={shown(kind)}",
            f"model_type={shown(kind)} is {own.architectures[0]}, and another class may have other tensors",
            [Choice.of(model_type=found)] if found else [],
            "architectures",
        )
    return own.name


@cache
def _covered(where: str) -> re.Pattern[str]:
    """A pattern of the keys that keys.txt lists for a config.json or params.json."""
    text = Path(__file__).with_name("keys.txt").read_text(encoding="utf-8")
    rows = text.partition(f"[{where}]")[2].partition("[")[0].splitlines()
    words = [word for row in rows if not row.startswith("#") for word in row.split()]
    return re.compile("|".join(words).replace("*", r"\w*"))


def _unread(raw: Mapping[str, object], where: str) -> Values:
    """The keys that are not covered, with their values. Raises ModelError for an array, which no JSON has."""
    plain = (bool, int, float, str, list, dict, tuple, type(None))
    for key, value in raw.items():
        # An array of several numbers is neither true nor false, so nothing below could ask it.
        if not isinstance(value, plain) and hasattr(type(value), "__len__"):
            kind = type(value).__name__
            raise ModelError(f"{shown(key)}={shown(value)}: {kind} is no value of a {where}", field=str(key))
    # An empty value says nothing, so a key with null, false, 0 or "" needs no cover.
    says = {str(key)[:60]: v for key, v in raw.items() if v or not isinstance(v, plain)}
    return {name: value for name, value in says.items() if not _covered(where).fullmatch(name)}


def _refuse(unread: Values, where: str) -> None:
    """Raises ModelError for experts, for a quantised model, and for the first key that is not covered.

    An object that holds nothing but texts passes: it is a comment.
    """
    # Experts before quantisation: another file of the same model mends the second and not the first.
    for name, value in unread.items():
        if _EXPERTS.search(name):
            mixtures = ", ".join(name for name, family in FAMILIES.items() if family.experts)
            raise ModelError(
                f"{name}={shown(value)}: {MIXTURE}", f"mixtures of experts are read of {mixtures}", field=name
            )
    for name, value in unread.items():
        if _QUANTISED.fullmatch(name):
            method = None
            if isinstance(value, Mapping):
                method = value.get("quant_method")
            raise ModelError(
                f"{name}={shown(method or value)}: a quantised model, whose packed tensors are not counted",
                "they are integers with scales beside them, not the tensors of the model that was quantised",
                ["the config.json of the model before it was quantised"],
                name,
            )
    for name, value in unread.items():
        if isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values()):
            continue
        raise ModelError(
            f"{where} says {name}={shown(value)}, which the count does not cover",
            "it may stand for tensors that are not counted, or for another form of those that are",
            [f"the file without {name}, where it adds no tensor"],
            name,
        )
