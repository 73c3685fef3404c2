"""torchtitan's settings: TOML of every generation.

Names, defaults and what follows from them: torchtitan/config/job_config.py, distributed/parallel_dims.py,
distributed/pipeline_parallel.py and models/llama3 @238fa9953e, the last state with TOML; older spellings by
the commit that changed them. run_train.sh starts 8 ranks unless NGPU says otherwise.
"""

from __future__ import annotations

import re

from llamapar.describe.models import PRESETS

from .documents import Document, Entry
from .draft import Contradiction, Draft, Origin, count, truth
from .files import Files
from .python_source import UNREAD

NAME = "torchtitan"
_SINCE = "torchtitan (config/job_config.py@238fa9953e)"

_LLAMA = ("llama3", "llama2", "llama3_ft")
_SINGLE = ("1f1b", "gpipe")
_OLD = {
    "training.data_parallel_degree": "one number before HSDP, gone since c9b17cca0",
    "model.norm_type": "gone since 5078e92e4",
}

_NEW = ("training.local_batch_size", "parallelism.tensor_parallel_degree")


def recognised(files: Files) -> bool:
    """Whether a file of settings is torchtitan's."""
    return files.with_key("model.flavor", "parallelism.data_parallel_shard_degree") is not None


def _at(document: Document, *names: str) -> Entry | None:
    """A degree: in [parallelism], earlier in [training], of CP and PP in [experimental]."""
    sections = ("parallelism", "training", "experimental")
    return document.get(*(f"{section}.{name}" for name in names for section in sections))


def read(files: Files, draft: Draft) -> None:
    """Fills the draft from the TOML and, where there is one, the script that starts it."""
    found = files.with_key("model.flavor", "parallelism.data_parallel_shard_degree")
    assert found is not None
    name, document = found
    _read_layout(name, document, draft)
    _read_job(name, document, draft)
    _read_model(name, document, draft)
    files.take_world(draft)
    if "gpus" not in draft.facts:
        _hint(files.texts[name], draft)


def _read_layout(name: str, document: Document, draft: Draft) -> None:
    base = _unread(document)
    for axis, key in (("tp", "tensor"), ("cp", "context"), ("pp", "pipeline")):
        entry = _at(document, f"{key}_parallel_degree")
        if entry is None and base:
            draft.missing(axis, f"{base} may say it, which is not in these files")
        else:
            draft.take(axis, entry, name, default=1, by=_SINCE)
    old = document.get("training.data_parallel_degree")
    shard = _at(document, "data_parallel_shard_degree") or old
    draft.take("dp_replicate", _at(document, "data_parallel_replicate_degree"), name, default=1, by=_SINCE)
    if shard is None or shard.value == -1:
        draft.fills = "dp_shard"
    else:
        draft.take("dp_shard", shard, name)
    for path, when in _OLD.items():
        if entry := document.get(path):
            draft.notes.append(f"{path} ({name}:{entry.line}): {when}, an error in newer versions")
    newer = [p for p in _NEW if document.get(p)]
    older = [e for e in map(document.get, _OLD) if e is not None]
    if newer and older:
        draft.notes.append(f"{newer[0]} is of a newer version than {older[0].path}: one of them is not read")
    tp, pp = draft.number("tp") or 1, draft.number("pp") or 1
    asked = _at(document, "enable_sequence_parallel")
    on = tp > 1 and (asked is None or truth(asked.value) is not False)
    draft.derive("sequence_parallel", on, "on with tp > 1, always before aa68af18e")
    reshard = _at(document, "fsdp_reshard_after_forward")
    kept = pp > 1 if reshard is None or reshard.value == "default" else reshard.value == "never"
    if draft.fills or (draft.number("dp_shard") or 1) * (draft.number("cp") or 1) > 1:
        how = "FSDP keeps parameters gathered" if kept else "FSDP gathers again"
        draft.derive("zero", 2 if kept else 3, how)
    else:
        draft.derive("zero", 0, "nothing is shared")
    experts = _at(document, "expert_parallel_degree")
    if experts is not None and (count(experts.value) or 1) > 1:
        draft.refuse(f"{experts.path} = {experts.value}", Origin(name, experts.line))
    _read_stages(name, document, draft, pp)


