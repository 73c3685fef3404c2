"""Axolotl's, LLaMA-Factory's and torchtune's YAML.

axolotl src/axolotl/utils/distributed.py and utils/schemas @067b021c8b; LLaMA-Factory hparams @ff6d4d12ee;
torchtune recipes/full_finetune_distributed.py and recipes/configs/llama3_3 @0d5aeb4496.
"""

from __future__ import annotations

import re

from .documents import Document
from .draft import Draft, SettingsSource, truth
from .files import Files
from .flags import Flags
from .hugging_face import (
    dashed_or_underscored,
    fill_one_way,
    take_deepspeed_file,
    take_dtype,
    take_hub_model,
    take_sharding,
    zero_stage_of,
)


def is_axolotl(files: Files) -> bool:
    """Whether a YAML is Axolotl's."""
    return (
        files.with_key("base_model") is not None
        and files.with_key("sequence_len", "micro_batch_size") is not None
    )


def read_axolotl(files: Files, draft: Draft) -> None:
    """Fill the draft from Axolotl's YAML."""
    found = files.with_key("base_model")
    assert found is not None
    name, document = found
    source = SettingsSource(name, document.get, draft, "axolotl (utils/schemas@067b021c8b)")
    files.take_world(draft)
    take_hub_model(source, "base_model")
    source.take("seq_len", "sequence_len", default=512)
    source.take("micro_batch", "micro_batch_size", default=1)
    source.take("micro_batches", "gradient_accumulation_steps", default=1)
    source.take("tp", "tensor_parallel_size", default=1)
    source.take("cp", "context_parallel_size", "sequence_parallel_degree", default=1)
    source.take("dp_replicate", "dp_replicate_size", default=1)
    # Without it Axolotl shards over whatever GPUs are left.
    if source.text("dp_shard_size"):
        source.take("dp_shard", "dp_shard_size")
    else:
        draft.fills = "dp_shard"
    fill_one_way(draft, "pp")
    deepspeed = source.get("deepspeed")
    if deepspeed is not None and deepspeed.value:
        take_deepspeed_file(files, draft, deepspeed)
    elif any(entry for key in ("fsdp", "fsdp_config") for entry in document.under(key)):
        take_sharding(source, "fsdp")
    else:
        draft.derive("zero", 0, "DDP, unless fsdp or deepspeed")
    take_dtype(source)
    source.switch("recompute", "gradient_checkpointing", "full", "none")
    _refuse_adapters(source)


def _refuse_adapters(source: SettingsSource) -> None:
    adapter, bits = source.get("adapter"), source.get("load_in_4bit", "load_in_8bit")
    if adapter is not None and adapter.value:
        source.refuse(f"adapter {adapter.value}: less memory", "adapter", "lora")
    elif bits is not None and bits.value:
        source.refuse(f"{bits.path}: less memory", bits.path, "lora")
    _refuse_narrow_states(source)
    # LLaMA-Factory trains an adapter unless it is told otherwise, which needs a fraction of the memory.
    kind = source.text("finetuning_type") or "lora (default)"
    if source.get("cutoff_len") is not None and kind != "full":
        source.refuse(f"finetuning_type {kind}: less memory", "finetuning_type", "lora")


def _refuse_narrow_states(source: SettingsSource) -> None:
    """An optimizer with states of eight bits needs less than is counted."""
    for key in ("optimizer", "optim", "optimizer._component_"):
        if "8bit" in source.text(key).replace("-", "").lower():
            source.refuse(f"{key} {source.text(key)}: states of 8 bits", key, "8-bit-adam")


def is_llamafactory(files: Files) -> bool:
    """Whether a YAML, or a command, is LLaMA-Factory's."""
    return _llamafactory(files) is not None or files.has_word("llamafactory-cli")


def _llamafactory(files: Files) -> tuple[str, Flags | Document] | None:
    keys = ("cutoff_len", "finetuning_type")
    return files.with_key(*keys) or files.flags(*keys)


