"""MaxText's key=value command, ColossalAI's command and plugin.

AI-Hypercomputer/maxtext src/maxtext/configs/base.yml @e591f30cbb; ColossalAI
colossalai/booster/plugin/hybrid_parallel_plugin.py and examples/language/llama/benchmark.py @4f9953be33.
"""

from __future__ import annotations

import math
import re

from llamapar.frameworks.settings import Contradiction

from .documents import Document, Entry
from .draft import Draft, SettingsSource, positive_number, scalar, stage, truth, whole_count
from .files import Files
from .shell_words import Word

# -- MaxText ---------------------------------------------------------------------------------------


def is_maxtext(files: Files) -> bool:
    """Whether a command is MaxText's, of key=value words."""
    return any(map(files.has_word, ("max_target_length=", "per_device_batch_size=", "_parallelism=")))


def read_maxtext(files: Files, draft: Draft) -> None:
    """Fill the draft. An axis is its ways within a slice (ici) times those between (dcn); -1 takes the
    rest.
    """
    held = dict[str, Entry]()
    name, unread = "", ""
    for file, script in files.scripts.items():
        name = file
        texts = [*script.variables.values(), *(command.words for command in script.commands)]
        for word in (Word(part, w.line) for words in texts for w in words for part in w.text.split()):
            config = word.text.rpartition("/")[2]
            if config.endswith(".yml") and config != "base.yml" and config not in files.documents:
                unread = config
            if match := re.fullmatch(r"([a-z]\w*)=([^=]*)", word.text):
                held[match[1]] = Entry(match[1], match[2], word.line)
            elif re.fullmatch(r"[a-z]\w*:", word.text):
                draft.ignored.append(f"{word.text} ({name}:{word.line}) is no key=value argument")

    def ways(axis: str) -> int:
        total = 1
        # -1, "the rest of the devices", is the default of fsdp within a slice and of data between slices.
        for where, default in (("ici", -1 if axis == "fsdp" else 1), ("dcn", -1 if axis == "data" else 1)):
            entry = held.get(f"{where}_{axis}_parallelism")
            said = whole_count(entry.value) if entry else None
            if entry is None and default == -1:
                draft.fills = "dp"
            total *= said or 1
        return total

    fsdp, data = ways("fsdp"), ways("data")
    if "ici_fsdp_parallelism" in held and "dcn_fsdp_parallelism" in held:
        draft.fills = ""  # The remainder for data between slices is one.
    draft.derive("tp", ways("tensor") * ways("tensor_sequence"), "ici · dcn tensor")
    draft.derive("cp", ways("context") * ways("sequence"), "ici · dcn context")
    draft.derive("pp", ways("pipeline"), "ici · dcn pipeline")
    draft.derive("dp_replicate", data, "ici · dcn data")
    draft.derive("dp_shard", fsdp, "ici · dcn fsdp")
    draft.derive("zero", 3 if fsdp > 1 or draft.fills else 0, "fsdp axes share parameters")
    draft.derive("sequence_parallel", False, "no tensor_sequence axis")
    command = SettingsSource(
        name, Document(name, tuple(held.values())).get, draft, "MaxText (base.yml@e591f30cbb)"
    )

    def holder(key: str) -> SettingsSource:
        found = None if key in held else files.with_key(key)
        return SettingsSource(found[0], found[1].get, draft) if found else command

    source = holder("max_target_length")
    if unread and source.get("max_target_length") is None:
        draft.missing("seq_len", f"{unread} may say it, which is not in these files")
    else:
        source.take("seq_len", "max_target_length", default=2048)
    source = holder("per_device_batch_size")
    batch = source.get("per_device_batch_size")
    each = whole_count(positive_number(batch.value)) if batch else None
    if each and batch is not None:
        shared = math.prod(draft.number(axis) or 1 for axis in ("tp", "cp", "pp"))
        how = f"{batch.path} {each} · {shared} devices that share sequences"
        draft.put("micro_batch", each * shared, source.origin(batch, how))
        draft.derive("micro_batches", 1, "one batch a step")
    source = holder("remat_policy")
    if policy := source.text("remat_policy"):
        source.put("recompute", policy, "remat_policy")
    inside = [held[k] for k in held if k.startswith("ici_")]
    if inside and (product := math.prod(whole_count(e.value) or 1 for e in inside)) > 1:
        draft.derive("gpus_per_node", product, "the product of the ici degrees")
    source = holder("model_name")
    if model := source.get("model_name"):
        draft.take_model("", source.name, model)
    files.take_world(draft)


# -- ColossalAI ------------------------------------------------------------------------------------

_PLUGIN = "HybridParallelPlugin"


def is_colossalai(files: Files) -> bool:
    """Whether a text calls ColossalAI's plugin, or a command starts it."""
    return bool(files.calls(_PLUGIN)) or files.has_word("colossalai")


def read_colossalai(files: Files, draft: Draft) -> None:
    """Fill the draft from the plugin's arguments, or from the benchmark's command."""
    found = files.calls(_PLUGIN).get(_PLUGIN)
    files.take_world(draft)
    if found is not None:
        by = "ColossalAI (hybrid_parallel_plugin.py@4f9953be33)"
        _read_plugin(SettingsSource(found.name, found.get, draft, by))
    else:
        _read_command(files, draft)
    draft.unless_said("cp", 1, "no ring over ranks of its own")


