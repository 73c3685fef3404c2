"""GPT-NeoX's YAML; one run may have several files.

EleutherAI/gpt-neox @ea7aefd8f8: defaults in megatron/neox_arguments/neox_args.py and deepspeed_args.py, the
MLP's width in megatron/model/transformer.py. Until adbf5d6f (2024-09-10) `mlp_type: llama` named an MLP of
its own.
"""

from __future__ import annotations

import math

from .documents import Document, Entry
from .draft import Draft, SettingsSource, positive_number, stage, truth, whole_count
from .files import Files
from .hugging_face import take_dtype

_KEYS = ("pipe_parallel_size", "pipe-parallel-size", "zero_optimization", "seq_length", "seq-length")
_DTYPES = {"bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32"}
_GATED = ("swiglu", "geglu", "reglu", "bilinear", "glu")
"""Activations with a gate (megatron/model/activations.py, get_activation)."""

_BATCH = (
    ("micro_batch", "train_micro_batch_size_per_gpu"),
    ("micro_batches", "gradient_accumulation_steps"),
    ("global_batch", "train_batch_size"),
)


def recognised(files: Files) -> bool:
    """Whether a YAML is GPT-NeoX's."""
    return files.with_key("pipe_parallel_size", "pipe-parallel-size") is not None


def read(files: Files, draft: Draft) -> None:
    """Fill the draft from one of GPT-NeoX's files, or from several merged in order."""
    named = {
        name: document
        for name, document in files.documents.items()
        if document.get(*_KEYS) or any(document.under("zero_optimization"))
    }
    name = next(iter(named), next(iter(files.documents)))
    # GPT-NeoX merges the files of a run; the last value of a key counts.
    document = Document(name, tuple(e for held in named.values() for e in held.entries))

    def get(*keys: str) -> Entry | None:
        return document.get(*keys, *(key.replace("_", "-") for key in keys))

    source = SettingsSource(name, get, draft, "GPT-NeoX")
    source.take("tp", "model_parallel_size", default=1)
    # 0 means no pipeline module at all, which for a layout is one stage.
    source.parse("pp", "pipe_parallel_size", lambda value: 1 if value == 0 else whole_count(value), 1)
    draft.derive("virtual_stages", 1, "GPT-NeoX has none")
    draft.derive("cp", 1, "not set")
    draft.derive("dp_replicate", 1, "ZeRO shares over all of dp")
    source.parse("sequence_parallel", "sequence_parallel", truth, False)
    source.parse("zero", "zero_optimization.stage", stage, None)
    if "zero" not in draft.facts:
        draft.missing("zero", "GPT-NeoX merges files; zero_optimization is not in this one")
    source.take("seq_len", "seq_length")
    _read_batch(source)
    source.padding("make_vocab_size_divisible_by", 128)
    source.parse("dtype", "precision", lambda value: _DTYPES.get(str(value)), None)
    if source.get("precision") is None:
        take_dtype(source, "{}.enabled")
    source.switch("recompute", "checkpoint_activations", "full", "none")
    _read_model(source)
    files.take_world(draft)


def _read_batch(source: SettingsSource) -> None:
    """Sequences and ranks; the default of gradient_accumulation_steps is one (deepspeed_args.py:49)."""
    draft = source.draft
    for field, key in _BATCH:
        entry = source.get(key)
        if entry is not None and entry.value not in (None, "auto"):
            source.take(field, key)
    if "micro_batch" in draft.facts or "global_batch" in draft.facts:
        source.take("micro_batches", "gradient_accumulation_steps", default=1)
    source.take("gpus", "global_num_gpus")
    source.take("gpus_per_node", "num_gpus")
    each, nodes = draft.number("gpus_per_node"), source.count("num_nodes")
    if each and nodes:
        draft.derive("gpus", each * nodes, f"num_nodes {nodes} · num_gpus {each}")


def _read_model(source: SettingsSource) -> None:
    draft = source.draft
    for field, key in (
        ("n_layers", "num_layers"),
        ("dim", "hidden_size"),
        ("n_heads", "num_attention_heads"),
        ("max_seq_len", "max_position_embeddings"),
    ):
        source.take(field, key)
    source.take("n_kv_heads", "num_kv_heads")
    if heads := draft.number("n_heads"):
        draft.unless_said("n_kv_heads", heads, "as many as query heads by default")
    _read_width(source)
    source.parse("rope_theta", "rotary_emb_base", whole_count, 10000)
    source.put("tied", True, "no_weight_tying")
    source.switch("tied", "no_weight_tying", False, True)
    draft.missing("vocab_size", "from the tokenizer")
    if "dim" in draft.facts:
        _refuse_other_models(source)


def _read_width(source: SettingsSource) -> None:
    """The MLP's inner width: what a gate leaves of intermediate_size, for the parameters stay as many."""
    draft, dim = source.draft, source.draft.number("dim")
    said = source.get("intermediate_size")
    inner = source.count("intermediate_size")
    factor = source.get("expansion_factor")
    if said is not None and said.value is not None and inner is None:
        source.unreadable("ffn_dim", said)
        return
    if dim is None and inner is None:
        return
    if source.text("mlp_type") == "llama":
        wide = inner or math.ceil(int(2 * (dim or 0) * 4 / 3) / 256) * 256
        draft.derive("ffn_dim", wide, "mlp_type llama: intermediate_size, or 8/3 of the width up to 256s")
        return
    if inner is None and factor is not None and factor.value is not None:
        many = positive_number(factor.value)
        if many is None:
            source.unreadable("ffn_dim", factor)
            return
        inner = int(many * (dim or 0))
    wide = inner or 4 * (dim or 0)
    each = source.count("mlp_multiple_of") or 1
    if source.text("activation") in _GATED:
        gated = math.ceil(int(wide * 2 / 3) / (2 * each)) * each
        how = f"{wide} is not the gated width: two thirds, up to a multiple of 2·{each}, halved"
        draft.derive("ffn_dim", gated, how)
    else:
        draft.derive(
            "ffn_dim", math.ceil(wide / each) * each, "intermediate_size, four times the width by default"
        )


def _refuse_other_models(source: SettingsSource) -> None:
    """Refuse settings of a model that is no Llama, including GPT-NeoX's defaults."""
    draft = source.draft
    activation, norm, places = (source.text(key) for key in ("activation", "norm", "pos_emb"))
    other = list[str]()
    if activation != "swiglu" and not (source.text("mlp_type") == "llama" and activation == "silu"):
        other.append(
            "an MLP without a gate (no swiglu)" if activation not in _GATED else f"activation {activation}"
        )
    if norm not in ("rmsnorm", "te_rmsnorm"):
        other.append(f"norm {norm or 'layernorm'}")
    if places != "rotary":
        other.append(f"pos_emb {places or 'learned'}")
    for what in other:
        draft.refuse(what)
    if source.on("gpt_j_residual"):
        source.refuse("gpt_j_residual: attention beside the MLP", "gpt_j_residual")
    if (experts := source.count("moe_num_experts") or 1) > 1:
        source.refuse(f"moe_num_experts {experts}: mixture of experts", "moe_num_experts")
        draft.covered = False
    if len(other) > 1:
        draft.covered = False
