"""GPT-NeoX's YAML, MaxText's key=value command, ColossalAI's command and plugin.

EleutherAI/gpt-neox @ea7aefd8f8 (megatron/model/transformer.py for the gated width); AI-Hypercomputer/maxtext
src/maxtext/configs/base.yml @e591f30cbb; ColossalAI colossalai/booster/plugin/hybrid_parallel_plugin.py and
examples/language/llama/benchmark.py @4f9953be33.
"""

from __future__ import annotations

import ast
import math
import re

from .documents import Document, Entry
from .draft import Contradiction, Draft, Origin, count, scalar, truth
from .files import Files
from .flags import Flags
from .shell import Word

# -- GPT-NeoX --------------------------------------------------------------------------------------


def _neox(document: Document, key: str) -> Entry | None:
    return document.get(key, key.replace("_", "-"))


def is_neox(files: Files) -> bool:
    """Whether a YAML is GPT-NeoX's."""
    return files.with_key("pipe_parallel_size", "pipe-parallel-size") is not None


def read_neox(files: Files, draft: Draft) -> None:
    """Fills the draft from one of GPT-NeoX's files, or from several merged in their order."""
    names = [
        (name, document)
        for name, document in files.documents.items()
        if any(_neox(document, key) for key in ("pipe_parallel_size", "zero_optimization", "seq_length"))
        or any(True for _ in document.under("zero_optimization"))
    ]
    name = names[0][0] if names else next(iter(files.documents))
    document = Document(name, tuple(e for _, held in names for e in held.entries))
    draft.take("tp", _neox(document, "model_parallel_size"), name, default=1, by="GPT-NeoX")
    draft.take("pp", _neox(document, "pipe_parallel_size"), name, default=1, by="GPT-NeoX")
    draft.derive("cp", 1, "not set")
    draft.derive("dp_replicate", 1, "ZeRO shares over all of dp")
    sequence = _neox(document, "sequence_parallel")
    draft.derive("sequence_parallel", bool(sequence and truth(sequence.value)), "sequence_parallel")
    stage = document.get("zero_optimization.stage")
    if stage is not None and scalar(stage.value) in ("0", "1", "2", "3"):
        draft.put("zero", int(scalar(stage.value)), Origin(name, stage.line, stage.path))
    else:
        draft.missing("zero", "GPT-NeoX merges files; zero_optimization is not in this one")
    draft.take("seq_len", _neox(document, "seq_length"), name)
    for field, key in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("micro_batches", "gradient_accumulation_steps"),
        ("global_batch", "train_batch_size"),
    ):
        entry = _neox(document, key)
        if entry is not None and count(entry.value):
            draft.take(field, entry, name)
    unit = _neox(document, "make_vocab_size_divisible_by")
    padding = f"{(count(unit.value) if unit else None) or 128}*tp"
    draft.put("padding", padding, Origin(name, unit.line if unit else 0, "make_vocab_size_divisible_by"))
    _neox_model(draft, name, document)
    files.take_world(draft)


def _neox_model(draft: Draft, name: str, document: Document) -> None:
    for field, key in (
        ("n_layers", "num_layers"),
        ("dim", "hidden_size"),
        ("n_heads", "num_attention_heads"),
        ("max_seq_len", "max_position_embeddings"),
    ):
        draft.take(field, _neox(document, key), name)
    dim, heads = draft.number("dim"), draft.number("n_heads")
    groups = _neox(document, "num_kv_heads")
    draft.take("n_kv_heads", groups, name, heads, "as many as query heads, unless said")
    width, unit = _neox(document, "intermediate_size"), _neox(document, "mlp_multiple_of")
    inner = count(width.value) if width else None
    inner = inner or (4 * dim if dim else None)
    activation = _neox(document, "activation")
    if inner and activation is not None and scalar(activation.value) == "swiglu":
        each = (count(unit.value) if unit else None) or 1
        gated = math.ceil(int(inner * 2 / 3) / (2 * each)) * each
        how = f"{inner} is not the gated width: two thirds, up to a multiple of 2·{each}, halved"
        draft.derive("ffn_dim", gated, how)
    elif inner:
        draft.derive("ffn_dim", inner, "intermediate_size")
        draft.refuse("an MLP without a gate (no swiglu)")
    base = _neox(document, "rotary_emb_base")
    theta = (count(base.value) if base else None) or 10000
    draft.put("rope_theta", theta, Origin(name, base.line if base else 0, "rotary_emb_base"))
    untied = _neox(document, "no_weight_tying")
    tied = not (untied and truth(untied.value))
    draft.put("tied", tied, Origin(name, untied.line if untied else 0, "no_weight_tying"))
    draft.missing("vocab_size", "from the tokenizer")


