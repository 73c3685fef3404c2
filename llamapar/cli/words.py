"""The words of the `llamapar` command: its options, how each is read, and how answers are written.

Values are read here and judged by the library, so that the command and Python refuse the same in the
same words.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import IO, Any, NamedTuple, Protocol

from llamapar.count import ACCOUNTINGS
from llamapar.count.saved import RECOMPUTE
from llamapar.count.schedule import SCHEDULES
from llamapar.describe.counts import number
from llamapar.describe.hardware import GPUS
from llamapar.describe.layout import AXES, AXIS_TITLES, ORDERS, PAPER_ORDER, Layout
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.splits import LAYER_SPLITS, Padding
from llamapar.errors import LayoutError, LlamaparError, one_of, shown, whole
from llamapar.frameworks import FRAMEWORKS
from llamapar.frameworks import framework as find_framework
from llamapar.place.sequence_map import CHUNKINGS
from llamapar.records.tables import fold
from llamapar.rules.machines import BLOCKS

Answer = tuple[int, str]
"""Exit status, and what goes to stdout."""

_SPLITS = [split.replace(" ", "-") for split in LAYER_SPLITS]

MODEL_HELP = "a preset's name, a config.json or params.json, the folder that holds one, or JSON text"


def _any(names: Iterable[str], default: str) -> str:
    """ "a, b (default) or c"."""
    *most, last = (f"{name} (default)" if name == default else name for name in names)
    return f"{', '.join(most)} or {last}"


OPTIONS: dict[str, tuple[str, str]] = {
    "model": ("MODEL", MODEL_HELP),
    **{axis: ("N", f"{AXIS_TITLES[axis]} ranks (default 1)") for axis in AXES},
    "order": ("ORDER", f"rank order, fastest axis first, or a framework's name (default {PAPER_ORDER})"),
    "dp_replicate": ("N", "full copies among the dp ways; the others share them, HSDP (default 1)"),
    "virtual_stages": ("N", "pipeline stages on a rank, interleaved (default 1)"),
    "zero": ("0-3", "ZeRO stage (default 1)"),
    "gpus": ("N", "GPUs there are"),
    "gpus_per_node": ("N", "GPUs that share NVLink (default 8)"),
    "seq_len": ("N", "tokens of a sequence"),
    "batch_tokens": ("N", "tokens of a global batch"),
    "batch_per_dp": ("N", "sequences per DP group and step"),
    "micro_batch": ("N", "sequences of a micro-batch"),
    "global_batch": ("N", "sequences of a step, all DP groups together"),
    "micro_batches": ("N", "micro-batches per step and DP group"),
    "padding": ("RULE", "vocabulary padding: a multiple N, or N*tp, a framework's name, or none"),
    "quant_group": ("N", "weights that share a quantisation scale"),
    "layer_split": ("SPLIT", f"layers per stage: {', '.join(_SPLITS)}"),
    "framework": ("NAME", f"whose rules decide: {', '.join(FRAMEWORKS)} (default: the Llama 3 paper's)"),
    "rank": ("N", "a global rank (default 0)"),
    "engine": ("ENGINE", "local (default), processes (one a rank), or torchrun (default under torchrun)"),
    "device": ("DEVICE", "auto (default), cpu or cuda"),
    "dtype": ("DTYPE", "float64, float32 (default) or bfloat16"),
    "seed": ("N", "of the random tensors (default 0)"),
    "chunking": ("NAME", f"how CP cuts the sequence: {' (default) or '.join(CHUNKINGS)}"),
    "cp_method": ("NAME", "attention under CP: all_gather (default, Llama 3's) or ring"),
    "documents": ("N,N,...", "tokens of each document of a sequence, which attend to their own"),
    "fault": ("NAME", "break the run on purpose; any other word lists the names"),
    "timeout": ("SECONDS", "without progress, after which ranks are given up (default 60)"),
    "recompute": ("NAME", f"what the backward computes again: {_any(RECOMPUTE, 'selective')}"),
    "schedule": ("NAME", f"of the pipeline: {_any(SCHEDULES, '1f1b')}"),
    "accounting": ("RULE", f"who counts: {_any(ACCOUNTINGS, 'exact')}"),
    "gpu": ("GPU", f"whose memory there is: {_any(GPUS, 'h100-80gb')}"),
    "format": ("FORMAT", f"of the file: {_any(BLOCKS, 'q40')}"),
    "nodes": ("N", "machines, which are TP ranks (default 1)"),
    "memory_gib": ("GIB", "memory of each machine, in 2^30 bytes (default 64)"),
    "file": ("FILE", "a log to read instead, of any size"),
    "n_kv_heads": ("N", "KV heads to store, of copies that are equal, or as copies"),
    "against": ("PATH", "another checkpoint of the same model, compared bit for bit"),
    "context": ("JSON", 'what is known besides: {"tp": 8, "heads": 32, "kv_heads": 8, ...}'),
}
"""Metavar and help of every option that takes a value, by field name."""

SWITCHES = {
    "inventory": "list every tensor and where it lies",
    "sequence_parallel": "share the residual stream over TP (default: on)",
    "kv_replication": "hold a KV head on several ranks when tp > n_kv_heads",
    "pads_in_softmax": "a loss that counts the pad rows of the vocabulary",
    "force": "run what check refuses",
    "shrink": "a model with narrow heads and few layers, on at most 64 ranks: same cuts, same faults",
    "tape": "every assignment of the program, with the shape on each rank",
    "trace": "every collective of rank 0",
    "json": "answer in JSON",
}
"""Help of every option that takes no value."""


LAYOUT = (*AXES, "order", "dp_replicate", "virtual_stages", "zero")
FACTS = (
    *("gpus", "gpus_per_node", "seq_len", "batch_tokens", "batch_per_dp", "micro_batch", "global_batch"),
    *("micro_batches", "padding", "quant_group", "layer_split", "framework"),
)
"""The options that say a layout, and what else is known of a job."""


class Command(NamedTuple):
    """what: its help. exits: what its status 0 means, and its status 1 where it has one.

    options: of OPTIONS and SWITCHES. positional: the words after it. surplus: what one more may mean.
    helps: of options that mean something else here.
    """

    answer: Callable[[argparse.Namespace], Answer]
    what: str
    options: tuple[str, ...]
    example: str
    exits: str
    positional: tuple[tuple[str, str], ...] = ()
    surplus: str = ""
    helps: Mapping[str, str] = MappingProxyType({})


class Group(NamedTuple):
    """Commands of which the next word names one. word: what each of them is called."""

    what: str
    commands: Mapping[str, Command | Group]
    example: str
    word: str = "command"


# -- reading what people write -----------------------------------------------------------------


def _count(field: str, text: str) -> int | float:
    """A number; where a short form leaves open which, stderr says what was understood."""
    value, note = number(field, text)
    write(sys.stderr, f"llamapar: {note}" if note else "")
    return value


def _order(text: str) -> str:
    """A rank order by its axes ("tp-cp-pp-dp"), or by the name of a framework that uses it."""
    if text in ORDERS:
        return text
    try:
        named = find_framework(text)
    except LlamaparError:
        near = difflib.get_close_matches(text[:100].lower(), [*ORDERS, *FRAMEWORKS], n=3, cutoff=0.4)
        why = "an order is the four axes joined by -, fastest first, or a framework's name"
        choose = [f"order={name}" for name in near or [PAPER_ORDER]]
        raise LayoutError(f"order={shown(text)} is not known", why, choose, "order") from None
    if named.order is None:
        why = f"{named.title} has no rank order that is known here"
        raise LayoutError(f"order={text} is not known", why, [f"order={PAPER_ORDER}"], "order")
    return named.order


def _padding(text: str) -> str | Padding:
    """A multiple ("64"), a multiple of the TP degree ("64*tp"), "none", or a framework's name."""
    with suppress(LlamaparError):
        return text if text == "none" else find_framework(text).name
    multiple, per_tp, rest = text.partition("*tp")
    try:
        value = _count("padding", text if rest else multiple)
    except LlamaparError:
        return one_of("padding", text, ["none", "64", "64*tp", *FRAMEWORKS], LayoutError)
    return Padding(whole("padding", value, 1, 2**20), bool(per_tp))


