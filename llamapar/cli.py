"""The `llamapar` command: a shell over the library that reads words and answers in text or JSON.

Input that cannot work is told on stderr in the library's own words, never by a traceback; with --json
the object {"error": …} on stdout says the same, so that a script always reads one JSON value.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any, NoReturn

from .errors import LayoutError, LlamaparError, one_of, shown, whole
from .frameworks import FRAMEWORKS, padding_rule
from .frameworks import framework as find_framework
from .layout import AXES, AXIS_TITLES, ORDERS, PAPER_ORDER, Layout
from .maps import ranks, stages
from .maps.tables import text_table
from .model import PRESETS, ModelConfig
from .model import model as find_model
from .report import check
from .shard import LAYER_SPLITS, Padding, place

Answer = tuple[int, str]
"""Exit status, and what goes to stdout."""

_SPLITS = [split.replace(" ", "-") for split in LAYER_SPLITS]

_OPTIONS: dict[str, tuple[str, str]] = {
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
}
"""Metavar and help of every option that takes a value, by field name."""

_LAYOUT = (*AXES, "order", "dp_replicate", "virtual_stages", "zero")
_FACTS = (
    *("gpus", "gpus_per_node", "seq_len", "batch_tokens", "batch_per_dp", "micro_batch", "global_batch"),
    *("micro_batches", "padding", "quant_group", "layer_split", "framework"),
)
_PLACING = ("tp", "pp", "virtual_stages", "padding", "layer_split")


# -- reading what people write -----------------------------------------------------------------


def _number(field: str, text: str) -> int | float:
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    near = int(re.sub(r"[^0-9]", "", text)[:7] or 1)
    raise LayoutError(f"{field}={shown(text)}: a whole number is needed", "", [f"{field}={near or 1}"], field)


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
        number = _number("padding", text if rest else multiple)
    except LlamaparError:
        return one_of("padding", text, ["none", "64", "64*tp", *FRAMEWORKS], LayoutError)
    return Padding(whole("padding", number, 1, 2**20), bool(per_tp))


def _layer_split(text: str) -> str:
    """A name of LAYER_SPLITS, with hyphens for its spaces."""
    return one_of("layer_split", text.replace(" ", "-"), _SPLITS, LayoutError).replace("-", " ")


_READERS: dict[str, Callable[[str], Any]] = {
    "order": _order,
    "padding": _padding,
    "layer_split": _layer_split,
    "framework": lambda text: find_framework(text).name,
}
"""How the options that are not numbers are read."""


def _given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options that were given, read; the library judges their values."""
    words = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {
        name: _READERS[name](text) if name in _READERS else _number(name, text)
        for name, text in words.items()
    }


def _layout(args: argparse.Namespace, *names: str) -> Layout:
    return Layout(sequence_parallel=getattr(args, "sequence_parallel", None), **_given(args, *names))


def _model(args: argparse.Namespace) -> ModelConfig:
    if args.model is None:
        choose = ["llama3.1-405b", "a config.json or params.json", f"llamapar {args.command} --help"]
        raise LlamaparError("a model is needed", f"presets are {', '.join(PRESETS)}", choose, "model")
    return find_model(args.model)


# -- commands ----------------------------------------------------------------------------------


def _check(args: argparse.Namespace) -> Answer:
    facts = _given(args, *_FACTS) | ({"kv_replication": True} if args.kv_replication else {})
    report = check(_model(args), _layout(args, *_LAYOUT), **facts)
    return 0 if report.ok else 1, json.dumps(report.as_dict()) if args.json else str(report)


def _ranks(args: argparse.Namespace) -> Answer:
    grid = ranks(_layout(args, *AXES, "order"), _given(args, "rank").get("rank", 0))
    if not args.json:
        return 0, str(grid)
    groups = {axis: list(group) for axis, group in grid.peers.items()}
    return 0, json.dumps({"rank": grid.rank, "coord": grid.coord._asdict(), "groups": groups})


