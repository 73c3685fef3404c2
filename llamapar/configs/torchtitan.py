"""torchtitan's settings: TOML of every generation.

Names, defaults and what follows from them: torchtitan/config/job_config.py, distributed/parallel_dims.py,
distributed/pipeline_parallel.py and models/llama3 @238fa9953e, the last state with TOML; older spellings by
the commit that changed them. run_train.sh starts 8 ranks unless NGPU says otherwise.
"""

from __future__ import annotations

import re

from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.errors import LlamaparError
from llamapar.frameworks.torchtitan import REGISTRY

from .documents import Document
from .draft import Draft, SettingsSource, truth, whole_count
from .files import Files
from .python_source import UNREAD

NAME = "torchtitan"
_SINCE = "torchtitan (config/job_config.py@238fa9953e)"

_LLAMA = ("llama3", "llama3_ft")
_SINGLE = ("1f1b", "gpipe")
_OLD = {
    "training.data_parallel_degree": "one number before HSDP, gone since c9b17cca0",
    "model.norm_type": "gone since 5078e92e4",
}

_NEW = ("training.local_batch_size", "parallelism.tensor_parallel_degree")


def recognised(files: Files) -> bool:
    """Whether a file of settings is torchtitan's."""
    return files.with_key("model.flavor", "parallelism.data_parallel_shard_degree") is not None


def _at(*names: str) -> list[str]:
    """Possible places of a degree: [parallelism], earlier [training], and [experimental] for CP and PP."""
    sections = ("parallelism", "training", "experimental")
    return [f"{section}.{name}" for name in names for section in sections]


def read(files: Files, draft: Draft) -> None:
    """Fill the draft from the TOML and, if there is one, the script that starts it."""
    found = files.with_key("model.flavor", "parallelism.data_parallel_shard_degree")
    assert found is not None
    name, document = found
    source = SettingsSource(name, document.get, draft, _SINCE, document.partial)
    # TOML was read until the registry of Python functions replaced it.
    if name.lower().endswith(".toml"):
        draft.before = REGISTRY
    read_degrees(source, unread_base(document))
    _read_job(source)
    _read_model(source)
    if document.partial:
        _forget_defaults(source)
    files.take_world(draft)
    if "gpus" not in draft.facts:
        _hint(files.texts[name], draft)


def read_degrees(source: SettingsSource, base: str) -> None:
    """The degrees. base: the unread configuration that this one starts from, "" where it starts from none."""
    draft = source.draft
    for axis, key in (("tp", "tensor"), ("cp", "context"), ("pp", "pipeline")):
        keys = _at(f"{key}_parallel_degree")
        if base and source.get(*keys) is None:
            draft.missing(axis, f"{base} may say it, which is not in these files")
        else:
            source.take(axis, *keys, default=1)
    source.take("dp_replicate", *_at("data_parallel_replicate_degree"), default=1)
    shard = (*_at("data_parallel_shard_degree"), "training.data_parallel_degree")
    said = source.get(*shard)
    if said is None or said.value == -1:
        draft.fills = "dp_shard"
    else:
        source.take("dp_shard", *shard)
    for path, when in _OLD.items():
        if entry := source.get(path):
            draft.notes.append(f"{path} ({source.name}:{entry.line}): {when}, an error in newer versions")
    newer, older = source.get(*_NEW), source.get(*_OLD)
    if newer and older:
        draft.notes.append(f"{newer.path} is of a newer version than {older.path}: one of them is not read")
    tp, pp = draft.number("tp") or 1, draft.number("pp") or 1
    asked = source.get(*_at("enable_sequence_parallel"))
    # Sequence parallelism has a switch in newer versions; before, it was on wherever TP was.
    on = True if asked is None else truth(asked.value)
    if on is None and asked is not None:
        source.unreadable("sequence_parallel", asked)
    else:
        draft.derive("sequence_parallel", tp > 1 and on, "on with tp > 1, always before aa68af18e")
    reshard = source.get(*_at("fsdp_reshard_after_forward"))
    # "default" gathers again without a pipeline, and with one keeps parameters, which would be gathered
    # for every micro-batch.
    kept = pp > 1 if reshard is None or reshard.value == "default" else reshard.value == "never"
    if draft.fills or (draft.number("dp_shard") or 1) * (draft.number("cp") or 1) > 1:
        how = "FSDP keeps parameters gathered" if kept else "FSDP gathers again"
        draft.derive("zero", 2 if kept else 3, how)
    else:
        draft.derive("zero", 0, "nothing is shared")
    experts = source.get(*_at("expert_parallel_degree"))
    if experts is not None and (whole_count(experts.value) or 1) > 1:
        draft.refuse(f"expert parallel over {experts.value}", source.origin(experts))
    _read_stages(source, pp)