# -- MaxText ---------------------------------------------------------------------------------------


def is_maxtext(files: Files) -> bool:
    """Whether a command is MaxText's, of key=value words."""
    return files.has_word("max_target_length=") or files.has_word("per_device_batch_size=")


def read_maxtext(files: Files, draft: Draft) -> None:
    """Each axis is its ways within a slice (ici) times those between (dcn); one of -1 takes what is left."""
    held = dict[str, Entry]()
    name = ""
    for file, script in files.scripts.items():
        name = file
        texts = [*script.variables.values(), *(command.words for command in script.commands)]
        for word in (Word(part, w.line) for words in texts for w in words for part in w.text.split()):
            if match := re.fullmatch(r"([a-z]\w*)=([^=]*)", word.text):
                held[match[1]] = Entry(match[1], match[2], word.line)
            elif re.fullmatch(r"[a-z]\w*:", word.text):
                draft.ignored.append(f"{word.text} ({name}:{word.line}) is no key=value argument")

    def ways(axis: str) -> int:
        total = 1
        for where, default in (("ici", -1 if axis == "fsdp" else 1), ("dcn", -1 if axis == "data" else 1)):
            entry = held.get(f"{where}_{axis}_parallelism")
            said = count(entry.value) if entry else None
            if entry is None and default == -1:
                draft.fills = "dp"
            total *= said or 1
        return total

    fsdp, data = ways("fsdp"), ways("data")
    if "ici_fsdp_parallelism" in held and "dcn_fsdp_parallelism" in held:
        draft.fills = ""  # what is left for data between slices is one
    draft.derive("tp", ways("tensor") * ways("tensor_sequence"), "ici · dcn tensor")
    draft.derive("cp", ways("context") * ways("sequence"), "ici · dcn context")
    draft.derive("pp", ways("pipeline"), "ici · dcn pipeline")
    draft.derive("dp_replicate", data, "ici · dcn data")
    draft.derive("dp_shard", fsdp, "ici · dcn fsdp")
    draft.derive("zero", 3 if fsdp > 1 or draft.fills else 0, "fsdp axes share parameters")
    draft.derive("sequence_parallel", False, "no tensor_sequence axis")
    draft.take("seq_len", held.get("max_target_length"), name, 2048, "MaxText (configs/base.yml@e591f30cbb)")
    batch = held.get("per_device_batch_size")
    each = (
        count(float(str(batch.value))) if batch and re.fullmatch(r"\d+(\.\d+)?", str(batch.value)) else None
    )
    if each and batch is not None:
        shared = math.prod(draft.number(axis) or 1 for axis in ("tp", "cp", "pp"))
        how = f"{batch.path} {each} · {shared} devices that share sequences"
        draft.put("micro_batch", each * shared, Origin(name, batch.line, how))
        draft.derive("micro_batches", 1, "one batch a step")
    policy = held.get("remat_policy")
    if policy is not None:
        draft.put("recompute", str(policy.value), Origin(name, policy.line, policy.path))
    inside = [held[k] for k in held if k.startswith("ici_")]
    if inside and (product := math.prod(count(e.value) or 1 for e in inside)) > 1:
        draft.derive("gpus_per_node", product, "the product of the ici degrees")
    if "model_name" in held:
        draft.take_model("", name, held["model_name"])
    files.take_world(draft)


