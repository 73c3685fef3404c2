"""The settings in a run's log: the lines that a framework prints at its start.

A log becomes a document in its framework's own terms, which that framework's reader then reads. Covered are
Megatron-LM's arguments (megatron/training/arguments.py@d98e8a64dd, _print_args), nanotron's Config
(src/nanotron/trainer.py@2411b022a7), torchtitan's mesh, model and batch, and its whole configuration if the
run prints it (torchtitan/train.py, distributed/parallel_dims.py @238fa9953e), and torchrun's launch
configuration (torch/distributed/launcher/api.py, elastic/agent/server/api.py of torch 2.13). The last start
counts.
"""

from __future__ import annotations

import ast
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate

from .documents import Document, Entry, flat
from .meter import Meter, numbered_matches
from .python_source import call_entries

_ARGUMENTS, _END = "----- arguments -----", "----- end of arguments -----"
_ARGUMENT = re.compile(r"(?:[^.]*[\]:|] ?)?\s*([a-z]\w*) \.* ?(.*)")
_PADDED = re.compile(r"> padded vocab \(size: (\d+)\)")
_NANOTRON = re.compile(r"^(.*?)\bConfig\(general=GeneralArgs\(", re.M)
_NANOTRON_PREFIX = re.compile(r"^.*?\[[A-Z]+\|DP=\d[^\[\]\n]*\]: ?", re.M)
_OBJECT = re.compile(r"<([^<>\n']*)>")
_MESH = re.compile(r"Building \d-D device mesh with (\[[^\[\]\n]*\]), (\[[\d, ]*\])")
_MODEL = re.compile(r"Building (\S+) (\S+) with \w*ModelArgs(?=\()")
_BATCH = re.compile(
    r"Training starts at step[^\nT]*?local batch size:? (\d+), global batch size:? (\d+)"
    r"(?:, gradient accumulation steps:? (\d+))?, sequence length:? (\d+)"
)
_AGAIN = re.compile(r"Applied (\w+) activation checkpointing")
_CONFIG = re.compile(r"Running with (?:args|config): (?=\{)")
_WORLD = re.compile(
    r"\b(?:global_world_sizes=\[|WORLD_SIZE=)(\d+)|\b(?:nproc_per_node +: |LOCAL_WORLD_SIZE=)(\d+)"
)

_WORDS = {"True": True, "False": False, "None": None}

MARKS = (
    "------------------------ arguments ------------------------",
    "Config(general=GeneralArgs(",
    "device mesh with [",
    "nproc_per_node           :",
)
"""One of these stands in every log that says its settings; long ones are found faster."""

MOST_KEPT, MOST_SEARCHED = 4_000_000, 8_000_000
"""Characters of a log that are kept to be read, and that are searched for the marks."""


def is_log(text: str) -> bool:
    """Whether a text contains what a framework prints at its start."""
    return any(mark in text for mark in MARKS)


def read_log(name: str, text: str, meter: Meter) -> Document:
    """The settings in a log, in the terms of its framework's files."""
    for read in (_megatron, _nanotron, _torchtitan):
        entries = [*read(text, meter)]
        if entries:
            break
    # Megatron and nanotron print every argument. torchtitan does so only if it is asked to.
    whole = read is not _torchtitan or _last(_CONFIG, text)
    return Document(name, (*entries, *_torchrun(text)), partial=not whole)


def _last(pattern: re.Pattern[str], text: str) -> deque[tuple[int, re.Match[str]]]:
    """The last match, with its line; empty without one."""
    return deque(numbered_matches(pattern, text), maxlen=1)


def _megatron(text: str, meter: Meter) -> Iterator[Entry]:
    held = dict[str, Entry]()
    current: dict[str, Entry] | None = None  # the block that is not at its end
    for number, row in enumerate(text.split("\n"), 1):
        if current is None:
            current = {} if _ARGUMENTS in row else None
        elif _END in row:
            held, current = current, None
        elif match := _ARGUMENT.match(row):
            said = match[2].rstrip()
            # Some whole numbers are printed as floats, for example 1.0.
            value = _WORDS.get(said, re.sub(r"^(\d+)\.0$", r"\1", said))
            current[match[1]] = Entry(f"MODEL_ARGS.{match[1]}", value, number)
    for line, padded in _last(_PADDED, text):
        if "vocab_size" in held:
            held["vocab_size"] = replace(held["vocab_size"], value=padded[1], line=line)
    if stages := held.get("virtual_pipeline_model_parallel_size"):
        key = "num_virtual_stages_per_pipeline_rank"
        held[key] = replace(stages, path=f"MODEL_ARGS.{key}")
    if "group_query_attention" in held and not held["group_query_attention"].value:
        held.pop("num_query_groups", None)  # printed as 1, and not read
    yield from (entry for entry in held.values() if entry.value is not None)


