"""Launches that serve: llama-models' torchrun, distributed-llama's workers, vLLM's arguments.

meta-llama/llama3 @a0940f9cf7 and codellama @e81b597e44: ranks = checkpoint files. b4rtaz/distributed-llama
src/app.cpp @8d624a7b1f: one root and the workers. vLLM vllm/config/parallel.py @00193b82b0.
"""

from __future__ import annotations

import itertools
import re

from .documents import Entry
from .draft import Draft, Origin
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
    """tp is torchrun's world, which has to be the number of consolidated.*.pth files."""
    found = files.flags("ckpt-dir")
    assert found is not None
    name, flags = found
    _serves(draft, "cp", "pp")
    files.take_world(draft)
    if (gpus := draft.number("gpus")) is not None:
        draft.derive("tp", gpus, "the ranks that torchrun starts")
    draft.derive("dp", 1, "the reference code has no DP")
    draft.take("seq_len", flags.get("max-seq-len"), name)
    model = flags.get("ckpt-dir")
    if model is not None and is_known(model):
        draft.take_model("", name, model)


# -- distributed-llama -----------------------------------------------------------------------------


def is_distributed_llama(files: Files) -> bool:
    """Whether a command starts distributed-llama."""
    return files.has_word("dllama")


def read_distributed_llama(files: Files, draft: Draft) -> None:
    """tp is the root and its workers."""
    found = files.flags("workers", "nthreads", "buffer-float-type")
    if found is None:
        draft.missing("tp", "no command of a root")
        return
    name, flags = found
    _serves(draft, "cp", "pp")
    workers = flags.get("workers")
    nodes = 1 + len(flags.values.get("workers", ()))
    draft.put("tp", nodes, Origin(name, workers.line if workers else 0, "--workers and the root"))
    draft.derive("dp", 1, "distributed-llama has no DP")
    draft.derive("gpus_per_node", 1, "one rank a device")
    draft.take("seq_len", flags.get("max-seq-len"), name)
    model, buffers = flags.get("model"), flags.get("buffer-float-type")
    text = str(model.value) if model else ""
    weights = re.search(r"(q40|q80|f16|f32)", text)
    if weights and buffers is not None:
        said = f"{weights[1]} weights, {buffers.value} buffers"
        draft.put("dtype", said, Origin(name, buffers.line, buffers.path))
    match = re.search(r"llama[_-]?(\d)(?:[_.-](\d))?[_-](\d+)b", text.lower())
    if match and model is not None:
        version = f"{match[1]}.{match[2]}" if match[2] else match[1]
        draft.take_model("", name, Entry(model.path, f"llama{version}-{match[3]}b", model.line))


# -- vLLM ------------------------------------------------------------------------------------------


def is_vllm(files: Files) -> bool:
    """Whether a command starts vLLM."""
    return files.has_word("vllm")


def _vllm_model(flags: Flags) -> Entry | None:
    if model := flags.get("model"):
        return model
    words = [*flags.words]
    for before, word in itertools.pairwise(words):
        if before.text == "serve" and not word.text.startswith("-"):
            return Entry("vllm serve", word.text, word.line)
    return None


def read_vllm(files: Files, draft: Draft) -> None:
    """Degrees by flags, 1 unless said; vLLM starts tp·pp processes itself."""
    found = files.flags("tensor-parallel-size", "tp", "pipeline-parallel-size", "max-model-len", "model")
    _serves(draft)
    if found is None:
        draft.missing("tp", "no vLLM arguments")
        return
    name, flags = found
    by = "vLLM (config/parallel.py@00193b82b0)"
    draft.take("tp", flags.get("tensor-parallel-size", "tp"), name, default=1, by=by)
    draft.take("pp", flags.get("pipeline-parallel-size", "pp"), name, default=1, by=by)
    draft.take("dp", flags.get("data-parallel-size", "dp"), name, default=1, by=by)
    draft.take("cp", flags.get("decode-context-parallel-size", "dcp"), name, default=1, by=by)
    draft.derive("padding", "64", "vLLM pads its vocabulary to a multiple of 64")
    dtype = flags.get("dtype")
    draft.put(
        "dtype",
        str(dtype.value) if dtype else "auto",
        Origin(name, dtype.line if dtype else 0, "--dtype"),
    )
    length = flags.get("max-model-len")
    if length is not None:
        draft.take("seq_len", length, name)
    model = _vllm_model(flags)
    if model is not None and is_known(model) and not draft.take_model("", name, model):
        draft.unknown["dims"] = f"from the config of {model.value}"
    if flags.has("enable-expert-parallel"):
        draft.refuse("--enable-expert-parallel", Origin(name))
    if "max_seq_len" in draft.facts and length is None:
        draft.unknown.setdefault("seq_len", "the model's own, unless --max-model-len")