# -- ColossalAI ------------------------------------------------------------------------------------

_PLUGIN = re.compile(r"HybridParallelPlugin\((.*?)^\s*\)", re.S | re.M)


def _plugin(files: Files) -> tuple[str, dict[str, Entry]] | None:
    """The literal arguments of the first HybridParallelPlugin that a text calls."""
    for name, text in files.texts.items():
        if match := _PLUGIN.search(text):
            try:
                call = ast.parse(f"f({match[1]})", mode="eval").body
            except (SyntaxError, RecursionError, MemoryError, ValueError):
                continue
            assert isinstance(call, ast.Call)
            first = text.count("\n", 0, match.start(1))
            found = {}
            for keyword in call.keywords:
                if keyword.arg and isinstance(keyword.value, ast.Constant):
                    value = keyword.value.value
                    if value is None or isinstance(value, (str, int, float, bool)):
                        found[keyword.arg] = Entry(keyword.arg, value, first + keyword.value.lineno)
            return name, found
    return None


def is_colossalai(files: Files) -> bool:
    """Whether a text calls ColossalAI's plugin, or a command starts it."""
    return _plugin(files) is not None or files.has_word("colossalai")


def read_colossalai(files: Files, draft: Draft) -> None:
    """Fills the draft from the plugin's arguments, or from the benchmark's command."""
    found = _plugin(files)
    files.take_world(draft)
    if found is not None:
        _read_plugin(draft, *found)
    else:
        _read_benchmark(files, draft)
    draft.derive("cp", 1, "no ring over ranks of its own") if "cp" not in draft.facts else None


def _read_plugin(draft: Draft, name: str, held: dict[str, Entry]) -> None:
    by = "ColossalAI (hybrid_parallel_plugin.py@4f9953be33)"
    draft.take("tp", held.get("tp_size"), name)
    draft.take("pp", held.get("pp_size"), name)
    draft.take("virtual_stages", held.get("num_model_chunks"), name, default=1, by=by)
    stage = held.get("zero_stage")
    zero = stage.value if stage is not None and isinstance(stage.value, int) else 0
    draft.put("zero", zero, Origin(name, stage.line if stage else 0, "zero_stage"))
    on, ways = held.get("enable_sequence_parallelism"), held.get("sp_size")
    asked = (count(ways.value) if ways else None) or 1
    active = bool(on and truth(on.value))
    if asked > 1 and not active and ways is not None:
        why = f"sp_size {asked} without enable_sequence_parallelism fails an assertion ({name}:{ways.line})"
        draft.contradictions.append(Contradiction("sequence_parallel", (asked, False), why))
    draft.put("sequence_parallel", active, Origin(name, on.line if on else 0, "enable_sequence_parallelism"))
    for field in ("num_microbatches", "microbatch_size"):
        if entry := held.get(field):
            draft.take("micro_batches" if field == "num_microbatches" else "micro_batch", entry, name)
    style = held.get("pp_style")
    if style is not None:
        draft.put("schedule", str(style.value), Origin(name, style.line, style.path))
    dtype = held.get("precision")
    draft.put(
        "dtype",
        str(dtype.value) if dtype else "fp16",
        Origin(name, dtype.line if dtype else 0, "precision"),
    )
    draft.derive("dp_replicate", 1, "ZeRO shares over all of dp")
    if zero >= 2 and (draft.number("pp") or 1) > 1:
        why = f"zero_stage {zero} with pp_size > 1 fails an assertion (line 1135)"
        draft.contradictions.append(Contradiction("zero", (zero, 1), why))


