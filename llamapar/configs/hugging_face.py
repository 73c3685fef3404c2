"""Hugging Face's Trainer, Accelerate and DistributedConfig, and DeepSpeed's JSON.

accelerate src/accelerate/parallelism_config.py, commands/launch.py @16cb6eb80d; transformers
src/transformers/training_args.py @fd798335c2; DeepSpeed runtime/config.py @edaa722126.
"""

from __future__ import annotations

import re

from llamapar.describe.families import HF_SIZES
from llamapar.frameworks.settings import MODEL, Contradiction

from .documents import Document, Entry
from .draft import Draft, Fact, SettingsSource, section_of, stage, truth, whole_count
from .files import Files
from .flags import Flags

_DEGREES = ("tp", "cp", "dp_replicate", "dp_shard")


def fill_one_way(draft: Draft, *names: str) -> None:
    """Set the axes that a tool does not have to 1."""
    for name in names:
        draft.unless_said(name, 1, f"{draft.framework} has none here")
    draft.unless_said("sequence_parallel", False, f"{draft.framework} does not cut norms")


def take_dtype(source: SettingsSource, key: str = "{}") -> None:
    """Set the dtype from the switches fp16 and bf16; the last one that is on counts."""
    for dtype in ("fp16", "bf16"):
        source.switch("dtype", key.format(dtype), dtype, None)


def take_hub_model(source: SettingsSource, *keys: str) -> None:
    """Set the model from its repository's name, if one of `keys` gives it."""
    entry = source.get(*keys)
    if entry is None:
        return
    draft = source.draft
    if not draft.take_model("", source.name, entry):
        draft.unknown["dims"] = f"from the config of {entry.value}"
    # Architectures that are told by the name alone are refused; a name that says nothing is left open.
    draft.put("hf", str(entry.value), source.origin(entry))
    text = str(entry.value).lower()
    if re.search(r"mixtral|moe|-a\d+b|deepseek-v[23]|gpt-oss", text):
        _other_model(source, entry, "MoE")
    elif re.search(r"(?:^|[/_-])(?:opt|bloom|gpt2|gpt-j|gpt-neo|pythia|falcon|mpt|phi|gemma)[-\d]", text):
        _other_model(source, entry, "not Llama's architecture")


def _other_model(source: SettingsSource, entry: Entry, why: str) -> None:
    draft = source.draft
    draft.covered = False
    draft.refuse(f"{entry.value}: {why}", source.origin(entry))
    for key in [key for key in draft.facts if section_of(key) == MODEL]:
        del draft.facts[key]


# -- Accelerate ------------------------------------------------------------------------------------


def is_accelerate(files: Files) -> bool:
    """Whether there is an Accelerate YAML, or a launch by it with degrees."""
    return files.with_key("distributed_type", "parallelism_config") is not None or any(
        re.search(r"(?:^|[ /])accelerate launch\b|\baccelerate\.commands\.launch\b", line)
        for line in files.command_lines()
    )


def read_accelerate(files: Files, draft: Draft) -> None:
    """Fill the draft from the YAML or `accelerate launch`; batch and model are in the script."""
    found = files.with_key("distributed_type", "parallelism_config")
    if found is None:
        _read_accelerate_launch(files, draft)
        return
    _take_accelerate(found, draft)
    fill_one_way(draft, "tp", "cp", "pp")


