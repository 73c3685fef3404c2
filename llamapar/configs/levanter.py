"""Levanter's YAML: stanford-crfm/levanter src/levanter/trainer.py and models/llama.py @9263f81e8b."""

from __future__ import annotations

import re

from .documents import Document
from .draft import Draft, SettingsSource, positive_number
from .files import Files
from .hugging_face import fill_one_way, take_hub_model

_MARKS = (
    "train_batch_size",
    "per_device_parallelism",
    "model_axis_size",
    "tensor_parallel_axes",
    "fsdp_axis",
)
_MODEL = {
    "dim": ("hidden_dim", 4096),
    "n_layers": ("num_layers", 32),
    "n_heads": ("num_heads", 32),
    "n_kv_heads": ("num_kv_heads", 32),
    "ffn_dim": ("intermediate_dim", 11008),
    "max_seq_len": ("seq_len", 2048),
    "head_dim": ("head_dim", None),
}


def _found(files: Files) -> tuple[str, Document] | None:
    return files.with_key(*(f"trainer.{mark}" for mark in _MARKS))


def recognised(files: Files) -> bool:
    """Whether a YAML is Levanter's."""
    return _found(files) is not None


def read(files: Files, draft: Draft) -> None:
    """Fill the draft. The number of chips is unknown, because it depends on the machine."""
    found = _found(files)
    assert found is not None
    source = SettingsSource(found[0], found[1].get, draft, "Levanter (trainer.py@9263f81e8b)")
    source.take("tp", "trainer.model_axis_size", default=1)
    fill_one_way(draft, "cp", "pp")
    _read_data_axes(source, found[1])
    source.take("global_batch", "trainer.train_batch_size", default=512)
    each = source.get("trainer.per_device_parallelism")
    if each is None or each.value == -1:
        draft.derive("micro_batches", 1, "per_device_parallelism is the whole batch by default")
    else:
        source.take("micro_batch", "trainer.per_device_parallelism")
    dtype = re.search(r"(?:^|,)\s*c(?:ompute)?=(\w+)", source.text("trainer.mp"))
    if dtype:
        source.put("dtype", dtype[1], "trainer.mp")
    _read_model(source)
    files.take_world(draft)


def _read_data_axes(source: SettingsSource, document: Document) -> None:
    draft = source.draft
    sizes = [source.get(f"trainer.replica_{net}_axis_size") for net in ("ici", "dcn")]
    if any(size is not None and size.value == -1 for size in sizes):
        draft.missing("dp_replicate", "replica_dcn_axis_size -1 is the slices that a run finds")
    else:
        ici, dcn = (source.count(f"trainer.replica_{net}_axis_size") or 1 for net in ("ici", "dcn"))
        draft.derive("dp_replicate", ici * dcn, f"replica axes {ici} · {dcn}")
    draft.fills = "dp_shard"
    axis, several = source.get("trainer.fsdp_axis"), any(document.under("trainer.fsdp_axis"))
    # Levanter shards parameters unless fsdp_axis is null.
    shared = several or axis is None or axis.value is not None
    draft.put("zero", 3 if shared else 0, source.origin(axis))


def _read_model(source: SettingsSource) -> None:
    draft = source.draft
    published = source.says("use_hf_model_config")
    if published:
        named = source.says("initialize_from_hf") is None  # a name, or true for the class's own checkpoint
        take_hub_model(source, "initialize_from_hf" if named else "model.reference_checkpoint")
    elif (kind := source.get("model.type")) is not None and kind.value != "llama":
        draft.covered = False
        source.refuse(f"model {kind.value}", "model.type")
    elif kind is not None:
        for field, (key, default) in _MODEL.items():
            source.take(field, f"model.{key}", default=default)
        source.put("tied", source.on("model.tie_word_embeddings"), "model.tie_word_embeddings")
        if source.text("model.rope.type") in ("", "default"):
            source.parse("rope_theta", "model.rope.theta", positive_number, 10000)
    source.take("seq_len", "train_seq_len", "model.seq_len", default=None if published else 2048)
    source.put("recompute", "full", "model.gradient_checkpointing")
    source.switch("recompute", "model.gradient_checkpointing", "full", "none")
    draft.unknown.setdefault("vocab_size", "from the tokenizer")
