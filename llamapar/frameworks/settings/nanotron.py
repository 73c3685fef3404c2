"""nanotron's YAML and picotron's JSON and command: the four degrees are said, and their product is the world.

nanotron: src/nanotron/config/{parallelism_config,config,models_config}.py @2411b022a7. picotron: train.py,
create_config.py, template/base_config.json @59714b1bf2.
"""

from __future__ import annotations

from .documents import Document, Entry
from .draft import Draft, Origin, count, scalar, truth
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
    """Fills the draft from nanotron's YAML; a launch has to agree with it."""
    found = files.with_key("parallelism.dp", "parallelism.tp")
    assert found is not None
    name, document = found
    for axis in ("tp", "pp", "dp"):
        draft.take(axis, document.get(f"parallelism.{axis}"), name)
    draft.take("cp", document.get("parallelism.context_parallel_size"), name, default=1, by="nanotron")
    mode = document.get("parallelism.tp_mode")
    on = mode is not None and scalar(mode.value).endswith("reduce_scatter")
    draft.put("sequence_parallel", on, Origin(name, mode.line if mode else 0, "parallelism.tp_mode"))
    zero = document.get("optimizer.zero_stage")
    stage = zero.value if zero is not None and isinstance(zero.value, int) else 0
    draft.put("zero", stage, Origin(name, zero.line if zero else 0, "optimizer.zero_stage"))
    draft.take("seq_len", document.get("tokens.sequence_length"), name)
    draft.take("micro_batch", document.get("tokens.micro_batch_size"), name)
    rounds = document.get("tokens.batch_accumulation_per_replica")
    draft.take("micro_batches", rounds, name, 1, "nanotron")
    _read_nanotron_rest(name, document, draft)
    files.take_world(draft)


def _read_nanotron_rest(name: str, document: Document, draft: Draft) -> None:
    dtype = document.get("model.dtype")
    draft.put("dtype", str(dtype.value) if dtype else "bfloat16", Origin(name, dtype.line if dtype else 0))
    again = document.get("parallelism.recompute_layer")
    if again is not None and (on := truth(again.value)) is not None:
        draft.put("recompute", "full" if on else "none", Origin(name, again.line, again.path))
    unit = document.get("model.make_vocab_size_divisible_by")
    draft.put(
        "padding",
        f"{(count(unit.value) if unit else None) or 1}*tp",
        Origin(name, unit.line if unit else 0, "model.make_vocab_size_divisible_by"),
    )
    prefix = "model.model_config"
    if any(e.value is not None for e in document.under(f"{prefix}.moe_config")):
        draft.covered = False
        draft.refuse("MoE", Origin(name, next(document.under(f"{prefix}.moe_config")).line))
        return
    for field, key in _MODEL.items():
        draft.take(field, document.get(f"{prefix}.{key}"), name)
    if "n_kv_heads" not in draft.facts and (heads := draft.number("n_heads")):
        draft.derive("n_kv_heads", heads, "as many as query heads, unless said")
    theta = document.get(f"{prefix}.rope_theta")
    draft.put(
        "rope_theta",
        theta.value if theta and theta.value is not None else 10000,
        Origin(name, theta.line if theta else 0, "rope_theta"),
    )
    tied = document.get(f"{prefix}.tie_word_embeddings")
    if tied is not None and (on := truth(tied.value)) is not None:
        draft.put("tied", on, Origin(name, tied.line, tied.path))
    for key in ("no_rope_layer", "_use_qk_norm", "use_qk_norm"):
        entry = document.get(f"{prefix}.{key}")
        if entry is not None and entry.value:
            draft.refuse(f"{key}: {entry.value}", Origin(name, entry.line))
    bias = document.get(f"{prefix}.attention_bias")
    if bias is not None and (on := truth(bias.value)) is not None:
        draft.put("qkv_bias", on, Origin(name, bias.line, bias.path))
    gpus = document.get("parallelism.dp")
    if gpus is not None and "gpus" not in draft.facts:
        draft.unknown.setdefault("gpus_per_node", "no launch says how many GPUs a node has")


_PICOTRON_MARKS = ("out-dir", "exp-name", "tp", "dp")


def is_picotron(files: Files) -> bool:
    """Whether a file or a command is picotron's."""
    return files.with_key("distributed.tp_size") is not None or (
        files.has_word("create_config.py") and files.flags(*_PICOTRON_MARKS) is not None
    )


def read_picotron(files: Files, draft: Draft) -> None:
    """Fills the draft from picotron's JSON, or from the command that writes it."""
    found = files.with_key("distributed.tp_size")
    if found is not None:
        name, document = found
        ask = _from_document(document)
    else:
        flags = files.flags(*_PICOTRON_MARKS)
        assert flags is not None
        name, held = flags
        ask = {field: held.get(*keys) for field, keys in _PICOTRON_FLAGS.items()}
    for axis in ("tp", "cp", "pp", "dp"):
        draft.take(axis, ask[axis], name, default=1, by="picotron (create_config.py@59714b1bf2)")
    for field in ("seq_len", "micro_batch", "micro_batches"):
        draft.take(field, ask[field], name, 1 if field == "micro_batches" else None, "picotron")
    draft.derive("sequence_parallel", False, "picotron has none")
    draft.derive("zero", 0, "picotron has none")
    model = ask["model"]
    if model is not None:
        known = draft.take_model("", name, model)
        if not known:
            draft.unknown["dim"] = draft.unknown["ffn_dim"] = "from the Hub's config of the model"
    for field in ("n_layers", "n_heads", "n_kv_heads"):
        if ask[field] is not None and ask[field].value is not None:  # type: ignore[union-attr]
            if draft.get(field) != count(ask[field].value):  # type: ignore[union-attr]
                draft.facts.pop("preset", None)
            draft.take(field, ask[field], name)
    if found is not None:
        draft.derive("dtype", "bfloat16", "picotron's on GPUs; model.dtype selects nothing (train.py)")
        for key in ("model.dtype", "model.use_flash_attention"):
            if entry := found[1].get(key):
                draft.ignored.append(f"{key} ({name}:{entry.line}): train.py decides from the device")


_PICOTRON_KEYS = {
    "tp": ("distributed.tp_size",),
    "cp": ("distributed.cp_size",),
    "pp": ("distributed.pp_size",),
    "dp": ("distributed.dp_size",),
    "seq_len": ("training.seq_length",),
    "micro_batch": ("training.micro_batch_size",),
    "micro_batches": ("training.gradient_accumulation_steps",),
    "model": ("model.name",),
    "n_layers": ("model.num_hidden_layers",),
    "n_heads": ("model.num_attention_heads",),
    "n_kv_heads": ("model.num_key_value_heads",),
}

_PICOTRON_FLAGS = {
    "tp": ("tp",),
    "cp": ("cp",),
    "pp": ("pp",),
    "dp": ("dp",),
    "seq_len": ("seq-len",),
    "micro_batch": ("mbs",),
    "micro_batches": ("grad-acc-steps",),
    "model": ("model-name",),
    "n_layers": ("num-hidden-layers",),
    "n_heads": ("num-attention-heads",),
    "n_kv_heads": ("num-key-value-heads",),
}


def _from_document(document: Document) -> dict[str, Entry | None]:
    return {field: document.get(*keys) for field, keys in _PICOTRON_KEYS.items()}
