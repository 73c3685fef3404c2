"""Megatron-Bridge's recipes: Python functions that return a ConfigContainer (067f987df0).

dp = world / (tp·pp·cp) (training/config.py). A vocabulary that is set on the model, as from a Hub's config,
is kept and not padded: training/setup.py:322-327 and 743-780 overwrite should_pad_vocab.
"""

from __future__ import annotations

import re

from .documents import Document, Entry
from .draft import Draft, Origin, scalar, truth
from .files import Files
from .python_source import UNREAD


def recognised(files: Files) -> bool:
    """Whether a Python file is a recipe of Megatron-Bridge."""
    named = any("ConfigContainer" in text for text in files.python.values())
    return named and files.configuration is not None


def _tokens(entry: Entry | None) -> Entry | None:
    """A length that is a constant by name: SEQUENCE_LENGTH_128K is 128 · 1024 tokens."""
    match = re.fullmatch(r"SEQUENCE_LENGTH_(\d+)K", str(entry.value)) if entry else None
    return Entry(entry.path, int(match[1]) * 1024, entry.line) if entry and match else entry


def read(files: Files, draft: Draft) -> None:
    """Fills the draft from the recipe; what its unread base says is unknown."""
    document = files.configuration
    assert document is not None
    name = document.name
    base = next((e for e in document.entries if e.value == UNREAD), None)
    by = "" if base else "Megatron-Bridge"

    def take(field: str, key: str, default: object = None) -> None:
        entry = document.get(key)
        if entry is None and by == "":
            draft.missing(field, f"{base.path if base else ''} may say it, which is not in these files")
        else:
            draft.take(field, _tokens(entry), name, default, by)

    take("tp", "model.tensor_model_parallel_size", default=1)
    take("pp", "model.pipeline_model_parallel_size", default=1)
    take("cp", "model.context_parallel_size", default=1)
    take("virtual_stages", "model.virtual_pipeline_model_parallel_size", default=1)
    on = document.get("model.sequence_parallel")
    if on is not None and (value := truth(on.value)) is not None:
        draft.put("sequence_parallel", value, Origin(name, on.line, on.path))
    draft.derive("dp_replicate", 1, "Megatron's optimizer shares over all of dp")
    optimizer = document.get("ddp.use_distributed_optimizer")
    if optimizer is not None and (value := truth(optimizer.value)) is not None:
        draft.put("zero", int(value), Origin(name, optimizer.line, optimizer.path))
    elif base:
        draft.missing("zero", f"{base.path} may say it, which is not in these files")
    take("seq_len", "dataset.seq_length")
    if "seq_len" not in draft.facts and document.get("model.seq_length"):
        draft.take("seq_len", _tokens(document.get("model.seq_length")), name)
    take("micro_batch", "train.micro_batch_size")
    take("global_batch", "train.global_batch_size")
    _read_rest(name, document, draft)
    files.take_world(draft)
    if "gpus" not in draft.facts:
        hint = re.search(r"(\d+)gpus?", name)
        said = f"; the function's name says {hint[1]}" if hint else ""
        draft.unknown["gpus"] = f"no launch says how many{said}"


def _read_rest(name: str, document: Document, draft: Draft) -> None:
    precision = document.get("mixed_precision")
    if precision is not None and (match := re.search(r"bf16|fp16|fp8", scalar(precision.value))):
        draft.put("dtype", match[0], Origin(name, precision.line, "mixed_precision"))
    ends = [f"model.account_for_{end}_in_pipeline_split" for end in ("embedding", "loss")]
    if all((entry := document.get(key)) is not None and truth(entry.value) for key in ends):
        draft.derive("layer_split", "balanced ends", "embedding and loss count as a layer each")
    model = document.get("model")
    hub = re.search(r"from_hf_pretrained\(['\"]([\w./-]+)", str(model.value)) if model else None
    if model is not None and hub and draft.take_model("", name, Entry("model", hub[1], model.line)):
        draft.derive("padding", "none", "training/setup.py keeps a vocabulary that the model has")
        if (seq := draft.number("seq_len")) is not None:
            draft.derive("max_seq_len", seq, "seq_length")