def _read_plugin(source: SettingsSource) -> None:
    draft = source.draft
    source.take("tp", "tp_size")
    source.take("pp", "pp_size")
    source.take("virtual_stages", "num_model_chunks", default=1)
    source.parse("zero", "zero_stage", stage, 0)
    zero = draft.number("zero") or 0
    ways, asked = source.get("sp_size"), source.count("sp_size") or 1
    active = source.says("enable_sequence_parallelism") is True
    if asked > 1 and not active and ways is not None:
        why = f"sp_size {asked} without enable_sequence_parallelism fails an assertion"
        why = f"{why} ({source.name}:{ways.line})"
        draft.contradictions.append(Contradiction("sequence_parallel", (asked, False), why))
    source.parse("sequence_parallel", "enable_sequence_parallelism", truth, False)
    source.take("micro_batches", "num_microbatches")
    source.take("micro_batch", "microbatch_size")
    if style := source.get("pp_style"):
        source.put("schedule", str(style.value), "pp_style")
    source.put("dtype", source.text("precision") or "fp16", "precision")
    source.padding("make_vocab_size_divisible_by", 64)
    draft.derive("dp_replicate", 1, "ZeRO shares over all of dp")
    if zero >= 2 and (draft.number("pp") or 1) > 1:
        why = f"zero_stage {zero} with pp_size > 1 fails an assertion (line 1135)"
        draft.contradictions.append(Contradiction("zero", (zero, 1), why))


_PLUGINS = {"zero2": 2, "zero2_cpu": 2, "gemini": 3, "gemini_auto": 3, "ddp": 0}


def _read_training(source: SettingsSource) -> None:
    """Read a user's own script, of which only the plugin's usual words are known."""
    draft = source.draft
    for axis in ("tp", "pp"):
        source.take(axis, axis, f"{axis}-size", default=1)
    plugin = source.get("plugin", "p")
    zero = _PLUGINS.get(scalar(plugin.value)) if plugin else None
    if plugin is not None and zero is not None:
        draft.put("zero", zero, source.origin(plugin, f"plugin {plugin.value}"))
    else:
        draft.missing("zero", "the script's own defaults would say it")
    draft.derive("sequence_parallel", False, "not asked for")
    draft.derive("dp_replicate", 1, "shared over all of dp")
    if again := source.get("use-grad-checkpoint", "grad-checkpoint", "g"):
        draft.put("recompute", "full", source.origin(again))
    if dtype := source.get("mixed-precision"):
        draft.put("dtype", str(dtype.value), source.origin(dtype))
    source.take("seq_len", "max-length", "max-len")
    source.take("micro_batches", "accumulation-steps")
    if plugin is not None and scalar(plugin.value) != "3d":
        source.take("micro_batch", "batch-size")
    source.take("micro_batch", "per-device-train-batch-size")


def _read_command(files: Files, draft: Draft) -> None:
    """The words of a command: of examples/language/llama/benchmark.py, or of a script of its own."""
    found = files.flags("b", "plugin", "p", "pp-size", "tp", "batch-size", "g", "c")
    if found is None:
        return
    source = SettingsSource(found[0], found[1].get, draft, "ColossalAI (benchmark.py@4f9953be33)")
    model = source.get("model-name")
    if model is not None and re.search(r"mixtral|moe", str(model.value), re.I):
        draft.covered = False
        source.refuse(f"{model.value}: MoE", "model-name")
    degrees = {axis: source.count(f"{axis}-size") for axis in ("pp", "dp", "ep")}
    product = math.prod(degree or 1 for degree in degrees.values())
    gpus = draft.number("gpus") or draft.number("gpus_per_node")
    if degrees["ep"] is not None and gpus and product != gpus:
        said = " · ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree)
        draft.contradictions.append(Contradiction("gpus", (gpus, product), f"{said} = {product}"))
    if draft.covered and files.has_word("benchmark.py"):
        _read_benchmark(source)
    elif draft.covered:
        _read_training(source)


def _read_benchmark(source: SettingsSource) -> None:
    """benchmark.py: -c model, -p plugin, -b sequences of a DP rank, -l tokens."""
    draft = source.draft
    plugin = source.get("p", "plugin")
    kind = scalar(plugin.value) if plugin else "gemini"
    source.take("tp", "tp", default=1)
    source.take("pp", "pp", default=1)
    zero = 3 if kind.startswith("gemini") or "fsdp" in kind else source.count("zero", "zero-stage") or 0
    draft.put("zero", zero, source.origin(plugin, f"plugin {kind}"))
    draft.derive("sequence_parallel", False, "not asked for")
    draft.derive("dp_replicate", 1, "chunks are shared over all of dp")
    source.take("seq_len", "l", "max-length", default=4096)
    source.take("batch_per_dp", "b", "batch-size")
    if draft.number("pp") == 1 and (batch := draft.number("batch_per_dp")):
        draft.derive("micro_batch", batch, "no pipeline: the batch of a DP rank goes through whole")
    elif kind == "3d":
        source.take("micro_batch", "mbs", default=1)
    config = source.get("c", "config")
    size = str(config.value) if config else "7b"
    name = f"llama2-{size}" if size in ("7b", "13b", "70b") else size
    draft.take_model(name, source.name, None, "-c, 7b by default")
    draft.derive("dtype", "bf16", "benchmark.py's mixed precision")
    again = source.get("g", "grad-checkpoint")
    draft.put("recompute", "full" if again else "none", source.origin(again))