def _nanotron(text: str, meter: Meter) -> Iterator[Entry]:
    for line, start in _last(_NANOTRON, text):
        rest = _NANOTRON_PREFIX.sub("", text[start.start() : start.start() + MOST_KEPT])
        rest = rest[rest.index("Config(general=") :]
        depths = accumulate((letter == "(") - (letter == ")") for letter in rest[rest.index("(") :])
        length = next((n for n, depth in enumerate(depths, 1) if depth == 0), 0)
        # Python's repr of objects and enums, as <Name.X: 2>, is made a text, so that the rest parses as a
        # call.
        call = _OBJECT.sub(r"'\1'", rest[: rest.index("(") + length])
        for entry in call_entries(call.replace(": 2'", "'").replace(": 1'", "'"), meter):
            yield replace(entry, line=entry.line + line - 1)


_AXES = {
    "pp": "pipeline_parallel_degree",
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree",
    "tp": "tensor_parallel_degree",
}


def _torchtitan(text: str, meter: Meter) -> Iterator[Entry]:
    meshes = _last(_MESH, text)
    if not meshes:
        return
    for line, config in _last(_CONFIG, text):
        yield from _printed(text, config.end(), line, meter)
    for line, mesh in meshes:
        sizes = dict(zip(re.findall(r"\w+", mesh[1]), map(int, re.findall(r"\d+", mesh[2])), strict=False))
        if {*sizes} <= {*_AXES}:
            yield from (Entry(f"parallelism.{key}", sizes.get(axis, 1), line) for axis, key in _AXES.items())
    for line, batch in _last(_BATCH, text):
        for key, group in (("local_batch_size", 1), ("global_batch_size", 2), ("seq_len", 4)):
            yield Entry(f"training.{key}", int(batch[group]), line)
    for line, again in _last(_AGAIN, text):
        yield Entry("activation_checkpoint.mode", again[1], line)
    for line, model in _last(_MODEL, text):
        yield Entry("model.name", model[1], line)
        yield Entry("model.flavor", model[2], line)
        call = text[model.end() :].partition("\n")[0].rpartition(")")[0]
        for entry in call_entries(f"ModelArgs{call})", meter):
            yield replace(entry, path=f"ModelArgs.{entry.path}", line=line)


def _printed(text: str, at: int, line: int, meter: Meter) -> Iterator[Entry]:
    """A configuration that torchtitan prints in full, as JSON or as a dict on one line."""
    try:
        held = json.JSONDecoder().raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        try:
            held = ast.literal_eval(text[at:].partition("\n")[0].strip())
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return
    yield from (replace(entry, line=line) for entry in flat("a log", held, {}, meter))


def _torchrun(text: str) -> Iterator[Entry]:
    for line, match in numbered_matches(_WORLD, text):
        key = "world_size" if match[1] else "nproc_per_node"
        yield Entry(f"torchrun.{key}", int(match[1] or match[2]), line)


class StartUp:
    """Collects the parts of a log that print a run's settings, while the log passes in blocks of lines."""

    def __init__(self) -> None:
        self.kept = ""

    def watch(self, blocks: Iterable[str]) -> Iterator[str]:
        """The same blocks, with empty lines for those not kept, so that line numbers stay valid."""
        searched, skipped, follows = 0, 0, False
        for block in blocks:
            if searched < MOST_SEARCHED:
                searched += len(block)
                # The block after a marked one is kept too, because a print may run over the end of its
                # block.
                marked = any(mark in block for mark in MARKS)
                if (marked or follows) and len(self.kept) + len(block) < MOST_KEPT:
                    self.kept += "\n" * skipped + block
                    skipped = 0
                else:
                    skipped += block.count("\n")
                follows = marked
            yield block
