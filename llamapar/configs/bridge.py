"""Megatron-Bridge's recipes: Python functions that return a ConfigContainer (067f987df0).

dp = world / (tp·pp·cp) (training/config.py). A vocabulary that is set on the model, as from a Hub's config,
is kept and not padded: training/setup.py:322-327 and 743-780 overwrite should_pad_vocab.
"""

from __future__ import annotations

import re

from .documents import Document, Entry
from .draft import Draft, SettingsSource
from .files import Files
from .megatron import SHARDED
from .python_source import UNREAD, ConfigurationClass

BASES = {
    "llama3_8b_pretrain_config": "meta-llama/Meta-Llama-3-8B",
    "llama3_70b_pretrain_config": "meta-llama/Meta-Llama-3-70B",
    "llama31_8b_pretrain_config": "meta-llama/Meta-Llama-3.1-8B",
    "llama31_70b_pretrain_config": "meta-llama/Meta-Llama-3.1-70B",
    "llama31_405b_pretrain_config": "meta-llama/Meta-Llama-3.1-405B",
}
"""A recipe that others change → its model, in recipes/llama/llama3.py of every version (2025 to 026d7fa373).

Each also shares the optimizer's state, and 405B counts embedding and loss as layers; the rest has changed.
"""


_SECTIONS = ("model", "train", "dataset", "ddp", "mixed_precision", "comm_overlap")
MADE = ConfigurationClass("ConfigContainer", "megatron.bridge", _SECTIONS)


def recognised(files: Files) -> bool:
    """Whether a Python file is a recipe of Megatron-Bridge, or a YAML overrides one."""
    return files.configuration(MADE) is not None or _overrides(files) is not None


def _overrides(files: Files) -> Document | None:
    """The YAML that overrides a recipe, as scripts/training/run_recipe.py takes it."""
    found = files.with_key("train.micro_batch_size", "train.global_batch_size", "train.train_iters")
    degrees = "model.tensor_model_parallel_size", "model.pipeline_model_parallel_size", "model.seq_length"
    return found[1] if found and found[1].get(*degrees) else None


def _tokens(entry: Entry | None) -> Entry | None:
    """A length given as a constant: SEQUENCE_LENGTH_128K is 128 · 1024 tokens."""
    match = re.fullmatch(r"SEQUENCE_LENGTH_(\d+)K", str(entry.value)) if entry else None
    return Entry(entry.path, int(match[1]) * 1024, entry.line) if entry and match else entry


def read(files: Files, draft: Draft) -> None:
    """Fill the draft from the recipe; values of its unread base are unknown."""
    document = files.configuration(MADE)
    # A recipe usually changes another one that is not among the files; what the other says is then
    # unknown, and no default applies.
    if document is None:
        document, base = _overrides(files), "the recipe that it overrides"
        assert document is not None
    else:
        base = next((e.path for e in document.entries if e.value == UNREAD), "")

    def get(*keys: str) -> Entry | None:
        return _tokens(document.get(*keys))

    source = SettingsSource(document.name, get, draft, "Megatron-Bridge")

    def take(field: str, key: str, default: object = None) -> None:
        if base and get(key) is None:
            draft.missing(field, f"{base} may say it, which is not in these files")
        else:
            source.take(field, key, default=default)

    take("tp", "model.tensor_model_parallel_size", 1)
    take("pp", "model.pipeline_model_parallel_size", 1)
    take("cp", "model.context_parallel_size", 1)
    take("virtual_stages", "model.virtual_pipeline_model_parallel_size", 1)
    source.switch("sequence_parallel", "model.sequence_parallel")
    draft.derive("dp_replicate", 1, "Megatron's optimizer shares over all of dp")
    if source.on("ddp.use_megatron_fsdp"):
        source.parse("zero", "ddp.data_parallel_sharding_strategy", lambda value: SHARDED.get(str(value)), 0)
    elif source.says("ddp.use_distributed_optimizer") is not None:
        source.switch("zero", "ddp.use_distributed_optimizer", 1, 0)
    elif base in BASES:
        draft.derive("zero", 1, f"{base} shares the optimizer's state, in every version")
    elif base:
        draft.missing("zero", f"{base} may say it, which is not in these files")
    take("seq_len", "dataset.seq_length")
    if "seq_len" not in draft.facts and get("model.seq_length"):
        source.take("seq_len", "model.seq_length")
    take("micro_batch", "train.micro_batch_size")
    take("global_batch", "train.global_batch_size")
    _read_rest(source, base)
    files.take_world(draft)
    if "gpus" not in draft.facts:
        # A name proves nothing, so the number is only mentioned.
        hint = re.search(r"(\d+)gpus?", document.name)
        said = f"; the function's name says {hint[1]}" if hint else ""
        draft.unknown["gpus"] = f"no launch says how many{said}"


def _read_rest(source: SettingsSource, base: str) -> None:
    draft = source.draft
    again = source.get("model.recompute_granularity")
    if again is not None:
        draft.put("recompute", str(again.value or "none"), source.origin(again))
    elif base:
        draft.missing("recompute", f"{base} may say it, which is not in these files")
    if match := re.search(r"bf16|fp16|fp8", source.text("mixed_precision")):
        source.put("dtype", match[0], "mixed_precision")
    ends = [source.says(f"model.account_for_{end}_in_pipeline_split") for end in ("embedding", "loss")]
    if all(ends) or (ends == [None, None] and base == "llama31_405b_pretrain_config"):
        draft.derive("layer_split", "balanced ends", "embedding and loss count as a layer each")
    model = source.get("model")
    match = re.search(r"from_hf_pretrained\(['\"]([\w./-]+)", str(model.value)) if model else None
    hub = None
    if model is not None and match is not None:
        hub = Entry("model", match[1], model.line)
    elif model is None and base in BASES:
        hub = Entry(base, BASES[base], 0)
    if hub is not None and draft.take_model("", source.name, hub):
        draft.derive("padding", "none", "training/setup.py keeps a vocabulary that the model has")
        if (seq := draft.number("seq_len")) is not None:
            draft.derive("max_seq_len", seq, "seq_length")
