"""NeMo 1's YAML (NeMo-Framework-Launcher 26e42fa91d, NeMo v1.23.0 d2283e3620).

world = trainer.num_nodes · trainer.devices. Defaults: nlp/models/language_modeling/megatron_gpt_model.py and
megatron_base_model.py @d2283e3620.
"""

from __future__ import annotations

import re

from llamapar.describe.models import PRESETS

from .documents import Document, Entry
from .draft import Draft, Origin, count, public, scalar, truth
from .files import Files

_DIMS = {
    "n_layers": "num_layers",
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
}
_GPT2 = 50257
"""Tokens of GPT-2's vocabulary, which gpt2-vocab.json holds."""


def recognised(files: Files) -> bool:
    """Whether a file of settings is NeMo 1's."""
    found = files.with_key("model.tensor_model_parallel_size", "model.encoder_seq_length")
    return found is not None


def _value(document: Document, entry: Entry | None) -> Entry | None:
    """An entry with OmegaConf's references and products resolved, as far as numbers go."""
    text = str(entry.value) if entry else ""
    if entry is None or "${" not in text:
        return entry
    parent = entry.path.rpartition(".")[0]

    def number(reference: str) -> str:
        path = reference[1:] if reference.startswith(".") else ""
        found = document.get(f"{parent}.{path}" if path else reference)
        return str(count(found.value)) if found and count(found.value) else "?"

    text = re.sub(r"\$\{(\.?[a-z_][\w.]*)\}", lambda m: number(m[1]), text)
    match = re.fullmatch(r"\$\{multiply:\s*(\d+)\s*,\s*(\d+)\s*\}", text)
    if match:
        text = str(int(match[1]) * int(match[2]))
    return Entry(entry.path, text, entry.line)


def read(files: Files, draft: Draft) -> None:
    """Fills the draft from the YAML."""
    found = files.with_key("model.tensor_model_parallel_size", "model.encoder_seq_length")
    assert found is not None
    name, document = found

    def at(key: str) -> Entry | None:
        return _value(document, document.get(f"model.{key}"))

    for axis, key in (("tp", "tensor_model"), ("pp", "pipeline_model"), ("cp", "context")):
        draft.take(axis, at(f"{key}_parallel_size"), name, default=1, by="NeMo (v1.23.0)")
    draft.take("virtual_stages", at("virtual_pipeline_model_parallel_size"), name, default=1, by="NeMo")
    draft.derive("dp_replicate", 1, "Megatron's optimizer shares over all of dp")
    on = at("sequence_parallel")
    draft.put(
        "sequence_parallel",
        bool(on and truth(on.value)),
        Origin(name, on.line if on else 0, "model.sequence_parallel"),
    )
    optimizer = at("optim.name")
    shares = optimizer is not None and optimizer.value in (
        "distributed_fused_adam",
        "mcore_distributed_optim",
    )
    zero = Origin(name, optimizer.line if optimizer else 0, "model.optim.name")
    draft.put("zero", int(shares), zero)
    fsdp = at("fsdp")
    if fsdp is not None and truth(fsdp.value):
        strategy = at("fsdp_sharding_strategy")
        stage = {"full": 3, "hybrid": 3, "grad": 2}.get(str(strategy.value) if strategy else "full", 3)
        draft.put("zero", stage, Origin(name, fsdp.line, fsdp.path))
    draft.take("seq_len", at("encoder_seq_length"), name)
    draft.take("micro_batch", at("micro_batch_size"), name)
    draft.take("global_batch", at("global_batch_size"), name)
    _read_world(name, document, draft)
    files.take_world(draft)
    granularity = at("activations_checkpoint_granularity")
    if granularity is not None:
        draft.put(
            "recompute",
            scalar(granularity.value) if granularity.value else "none",
            Origin(name, granularity.line, granularity.path),
        )
    unit = at("make_vocab_size_divisible_by")
    draft.put(
        "padding",
        f"{(count(unit.value) if unit else None) or 128}*tp",
        Origin(name, unit.line if unit else 0, "model.make_vocab_size_divisible_by"),
    )
    _read_model(name, document, draft)