def _layer_split(text: str) -> str:
    """A name of LAYER_SPLITS, with hyphens for its spaces."""
    return one_of("layer_split", text.replace(" ", "-"), _SPLITS, LayoutError).replace("-", " ")


def _documents(text: str) -> tuple[int, ...]:
    """Lengths joined by commas: "10,20,34"."""
    return tuple(whole("documents", _count("documents", word)) for word in text.split(","))


_READERS: dict[str, Callable[[str], Any]] = {
    "order": _order,
    "padding": _padding,
    "layer_split": _layer_split,
    "framework": lambda text: find_framework(text).name,
    "documents": _documents,
    **dict.fromkeys(("engine", "device", "dtype", "chunking", "cp_method", "fault", "recompute"), str),
    **dict.fromkeys(("schedule", "accounting", "gpu", "format", "file", "context", "against", "model"), str),
}
"""How the options that are not numbers are read."""


def reader(field: str) -> Callable[[str], Any]:
    """What reads the text of an option."""
    return _READERS.get(field, partial(_count, field))


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options that were given; the library judges their values."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def layout(args: argparse.Namespace, *names: str) -> Layout:
    """The layout of the options `names` that were given."""
    return Layout(sequence_parallel=getattr(args, "sequence_parallel", None), **given(args, *names))


