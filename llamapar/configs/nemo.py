"""NeMo 1's YAML (NeMo-Framework-Launcher 26e42fa91d, NeMo v1.23.0 d2283e3620).

world = trainer.num_nodes · trainer.devices. Defaults: nlp/models/language_modeling/megatron_gpt_model.py and
megatron_base_model.py @d2283e3620.
"""

from __future__ import annotations

import re

from llamapar.describe.models import PRESETS

from .documents import Document, Entry
from .draft import Draft, Origin, SettingsSource, public, scalar, truth, whole_count
from .files import Files

_MARKS = ("model.tensor_model_parallel_size", "model.encoder_seq_length")
_DIMS = {
    "n_layers": "num_layers",
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
}
_SHARING = ("distributed_fused_adam", "mcore_distributed_optim")
_FSDP = {"full": 3, "hybrid": 3, "grad": 2}
_GPT2 = 50257
"""Tokens of GPT-2's vocabulary, which gpt2-vocab.json holds."""


def recognised(files: Files) -> bool:
    """Whether a file of settings is NeMo 1's; Megatron-Bridge's overrides have degrees under `model` too."""
    found = files.with_key(*_MARKS)
    return found is not None and (
        found[1].get("model.encoder_seq_length", "trainer.devices", "model.micro_batch_size") is not None
    )


def _value(document: Document, entry: Entry | None) -> Entry | None:
    """An entry with OmegaConf's references and products resolved, as far as numbers go."""
    text = str(entry.value) if entry else ""
    if entry is None or "${" not in text:
        return entry
    parent = entry.path.rpartition(".")[0]

    def number(reference: str) -> str:
        path = reference[1:] if reference.startswith(".") else ""
        found = document.get(f"{parent}.{path}" if path else reference)
        return str(whole_count(found.value)) if found and whole_count(found.value) else "?"

    # References first, so that a product finds numbers in their place.
    text = re.sub(r"\$\{(\.?[a-z_][\w.]*)\}", lambda m: number(m[1]), text)
    match = re.fullmatch(r"\$\{multiply:\s*(\d+)\s*,\s*(\d+)\s*\}", text)
    if match:
        text = str(int(match[1]) * int(match[2]))
    return Entry(entry.path, text, entry.line)


def read(files: Files, draft: Draft) -> None:
    """Fill the draft from the YAML."""
    found = files.with_key(*_MARKS)
    assert found is not None
    name, document = found

    def model(*keys: str) -> Entry | None:
        return _value(document, document.get(*(f"model.{key}" for key in keys)))

    source = SettingsSource(name, model, draft, "NeMo (v1.23.0)")
    for axis, key in (("tp", "tensor_model"), ("pp", "pipeline_model"), ("cp", "context")):
        source.take(axis, f"{key}_parallel_size", default=1)
    source.take("virtual_stages", "virtual_pipeline_model_parallel_size", default=1)
    draft.derive("dp_replicate", 1, "Megatron's optimizer shares over all of dp")
    source.parse("sequence_parallel", "sequence_parallel", truth, False)
    source.put("zero", int(source.text("optim.name") in _SHARING), "optim.name")
    if source.says("fsdp"):
        source.put("zero", _FSDP.get(source.text("fsdp_sharding_strategy"), 3), "fsdp")
    source.take("seq_len", "encoder_seq_length")
    source.take("micro_batch", "micro_batch_size")
    source.take("global_batch", "global_batch_size")
    _read_world(SettingsSource(name, document.get, draft, source.by))
    files.take_world(draft)
    again = "activations_checkpoint_granularity"
    if model(again) is not None:
        source.put("recompute", source.text(again) or "none", again)
    source.padding("make_vocab_size_divisible_by", 128)
    _read_model(source)


def _read_world(source: SettingsSource) -> None:
    draft = source.draft
    many, size = source.count("trainer.num_nodes"), source.count("trainer.devices")
    if size:
        source.put("gpus_per_node", size, "trainer.devices")
    if many and size:
        how = f"trainer.num_nodes {many} · trainer.devices {size}"
        draft.put("gpus", many * size, source.origin(source.get("trainer.num_nodes"), how))
    else:
        draft.unknown.setdefault("gpus", "trainer.num_nodes is not in the file")
    if text := source.text("trainer.precision").removesuffix("-mixed"):
        source.put("dtype", {"16": "fp16", "32": "fp32"}.get(text, text), "trainer.precision")


def _read_model(source: SettingsSource) -> None:
    draft = source.draft
    for field, key in _DIMS.items():
        source.take(field, key)
    dim, heads = draft.number("dim"), draft.number("n_heads")
    source.take("ffn_dim", "ffn_hidden_size")
    if dim:
        draft.unless_said("ffn_dim", 4 * dim, "4 · hidden_size by default")
    source.take("n_kv_heads", "num_query_groups", "num_kv_heads")  # aws-neuron/neuronx-nemo-megatron's
    if heads:
        draft.unless_said("n_kv_heads", heads, "as many as query heads by default")
    if dim is None and source.get("restore_from_path"):
        return  # The .nemo file contains all of it.
    source.parse("rope_theta", "rotary_base", whole_count, 10000)
    tied = "share_embeddings_and_output_weights"
    source.parse("tied", tied, truth, True)
    _read_vocabulary(source)
    for key, llama in (
        ("activation", ("fast-swiglu", "swiglu")),
        ("normalization", ("rmsnorm",)),
        ("position_embedding_type", ("rope",)),
    ):
        entry = source.get(key)
        if entry is not None and scalar(entry.value) not in llama:
            draft.covered = False
            source.refuse(f"{key} {entry.value}", key)
    part = source.get("rotary_percentage")
    if part is not None and part.value not in (1, 1.0, None):
        source.refuse(f"rotary_percentage {part.value}", "rotary_percentage")


def _read_vocabulary(source: SettingsSource) -> None:
    """override_vocab_size, or the tokenizer where it is a public model's or GPT-2's."""
    if source.count("override_vocab_size"):
        source.take("vocab_size", "override_vocab_size")
        return
    kind, file = source.get("tokenizer.type"), source.get("tokenizer.vocab_file")
    config = public(str(kind.value)) if kind else None
    if kind is not None and config is not None:
        origin = Origin(source.name, kind.line, f"the vocabulary of {config.name}")
        source.draft.put("vocab_size", PRESETS.get(config.name, config).vocab_size, origin)
    elif kind is not None and kind.value == "GPT2BPETokenizer" and file and file.value == "gpt2-vocab.json":
        source.draft.put("vocab_size", _GPT2, Origin(source.name, file.line, "GPT-2's vocabulary"))
    else:
        source.draft.missing("vocab_size", "from the tokenizer")