def _read_stages(name: str, document: Document, draft: Draft, pp: int) -> None:
    schedule = _at(document, "pipeline_parallel_schedule")
    layers = _at(document, "pipeline_parallel_layers_per_stage")
    if pp == 1:
        draft.derive("virtual_stages", 1, "pp = 1")
        return
    kind = str(schedule.value) if schedule else "1F1B"
    line = schedule.line if schedule else 0
    draft.put("schedule", kind, Origin(name, line, "pipeline_parallel_schedule"))
    each = count(layers.value) if layers else None
    n_layers = _layers(document)
    if each and n_layers:
        stages = -(-(n_layers + 2) // each)
        if stages % pp == 0:
            draft.derive("virtual_stages", stages // pp, f"({n_layers} + 2) / {each} stages over pp={pp}")
        else:
            draft.missing("virtual_stages", f"{stages} stages of {each} layers over pp={pp}")
    elif each:
        draft.missing("virtual_stages", "the number of layers would say it")
    else:
        single = kind.lower() in _SINGLE
        draft.derive("virtual_stages", 1 if single else 2, f"the default of {kind}")


def _layers(document: Document) -> int | None:
    if (spec := document.get("model_spec")) and spec.value == "debugmodel":
        return _DEBUG["n_layers"]
    flavour = document.get("model.flavor")
    preset = _preset(document, str(flavour.value) if flavour else "")
    return PRESETS[preset].n_layers if preset else None


def _read_job(name: str, document: Document, draft: Draft) -> None:
    draft.take("seq_len", document.get("training.seq_len"), name, 2048, _SINCE)
    local = document.get("training.local_batch_size", "training.batch_size")
    draft.take("micro_batch", local, name, 8, _SINCE)
    size, rounds = _at(document, "pipeline_parallel_microbatch_size"), None
    if (draft.number("pp") or 1) > 1 and (each := draft.number("micro_batch")):
        draft.derive("batch_per_dp", each, "sequences of a DP rank")
        small = (count(size.value) if size else None) or 1
        if rounds := _at(document, "pipeline_parallel_microbatches"):
            small = each // (count(rounds.value) or each)
        draft.derive("micro_batch", small, "of the pipeline")
        draft.derive("micro_batches", each // small, f"{each} sequences in micro-batches of {small}")
    whole = document.get("training.global_batch_size")
    if whole is not None and whole.value != -1:
        draft.take("global_batch", whole, name)
        draft.facts.pop("micro_batches", None)
        _question_batch(draft, name, whole, count(local.value) if local else 8)
    elif "micro_batches" not in draft.facts and "micro_batch" in draft.facts:
        draft.derive("micro_batches", 1, "no gradient accumulation is asked for")
    precision = document.get("training.mixed_precision_param")
    whole = document.get("training.dtype")
    if whole is not None and str(whole.value) != "float32":
        draft.put("dtype", str(whole.value), Origin(name, whole.line, whole.path))
    else:
        dtype = precision.value if precision else "bfloat16"
        draft.derive("dtype", f"{dtype} mixed", "FSDP's mixed precision")
    mode = document.get("activation_checkpoint.mode")
    option = document.get("activation_checkpoint.selective_ac_option")
    said = str(mode.value) if mode else "selective"
    if said == "selective":
        said += f" {option.value if option else '2'}"
    draft.put("recompute", said, Origin(name, mode.line if mode else 0, "activation_checkpoint.mode"))
    compiles = document.get("compile.enable", "training.compile")
    if compiles is not None and (on := truth(compiles.value)) is not None:
        draft.put("compile", on, Origin(name, compiles.line, compiles.path))


def _question_batch(draft: Draft, name: str, whole: Entry, local: int | None) -> None:
    """The trainer stops unless the global batch is a multiple of local batch · dp (torchtitan/train.py)."""
    total = count(whole.value)
    if total and local and total // local <= 1 and draft.fills:
        why = f"a multiple of local_batch_size · dp is needed: with {total} and {local} only dp = 1 runs"
        draft.contradictions.append(Contradiction("global_batch", (total, f"{local}·dp"), why))


def _preset(document: Document, flavour: str) -> str:
    """The preset of a flavour of upstream's llama3; "" for any other."""
    kind = document.get("model.name")
    if kind is not None and kind.value not in _LLAMA:
        return ""
    assets = document.get("model.hf_assets_path", "model.tokenizer_path", "model.hf_tokenizer_path")
    newer = assets is not None and re.search(r"3[._]1", str(assets.value))
    if kind is not None and kind.value == "llama2":
        return {"7B": "llama2-7b", "13B": "llama2-13b", "70B": "llama2-70b"}.get(flavour, "")
    names = {
        "8B": "llama3.1-8b" if newer else "llama3-8b",
        "70B": "llama3.1-70b" if newer else "llama3-70b",
        "405B": "llama3.1-405b",
    }
    return names.get(flavour, "")


_RMS_NORMS = ("rmsnorm", "fused_rmsnorm", "compiled_rmsnorm")

_DEBUG = {"dim": 256, "n_layers": 6, "n_heads": 16, "n_kv_heads": 16, "ffn_dim": 768, "rope_theta": 500000}


def _read_model(name: str, document: Document, draft: Draft) -> None:
    kind, flavour = document.get("model.name"), document.get("model.flavor")
    where = Origin(name, flavour.line if flavour else 0, "model.flavor")
    family, size = str(kind.value) if kind else "llama3", str(flavour.value) if flavour else "debugmodel"
    norm = document.get("model.norm_type")
    if norm is not None and str(norm.value) not in _RMS_NORMS:
        draft.refuse(f'norm_type = "{norm.value}"', Origin(name, norm.line))
    if preset := _preset(document, size):
        draft.put("preset", preset, where)
        draft.dims(PRESETS[preset], where)
        if (seq := draft.number("seq_len")) is not None:
            draft.derive("max_seq_len", seq, "torchtitan sets it to training.seq_len")
    elif family == "qwen3":
        if not draft.take_model(f"qwen3-{size.lower()}", name, None, f"model.flavor = {size}"):
            draft.missing("model", f"flavour {size} of {family} is in a table of torchtitan's own")
        elif (seq := draft.number("seq_len")) is not None:
            draft.derive("max_seq_len", seq, "torchtitan sets it to training.seq_len")
    elif re.search(r"deepseek|llama4|moe|gpt_oss", family):
        draft.covered = False
        draft.refuse(f"model {family} {size}: a mixture of experts", where)
    else:
        draft.missing("model", f"flavour {size} of {family} is in a table that these files do not have")
        if family not in _LLAMA and family != "llama3":
            draft.refuse(f'model.name = "{family}"', where)


# -- the Python registry ---------------------------------------------------------------------------


def is_registry(files: Files) -> bool:
    """Whether a Python file registers torchtitan's configurations (since 9810191bb, 2026-02-23)."""
    named = any("Trainer.Config" in text or "torchtitan" in text for text in files.python.values())
    return named and files.configuration is not None


_DEBUG_BASE: dict[str, str | int] = {
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
    base = (Entry(path, value, 0) for path, value in _DEBUG_BASE.items() if document.get(path) is None)
    return Document(document.name, (*base, *document.entries))


def read_registry(files: Files, draft: Draft) -> None:
    """Fills the draft from the literals of a registry's function; batches are in tokens since 73aed7f6c."""
    document = files.configuration
    assert document is not None
    document = _with_upstream_base(document)
    name = document.name
    _read_layout(name, document, draft)
    if draft.fills and "gpus" not in draft.facts:
        files.take_world(draft)
    by = "torchtitan (config/configs.py@b5bcd76c66)"
    length = document.get("training.max_context_length", "training.seq_len")
    draft.take("seq_len", length, name, None if _unread(document) else 2048, by)
    tokens = document.get("training.num_tokens_per_microbatch_per_dp_rank")
    many, seq = count(tokens.value) if tokens else None, draft.number("seq_len")
    if tokens is not None and many and seq:
        if many % seq == 0:
            draft.put("micro_batch", many // seq, Origin(name, tokens.line, f"{many} tokens / {seq}"))
        else:
            draft.missing("micro_batch", f"{many} tokens are no whole number of sequences of {seq}")
    rounds = document.get("parallelism.num_pp_microbatches")
    whole = document.get("training.num_tokens_per_train_step")
    total = count(whole.value) if whole else None
    if whole is not None and total and seq and total % seq == 0:
        draft.put("global_batch", total // seq, Origin(name, whole.line, f"{total} tokens / {seq}"))
    if rounds is not None or not (total or _unread(document)):
        draft.take("micro_batches", rounds, name, 1, by)
    each, rounds_said = draft.number("micro_batch"), draft.number("micro_batches")
    if each and rounds_said:
        draft.derive("batch_per_dp", each * rounds_said, f"{each}·{rounds_said}")
    layers = document.get("parallelism.pipeline_parallel_layers_per_stage")
    if layers is not None and count(layers.value):
        draft.take("layers_per_stage", layers, name)
    spec = document.get("model_spec")
    flavour = str(spec.value) if spec else _FLAVOURS.get(_unread(document), "")
    if quoted := re.search(r"model_registry\(['\"]([\w.-]+)", flavour):
        flavour = quoted[1]
    if flavour == "debugmodel":
        for field, value in (_DEBUG | {"vocab_size": 2048}).items():
            draft.put(field, value, Origin(name, spec.line if spec else 0, "model_registry"))
    elif flavour in _REGISTRY:
        draft.put("preset", _REGISTRY[flavour], Origin(name, spec.line if spec else 0, "model_registry"))
        draft.dims(PRESETS[_REGISTRY[flavour]], Origin(name, spec.line if spec else 0, "model_registry"))
    else:
        draft.missing("model", f"flavour {flavour or 'not said'} is in a table of torchtitan's own")


_REGISTRY = {
    "1B": "llama3.2-1b",
    "3B": "llama3.2-3b",
    "8B": "llama3.1-8b",
    "70B": "llama3.1-70b",
    "405B": "llama3.1-405b",
}
_FLAVOURS = {"llama3_8b": "8B", "llama3_70b": "70B", "llama3_405b": "405B"}
"""Upstream's configurations and their flavours (models/llama3/config_registry.py@b5bcd76c66)."""


def _unread(document: Document) -> str:
    """The configuration that a function starts from and these files lack, by name; "" where there is none."""
    entry = next((e for e in document.entries if e.value == UNREAD), None)
    return entry.path if entry and entry.path != "llama3_debugmodel" else ""


_COMMENT = re.compile(r"#.*?\b(\d{1,6})\s+(?:[A-Z][\w-]*\s+)?GPUs", re.I)


def _hint(text: str, draft: Draft) -> None:
    """A comment's number of GPUs is something to ask about, and run_train.sh has a default."""
    why = "no launch says how many; run_train.sh starts 8 unless NGPU is set"
    if match := _COMMENT.search(text):
        line = text.count("\n", 0, match.start()) + 1
        why += f"; the comment in line {line} says {match[1]}"
    draft.unknown["gpus"] = why
