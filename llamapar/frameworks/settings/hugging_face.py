"""Hugging Face's Trainer, Accelerate and DistributedConfig, and DeepSpeed's JSON.

accelerate src/accelerate/parallelism_config.py, commands/launch.py @16cb6eb80d; transformers
src/transformers/training_args.py @fd798335c2; DeepSpeed runtime/config.py @edaa722126.
"""

from __future__ import annotations

import re

from .documents import Document, Entry
from .draft import MODEL, Contradiction, Draft, Fact, Origin, count, scalar, section_of, truth
from .files import Files
from .python_source import keyword_literals

_DEGREES = ("tp", "cp", "sp", "dp_replicate", "dp_shard")


def origin_of(name: str, entry: Entry | None) -> Origin:
    return Origin(name, entry.line if entry else 0, entry.path if entry else "default")


def fill_one_way(draft: Draft, *names: str) -> None:
    """Axes that a tool does not have."""
    for name in names:
        if name not in draft.facts:
            draft.derive(name, 1, f"{draft.framework} has none here")
    if "sequence_parallel" not in draft.facts:
        draft.derive("sequence_parallel", False, f"{draft.framework} does not cut norms")


def take_switch(draft: Draft, field: str, name: str, entry: Entry | None, on: object, off: object) -> None:
    """A fact that a switch says, where the switch is there."""
    if entry is None or (value := truth(entry.value)) is None:
        return
    if (said := on if value else off) is not None:
        draft.put(field, said, origin_of(name, entry))


def take_hub_model(draft: Draft, name: str, entry: Entry | None) -> None:
    if entry is None:
        return
    if not draft.take_model("", name, entry):
        draft.unknown["dims"] = f"from the config of {entry.value}"
    draft.put("hf", str(entry.value), origin_of(name, entry))
    text = str(entry.value).lower()
    if re.search(r"mixtral|moe|-a\d+b|deepseek-v[23]|gpt-oss", text):
        _other_model(draft, name, entry, "MoE")
    elif re.search(r"(?:^|[/_-])(?:opt|bloom|gpt2|gpt-j|gpt-neo|pythia|falcon|mpt|phi|gemma)[-\d]", text):
        _other_model(draft, name, entry, "not Llama's architecture")


def _other_model(draft: Draft, name: str, entry: Entry, why: str) -> None:
    draft.covered = False
    draft.refuse(f"{entry.value}: {why}", origin_of(name, entry))
    for key in [key for key in draft.facts if section_of(key) == MODEL]:
        del draft.facts[key]


# -- Accelerate ------------------------------------------------------------------------------------


def is_accelerate(files: Files) -> bool:
    """Whether there is an Accelerate YAML, or a launch by it with degrees."""
    return files.with_key("distributed_type", "parallelism_config") is not None or files.has_word(
        "accelerate"
    )


