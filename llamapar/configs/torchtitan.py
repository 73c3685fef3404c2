"""torchtitan's oddities: what follows from several of its settings, in TOML files and in its registry.

TOML: torchtitan/config/job_config.py, distributed/{parallel_dims,pipeline_parallel}.py and models/llama3
@238fa9953e, the last state with TOML. Since 9810191bb (2026-02-23) a registry of Python functions replaces
it: config/configs.py and models/llama3 @b5bcd76c66. run_train.sh starts 8 ranks unless NGPU says otherwise.
"""

from __future__ import annotations

import re

from llamapar.describe.models import PRESETS
from llamapar.frameworks.torchtitan import REGISTRY

from .draft import Origin, SettingsSource, whole_count
from .files import Files

# -- layout ----------------------------------------------------------------------------------------


def _at(name: str) -> list[str]:
    """Possible places of a degree: [parallelism], earlier [training], and [experimental] for CP and PP."""
    return [f"{section}.{name}" for section in ("parallelism", "training", "experimental")]


def titan_zero(source: SettingsSource, files: Files) -> None:
    """FSDP shares over dp_shard · cp; whether it keeps parameters decides between stages 2 and 3."""
    draft = source.draft
    pp = source.draft.number("pp")
    reshard = source.get(*_at("fsdp_reshard_after_forward"))
    # "default" gathers again without a pipeline, and with one keeps parameters, which would be gathered
    # for every micro-batch.
    kept = (pp or 1) > 1 if reshard is None or reshard.value == "default" else reshard.value == "never"
    if "dp_shard" in draft.unknown:
        draft.missing("zero", "the shards would say it")
    elif not draft.fills and (draft.number("dp_shard") or 1) * (draft.number("cp") or 1) == 1:
        draft.derive("zero", 0, "nothing is shared")
    elif pp is None and reshard is None:
        draft.missing("zero", "the pipeline's degree would say it")
    else:
        how = "FSDP gathers again"
        if kept:
            how = "FSDP keeps parameters gathered"
        draft.derive("zero", 2 if kept else 3, how)


def titan_stages(source: SettingsSource, files: Files) -> None:
    """Virtual stages: one or two by the schedule, unless layers_per_stage says it."""
    draft = source.draft
    pp = source.draft.number("pp")
    if pp is None:
        draft.missing("virtual_stages", "the pipeline's degree would say it")
        return
    if pp == 1:
        draft.derive("virtual_stages", 1, "pp = 1")
        return
    schedule = source.get(*_at("pipeline_parallel_schedule"))
    kind = "1F1B"
    if schedule:
        kind = str(schedule.value)
    draft.put("schedule", kind, source.origin(schedule))
    each = source.get(*_at("pipeline_parallel_layers_per_stage"))
    if each and each.value is not None:
        draft.missing("virtual_stages", f"{each.path} {each.value} says it, with the model's layers")
    else:
        single = kind.lower() in ("1f1b", "gpipe")
        draft.derive("virtual_stages", 1 if single else 2, f"the default of {kind}")


def titan_version(source: SettingsSource, files: Files) -> None:
    """TOML is older than the registry."""
    if source.name.lower().endswith(".toml"):
        source.draft.before = REGISTRY


# -- batches and recomputation ---------------------------------------------------------------------


def titan_batch(source: SettingsSource, files: Files) -> None:
    """With a pipeline the local batch is what a DP rank puts through it, cut into micro-batches."""
    draft = source.draft
    each = source.draft.number("micro_batch")
    pipelined = source.draft.number("pp") != 1
    if pipelined and each:
        draft.derive("batch_per_dp", each, "sequences of a DP rank")
        small = source.count(*_at("pipeline_parallel_microbatch_size")) or 1
        if rounds := source.get(*_at("pipeline_parallel_microbatches")):
            small = each // (whole_count(rounds.value) or each)
        draft.derive("micro_batch", small, "of the pipeline")
        draft.derive("micro_batches", each // small, f"{each} sequences in micro-batches of {small}")
    if "global_batch" in draft.facts:
        draft.facts.pop("micro_batches", None)
    elif "micro_batches" not in draft.facts and "micro_batch" in draft.facts:
        draft.derive("micro_batches", 1, "no gradient accumulation is asked for")


def titan_recomputation(source: SettingsSource, files: Files) -> None:
    """Selective recomputation takes every second layer, or what its option says."""
    said = source.draft.facts.get("recompute")
    if said is not None and said.value == "selective":
        option = source.text("activation_checkpoint.selective_ac_option") or "2"
        source.draft.put("recompute", f"selective {option}", said.origin)


# -- the model -------------------------------------------------------------------------------------

_LLAMA = ("llama3", "llama3_ft")
_LLAMA_3 = {"8B": "llama3-8b", "70B": "llama3-70b", "405B": "llama3.1-405b"}
_PRESETS = {
    "llama2": {"7B": "llama2-7b", "13B": "llama2-13b", "70B": "llama2-70b"},
    "llama3": _LLAMA_3,
    "llama3_ft": _LLAMA_3,
}
"""Model of upstream's tables → flavour → preset."""


def _preset(source: SettingsSource, flavour: str) -> str:
    """The preset for a flavour of upstream's llama3; "" for any other."""
    kind = source.text("model.name") or "llama3"
    preset = _PRESETS.get(kind, {}).get(flavour, "")
    if kind not in _LLAMA:
        return preset
    assets = source.get("model.hf_assets_path", "model.tokenizer_path", "model.hf_tokenizer_path")
    # The flavours 8B and 70B are the same in Llama 3 and 3.1; the tokenizer's path tells which is meant.
    newer = assets is not None and re.search(r"3[._]1", str(assets.value))
    if newer:
        return preset.replace("llama3-", "llama3.1-")
    return preset


def titan_model(source: SettingsSource, files: Files) -> None:
    """The model: a flavour of upstream's tables."""
    draft = source.draft
    flavour = source.get("model.flavor")
    if flavour is None and source.base:
        draft.missing("model", f"{source.base} says it, which is not among these files")
        return
    where = source.origin(flavour)
    family = source.text("model.name") or "llama3"
    size = "debugmodel"
    if flavour:
        size = str(flavour.value)
    qwen = family == "qwen3"
    said = Origin(source.name, 0, f"model.flavor = {size}")
    if preset := _preset(source, size):
        draft.put("preset", preset, where)
        draft.dims(PRESETS[preset], where)
    elif re.search(r"deepseek|llama4|moe|gpt_oss", family):
        draft.covered = False
        draft.refuse(f"model {family} {size}: a mixture of experts", where)
        return
    elif not (qwen and draft.take_model(f"qwen3-{size.lower()}", said)):
        if not qwen and family not in _LLAMA:
            draft.refuse(f'model.name = "{family}"', where)
        draft.missing("model", f"flavour {size} of {family} is in a table that these files do not have")
        return
    if (seq := draft.number("seq_len")) is not None:
        draft.derive("max_seq_len", seq, "torchtitan sets it to training.seq_len")
    else:
        draft.missing("max_seq_len", "torchtitan sets it to training.seq_len, which is not known")


def titan_gpus(source: SettingsSource, files: Files) -> None:
    """run_train.sh has a default, which a file alone does not use."""
    if "gpus" not in source.draft.facts:
        source.draft.unknown["gpus"] = "no launch says how many; run_train.sh starts 8 unless NGPU is set"