_FOLLOW = {
    "zero": _at("fsdp_reshard_after_forward"),
    "virtual_stages": _at("pipeline_parallel_layers_per_stage"),
    "dtype": ["training.mixed_precision_param"],
    "recompute": ["activation_checkpoint.mode"],
}
"""Facts that follow from these settings, and from their defaults where the settings are not given."""


def _forget_defaults(source: SettingsSource) -> None:
    """Mark what a log does not print as unknown, because it need not be the default."""
    held = source.draft
    forced = {"zero": held.get("zero") == 0, "virtual_stages": held.get("pp") == 1}
    for field, keys in _FOLLOW.items():
        if source.get(*keys) is None and not forced.get(field):
            held.missing(field, f"{source.name} does not say it")
    if held.get("pp") != 1:
        held.missing("micro_batch", f"{source.name} does not say it")
        held.facts.pop("micro_batches", None)


def _read_stages(source: SettingsSource, pp: int) -> None:
    draft = source.draft
    if pp == 1:
        draft.derive("virtual_stages", 1, "pp = 1")
        return
    schedule = source.get(*_at("pipeline_parallel_schedule"))
    kind = str(schedule.value) if schedule else "1F1B"
    draft.put("schedule", kind, source.origin(schedule))
    each, n_layers = source.count(*_at("pipeline_parallel_layers_per_stage")), _layers(source)
    if each and n_layers:
        # The embedding and the output count as a layer each.
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


def _layers(source: SettingsSource) -> int | None:
    if source.text("model_spec") == "debugmodel":
        return DEBUG_MODEL["n_layers"]
    flavour = source.get("model.flavor")
    preset = _preset(source, str(flavour.value) if flavour else "")
    return PRESETS[preset].n_layers if preset else None


def _read_job(source: SettingsSource) -> None:
    draft = source.draft
    source.take("seq_len", "training.seq_len", default=2048)
    local = ("training.local_batch_size", "training.batch_size")
    source.take("micro_batch", *local, default=8)
    if (draft.number("pp") or 1) > 1 and (each := draft.number("micro_batch")):
        # With a pipeline the local batch is what a DP rank puts through it, cut into micro-batches of its
        # own.
        draft.derive("batch_per_dp", each, "sequences of a DP rank")
        small = source.count(*_at("pipeline_parallel_microbatch_size")) or 1
        if rounds := source.get(*_at("pipeline_parallel_microbatches")):
            small = each // (whole_count(rounds.value) or each)
        draft.derive("micro_batch", small, "of the pipeline")
        draft.derive("micro_batches", each // small, f"{each} sequences in micro-batches of {small}")
    whole = source.get("training.global_batch_size")
    if whole is not None and whole.value != -1:
        source.take("global_batch", "training.global_batch_size")
        draft.facts.pop("micro_batches", None)
    elif "micro_batches" not in draft.facts and "micro_batch" in draft.facts:
        draft.derive("micro_batches", 1, "no gradient accumulation is asked for")
    if source.text("training.dtype") in ("", "float32"):
        dtype = source.text("training.mixed_precision_param") or "bfloat16"
        draft.derive("dtype", f"{dtype} mixed", "FSDP's mixed precision")
    else:
        source.put("dtype", source.text("training.dtype"), "training.dtype")
    mode = "activation_checkpoint.mode"
    said = source.text(mode) or "selective"
    if said == "selective" and not source.partial:
        said += f" {source.text('activation_checkpoint.selective_ac_option') or '2'}"
    source.put("recompute", said, mode)
    for key in ("training.compile", "compile.enable"):
        source.switch("compile", key)


def _preset(source: SettingsSource, flavour: str) -> str:
    """The preset for a flavour of upstream's llama3; "" for any other."""
    kind = source.text("model.name") or "llama3"
    if kind == "llama2":
        return {"7B": "llama2-7b", "13B": "llama2-13b", "70B": "llama2-70b"}.get(flavour, "")
    if kind not in _LLAMA:
        return ""
    assets = source.get("model.hf_assets_path", "model.tokenizer_path", "model.hf_tokenizer_path")
    # The flavours 8B and 70B are the same in Llama 3 and 3.1; the tokenizer's path tells which is meant.
    newer = assets is not None and re.search(r"3[._]1", str(assets.value))
    names = {
        "8B": "llama3.1-8b" if newer else "llama3-8b",
        "70B": "llama3.1-70b" if newer else "llama3-70b",
        "405B": "llama3.1-405b",
    }
    return names.get(flavour, "")


_RMS_NORMS = ("rmsnorm", "fused_rmsnorm", "compiled_rmsnorm")

DEBUG_MODEL = {
    "dim": 256,
    "n_layers": 6,
    "n_heads": 16,
    "n_kv_heads": 16,
    "ffn_dim": 768,
    "rope_theta": 500000,
}


_ARGS = ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "multiple_of", "ffn_dim_multiplier")