def _read_world(name: str, document: Document, draft: Draft) -> None:
    nodes, each = document.get("trainer.num_nodes"), document.get("trainer.devices")
    many, size = count(nodes.value) if nodes else None, count(each.value) if each else None
    if each is not None and size:
        draft.put("gpus_per_node", size, Origin(name, each.line, each.path))
    if nodes is not None and many and size:
        how = f"trainer.num_nodes {many} · trainer.devices {size}"
        draft.put("gpus", many * size, Origin(name, nodes.line, how))
    else:
        draft.unknown.setdefault("gpus", "trainer.num_nodes is not in the file")
    precision = document.get("trainer.precision")
    if precision is not None:
        text = scalar(precision.value).removesuffix("-mixed")
        dtype = {"16": "fp16", "32": "fp32"}.get(text, text)
        draft.put("dtype", dtype, Origin(name, precision.line, precision.path))


def _read_model(name: str, document: Document, draft: Draft) -> None:
    def at(key: str) -> Entry | None:
        return _value(document, document.get(f"model.{key}"))

    for field, key in _DIMS.items():
        draft.take(field, at(key), name)
    ffn = at("ffn_hidden_size")
    dim, heads = draft.number("dim"), draft.number("n_heads")
    if ffn is not None and ffn.value is not None:
        draft.take("ffn_dim", ffn, name)
    elif dim:
        draft.derive("ffn_dim", 4 * dim, "4 · hidden_size, unless said")
    groups = at("num_query_groups")
    if groups is not None and groups.value is not None:
        draft.take("n_kv_heads", groups, name)
    elif heads:
        draft.derive("n_kv_heads", heads, "as many as query heads, unless said")
    base = at("rotary_base")
    theta = count(base.value) if base and base.value is not None else 10000
    if theta:
        draft.put(
            "rope_theta",
            theta,
            Origin(name, base.line if base else 0, "rotary_base, 10000 unless said"),
        )
    tied = at("share_embeddings_and_output_weights")
    draft.put(
        "tied",
        tied is None or truth(tied.value) is not False,
        Origin(name, tied.line if tied else 0, "share_embeddings_and_output_weights"),
    )
    _read_vocabulary(name, document, draft)
    for key, llama in (
        ("activation", ("fast-swiglu", "swiglu")),
        ("normalization", ("rmsnorm",)),
        ("position_embedding_type", ("rope",)),
    ):
        entry = at(key)
        if entry is not None and scalar(entry.value) not in llama:
            draft.covered = False
            draft.refuse(f"{key} {entry.value}", Origin(name, entry.line))
    part = at("rotary_percentage")
    if part is not None and part.value not in (1, 1.0, None):
        draft.refuse(f"rotary_percentage {part.value}", Origin(name, part.line))


def _read_vocabulary(name: str, document: Document, draft: Draft) -> None:
    """override_vocab_size, or the tokenizer where it is a public model's or GPT-2's."""
    said = document.get("model.override_vocab_size")
    if said is not None and count(said.value):
        draft.take("vocab_size", said, name)
        return
    kind, file = document.get("model.tokenizer.type"), document.get("model.tokenizer.vocab_file")
    config = public(str(kind.value)) if kind else None
    if kind is not None and config is not None:
        origin = Origin(name, kind.line, f"the vocabulary of {config.name}")
        draft.put("vocab_size", PRESETS.get(config.name, config).vocab_size, origin)
    elif kind is not None and kind.value == "GPT2BPETokenizer" and file and file.value == "gpt2-vocab.json":
        draft.put("vocab_size", _GPT2, Origin(name, file.line, "GPT-2's vocabulary"))
    else:
        draft.missing("vocab_size", "from the tokenizer")
