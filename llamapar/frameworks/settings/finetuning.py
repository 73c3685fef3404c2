"""Axolotl's and LLaMA-Factory's YAML.

axolotl src/axolotl/utils/distributed.py and utils/schemas @067b021c8b; LLaMA-Factory hparams @ff6d4d12ee.
"""

from __future__ import annotations

import re

from .documents import Document
from .draft import Draft, Origin, count, scalar, truth
from .files import Files
from .hugging_face import fill_one_way, origin_of, take_hub_model, take_sharding, take_switch


def is_axolotl(files: Files) -> bool:
    """Whether a YAML is Axolotl's."""
    return (
        files.with_key("base_model") is not None
        and files.with_key("sequence_len", "micro_batch_size") is not None
    )


def read_axolotl(files: Files, draft: Draft) -> None:
    """Fills the draft from Axolotl's YAML."""
    found = files.with_key("base_model")
    assert found is not None
    name, document = found
    files.take_world(draft)
    take_hub_model(draft, name, document.get("base_model"))
    draft.take("seq_len", document.get("sequence_len"), name, 512, "axolotl (utils/schemas@067b021c8b)")
    draft.take("micro_batch", document.get("micro_batch_size"), name, 1, "axolotl")
    draft.take("micro_batches", document.get("gradient_accumulation_steps"), name, 1, "axolotl")
    for axis, keys in (
        ("tp", ("tensor_parallel_size",)),
        ("cp", ("context_parallel_size", "sequence_parallel_degree")),
        ("dp_replicate", ("dp_replicate_size",)),
    ):
        draft.take(axis, document.get(*keys), name, default=1, by="axolotl")
    shard = document.get("dp_shard_size")
    if shard is not None and shard.value is not None:
        draft.take("dp_shard", shard, name)
    else:
        draft.fills = "dp_shard"
    fill_one_way(draft, "pp")
    fsdp = any(True for key in ("fsdp", "fsdp_config") for _ in document.under(key))
    deepspeed = document.get("deepspeed")
    if deepspeed is not None and deepspeed.value:
        stage = re.search(r"zero([0-3])", str(deepspeed.value))
        if stage:
            draft.put("zero", int(stage[1]), origin_of(name, deepspeed))
        else:
            draft.missing("zero", f"in {deepspeed.value}, which is not among these files")
    elif fsdp:
        take_sharding(draft, name, document, "FSDP")
    else:
        draft.derive("zero", 0, "DDP, unless fsdp or deepspeed")
    for dtype in ("fp16", "bf16"):
        take_switch(draft, "dtype", name, document.get(dtype), dtype, None)
    take_switch(draft, "recompute", name, document.get("gradient_checkpointing"), "full", "none")
    _refuse_adapters(draft, name, document)


def _refuse_adapters(draft: Draft, name: str, document: Document) -> None:
    adapter, bits = document.get("adapter"), document.get("load_in_4bit")
    if adapter is not None and adapter.value:
        draft.refuse(f"adapter {adapter.value}: other memory", origin_of(name, adapter))
    elif bits is not None and bits.value:
        draft.refuse("load_in_4bit: other memory", origin_of(name, bits))
    kind = document.get("finetuning_type")
    if document.get("cutoff_len") is not None and (kind is None or scalar(kind.value) != "full"):
        draft.refuse(
            f"finetuning_type {kind.value if kind else 'lora (default)'}: other memory", origin_of(name, kind)
        )


def is_llamafactory(files: Files) -> bool:
    """Whether a YAML, or a command, is LLaMA-Factory's."""
    return files.with_key("cutoff_len", "finetuning_type") is not None or files.has_word("llamafactory-cli")


def read_llamafactory(files: Files, draft: Draft) -> None:
    """Fills the draft from LLaMA-Factory's YAML; with Megatron's degrees from those."""
    files.take_world(draft)
    nodes, each = files.variable("NNODES"), files.variable("NPROC_PER_NODE")
    if each is not None and nodes is not None and count(each.value) and count(nodes.value):
        ranks = (count(each.value) or 1) * (count(nodes.value) or 1)
        draft.put("gpus", ranks, Origin("the launch", each.line, "NNODES · NPROC_PER_NODE"))
        draft.put("gpus_per_node", count(each.value), Origin("the launch", each.line, each.path))
    elif "gpus" not in draft.facts:
        draft.unknown.setdefault("gpus", "NPROC_PER_NODE is not said: the GPUs that are found")
    found = files.with_key("cutoff_len", "finetuning_type")
    if found is None:
        draft.unknown.setdefault("model", "in the YAML that the command names")
        fill_one_way(draft, "tp", "cp", "pp")
        draft.fills = "dp"
        return
    name, document = found
    draft.take("seq_len", document.get("cutoff_len"), name, 2048, "LLaMA-Factory")
    draft.take("micro_batch", document.get("per_device_train_batch_size"), name, 8, "TrainingArguments")
    draft.take("micro_batches", document.get("gradient_accumulation_steps"), name, 1, "TrainingArguments")
    for axis, key in (("tp", "tensor_model"), ("pp", "pipeline_model"), ("cp", "context")):
        draft.take(axis, document.get(f"{key}_parallel_size"), name, default=1, by="LLaMA-Factory")
    on = document.get("sequence_parallel")
    draft.put("sequence_parallel", bool(on and truth(on.value)), origin_of(name, on))
    draft.derive("dp_replicate", 1, "shared over all of dp")
    take_switch(draft, "zero", name, document.get("use_distributed_optimizer"), 1, 0)
    deepspeed = document.get("deepspeed")
    if deepspeed is not None and deepspeed.value:
        stage = re.search(r"z(?:ero)?_?([0-3])", str(deepspeed.value))
        draft.put("zero", int(stage[1]), origin_of(name, deepspeed)) if stage else None
    again = document.get("recompute_granularity")
    if again is not None and again.value:
        draft.put("recompute", scalar(again.value), origin_of(name, again))
    for dtype in ("fp16", "bf16"):
        take_switch(draft, "dtype", name, document.get(dtype), dtype, None)
    take_hub_model(draft, name, document.get("model_name_or_path"))
    experts = document.get("expert_model_parallel_size")
    if experts is not None and (count(experts.value) or 1) > 1:
        draft.covered = False
        draft.refuse(f"{experts.path} {experts.value}: expert parallel", origin_of(name, experts))
    _refuse_adapters(draft, name, document)
