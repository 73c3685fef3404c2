"""`llamapar plan`: the fastest layouts for a batch on a number of GPUs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from llamapar.describe.jobs import JOBS
from llamapar.describe.options import EXPORT_TITLES, OPTIONS
from llamapar.errors import LlamaparError
from llamapar.frameworks.settings import Settings
from llamapar.rules.job_text import exported
from llamapar.timing.cost import cost
from llamapar.timing.plan import plan

from .commands import MODEL_WORD, Command, CommandAnswer, Given, answer_of, answered, returned
from .output import write_line

_SEARCHED = ("gpus", "seq_len", "global_batch")
_PATIENCE = 1.0
"""Seconds between lines that say how far a search is."""


def _planned(given: Given, *settings: Settings) -> CommandAnswer:
    """The plan, or the settings of its best layout; with the time of the layout in the files."""
    found = returned(given, plan, *settings, progress=_progress())
    if given["export"] is not None:
        title = EXPORT_TITLES[OPTIONS["export"].chosen(given["export"])]
        if not given["json"]:
            return CommandAnswer(
                True,
                lambda: exported(title, found.best.job, given["framework"]),
                found.as_dict,
            )
    planned = answer_of(given, found)
    if not settings and not given.note:
        return planned
    who = "as the files say"
    try:
        if settings:
            own = returned(given, cost, *settings)
        else:
            who = "as published"
            own = found.asked.timed(JOBS[given["job"]].job)
        said = f"{who}: {own.layout}, {own.step_seconds:.4g} s, {own.memory.figure()} GiB"
    except LlamaparError:
        return planned
    return CommandAnswer(
        planned.ok,
        lambda: f"{planned.text()}\n{said}",
        lambda: {**planned.data(), "as_said": own.as_dict()},
    )


def _progress() -> Callable[[int, int], None]:
    """Says on stderr how far the search is; Ctrl-C stops it with the best layouts so far."""
    last = time.monotonic()

    def progress(judged: int, passing: int) -> None:
        nonlocal last
        if time.monotonic() - last > _PATIENCE:
            last = time.monotonic()
            write_line(
                sys.stderr,
                f"llamapar: {judged} layouts judged, {passing} of them pass; Ctrl-C: the best so far",
            )

    return progress


_EXAMPLE = "llamapar plan --model llama3.1-70b --gpus 64 --seq-len 8192 --global-batch 512"

COMMAND = Command(
    "layouts of some GPUs for a fixed batch, the fastest first, with why the others lose",
    "plan",
    f"{_EXAMPLE}\n  {_EXAMPLE} --framework torchtitan --json\n"
    "  llamapar plan --config train.toml --launch run.slurm --gpus 256",
    exits="0 a layout passes and may fit, 1 none does, or the files leave facts open",
    ok="layouts",
    positional=MODEL_WORD,
    needs={
        name: (f"{OPTIONS[name].flag} is needed", f"a plan needs the {OPTIONS[name].help}", (_EXAMPLE,))
        for name in _SEARCHED
    },
    answer=lambda given: answered(given, _planned),
    helps={
        "framework": "framework whose rules, layer split and habits apply (default: the Llama 3 paper's)",
    },
)
