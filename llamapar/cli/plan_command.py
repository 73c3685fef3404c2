"""`llamapar plan`: the fastest layouts for a batch on a number of GPUs."""

from __future__ import annotations

import sys
import time

from llamapar.describe.hardware import DEFAULT_GPU, HARDWARE
from llamapar.describe.models import ModelConfig
from llamapar.describe.options import EXPORT_TITLES, OPTIONS
from llamapar.errors import LlamaparError
from llamapar.frameworks.settings import Settings
from llamapar.late import late
from llamapar.timing.cost import cost
from llamapar.timing.plan import Plan, plan

from .commands import MODEL_WORD, Command, CommandAnswer, Given, answer
from .output import write_line
from .settings_files import of_settings

_SEARCHED = ("gpus", "seq_len", "global_batch")
_PLAN = (*("gpu", "schedule", "precision", "kernels", "flash", "overlap_tp", "cp_method"), "kv_replication")
_SHOWN = ("profile", "most_tp", "all_schedules", "top", "framework")

_PATIENCE = 1.0
"""Seconds between lines that say how far a search is."""


def _plan(given: Given) -> CommandAnswer:
    """Status 0 if some layout passes and fits, 1 if none does."""
    if given.files:
        return of_settings(given, lambda settings: _beside(given, settings))
    for name in _SEARCHED:
        word = OPTIONS[name].help
        given.needed(name, f"{OPTIONS[name].flag} is needed", f"a plan needs the {word}", [PLAN_EXAMPLE])
    return _planned(given, searched(given, given.model))


def _beside(given: Given, settings: Settings) -> CommandAnswer:
    """The plan, with the time of the layout in the files."""
    planned = _planned(given, searched(given, settings))
    try:
        own = cost(settings, **given.of(*_PLAN, "framework"))
    except LlamaparError:
        return planned
    said = f"as the files say: {own.layout}, {own.step_seconds:.4g} s"
    return CommandAnswer(
        planned.ok,
        lambda: planned.text() if given["export"] else f"{planned.text()}\n{said}",
        lambda: {**planned.data(), "as_said": own.as_dict()},
    )


def _planned(given: Given, found: Plan) -> CommandAnswer:
    name = None if given["export"] is None else OPTIONS["export"].chosen(given["export"])
    if name is None or given["json"]:
        return answer(found, bool(found.layouts))
    return CommandAnswer(
        True,
        lambda: str(late("EXPORTS")[EXPORT_TITLES[name]](found.best.job, given["framework"])),
        found.as_dict,
    )


def searched(given: Given, model: ModelConfig | Settings) -> Plan:
    """The plan; progress goes to stderr, and Ctrl-C stops the search with the best layouts so far."""
    last = time.monotonic()

    def progress(judged: int, passing: int) -> None:
        nonlocal last
        if time.monotonic() - last > _PATIENCE:
            last = time.monotonic()
            write_line(
                sys.stderr,
                f"llamapar: {judged} layouts judged, {passing} of them pass; Ctrl-C: the best so far",
            )

    return plan(model, **given.of(*_SEARCHED, *_PLAN, *_SHOWN), progress=progress)


PLAN_EXAMPLE = "llamapar plan --model llama3.1-70b --gpus 64 --seq-len 8192 --global-batch 512"

COMMAND = Command(
    _plan,
    "layouts of some GPUs for a fixed batch, the fastest first, with why the others lose",
    "plan",
    ("model", *_SEARCHED, *_PLAN, *_SHOWN, "export", "config", "launch"),
    f"{PLAN_EXAMPLE}\n  {PLAN_EXAMPLE} --framework torchtitan --json\n"
    "  llamapar plan --config train.toml --launch run.slurm --gpus 256",
    exits="0 a layout passes and fits, 1 none does",
    positional=MODEL_WORD,
    helps={
        "gpu": f"GPU to run on: {', '.join(HARDWARE)} (default {DEFAULT_GPU})",
        "framework": "framework whose rules, layer split and habits apply (default: the Llama 3 paper's)",
    },
)