def read_accelerate(files: Files, draft: Draft) -> None:
    """Fills the draft from the YAML or `accelerate launch`; batch and model are the script's."""
    found = files.with_key("distributed_type", "parallelism_config")
    if found is None:
        _read_accelerate_launch(files, draft)
        return
    name, document = found
    ranks = document.get("num_processes")
    draft.take("gpus", ranks, name)
    nodes = document.get("num_machines")
    many, whole = count(nodes.value) if nodes else None, draft.number("gpus")
    if nodes is not None and many and whole and whole % many == 0:
        draft.derive("gpus_per_node", whole // many, f"num_processes {whole} / num_machines {many}")
    degrees = {}
    for axis in _DEGREES:
        entry = document.get(f"parallelism_config.parallelism_config_{axis}_size")
        degrees[axis] = entry
        if axis != "sp" and entry is not None:
            draft.take(axis, entry, name)
    ulysses = degrees["sp"]
    ways = (count(ulysses.value) if ulysses else None) or 1
    if ulysses is not None and ways > 1:
        draft.refuse(f"sp_size {ways}: Ulysses' sequence parallelism", origin_of(name, ulysses))
        _take_out(draft, ways)
    if document.get("parallelism_config.parallelism_config_dp_shard_size") is None and any(
        True for _ in document.under("parallelism_config")
    ):
        draft.derive("dp_shard", 1, "the default of parallelism_config")
    fill_one_way(draft, "tp", "cp", "pp")
    take_sharding(draft, name, document)
    precision = document.get("mixed_precision")
    if precision is not None and scalar(precision.value) not in ("no", "none"):
        draft.put("dtype", scalar(precision.value), origin_of(name, precision))
    again = document.get("fsdp_config.fsdp_activation_checkpointing")
    take_switch(draft, "recompute", name, again, "full", "none")


def _take_out(draft: Draft, ways: int) -> None:
    """Ulysses ranks are an axis of their own: they share sequences, so they are not of dp."""
    replicate, shard = draft.number("dp_replicate") or 1, draft.number("dp_shard")
    gpus = draft.facts.get("gpus")
    if shard is not None and gpus is not None and isinstance(gpus.value, int):
        draft.derive("dp", replicate * shard, f"{replicate} replicas · {shard} shards")
        draft.facts["other_axes"] = Fact({"ulysses_sp": ways}, gpus.origin)


_STRATEGIES = {"FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0, "HYBRID_SHARD": 3}


def take_sharding(draft: Draft, name: str, document: Document, default: str = "") -> None:
    """ZeRO's stage by distributed_type and the version of FSDP."""
    kind = document.get("distributed_type")
    said = str(kind.value).upper() if kind else default
    if said == "DEEPSPEED":
        stage = document.get("deepspeed_config.zero_stage")
        if stage is not None and scalar(stage.value) in ("0", "1", "2", "3"):
            draft.put("zero", int(scalar(stage.value)), origin_of(name, stage))
        elif stage is None:
            draft.missing("zero", "in the DeepSpeed JSON that the file names")
    elif said == "FSDP":
        version = document.get("fsdp_config.fsdp_version", "fsdp_version")
        if version is not None and count(version.value) == 2:
            again = document.get(
                "fsdp_config.fsdp_reshard_after_forward", "fsdp_config.reshard_after_forward"
            )
            kept = again is not None and truth(again.value) is False
            draft.put("zero", 2 if kept else 3, origin_of(name, again))
        else:
            strategy = document.get("fsdp_config.fsdp_sharding_strategy")
            value = str(strategy.value).upper() if strategy else "FULL_SHARD"
            draft.put("zero", _STRATEGIES.get(value, 3), origin_of(name, strategy))
    elif said:
        draft.put("zero", 0, origin_of(name, kind))


def _read_accelerate_launch(files: Files, draft: Draft) -> None:
    files.take_world(draft)
    found = files.flags("num-processes", "tp-size", "dp-shard-size", "parallelism-config-tp-size")
    if found is None:
        return
    name, flags = found
    for axis in ("tp", "cp", "dp_replicate", "dp_shard"):
        key = f"{axis.replace('_', '-')}-size"
        entry = flags.get(f"parallelism-config-{key}", key)
        if entry is not None:
            draft.take(axis, entry, name)
    sharded = flags.get("parallelism-config-dp-shard-size", "dp-shard-size")
    fill_one_way(draft, "tp", "cp", "pp")
    if sharded is not None or flags.has("use-fsdp"):
        draft.put("zero", 3, origin_of(name, sharded))
    draft.facts.pop("gpus_per_node", None)


# -- transformers' DistributedConfig ---------------------------------------------------------------


def _calls(files: Files) -> tuple[str, dict[str, dict[str, Entry]]]:
    """Keyword literals of the configurations that a Python file makes, by the class's name."""
    for name, text in files.python.items():
        if "DistributedConfig(" in text:
            return name, keyword_literals(name, text, ("DistributedConfig", "LlamaConfig"))
    return "", {}


def is_distributed(files: Files) -> bool:
    """Whether a Python file makes transformers' DistributedConfig."""
    return "DistributedConfig" in _calls(files)[1]


def read_distributed(files: Files, draft: Draft) -> None:
    """Fills the draft from DistributedConfig and the LlamaConfig beside it (transformers v5.23.0)."""
    name, calls = _calls(files)
    held = calls["DistributedConfig"]
    for axis, key in (("tp", "tp_size"), ("pp", "pp_size"), ("dp_replicate", "dp_replicate_size")):
        draft.take(axis, held.get(key), name, default=1, by="transformers (v5.23.0)")
    shards = held.get("fsdp_size")
    draft.take("dp_shard", shards, name, default=1, by="transformers (v5.23.0)")
    fill_one_way(draft, "cp")
    draft.derive("zero", 3 if draft.number("dp_shard") != 1 else 0, "fsdp_size shares parameters")
    fields = calls.get("LlamaConfig", {})
    for field, key in (
        ("dim", "hidden_size"),
        ("n_layers", "num_hidden_layers"),
        ("n_heads", "num_attention_heads"),
        ("n_kv_heads", "num_key_value_heads"),
        ("head_dim", "head_dim"),
        ("ffn_dim", "intermediate_size"),
        ("vocab_size", "vocab_size"),
        ("max_seq_len", "max_position_embeddings"),
    ):
        draft.take(field, fields.get(key), name)
    take_switch(draft, "tied", name, fields.get("tie_word_embeddings"), True, False)
    theta = fields.get("rope_parameters.rope_theta")
    if theta is not None:
        draft.put("rope_theta", theta.value, origin_of(name, theta))
    draft.training = False  # batch and sequence are the training script's
    files.take_world(draft)


# -- Trainer ---------------------------------------------------------------------------------------

_FSDP = (("shard_grad_op", 2), ("no_shard", 0))
_TRAINER = ("per-device-train-batch-size", "gradient-accumulation-steps", "model-name-or-path")


def is_trainer(files: Files) -> bool:
    """Whether a command has the Trainer's arguments."""
    return files.flags(_TRAINER[0], _TRAINER[1]) is not None


def read_trainer(files: Files, draft: Draft) -> None:
    """Fills the draft from a command with TrainingArguments, and a DeepSpeed JSON beside it."""
    found = files.flags(*_TRAINER)
    assert found is not None
    name, flags = found
    files.take_world(draft)
    take_hub_model(draft, name, flags.get("model-name-or-path", "model-name"))
    draft.take("micro_batch", flags.get("per-device-train-batch-size"), name, 8, "TrainingArguments")
    draft.take("micro_batches", flags.get("gradient-accumulation-steps"), name, 1, "TrainingArguments")
    length = flags.get("model-max-length", "max-seq-length", "max-length", "block-size")
    draft.take("seq_len", length, name)
    for dtype in ("bf16", "fp16"):
        take_switch(draft, "dtype", name, flags.get(dtype), dtype, None)
    again = flags.get("gradient-checkpointing")
    take_switch(draft, "recompute", name, again, "full", "none")
    fsdp = flags.get("fsdp")
    if fsdp is not None:
        text = scalar(fsdp.value)
        stage = next((n for word, n in _FSDP if word in text), 3)
        draft.put("zero", stage, origin_of(name, fsdp))
        if "offload" in text:
            draft.ignored.append(f"{fsdp.path} offload ({name}:{fsdp.line}): parameters wait on the host")
    elif other := flags.get("config-file", "deepspeed-config-file", "use-deepspeed", "use-fsdp"):
        draft.missing("zero", f"{other.path} {other.value} says it, which is not among these files")
    elif flags.get("deepspeed") is None:
        draft.derive("zero", 0, "DDP, unless --fsdp or --deepspeed")
    deepspeed = files.with_key("zero_optimization", "train_micro_batch_size_per_gpu")
    if deepspeed is not None:
        _take_deepspeed(draft, *deepspeed)
    elif flags.get("deepspeed") is not None:
        entry = flags.get("deepspeed")
        draft.missing("zero", f"in {entry.value if entry else ''}, which is not among these files")
    fill_one_way(draft, "tp", "cp", "pp")


# -- DeepSpeed -------------------------------------------------------------------------------------


def is_deepspeed(files: Files) -> bool:
    """Whether a JSON is DeepSpeed's."""
    return (
        files.with_key("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size") is not None
    )


def read_deepspeed(files: Files, draft: Draft) -> None:
    """Fills the draft from DeepSpeed's JSON alone, which says neither model nor layout."""
    found = files.with_key("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
    assert found is not None
    files.take_world(draft)
    _take_deepspeed(draft, *found)
    why = "DeepSpeed's JSON leaves it to the script"
    for axis in ("tp", "cp", "pp", "virtual_stages"):
        draft.unknown.setdefault(axis, why)
    draft.derive("dp_replicate", 1, "ZeRO shares over all of dp")
    for field in ("model", "micro_batch", "dtype"):
        if field not in draft.facts:
            draft.unknown.setdefault(field, why)
    draft.unknown.setdefault("gpus", why)


def _take_deepspeed(draft: Draft, name: str, document: Document) -> None:
    stage = document.get("zero_optimization.stage")
    if stage is None:
        draft.put("zero", 0, Origin(name, 0, "zero_optimization.stage, 0 unless said"))
    elif scalar(stage.value) in ("0", "1", "2", "3"):
        draft.put("zero", int(scalar(stage.value)), origin_of(name, stage))
    for field, key in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("micro_batches", "gradient_accumulation_steps"),
        ("global_batch", "train_batch_size"),
    ):
        entry = document.get(key)
        if entry is None or (value := count(entry.value)) is None:
            continue  # "auto" is filled in by the caller
        old = draft.get(field)
        if old is not None and old != value:
            why = f"{key} ({name}:{entry.line}) against {draft.facts[field].origin}"
            draft.contradictions.append(Contradiction(field, (old, value), why))
        draft.put(field, value, origin_of(name, entry))
    for dtype in ("bf16", "fp16"):
        take_switch(draft, "dtype", name, document.get(f"{dtype}.enabled"), dtype, None)
    ways = document.get("tensor_parallel.autotp_size")
    if ways is not None and count(ways.value):
        draft.take("tp", ways, name)
    ulysses = document.get("sequence_parallel_size")
    if ulysses is not None and (count(ulysses.value) or 1) > 1:
        draft.refuse(f"sequence_parallel_size {ulysses.value}: Ulysses", origin_of(name, ulysses))
