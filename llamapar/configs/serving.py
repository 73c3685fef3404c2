"""Launches for serving: llama-models' torchrun, distributed-llama's workers, vLLM's arguments, bare torchrun.

meta-llama/llama3 @a0940f9cf7 and codellama @e81b597e44: ranks = checkpoint files. b4rtaz/distributed-llama
src/app.cpp @8d624a7b1f: one root and the workers. vLLM vllm/config/parallel.py @00193b82b0.
"""

from __future__ import annotations

import itertools
import re

from .documents import Entry
from .draft import Draft, SettingsSource
from .files import Files
from .flags import Flags, is_known


def _serves(draft: Draft, *none: str) -> None:
    draft.training = False
    for name in none:
        draft.derive(name, 1, f"{draft.framework} has none")
    draft.derive("zero", 0, "nothing is trained")
    draft.derive("sequence_parallel", False, f"{draft.framework} does not cut norms")


# -- llama-models ----------------------------------------------------------------------------------


def is_meta(files: Files) -> bool:
    """Whether a command starts Meta's reference code."""
    return files.flags("ckpt-dir") is not None


def read_meta(files: Files, draft: Draft) -> None:
    """Fill the draft: tp is torchrun's world, which must equal the number of consolidated.*.pth files."""
    found = files.flags("ckpt-dir")
    assert found is not None
    source = SettingsSource(found[0], found[1].get, draft)
    _serves(draft, "cp", "pp")
    files.take_world(draft)
    if (gpus := draft.number("gpus")) is not None:
        # Meta's code cuts by TP alone, so all ranks that are started are TP ranks.
        draft.derive("tp", gpus, "the ranks that torchrun starts")
    draft.derive("dp", 1, "the reference code has no DP")
    source.take("seq_len", "max-seq-len")
    model = source.get("ckpt-dir")
    if model is not None and is_known(model):
        draft.take_model("", source.name, model)


# -- distributed-llama -----------------------------------------------------------------------------


def is_distributed_llama(files: Files) -> bool:
    """Whether a command starts distributed-llama."""
    return files.has_word("dllama")


def read_distributed_llama(files: Files, draft: Draft) -> None:
    """Fill the draft: tp counts the root and its workers."""
    found = files.flags("workers", "nthreads", "buffer-float-type")
    if found is None:
        draft.missing("tp", "no command of a root")
        return
    source, flags = SettingsSource(found[0], found[1].get, draft), found[1]
    _serves(draft, "cp", "pp")
    # The root computes too.
    nodes = 1 + len(flags.values.get("workers", ()))
    if workers := source.get("workers"):
        draft.put("tp", nodes, source.origin(workers, "--workers and the root"))
    else:
        source.put("tp", 1, "workers")
    draft.derive("dp", 1, "distributed-llama has no DP")
    draft.derive("gpus_per_node", 1, "one rank a device")
    source.take("seq_len", "max-seq-len")
    text = source.text("model")
    weights = re.search(r"(q40|q80|f16|f32)", text)
    if weights and (buffers := source.text("buffer-float-type")):
        source.put("dtype", f"{weights[1]} weights, {buffers} buffers", "buffer-float-type")
    match = re.search(r"llama[_-]?(\d)(?:[_.-](\d))?[_-](\d+)b", text)
    model = source.get("model")
    if match and model is not None:
        version = f"{match[1]}.{match[2]}" if match[2] else match[1]
        draft.take_model("", source.name, Entry(model.path, f"llama{version}-{match[3]}b", model.line))


# -- vLLM ------------------------------------------------------------------------------------------


_IMAGE = "vllm-openai"
"""In the name of the container images whose entry point serves: what follows are vLLM's arguments."""


def is_vllm(files: Files) -> bool:
    """Whether a command starts vLLM's server: one that installs it, or passes its name on, does not."""
    starts = rf"(?:^|[ /])vllm (?:serve|bench|chat|run-batch)\b|\bvllm\.entrypoints\.|{_IMAGE}|vllm/vllm"
    return any(re.search(starts, line) for line in files.command_lines())


def _vllm_model(flags: Flags) -> Entry | None:
    if model := flags.get("model"):
        return model
    words = [*flags.words]
    for before, word in itertools.pairwise(words):
        # `vllm serve MODEL`, or a container whose entry point is that command.
        if (before.text == "serve" or _IMAGE in before.text) and not word.text.startswith("-"):
            return Entry("vllm serve", word.text, word.line)
    return None


def read_vllm(files: Files, draft: Draft) -> None:
    """Fill the draft from flags, 1 by default; vLLM itself starts tp·pp processes."""
    found = files.flags("tensor-parallel-size", "tp", "pipeline-parallel-size", "max-model-len", "model")
    found = found or files.flags("port", "host", "enforce-eager", "gpu-memory-utilization")
    _serves(draft)
    if found is None:
        draft.missing("tp", "no vLLM arguments")
        return
    source, flags = (
        SettingsSource(found[0], found[1].get, draft, "vLLM (config/parallel.py@00193b82b0)"),
        found[1],
    )
    source.take("tp", "tensor-parallel-size", "tp", default=1)
    source.take("pp", "pipeline-parallel-size", "pp", default=1)
    source.take("dp", "data-parallel-size", "dp", default=1)
    source.take("cp", "decode-context-parallel-size", "dcp", default=1)
    draft.derive("padding", "64", "vLLM pads its vocabulary to a multiple of 64")
    source.put("dtype", source.text("dtype") or "auto", "dtype")
    source.take("seq_len", "max-model-len")
    model = _vllm_model(flags)
    if model is not None and is_known(model) and not draft.take_model("", source.name, model):
        draft.unknown["dims"] = f"from the config of {model.value}"
    if source.on("enable-expert-parallel"):
        source.refuse("expert parallel", "enable-expert-parallel")
    if "max_seq_len" in draft.facts and source.get("max-model-len") is None:
        draft.unknown.setdefault("seq_len", "the model's own, unless --max-model-len")


# -- torchrun --------------------------------------------------------------------------------------


def is_torchrun(files: Files) -> bool:
    """Whether a log holds what torchrun prints, and no framework's settings."""
    return files.with_key("torchrun") is not None


def read_torchrun(files: Files, draft: Draft) -> None:
    """Read the number of ranks that torchrun started; everything else is the script's."""
    files.take_world(draft)
    for field in ("tp", "cp", "pp", "zero"):
        draft.missing(field, "torchrun leaves it to the script")