def _describe(args: argparse.Namespace) -> Answer:
    model, cut = _model(args), _given(args, *_PLACING)
    if cut and not args.inventory:
        option = _option(next(iter(cut)))
        raise LlamaparError(f"{option} places tensors and needs --inventory", "", [f"--inventory {option} …"])
    dims = asdict(model)
    known = {"name": dims.pop("name"), **dims, "parameters": model.n_params}
    known["parameters_per_layer"] = model.layer_params
    known["parameters_embedding"] = model.vocab_size * model.dim
    title, tensors = _inventory(model, args, cut) if args.inventory else ("", [])
    if args.json:
        return 0, json.dumps(known | ({"inventory": tensors} if args.inventory else {}))
    if scaling := model.rope_scaling:
        dims["rope_scaling"] = f"{scaling.kind}, factor {scaling.factor:g}"
    head = "the embedding's" if model.tied else f"{model.vocab_size * model.dim:,}"
    rows = [(f"  {name}", _shown(value)) for name, value in dims.items()]
    rows += [
        ("parameters", f"{model.n_params:,}"),
        ("  layers", f"{model.n_layers} x {model.layer_params:,}"),
        ("  embedding", f"{model.vocab_size * model.dim:,}"),
        ("  output head", head),
        ("  final norm", f"{model.dim:,}"),
    ]
    text = "\n".join([model.name, *(f"{name:<14}  {value}" for name, value in rows)])
    if args.inventory:
        cells = [["x".join(map(str, v)) if isinstance(v, list) else v for v in t.values()] for t in tensors]
        columns = ["tensor", "Hugging Face", "shape", "over TP", "on TP rank 0", "stage"]
        text += "\n" + text_table(title, columns, cells)
    return 0, text


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _inventory(
    model: ModelConfig, args: argparse.Namespace, cut: dict[str, Any]
) -> tuple[str, list[dict[str, Any]]]:
    """A title, and every tensor as plain values in the order of the forward pass."""
    layout = _layout(args, "tp", "pp", "virtual_stages")
    staged = stages(model, layout, split=cut.get("layer_split", "balanced ends"))
    padding = padding_rule(cut.get("padding"))
    if not staged.ok:
        raise LayoutError(staged.reason, f"{staged.split} cannot place them", ["pp=1"], "pp")
    tensors = [
        {
            "name": placed.parameter.name,
            "hf_name": placed.parameter.hf_name,
            "shape": list(placed.parameter.shape),
            "tp": str(placed.tp),
            "local_shape": list(placed.local_shape(layout, 0, padding)),
            "stage": placed.stage,
        }
        for placed in place(model, layout, staged.counts)
    ]
    cuts = f"tp={layout.tp} pp={layout.pp} virtual_stages={layout.virtual_stages}"
    return f"{len(tensors)} tensors over {cuts}, {staged.split}, {padding}", tensors


# -- the command line --------------------------------------------------------------------------

_STATUS = """exit status: 0 fine, 1 the layout has errors, 2 bad usage or bad input
Bad input is told on stderr; with --json, {"error": {"field", "message", "why", "choose"}} on stdout too."""

_MODEL_HELP = "a preset's name, a config.json or params.json, the folder that holds one, or JSON text"

_COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], Answer], str, tuple[str, ...], str]] = {
    "model": (
        _describe,
        "dimensions and exact parameter count of a model; every tensor with --inventory",
        _PLACING,
        "llamapar model llama3.1-405b\n  llamapar model llama3-8b --inventory --tp 8 --pp 4",
    ),
    "check": (
        _check,
        "judge a layout: what is wrong, why, what would pass, and what each framework does",
        (*_LAYOUT, *_FACTS),
        "llamapar check --model llama3.1-405b --tp 8 --cp 16 --pp 16 --dp 4 --gpus 16384 --seq-len 131072",
    ),
    "ranks": (
        _ranks,
        "where a global rank sits, and who its peers are on each axis",
        (*AXES, "order", "rank"),
        "llamapar ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345\n"
        "  llamapar ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345 --order megatron-lm",
    ),
}
"""What each command does, its help, its options, and an example."""


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


class _Parser(argparse.ArgumentParser):
    """argparse that raises, and that writes its help as everything else is written."""

    def __init__(self, **settings: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=form, allow_abbrev=False, **settings)
        self.color = False  # Python 3.14 colours help, and _write lets no escape through

    def error(self, message: str) -> NoReturn:
        raise LlamaparError(message, "", [f"{self.prog} --help"])

    def _print_message(self, message: str, file: Any = None) -> None:
        _write(file or sys.stdout, message)