def _built(source: SettingsSource) -> ModelConfig | None:
    """The model whose arguments a log prints, whatever the name of its flavour."""
    names = (*_ARGS, "norm_eps", "rope_theta")
    held = {name: entry.value for name in names if (entry := source.get(f"ModelArgs.{name}"))}
    try:
        return ModelConfig.from_meta(held) if len(held) > len(_ARGS) else None
    except LlamaparError:
        return None


def _read_model(source: SettingsSource) -> None:
    draft, flavour = source.draft, source.get("model.flavor")
    where = source.origin(flavour)
    family, size = source.text("model.name") or "llama3", str(flavour.value) if flavour else "debugmodel"
    norm = source.text("model.norm_type")
    if norm and norm not in _RMS_NORMS:
        source.refuse(f'norm_type = "{norm}"', "model.norm_type")
    known = False
    if built := _built(source):
        draft.dims(built, source.origin(source.get("ModelArgs.dim")))
        known = True
    elif preset := _preset(source, size):
        draft.put("preset", preset, where)
        draft.dims(PRESETS[preset], where)
        known = True
    elif family == "qwen3":
        known = draft.take_model(f"qwen3-{size.lower()}", source.name, None, f"model.flavor = {size}")
    elif re.search(r"deepseek|llama4|moe|gpt_oss", family):
        draft.covered = False
        draft.refuse(f"model {family} {size}: a mixture of experts", where)
        return
    elif family not in _LLAMA:
        draft.refuse(f'model.name = "{family}"', where)
    if not known:
        draft.missing("model", f"flavour {size} of {family} is in a table that these files do not have")
    elif (seq := draft.number("seq_len")) is not None:
        draft.derive("max_seq_len", seq, "torchtitan sets it to training.seq_len")
    else:
        draft.missing("max_seq_len", "torchtitan sets it to training.seq_len, which is not known")


def unread_base(document: Document) -> str:
    """The name of the base configuration that is missing from these files; "" without one."""
    entry = next((e for e in document.entries if e.value == UNREAD), None)
    return entry.path if entry and entry.path != "llama3_debugmodel" else ""


_COMMENT = re.compile(r"#[^#\n]*?\b(\d{1,6})\s+(?:[A-Z][\w-]*\s+)?GPUs", re.I)


def _hint(text: str, draft: Draft) -> None:
    """A comment's number of GPUs is only a question; run_train.sh has a default."""
    why = "no launch says how many; run_train.sh starts 8 unless NGPU is set"
    if match := _COMMENT.search(text):
        line = text.count("\n", 0, match.start()) + 1
        why += f"; the comment in line {line} says {match[1]}"
    draft.unknown["gpus"] = why