def model(args: argparse.Namespace) -> ModelConfig:
    """The model that was named; LlamaparError where none was."""
    if args.model is None:
        choose = ["llama3.1-405b", "a config.json or params.json", f"{args.prog} --help"]
        raise LlamaparError("a model is needed", f"presets are {', '.join(PRESETS)}", choose, "model")
    return find_model(args.model)


def option(field: str) -> str:
    """A field's name as an option."""
    return f"--{field.replace('_', '-')}"


_CHOICE = re.compile(r"(\w+)=('[^']*'|\S+)")


def as_options(choices: Iterable[str]) -> list[str]:
    """ "tp=8 dp=2" as "--tp 8 --dp 2" and "force=True" as "--force", where they are options."""

    def said(match: re.Match[str]) -> str:
        name, value = match[1], match[2].replace("'", "")
        if name in SWITCHES and value == "True":
            return option(name)
        return f"{option(name)} {value}" if name in OPTIONS else match[0]

    return [_CHOICE.sub(said, text) if _CHOICE.match(text) else text for text in choices]


# -- writing -----------------------------------------------------------------------------------


class _Foldable(Protocol):
    def text(self, width: int | None = None) -> str: ...


def as_text(record: _Foldable | str) -> str:
    """A record, or what is said of it, folded to the terminal's width where stdout is one."""
    width = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
    return fold(record, width) if isinstance(record, str) else record.text(width)


_PLAIN = str.maketrans({"·": "*", "→": "->", "–": "-", "…": "...", "×": "x"})
"""Signs of the texts for streams that cannot carry them."""


def write(stream: IO[str] | None, text: str) -> str:
    """`text` on a line of its own; the reason where that fails. A reader that has left is no failure.

    Names from files may hold anything, so that what a terminal would obey is written as an escape.
    """
    if stream is None or not text:
        return ""
    lines = text.rstrip("\n").split("\n")
    text = "\n".join(
        line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
        for line in lines
    )
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except OSError as problem:
        mute(stream)
        return "" if isinstance(problem, BrokenPipeError) else f"cannot write: {problem.strerror}"
    return ""


def mute(stream: IO[Any]) -> None:
    """Nothing more goes to a stream that failed, or the interpreter would try again, and complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def as_dict(error: LlamaparError) -> dict[str, Any]:
    """An error as plain values for JSON."""
    return {"field": error.field, "message": error.what, "why": error.why, "choose": error.choose}