def _parser() -> tuple[_Parser, dict[str, _Parser]]:
    """The whole parser, and those of the commands."""
    top = _Parser(
        prog="llamapar",
        description="See how a Llama-style model is cut over GPUs by tensor (TP), context (CP), pipeline\n"
        "(PP) and data (DP) parallelism, and whether that works, before it costs a GPU-hour.",
        epilog=f"example:\n  {_COMMANDS['check'][3]}\n\n{_STATUS}",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (_, what, options, example) in _COMMANDS.items():
        parser = commands.add_parser(
            name,
            help=what,
            description=f"{what[0].upper()}{what[1:]}.",
            epilog=f"example:\n  {example}\n\n{_STATUS}",
        )
        if name == "model":
            parser.add_argument("model", nargs="?", metavar="MODEL", help=_MODEL_HELP)
            parser.add_argument(
                "--inventory", action="store_true", help="list every tensor and where it lies"
            )
        if name == "check":
            parser.add_argument("--model", metavar="MODEL", help=_MODEL_HELP)
            switch, on_tp = argparse.BooleanOptionalAction, "share the residual stream over TP (default: on)"
            parser.add_argument("--sequence-parallel", action=switch, default=None, help=on_tp)
            copies = "hold a KV head on several ranks when tp > n_kv_heads"
            parser.add_argument("--kv-replication", action="store_true", help=copies)
        for option in options:
            metavar, help_text = _OPTIONS[option]
            parser.add_argument(_option(option), metavar=metavar, help=help_text)
        parser.add_argument("--json", action="store_true", help="answer in JSON")
    return top, dict(commands.choices)


def _read(argv: Sequence[str]) -> argparse.Namespace:
    """The command line as values; LlamaparError with the nearest names for what is not one."""
    top, commands = _parser()
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help")):
        raise LlamaparError("a command is needed first", "", [*_COMMANDS, "llamapar --help"], "command")
    if not argv[0].startswith("-"):
        one_of("command", argv[0], _COMMANDS, LlamaparError)
    args, rest = top.parse_known_args(argv)
    if not rest:
        return args
    word, help_of = rest[0], f"llamapar {args.command} --help"
    if word.startswith("-"):
        options = re.findall(r"--[a-z-]+", commands[args.command].format_help().partition("example:")[0])
        near = difflib.get_close_matches(word.partition("=")[0][:100], dict.fromkeys(options), n=2)
        raise LlamaparError(
            f"{shown(word)} is not an option of llamapar {args.command}", "", near or [help_of]
        )
    choose = [f"--model {word}"] if args.command == "check" and args.model is None else [help_of]
    raise LlamaparError(f"{shown(word)} is one word too many", "", choose)


# -- writing -----------------------------------------------------------------------------------

_PLAIN = str.maketrans({"·": "*", "→": "->", "–": "-", "…": "...", "×": "x"})
"""Signs of the texts for streams that cannot carry them."""


def _write(stream: IO[str] | None, text: str) -> str:
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
        with suppress(OSError, ValueError):  # or the interpreter would try again, and complain, as it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return "" if isinstance(problem, BrokenPipeError) else f"cannot write: {problem.strerror}"
    return ""


def _as_options(choices: Iterable[str]) -> list[str]:
    """ "gpus_per_node=8" as "--gpus-per-node 8", where it is an option."""
    pairs = [(choice, *choice.partition("=")) for choice in choices]
    return [
        f"{_option(name)} {value}" if sep and name in _OPTIONS else text for text, name, sep, value in pairs
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """The `llamapar` command; the exit status is returned."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _read(argv)
        status, text = _COMMANDS[args.command][0](args)
    except LlamaparError as problem:
        told = LlamaparError(problem.what, problem.why, _as_options(problem.choose), problem.field)
        error = {"field": told.field, "message": told.what, "why": told.why, "choose": told.choose}
        status, text = 2, json.dumps({"error": error}) if "--json" in argv else ""
        _write(sys.stderr, f"llamapar: {told}")
    except SystemExit:  # argparse has shown the help that was asked for
        return 0
    except KeyboardInterrupt:
        return 130
    if failure := _write(sys.stdout, text):
        _write(sys.stderr, f"llamapar: {failure}")
        return 2
    return status