_PLUGINS = {"zero2": 2, "zero2_cpu": 2, "gemini": 3, "gemini_auto": 3, "ddp": 0}


def _read_training(draft: Draft, name: str, flags: Flags) -> None:
    """A script of its own, of which only the plugin's usual words are known."""
    for field, key in (("tp", "tp"), ("pp", "pp")):
        draft.take(field, flags.get(key, f"{key}-size"), name, default=1, by="ColossalAI")
    plugin = flags.get("plugin", "p")
    stage = _PLUGINS.get(scalar(plugin.value)) if plugin else None
    if plugin is not None and stage is not None:
        draft.put("zero", stage, Origin(name, plugin.line, f"plugin {plugin.value}"))
    else:
        draft.missing("zero", "the script's own defaults would say it")
    draft.derive("sequence_parallel", False, "not asked for")
    draft.derive("dp_replicate", 1, "shared over all of dp")
    again = flags.get("use-grad-checkpoint", "grad-checkpoint", "g")
    if again is not None:
        draft.put("recompute", "full", Origin(name, again.line, again.path))
    dtype = flags.get("mixed-precision")
    if dtype is not None:
        draft.put("dtype", str(dtype.value), Origin(name, dtype.line, dtype.path))
    draft.take("seq_len", flags.get("max-length", "max-len"), name)


def _read_benchmark(files: Files, draft: Draft) -> None:
    """examples/language/llama/benchmark.py: -c model, -p plugin, -b sequences of a DP rank, -l tokens."""
    found = files.flags("b", "plugin", "p", "pp-size", "tp", "batch-size", "g", "c")
    if found is None:
        return
    name, flags = found
    benchmark = files.has_word("benchmark.py")
    model = flags.get("model-name")
    if model is not None and re.search(r"mixtral|moe", str(model.value), re.I):
        draft.covered = False
        draft.refuse(f"{model.value}: MoE", Origin(name, model.line, model.path))
    degrees = {axis: flags.get(f"{axis}-size") for axis in ("pp", "dp", "ep")}
    product = math.prod((count(e.value) if e else None) or 1 for e in degrees.values())
    gpus = draft.number("gpus") or draft.number("gpus_per_node")
    if degrees["ep"] is not None and gpus and product != gpus:
        said = " · ".join(f"{axis} {e.value}" for axis, e in degrees.items() if e)
        draft.contradictions.append(Contradiction("gpus", (gpus, product), f"{said} = {product}"))
    if not draft.covered:
        return
    if not benchmark:
        _read_training(draft, name, flags)
        return
    plugin, zero = flags.get("p", "plugin"), flags.get("zero", "zero-stage")
    kind = scalar(plugin.value) if plugin else "gemini"
    by = "ColossalAI (benchmark.py@4f9953be33)"
    draft.take("tp", flags.get("tp"), name, default=1, by=by)
    draft.take("pp", flags.get("pp"), name, default=1, by=by)
    asked = count(zero.value) if zero else None
    stage = 3 if kind.startswith("gemini") or "fsdp" in kind else asked or 0
    draft.put("zero", stage, Origin(name, plugin.line if plugin else 0, f"plugin {kind}"))
    draft.derive("sequence_parallel", False, "not asked for")
    draft.derive("dp_replicate", 1, "chunks are shared over all of dp")
    draft.take("seq_len", flags.get("l", "max-length"), name, 4096, by)
    each = flags.get("b", "batch-size")
    if each is not None:
        draft.take("batch_per_dp", each, name)
    config = flags.get("c", "config")
    size = str(config.value) if config else "7b"
    draft.take_model(
        f"llama2-{size}" if size in ("7b", "13b", "70b") else size, name, None, "-c, 7b unless said"
    )
    draft.derive("dtype", "bf16", "benchmark.py's mixed precision")
    again = flags.get("g", "grad-checkpoint")
    draft.put("recompute", "full" if again else "none", Origin(name, again.line if again else 0, "-g"))
