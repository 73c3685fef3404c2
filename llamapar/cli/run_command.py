"""`llamapar run`: a program on the ranks of a layout, compared with the unsharded model."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from llamapar.describe.layout import AXES
from llamapar.errors import LayoutError, LlamaparError
from llamapar.execution.shrinking import shrink
from llamapar.frameworks import padding_rule
from llamapar.rules.report import Report

from . import words
from .words import Answer, Command, given

if TYPE_CHECKING:
    from llamapar.execution.result import RunResult
    from llamapar.records.trace import Tape

PROGRAMS = ("attention", "embedding", "loss", "mlp", "block", "llama")
"""The programs that the help names; there are more."""

_OPTIONS = (
    "engine",
    "device",
    "dtype",
    "seq_len",
    "global_batch",
    "seed",
    "padding",
    "chunking",
    "cp_method",
)
_SWITCHES = ("kv_replication", "pads_in_softmax", "force")


def _answer(args: argparse.Namespace) -> Answer:
    """Status 0 for a run equal to the reference; 1 for one that differs, raised, was refused or gave up."""
    execute, answers, torchrun = _torch()
    options = given(args, *_OPTIONS, "documents", "fault", "timeout")
    options |= {name: getattr(args, name) for name in _SWITCHES}
    if torchrun.launched() and options.setdefault("engine", "torchrun") != "torchrun":
        what = f"engine={options['engine']!r} under torchrun: each of its processes would run all ranks"
        raise LlamaparError(what, "", ["engine=torchrun", "the same command without torchrun"], "engine")
    try:
        result = _run(execute, args, options)
    except answers.RankFailure as problem:
        return 1, _given_up(problem, args.json)
    except LayoutError as problem:
        if problem.report is None:
            raise
        return 1, _refused(problem.report, args.json)
    return 0 if result.ok else 1, _as_json(result, args) if args.json else _as_text(result, args)


def _torch() -> tuple[Any, Any, Any]:
    """The modules that run layouts; LlamaparError where they cannot be had."""
    try:
        from llamapar.execution import answers, execute
        from llamapar.execution.engines import torchrun
    except ModuleNotFoundError as problem:
        what = f"{problem.name} is not installed, and running a layout needs it"
        why = "every other command needs nothing but Python"
        raise LlamaparError(what, why, ["pip install 'llamapar[run]'"]) from None
    except ImportError as problem:  # a torch that is too old
        raise LlamaparError(str(problem), "", ["pip install --upgrade 'llamapar[run]'"]) from None
    return execute, answers, torchrun


def _run(execute: Any, args: argparse.Namespace, options: dict[str, Any]) -> RunResult:
    if args.program is None:
        choose = [f"llamapar run {name}" for name in PROGRAMS[:2]]
        raise LlamaparError("a program is needed", f"programs are {', '.join(PROGRAMS)}", choose, "program")
    model, layout, notes = words.model(args), words.layout(args, *AXES, "order"), tuple[str, ...]()
    if args.shrink:
        small = shrink(model, layout, padding=padding_rule(options.get("padding")))
        model, layout, notes = small.model, small.layout, small.notes
    try:
        result: RunResult = execute.run(args.program, model, layout, **options)
    except LayoutError as problem:
        if problem.field == "world" and options.get("engine") != "torchrun":
            choose = [*([] if args.shrink else ["--shrink"]), "--model tiny"]
            raise LayoutError(problem.what, problem.why, choose, problem.field) from None
        raise
    return replace(result, notes=(*notes, *result.notes))


# -- answers -----------------------------------------------------------------------------------


def _refused(report: Report, as_json: bool) -> str:
    """The report of a layout that check refuses."""
    if not as_json:
        return f"{words.as_text(report)}\nnot run: --force runs it all the same"
    first = report.errors[0]
    error = LayoutError(f"{first.code} {first.message}", first.why, [fix.text for fix in first.fixes])
    return json.dumps({**report.as_dict(), "error": words.as_dict(error)})


def _given_up(problem: Any, as_json: bool) -> str:
    """The text of a run without a result: a rank that was killed, or never came."""
    told = type(problem)(problem.what, problem.why, words.as_options(problem.choose))
    if not as_json:
        return words.as_text(str(told))
    ranks = {str(rank): text for rank, text in problem.ranks.items()}
    return json.dumps({"ok": False, "error": {**words.as_dict(told), "ranks": ranks}})


def _as_text(result: RunResult, args: argparse.Namespace) -> str:
    parts = [words.as_text(result)]
    if args.tape:
        parts.append(words.as_text(result.tape))
    if args.trace:
        parts.append(words.as_text(str(result.trace)))
    return "\n\n".join(parts)


def _as_json(result: RunResult, args: argparse.Namespace) -> str:
    told = result.as_dict()
    for name, value in told.items():
        if isinstance(value, float) and not math.isfinite(value):
            told[name] = str(value)  # JSON has no infinity: an output that is missing, or of another shape
    if args.tape:
        told["tape"] = _tape(result.tape)
    if args.trace:
        trace = result.trace
        told["trace"] = {"rank": trace.rank, "events": [asdict(event) for event in trace.events]}
    return json.dumps(told, allow_nan=False)


def _tape(tape: Tape) -> dict[str, Any]:
    """A tape as plain values; the keys of `local`, `cut` and `error` are ranks, dims and ranks."""
    steps = [asdict(step) for step in tape.steps]
    return {
        "program": tape.program,
        "layout": tape.layout,
        "ranks": tape.ranks,
        "world": tape.world,
        "steps": steps,
    }


RUN = Command(
    _answer,
    "execute a program on the ranks of a layout, and compare with the unsharded model",
    (
        *("model", *AXES, "order", "sequence_parallel", *_OPTIONS, "documents", "fault", "timeout"),
        *(*_SWITCHES, "shrink", "tape", "trace"),
    ),
    "llamapar run attention --model tiny --tp 4 --cp 2\n"
    "  llamapar run attention --model llama3-8b --tp 16 --shrink --force --tape\n"
    "  torchrun --nproc-per-node 8 -m llamapar run llama --model tiny --tp 4 --dp 2 --json",
    exits="0 equal to the reference, 1 the run differs, raised, was refused or gave up",
    positional=(("program", f"{', '.join(PROGRAMS[:-1])} or {PROGRAMS[-1]}"),),
    surplus="--model {word}",
    helps={"global_batch": "sequences in all (default: one per DP group)"},
)


# -- under torchrun ----------------------------------------------------------------------------


def launched() -> bool:
    """Whether torchrun started this process, and torch is there to say so."""
    with contextlib.suppress(LlamaparError):
        return _torch()[2].launched() is not None
    return False


def as_a_rank(command: Callable[[], int]) -> int:
    """The command on a rank that torchrun started: rank 0 alone writes, all end with its status."""
    from llamapar.execution.engines import torchrun

    if os.environ["RANK"] == "0":
        return torchrun.part(command())
    with open(os.devnull, "w") as void, contextlib.redirect_stdout(void), contextlib.redirect_stderr(void):
        status = command()
    return torchrun.part(status)