def _take_accelerate(found: tuple[str, Document], draft: Draft) -> None:
    """Read Accelerate's own file: ranks, degrees, ZeRO and dtype."""
    name, document = found
    source = SettingsSource(name, document.get, draft)
    source.take("gpus", "num_processes")
    _spread(source)
    prefix = "parallelism_config.parallelism_config"
    for axis in _DEGREES:
        source.take(axis, f"{prefix}_{axis}_size")
    ways = source.count(f"{prefix}_sp_size") or 1
    if ways > 1:
        source.refuse(f"sp_size {ways}: Ulysses' sequence parallelism", f"{prefix}_sp_size")
        _take_out(draft, ways)
    if source.get(f"{prefix}_dp_shard_size") is None and any(document.under("parallelism_config")):
        draft.derive("dp_shard", 1, "the default of parallelism_config")
    take_sharding(source)
    if source.count("deepspeed_config.gradient_accumulation_steps"):
        source.take("micro_batches", "deepspeed_config.gradient_accumulation_steps")
    _take_precision(source, "mixed_precision")
    source.switch("recompute", "fsdp_config.fsdp_activation_checkpointing", "full", "none")


def _spread(source: SettingsSource) -> None:
    """The ranks of a node."""
    nodes, ranks = source.count("num_machines"), source.draft.number("gpus")
    if nodes and ranks and ranks % nodes == 0:
        how = f"num_processes {ranks} / num_machines {nodes}"
        source.draft.derive("gpus_per_node", ranks // nodes, how)


def _take_out(draft: Draft, ways: int) -> None:
    """Remove Ulysses ranks from dp: they share sequences, so they are an axis of their own."""
    replicate, shard = draft.number("dp_replicate") or 1, draft.number("dp_shard")
    gpus = draft.facts.get("gpus")
    # The product of the axes would otherwise not be the number of GPUs.
    if shard is not None and gpus is not None and isinstance(gpus.value, int):
        draft.derive("dp", replicate * shard, f"{replicate} replicas · {shard} shards")
        draft.facts["other_axes"] = Fact({"ulysses_sp": ways}, gpus.origin)


def _take_precision(source: SettingsSource, key: str) -> None:
    if (precision := source.text(key)) not in ("", "no", "none"):
        source.put("dtype", precision, key)


_STRATEGIES = {"full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0, "hybrid_shard": 3}


def take_sharding(source: SettingsSource, default: str = "") -> None:
    """Set ZeRO's stage from distributed_type and the version of FSDP."""
    said = source.text("distributed_type") or default
    if said == "deepspeed":
        source.parse("zero", "deepspeed_config.zero_stage", stage, None)
        if source.get("deepspeed_config.zero_stage") is None:
            source.draft.missing("zero", "in the DeepSpeed JSON that the file names")
    elif said == "fsdp":
        version = source.get("fsdp_config.fsdp_version", "fsdp_version")
        # FSDP2 has no strategies: whether parameters are freed after the forward decides between stages 2
        # and 3.
        if version is not None and whole_count(version.value) == 2:
            again = source.get("fsdp_config.fsdp_reshard_after_forward", "fsdp_config.reshard_after_forward")
            kept = again is not None and truth(again.value) is False
            source.draft.put("zero", 2 if kept else 3, source.origin(again))
        else:
            strategy = "fsdp_config.fsdp_sharding_strategy"
            source.parse("zero", strategy, lambda value: _STRATEGIES.get(str(value).lower()), 3)
    elif said:
        source.put("zero", 0, "distributed_type")


def _read_accelerate_launch(files: Files, draft: Draft) -> None:
    files.take_world(draft)
    found = files.flags("num-processes", "tp-size", "dp-shard-size", "parallelism-config-tp-size")
    if found is None:
        return
    source = SettingsSource(found[0], found[1].get, draft)
    for axis in ("tp", "cp", "dp_replicate", "dp_shard"):
        key = f"{axis.replace('_', '-')}-size"
        source.take(axis, f"parallelism-config-{key}", key)
    sharded = source.get("parallelism-config-dp-shard-size", "dp-shard-size")
    fill_one_way(draft, "tp", "cp", "pp")
    if sharded is not None or source.on("use-fsdp"):
        draft.put("zero", 3, source.origin(sharded or source.get("use-fsdp")))
    draft.facts.pop("gpus_per_node", None)


# -- transformers' DistributedConfig ---------------------------------------------------------------


_CLASSES = ("DistributedConfig", "LlamaConfig")


def is_distributed(files: Files) -> bool:
    """Whether a text constructs transformers' DistributedConfig."""
    return bool(files.calls(*_CLASSES))


def read_distributed(files: Files, draft: Draft) -> None:
    """Fill the draft from DistributedConfig and the LlamaConfig beside it (transformers v5.23.0)."""
    calls = files.calls(*_CLASSES)
    held = calls["DistributedConfig"]
    source = SettingsSource(held.name, held.get, draft, "transformers (v5.23.0)")
    for axis in ("tp", "pp", "dp_replicate"):
        source.take(axis, f"{axis}_size", default=1)
    source.take("dp_shard", "fsdp_size", default=1)
    fill_one_way(draft, "cp")
    draft.derive("zero", 3 if draft.number("dp_shard") != 1 else 0, "fsdp_size shares parameters")
    model = SettingsSource(held.name, calls.get("LlamaConfig", Document(held.name, ())).get, draft)
    for field, key in HF_SIZES.items():
        model.take(field, key)
    model.switch("tied", "tie_word_embeddings")
    theta = model.get("rope_parameters.rope_theta")
    if theta is not None:
        draft.put("rope_theta", theta.value, model.origin(theta))
    draft.training = False  # batch and sequence are the training script's
    files.take_world(draft)


# -- Trainer ---------------------------------------------------------------------------------------

_FSDP = (("shard_grad_op", 2), ("no_shard", 0))


def zero_stage_of(text: str) -> int:
    """ZeRO's stage, from the words of TrainingArguments.fsdp."""
    return next((stage for word, stage in _FSDP if word in text), 3)


_TRAINER = ("per-device-train-batch-size", "gradient-accumulation-steps", "model-name-or-path")


def is_trainer(files: Files) -> bool:
    """Whether a command, or a YAML, has the Trainer's arguments."""
    # gradient_accumulation_steps alone may be any script's; beside a Hub's model it is the Trainer's.
    named = files.flags(_TRAINER[1]), files.flags(_TRAINER[2])
    return files.flags(_TRAINER[0]) is not None or None not in named or _recipe(files) is not None


def _recipe(files: Files) -> tuple[str, Document] | None:
    """A YAML with TrainingArguments, as TRL's scripts take by --config."""
    return files.with_key("per_device_train_batch_size")


def read_trainer(files: Files, draft: Draft) -> None:
    """Fill the draft from TrainingArguments, and from Accelerate's or DeepSpeed's file beside them."""
    accelerate = files.with_key("distributed_type")
    if accelerate is not None:
        _take_accelerate(accelerate, draft)
    source = _arguments(files, draft)
    before = dict(draft.facts)
    files.take_world(draft)
    # `is` and not `==`: the fact itself tells whether the launch has set it anew.
    if accelerate is not None and draft.facts.get("gpus_per_node") is before.get("gpus_per_node"):
        # The command gives another number of ranks.
        _spread(SettingsSource(accelerate[0], accelerate[1].get, draft))
    take_hub_model(source, "model-name-or-path", "model-name")
    source.take("micro_batch", "per-device-train-batch-size", default=8)
    source.take("micro_batches", "gradient-accumulation-steps", default=1)
    source.take("seq_len", "model-max-length", "max-seq-length", "max-seq-len", "max-length", "block-size")
    _take_precision(source, "mixed-precision")
    take_dtype(source)
    source.switch("recompute", "gradient-checkpointing", "full", "none")
    fsdp, text = source.get("fsdp"), source.text("fsdp")
    named = source.get("deepspeed")
    if fsdp is not None:
        source.put("zero", zero_stage_of(text), "fsdp")
        if "offload" in text:
            draft.refuse("offload: parameters wait on the host", source.origin(fsdp), "offload")
    elif accelerate is not None:
        source.get("config-file")
    # ZeRO is in a file that the command names and that is not here: unknown, and not "none".
    elif other := source.get("config-file", "deepspeed-config-file", "use-deepspeed", "use-fsdp"):
        draft.missing("zero", f"{other.path} {other.value} says it, which is not among these files")
    elif named is None and not files.scripts:
        draft.missing("zero", "the launch says it, which is not among these files")
    elif named is None:
        draft.derive("zero", 0, "DDP, unless --fsdp or --deepspeed")
    take_deepspeed_file(files, draft, named)
    fill_one_way(draft, "tp", "cp", "pp")


def _arguments(files: Files, draft: Draft) -> SettingsSource:
    """The arguments of the command or, without any, of the YAML."""
    found = files.flags(*_TRAINER) or _recipe(files)
    assert found is not None
    return dashed_or_underscored(found, draft, "TrainingArguments")


def dashed_or_underscored(found: tuple[str, Flags | Document], draft: Draft, by: str) -> SettingsSource:
    """Arguments that stand in a command with dashes, in a file with underscores."""
    name, held = found
    old, new = ("-", "_") if isinstance(held, Document) else ("_", "-")

    def look(*keys: str) -> Entry | None:
        return held.get(*(key.replace(old, new) for key in keys))

    return SettingsSource(name, look, draft, by)


def take_deepspeed_file(files: Files, draft: Draft, named: Entry | None) -> None:
    """Read DeepSpeed's JSON if it is given; if it is only named, ZeRO's stage is unknown."""
    found = files.with_key("zero_optimization", "train_micro_batch_size_per_gpu")
    if found is not None:
        _take_deepspeed(SettingsSource(found[0], found[1].get, draft))
    elif named is not None and named.value:
        draft.missing("zero", f"in {named.value}, which is not among these files")


# -- DeepSpeed -------------------------------------------------------------------------------------

_DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")


def is_deepspeed(files: Files) -> bool:
    """Whether a JSON is DeepSpeed's; `train_batch_size` alone may be anybody's."""
    return files.with_key(*_DEEPSPEED[:2]) is not None or (
        files.with_key(_DEEPSPEED[2]) is not None
        and files.with_key("bf16.enabled", "fp16.enabled") is not None
    )


def read_deepspeed(files: Files, draft: Draft) -> None:
    """Fill the draft from DeepSpeed's JSON alone, which gives neither model nor layout."""
    found = files.with_key(*_DEEPSPEED)
    assert found is not None
    files.take_world(draft)
    _take_deepspeed(SettingsSource(found[0], found[1].get, draft))
    why = "DeepSpeed's JSON leaves it to the script"
    for axis in ("tp", "cp", "pp", "virtual_stages"):
        draft.unknown.setdefault(axis, why)
    draft.derive("dp_replicate", 1, "ZeRO shares over all of dp")
    for field in ("model", "micro_batch", "dtype"):
        if field not in draft.facts:
            draft.unknown.setdefault(field, why)
    draft.unknown.setdefault("gpus", why)


def _take_deepspeed(source: SettingsSource) -> None:
    draft = source.draft
    source.parse("zero", "zero_optimization.stage", stage, 0)
    for field, key in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("micro_batches", "gradient_accumulation_steps"),
        ("global_batch", "train_batch_size"),
    ):
        # The Trainer compares these numbers with its own and refuses to start, so a difference is an
        # error.
        if (value := source.count(key)) is None:
            continue  # The caller fills in "auto".
        old = draft.facts.get(field)
        if old is not None and old.value != value:
            why = f"{source.origin(source.get(key))} against {old.origin}"
            draft.contradictions.append(Contradiction(field, (old.value, value), why))
        source.put(field, value, key)
    take_dtype(source, "{}.enabled")
    if source.count("tensor_parallel.autotp_size"):
        source.take("tp", "tensor_parallel.autotp_size")
    ways = source.count("sequence_parallel_size") or 1
    if ways > 1:
        source.refuse(f"sequence_parallel_size {ways}: Ulysses", "sequence_parallel_size")
