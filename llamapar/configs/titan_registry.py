"""torchtitan's registry of Python functions, which replaced TOML (since 9810191bb, 2026-02-23).

A function is read, never run. It returns a Trainer.Config, or changes one that another function returned;
`registry.py:llama3_8b` names it, as torchtitan's own --config does.
"""

from __future__ import annotations

import re

from llamapar.describe.models import PRESETS
from llamapar.frameworks.torchtitan import REGISTRY, TOKENS

from .documents import Document, Entry
from .draft import Draft, SettingsSource
from .files import Files
from .python_source import UNREAD, ConfigurationClass
from .torchtitan import DEBUG_MODEL, read_degrees, unread_base

_SECTIONS = ("training", "parallelism", "activation_checkpoint", "model_spec")
MADE = ConfigurationClass(r"\w*Trainer\.Config", "torchtitan", _SECTIONS)


def recognised(files: Files) -> bool:
    """Whether a Python file registers torchtitan's configurations (since 9810191bb, 2026-02-23)."""
    return files.configuration(MADE) is not None


_UPSTREAM: dict[str, str | int] = {
    "model_spec": "debugmodel",
    "training.max_context_length": 2048,
    "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
}
"""What llama3_debugmodel sets (models/llama3/config_registry.py@b5bcd76c66)."""


def _with_upstream_base(document: Document) -> Document:
    """The document on top of upstream's llama3_debugmodel, where it starts from that and lacks its text."""
    unread = document.get("llama3_debugmodel")
    if unread is None or unread.value != UNREAD:
        return document
    base = (Entry(path, value, 0) for path, value in _UPSTREAM.items() if document.get(path) is None)
    return Document(document.name, (*base, *document.entries))


def read(files: Files, draft: Draft) -> None:
    """Fills the draft from the literals of a registry's function; batches are in tokens since 73aed7f6c."""
    document = files.configuration(MADE)
    assert document is not None
    document = _with_upstream_base(document)
    source = SettingsSource(document.name, document.get, draft, "torchtitan (config/configs.py@b5bcd76c66)")
    base = unread_base(document)
    read_degrees(source, base)
    if draft.fills and "gpus" not in draft.facts:
        files.take_world(draft)
    length = ("training.max_context_length", "training.seq_len")
    source.take("seq_len", *length, default=None if base else 2048)
    seq = draft.number("seq_len")
    tokens = "training.num_tokens_per_microbatch_per_dp_rank"
    # Keys that came or went with a change date the version: with new keys it is after, with old ones
    # before.
    draft.since = TOKENS if source.get(length[0], tokens) else REGISTRY
    if source.get(length[1], "training.local_batch_size"):
        draft.before = TOKENS
    if (many := source.count(tokens)) and seq:
        if many % seq == 0:
            draft.put("micro_batch", many // seq, source.origin(source.get(tokens), f"{many} tokens / {seq}"))
        else:
            draft.missing("micro_batch", f"{many} tokens are no whole number of sequences of {seq}")
    tokens, rounds = "training.num_tokens_per_train_step", "parallelism.num_pp_microbatches"
    total = source.count(tokens)
    if total and seq and total % seq == 0:
        origin = source.origin(source.get(tokens), f"{total} tokens / {seq}")
        draft.put("global_batch", total // seq, origin)
    if source.get(rounds) is not None or not (total or base):
        source.take("micro_batches", rounds, default=1)
    each, many = draft.number("micro_batch"), draft.number("micro_batches")
    if each and many:
        draft.derive("batch_per_dp", each * many, f"{each}·{many}")
    if source.count("parallelism.pipeline_parallel_layers_per_stage"):
        source.take("layers_per_stage", "parallelism.pipeline_parallel_layers_per_stage")
    _read_recomputation(source, base)
    if source.text("loss").endswith("crossentropyloss.config"):
        source.refuse("a loss that is not cut into chunks: more memory for logits", "loss")
    if source.on("training.enable_cpu_offload"):
        source.refuse("offload: parameters wait on the host", "training.enable_cpu_offload", "offload")
    _read_registered(source, base)


def _read_recomputation(source: SettingsSource, base: str) -> None:
    """The class of activation checkpointing; SelectiveAC by default (trainer.py:108@b5bcd76c66)."""
    key = "activation_checkpoint"
    said = source.get(key)
    kind = str(said.value).partition(".")[0] if said else "SelectiveAC"
    mode = {"None": "none", "FullAC": "full", "SelectiveAC": "selective op"}.get(kind)
    if source.get(f"{key}.mode"):  # a dataclass with a mode before the classes
        said_mode = f"{source.text(f'{key}.mode')} {source.text(f'{key}.selective_ac_option')}"
        source.put("recompute", said_mode.strip(), f"{key}.mode")
    elif said is None and base:
        source.draft.missing("recompute", f"{base} may say it, which is not in these files")
    elif mode is None and said is not None:
        source.unreadable("recompute", said)
    else:
        source.put("recompute", mode, key)


def _read_registered(source: SettingsSource, base: str) -> None:
    """The model: a flavour of Llama 3's registry, or a Hub model whose tokenizer the run loads."""
    draft, spec = source.draft, source.get("model_spec")
    flavour = str(spec.value) if spec else _FLAVOURS.get(base, "")
    where = source.origin(spec, "model_registry")
    if quoted := re.search(r"model_registry\(['\"]([\w.-]+)", flavour):
        flavour = quoted[1]
    assets = source.get("hf_assets_path")
    # Every model of torchtitan has a registry of its own, with flavours of the same names.
    own = f"{source.name} {base} {assets.value if assets else ''}".lower()
    if "llama" in own and flavour == "debugmodel":
        for field, value in (DEBUG_MODEL | {"vocab_size": 2048}).items():
            draft.put(field, value, where)
    elif "llama" in own and flavour in _REGISTRY:
        draft.put("preset", _REGISTRY[flavour], where)
        draft.dims(PRESETS[_REGISTRY[flavour]], where)
    elif not (
        # The assets are a tokenizer's; of another size than the flavour they say nothing of the model.
        assets is not None
        and str(assets.value).lower().endswith(f"-{flavour.lower()}")
        and draft.take_model("", source.name, assets)
    ):
        draft.missing("model", f"flavour {flavour or 'not given'} is in a table of torchtitan's own")


_REGISTRY = {
    "1B": "llama3.2-1b",
    "3B": "llama3.2-3b",
    "8B": "llama3.1-8b",
    "70B": "llama3.1-70b",
    "405B": "llama3.1-405b",
}
_FLAVOURS = {"llama3_8b": "8B", "llama3_70b": "70B", "llama3_405b": "405B"}
"""Upstream's configurations and their flavours (models/llama3/config_registry.py@b5bcd76c66)."""
