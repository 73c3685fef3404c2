"""`llamapar run`: a program on the ranks of a layout, compared with the unsharded model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from llamapar.describe.options import LAYOUT, OPTIONS, Values
from llamapar.errors import Choice, LayoutError, LlamaparError
from llamapar.execution.shrinking import shrink
from llamapar.place.orders import ORDERS
from llamapar.rules.report import Report

from .commands import MODEL_WORD, Command, CommandAnswer, Given, with_torch
from .output import as_text, error_as_dict, in_flags, patience

if TYPE_CHECKING:
    from llamapar.execution.replies import Cancelled, RankFailure
    from llamapar.execution.result import Result

PROGRAMS = OPTIONS["program"].choices
"""The programs that the help names; there are more."""

_OWN = ("model", *LAYOUT, "shrink", "tape", "trace")
"""Options of the command that `lp.run` does not get by name."""

_TORCHRUN = "execution.engines.torchrun"


def _answer(given: Given) -> CommandAnswer:
    """Status 0 for a run equal to the reference; 1 for one that differs, raised, was refused or gave up."""
    with patience("importing torch"):
        execute = _torch("execution.execute")
        answers = _torch("execution.replies")
    options = given.of(*(name for name in given.about.options if name not in _OWN))
    if _torch(_TORCHRUN).launched() and options.setdefault("engine", "torchrun") != "torchrun":
        what = f"engine={options['engine']!r} under torchrun: each of its processes would run all ranks"
        choose = [Choice.of(engine="torchrun"), "the same command without torchrun"]
        raise LlamaparError(what, "", choose, "engine")
    try:
        result = _run(execute.run, given, options)
    except (answers.RankFailure, answers.Cancelled) as problem:
        return _given_up(problem)
    except LayoutError as problem:
        if problem.report is None:
            raise
        return _refused(problem.report)
    parts = [name for name in ("tape", "trace") if given[name]]
    return CommandAnswer(
        result.ok,
        lambda: _text(result, given),
        lambda: result.as_dict() | {name: getattr(result, name).as_dict() for name in parts},
    )


def _torch(module: str) -> ModuleType:
    """The module that runs layouts."""
    return with_torch(module, "running a layout", "every other command needs nothing but Python")


def _run(run: Callable[..., Result], given: Given, options: Values) -> Result:
    given.require()
    program = given["program"]
    model = given.model
    layout = given.layout
    notes = tuple[str, ...]()
    if given["shrink"]:
        small = shrink(model, layout, padding=options.get("padding"), program=program)
        model = small.model
        layout = small.layout
        notes = small.notes
    many = f"{layout.world} ranks"
    if options.get("engine") == "dry":
        many = "1 rank"
    try:
        with patience(f"running {program} of {model.name} on {many}; Ctrl-C ends it"):
            result = run(program, model, layout, **options)
    except LayoutError as problem:
        if problem.field == "world" and options.get("engine") != "torchrun":
            fits = [Choice.of(shrink=True), Choice.of(model="tiny")][given["shrink"] :]
            raise LayoutError(problem.what, problem.why, fits, problem.field) from None
        raise
    return replace(result, notes=(*notes, *result.notes))


# -- answers -----------------------------------------------------------------------------------


def _refused(report: Report) -> CommandAnswer:
    """The report for a layout that check refuses."""
    first = report.errors[0]
    error = LayoutError(f"{first.code} {first.message}", first.why, first.fixes)
    return CommandAnswer(
        False,
        lambda: f"{as_text(report)}\nnot run: --force runs it all the same",
        lambda: {**report.as_dict(), "error": error_as_dict(error)},
    )


def _given_up(problem: RankFailure | Cancelled) -> CommandAnswer:
    """A run without a result: a rank was killed or never arrived."""
    ranks = {str(rank): text for rank, text in getattr(problem, "ranks", {}).items()}
    error = {**error_as_dict(problem), "ranks": ranks}
    return CommandAnswer(
        False, lambda: as_text(str(in_flags(problem))), lambda: {"ok": False, "error": error}
    )


def _text(result: Result, given: Given) -> str:
    asked = [given["tape"] and result.tape, given["trace"] and str(result.trace)]
    return "\n\n".join(as_text(part) for part in (result, *result.details, *filter(None, asked)))


COMMAND = Command(
    "execute a program on the ranks of a layout, and compare with the unsharded model",
    "run",
    "llamapar run attention --model tiny --tp 4 --cp 2\n"
    "  llamapar run llama --model tiny --pp 2 --schedule zbv --micro-batches 4\n"
    "  llamapar run llama --model tiny --dp 4 --zero 3\n"
    "  llamapar run step --model tiny --tp 2 --cp 2 --pp 2 --dp 2 --micro-batches 4 --zero 2 --steps 3\n"
    "  llamapar run attention --model llama3-8b --tp 16 --shrink --force --tape\n"
    "  llamapar run llama --engine dry --rank 12345 --model llama3.1-405b --tp 8 --pp 16 --dp 128\n"
    "  torchrun --nproc-per-node 8 -m llamapar run llama --model tiny --tp 4 --dp 2 --json",
    exits="0 equal to the reference; 1 it differs, failed, was refused or timed out",
    positional=(("program", f"{', '.join(PROGRAMS[:-1])} or {PROGRAMS[-1]}"), *MODEL_WORD),
    needs={
        "program": (
            "a program is needed",
            f"programs are {', '.join(PROGRAMS)}",
            tuple(f"llamapar run {name}" for name in PROGRAMS[:2]),
        )
    },
    answer=_answer,
    helps={
        "global_batch": "sequences in a step (default: two per DP group and micro-batch; one in a dry run)",
        "zero": "ZeRO stage: 2 also shards gradients, 3 also parameters (default 1)",
        "rank": "rank that engine dry runs (default 0)",
        "micro_batches": "micro-batches of llama and step in a pipeline (default: two per PP rank)",
        "schedule": f"pipeline schedule of llama and step: {', '.join(ORDERS)} (default 1f1b)",
    },
)


# -- under torchrun ----------------------------------------------------------------------------


def under_torchrun() -> bool:
    """Whether torchrun started this process and torch is installed."""
    with contextlib.suppress(LlamaparError):
        return _torch(_TORCHRUN).launched() is not None
    return False


def as_a_rank(command: Callable[[], int]) -> int:
    """Run the command on a rank that torchrun started: only rank 0 writes, and all end with its status."""
    torchrun = _torch(_TORCHRUN)
    if os.environ["RANK"] == "0":
        return int(torchrun.part(command()))
    with open(os.devnull, "w") as void, contextlib.redirect_stdout(void), contextlib.redirect_stderr(void):
        status = command()
    return int(torchrun.part(status))
