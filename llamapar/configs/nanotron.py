"""nanotron's YAML and picotron's JSON and command: the four degrees are said, and their product is the world.

nanotron: src/nanotron/config/{parallelism_config,config,models_config}.py @2411b022a7. picotron: train.py,
create_config.py, template/base_config.json @59714b1bf2.
"""

from __future__ import annotations

from .documents import Document
from .draft import Draft, SettingsSource, positive_number, stage, whole_count
from .files import Files

_MODEL = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "ffn_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_seq_len": "max_position_embeddings",
}


def is_nanotron(files: Files) -> bool:
    """Whether a file of settings is nanotron's."""
    found = files.with_key("parallelism.dp", "parallelism.tp")
    return found is not None and found[1].get("tokens.sequence_length", "parallelism.pp") is not None


def read_nanotron(files: Files, draft: Draft) -> None:
    """Fill the draft from nanotron's YAML; a launch must agree with it."""
    found = files.with_key("parallelism.dp", "parallelism.tp")
    assert found is not None
    name, document = found
    source = SettingsSource(name, document.get, draft, "nanotron")
    for axis in ("tp", "pp", "dp"):
        source.take(axis, f"parallelism.{axis}")
    source.take("cp", "parallelism.context_parallel_size", default=1)
    mode = "parallelism.tp_mode"
    source.put("sequence_parallel", source.text(mode).endswith("reduce_scatter"), mode)
    source.parse("zero", "optimizer.zero_stage", stage, 0)
    source.take("seq_len", "tokens.sequence_length")
    source.take("micro_batch", "tokens.micro_batch_size")
    source.take("micro_batches", "tokens.batch_accumulation_per_replica", default=1)
    source.put("dtype", source.text("model.dtype").removeprefix("torch.") or "bfloat16", "model.dtype")
    source.switch("recompute", "parallelism.recompute_layer", "full", "none")
    source.padding("model.make_vocab_size_divisible_by", 1)
    _read_nanotron_model(source, document)
    files.take_world(draft)


def _read_nanotron_model(source: SettingsSource, document: Document) -> None:
    draft, prefix = source.draft, "model.model_config"
    experts = [*document.under(f"{prefix}.moe_config")]
    if any(entry.value is not None for entry in experts):
        draft.covered = False
        draft.refuse("MoE", source.origin(experts[0]))
        return
    if not any(document.under(prefix)) and source.get("model.n_layer") is not None:
        _read_older(source)
        return
    for field, key in _MODEL.items():
        source.take(field, f"{prefix}.{key}")
    if heads := draft.number("n_heads"):
        draft.unless_said("n_kv_heads", heads, "as many as query heads by default")
    source.parse("rope_theta", f"{prefix}.rope_theta", positive_number, 10000)
    source.switch("tied", f"{prefix}.tie_word_embeddings")
    for key in ("no_rope_layer", "_use_qk_norm", "use_qk_norm"):
        entry = source.get(f"{prefix}.{key}")
        if entry is not None and entry.value:
            source.refuse(f"{key}: {entry.value}", f"{prefix}.{key}")
    source.switch("qkv_bias", f"{prefix}.attention_bias")
    if source.get("parallelism.dp") is not None and "gpus" not in draft.facts:
        draft.unknown.setdefault("gpus_per_node", "no launch says how many GPUs a node has")


def _read_older(source: SettingsSource) -> None:
    """GPT-BigCode's dims straight under `model`, as in 2023 (loubnabnl/nanotron-smol-cluster)."""
    older = _MODEL | {"n_layers": "n_layer", "ffn_dim": "n_inner"}
    del older["n_kv_heads"]
    for field, key in older.items():
        source.take(field, f"model.{key}")
    source.refuse("GPT-BigCode's blocks", "model.n_layer")
    source.draft.covered = False


_PICOTRON_MARKS = ("out-dir", "exp-name", "tp", "dp")


def is_picotron(files: Files) -> bool:
    """Whether a file or a command is picotron's. Automodel's YAML has `distributed.tp_size` too."""
    found = files.with_key("distributed.tp_size")
    if found is not None:
        return found[1].get("training.seq_length", "distributed.pp_engine") is not None
    return files.has_word("create_config.py") and files.flags(*_PICOTRON_MARKS) is not None


def read_picotron(files: Files, draft: Draft) -> None:
    """Fill the draft from picotron's JSON, or from the command that writes it."""
    by = "picotron (create_config.py@59714b1bf2)"
    found = files.with_key("distributed.tp_size")
    if found is not None:
        keys, source = _PICOTRON_KEYS, SettingsSource(found[0], found[1].get, draft, by)
    else:
        flags = files.flags(*_PICOTRON_MARKS)
        assert flags is not None
        keys, source = _PICOTRON_FLAGS, SettingsSource(flags[0], flags[1].get, draft, by)
    for field in ("tp", "cp", "pp", "dp", "micro_batches"):
        source.take(field, keys[field], default=1)
    source.take("seq_len", keys["seq_len"])
    source.take("micro_batch", keys["micro_batch"])
    draft.derive("sequence_parallel", False, "picotron has none")
    draft.derive("zero", 0, "picotron has none")
    model = source.get(keys["model"])
    if model is not None and not draft.take_model("", source.name, model):
        draft.unknown["dim"] = draft.unknown["ffn_dim"] = "from the Hub's config of the model"
    for field in ("n_layers", "n_heads", "n_kv_heads"):
        entry = source.get(keys[field])
        if entry is not None and entry.value is not None:
            # A preset of which the file changes a dimension is that preset no more.
            if draft.get(field) != whole_count(entry.value):
                draft.facts.pop("preset", None)
            source.take(field, keys[field])
    if found is not None:
        draft.derive("dtype", "bfloat16", "picotron's on GPUs; model.dtype selects nothing (train.py)")
        for key in ("model.dtype", "model.use_flash_attention"):
            if entry := source.get(key):
                draft.ignored.append(f"{key} ({source.name}:{entry.line}): train.py decides from the device")


_PICOTRON_KEYS = {
    "tp": "distributed.tp_size",
    "cp": "distributed.cp_size",
    "pp": "distributed.pp_size",
    "dp": "distributed.dp_size",
    "seq_len": "training.seq_length",
    "micro_batch": "training.micro_batch_size",
    "micro_batches": "training.gradient_accumulation_steps",
    "model": "model.name",
    "n_layers": "model.num_hidden_layers",
    "n_heads": "model.num_attention_heads",
    "n_kv_heads": "model.num_key_value_heads",
}

_PICOTRON_FLAGS = {
    "tp": "tp",
    "cp": "cp",
    "pp": "pp",
    "dp": "dp",
    "seq_len": "seq-len",
    "micro_batch": "mbs",
    "micro_batches": "grad-acc-steps",
    "model": "model-name",
    "n_layers": "num-hidden-layers",
    "n_heads": "num-attention-heads",
    "n_kv_heads": "num-key-value-heads",
}
