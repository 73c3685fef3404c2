"""The `llamapar` command: a shell over the library that reads words and answers in text or JSON.

Input that cannot work is told on stderr in the library's own words, never by a traceback; with --json
the object {"error": …} on stdout says the same, so that a script always reads one JSON value.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from llamapar import interrupts
from llamapar.describe.layout import AXES
from llamapar.describe.models import ModelConfig
from llamapar.errors import LayoutError, LlamaparError
from llamapar.frameworks import padding_rule
from llamapar.place import ranks, stages
from llamapar.place.cut import place
from llamapar.records.tables import Table
from llamapar.rules.report import check

from . import checkpoint_command as resharding
from . import explain_command as asking
from . import memory_command as sizing
from . import parsing, words
from . import run_command as running
from .words import Answer, Command, Group, as_text, given, write

_PLACING = ("tp", "pp", "virtual_stages", "padding", "layer_split")


# -- commands ----------------------------------------------------------------------------------


def _check(args: argparse.Namespace) -> Answer:
    facts = given(args, *words.FACTS) | ({"kv_replication": True} if args.kv_replication else {})
    report = check(words.model(args), words.layout(args, *words.LAYOUT), **facts)
    return 0 if report.ok else 1, json.dumps(report.as_dict()) if args.json else as_text(report)


def _ranks(args: argparse.Namespace) -> Answer:
    grid = ranks(words.layout(args, *AXES, "order"), given(args, "rank").get("rank", 0))
    if not args.json:
        return 0, as_text(grid)
    groups = {axis: list(group) for axis, group in grid.peers.items()}
    return 0, json.dumps({"rank": grid.rank, "coord": grid.coord._asdict(), "groups": groups})


def _describe(args: argparse.Namespace) -> Answer:
    model, cut = words.model(args), given(args, *_PLACING)
    if cut and not args.inventory:
        option = words.option(next(iter(cut)))
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
        text += f"\n{as_text(Table(title, columns, cells))}"
    return 0, text


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _inventory(
    model: ModelConfig, args: argparse.Namespace, cut: dict[str, Any]
) -> tuple[str, list[dict[str, Any]]]:
    """A title, and every tensor as plain values in the order of the forward pass."""
    layout = words.layout(args, "tp", "pp", "virtual_stages")
    staged = stages(model, layout, layer_split=cut.get("layer_split", "balanced ends"))
    padding = padding_rule(cut.get("padding"))
    if not staged.ok:
        raise LayoutError(staged.reason, f"{staged.layer_split} cannot place them", ["pp=1"], "pp")
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
    return f"{len(tensors)} tensors over {cuts}, {staged.layer_split}, {padding}", tensors


# -- the command line --------------------------------------------------------------------------

COMMANDS: dict[str, Command | Group] = {
    "model": Command(
        _describe,
        "dimensions and exact parameter count of a model; every tensor with --inventory",
        ("inventory", *_PLACING),
        "llamapar model llama3.1-405b\n  llamapar model llama3-8b --inventory --tp 8 --pp 4",
        exits="0 a model",
        positional=(("model", words.MODEL_HELP),),
    ),
    "check": Command(
        _check,
        "judge a layout: what is wrong, why, what would pass, and what each framework does",
        ("model", "sequence_parallel", "kv_replication", *words.LAYOUT, *words.FACTS),
        "llamapar check --model llama3.1-405b --tp 8 --cp 16 --pp 16 --dp 4 --gpus 16384 --seq-len 131072",
        exits="0 no errors, 1 the layout has errors",
        surplus="--model {word}",
    ),
    "ranks": Command(
        _ranks,
        "where a global rank sits, and who its peers are on each axis",
        (*AXES, "order", "rank"),
        "llamapar ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345\n"
        "  llamapar ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345 --order megatron-lm",
        exits="0 a rank",
    ),
    "run": running.RUN,
    "memory": sizing.MEMORY,
    "loading": sizing.LOADING,
    "checkpoint": resharding.CHECKPOINT,
    "explain": asking.EXPLAIN,
}
"""The commands by name."""

_DESCRIPTION = """See how a Llama-style model is cut over GPUs by tensor (TP), context (CP), pipeline
(PP) and data (DP) parallelism, and whether that works, before it costs a GPU-hour."""

_TOP = Group(_DESCRIPTION, COMMANDS, "llamapar model llama3.1-405b")

_STATUS = """Bad input is told on stderr; with --json, {"error": {"field", "message", "why", "choose"}} on
stdout too."""


def _answered(argv: Sequence[str]) -> Answer:
    """Exit status and text; what is bad input is told on stderr at once."""
    try:
        command, args = parsing.read(argv, _TOP, _STATUS)
        return command.answer(args)
    except LlamaparError as problem:
        told = LlamaparError(problem.what, problem.why, words.as_options(problem.choose), problem.field)
        write(sys.stderr, f"llamapar: {told}")
        return 2, json.dumps({"error": words.as_dict(told)}) if "--json" in argv else ""


def _told(answer: Answer) -> int:
    """The exit status, once the text is written."""
    status, text = answer
    if failure := write(sys.stdout, text):
        write(sys.stderr, f"llamapar: {failure}")
        return 2
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """The `llamapar` command; the exit status is returned."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        if argv[:1] == ["run"] and running.launched():
            return running.as_a_rank(lambda: _told(_answered(argv)))
        return _told(_answered(argv))
    except SystemExit:  # argparse has shown the help that was asked for
        return 0
    except KeyboardInterrupt:
        return interrupts.STATUS