def read_llamafactory(files: Files, draft: Draft) -> None:
    """Fill the draft from LLaMA-Factory's YAML; if it has Megatron's arguments, the degrees come from
    those.
    """
    files.take_world(draft)
    launch = SettingsSource("the launch", files.variable, draft)
    each, nodes = launch.count("NPROC_PER_NODE"), launch.count("NNODES")
    if each and nodes:
        per_node = launch.get("NPROC_PER_NODE")
        draft.put("gpus", each * nodes, launch.origin(per_node, "NNODES · NPROC_PER_NODE"))
        draft.put("gpus_per_node", each, launch.origin(per_node))
    elif "gpus" not in draft.facts:
        draft.unknown.setdefault("gpus", "NPROC_PER_NODE is not set: it takes all GPUs that it finds")
    found = _llamafactory(files)
    if found is None:
        draft.unknown.setdefault("model", "in the YAML that the command names")
        fill_one_way(draft, "tp", "cp", "pp")
        draft.fills = "dp"
        return
    source = dashed_or_underscored(found, draft, "LLaMA-Factory")
    source.take("seq_len", "cutoff_len", default=2048)
    source.take("micro_batch", "per_device_train_batch_size", default=8)
    source.take("micro_batches", "gradient_accumulation_steps", default=1)
    for axis, key in (("tp", "tensor_model"), ("pp", "pipeline_model"), ("cp", "context")):
        source.take(axis, f"{key}_parallel_size", default=1)
    source.parse("sequence_parallel", "sequence_parallel", truth, False)
    draft.derive("dp_replicate", 1, "shared over all of dp")
    source.switch("zero", "use_distributed_optimizer", 1, 0)
    words = [entry for n in range(4) if (entry := source.get(f"fsdp[{n}]" if n else "fsdp", "fsdp[0]"))]
    if words and words[0].value:
        draft.put("zero", zero_stage_of(" ".join(str(word.value) for word in words)), source.origin(words[0]))
    draft.unless_said("zero", 0, "DDP, unless fsdp or deepspeed")
    take_deepspeed_file(files, draft, source.get("deepspeed"))
    if again := source.text("recompute_granularity"):
        source.put("recompute", again, "recompute_granularity")
    take_dtype(source)
    take_hub_model(source, "model_name_or_path")
    experts = source.count("expert_model_parallel_size") or 1
    if experts > 1:
        draft.covered = False
        key = "expert_model_parallel_size"
        source.refuse(f"{key} {experts}: expert parallel", key)
    _refuse_adapters(source)


# -- torchtune -------------------------------------------------------------------------------------

_TUNE_MODEL = re.compile(r"torchtune\.models\.\w+\.((?:q?lora_)?)(llama\d)_(?:(\d)_)?(\d+b)$")


def is_torchtune(files: Files) -> bool:
    """Whether a YAML is a recipe's of torchtune."""
    found = files.with_key("model._component_")
    return found is not None and found[1].get("tokenizer._component_", "checkpointer._component_") is not None


def read_torchtune(files: Files, draft: Draft) -> None:
    """Fill the draft from a recipe's YAML; the launch gives the number of GPUs."""
    found = files.with_key("model._component_")
    assert found is not None
    source = SettingsSource(found[0], found[1].get, draft, "torchtune (full_finetune_distributed.py)")
    files.take_world(draft)
    model = source.get("model._component_")
    match = _TUNE_MODEL.match(source.text("model._component_"))
    if match and model is not None:
        version = f"{match[2]}.{match[3]}" if match[3] else match[2]
        draft.take_model(f"{version}-{match[4]}", source.name, None, model.path)
        if match[1]:
            source.refuse(f"{match[1].rstrip('_')}: less memory", "model._component_", "lora")
    elif model is not None:
        draft.missing("model", f"{model.value} is a table of torchtune's own")
    _refuse_narrow_states(source)
    source.take("seq_len", "tokenizer.max_seq_len")
    source.take("micro_batch", "batch_size")
    source.take("micro_batches", "gradient_accumulation_steps", default=1)
    source.take("tp", "tensor_parallel_dim", default=1)
    source.take("cp", "context_parallel_dim", default=1)
    source.take("dp_replicate", "data_parallel_replicate_dim", default=1)
    shard = source.get("data_parallel_shard_dim")
    if shard is None or shard.value == -1:
        draft.fills = "dp_shard"
    else:
        source.take("dp_shard", "data_parallel_shard_dim")
    draft.derive("pp", 1, "torchtune has none")
    if draft.number("tp") != 1:
        draft.missing("sequence_parallel", "tensor_parallel_plan says it")
    source.put("zero", 3, "fsdp_reshard_after_forward")
    source.switch("zero", "fsdp_reshard_after_forward", 3, 2)
    source.put("recompute", "none", "enable_activation_checkpointing")
    source.switch("recompute", "enable_activation_checkpointing", "full", "none")
    if dtype := source.text("dtype"):
        source.put("dtype", dtype, "dtype")
