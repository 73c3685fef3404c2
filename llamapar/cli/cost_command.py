"""`llamapar cost` and `llamapar plan`: how long a step takes, and the layouts that take least."""

from __future__ import annotations

import sys
import time

from llamapar.describe.hardware import DEFAULT_GPU, HARDWARE
from llamapar.describe.models import ModelConfig
from llamapar.describe.options import EXPORTS, LAYOUT, OPTIONS
from llamapar.errors import Choice, LlamaparError
from llamapar.frameworks.settings import Settings
from llamapar.late import late
from llamapar.timing.cost import Cost, cost
from llamapar.timing.plan import Plan, plan
from llamapar.timing.reasons import reasons

from .commands import MODEL_WORD, Answer, Command, Given, answer
from .settings_command import of_settings
from .writing import as_text, write

_STEP = ("gpus", "seq_len", "micro_batch", "global_batch", "recompute", "schedule", "nc", "layer_split")
_HOW = ("gpu", "precision", "kernels", "flash", "overlap_tp", "float8_all_gather", "kv_replication")
_OPTIONS = (*_STEP, *_HOW, "cp_method", "imbalance", "flops", "profile", "framework")


def _cost(given: Given) -> Answer:
    if given.files:
        return of_settings(given, lambda settings: _explained(given, cost(settings, **given.of(*_OPTIONS))))
    choose = [Choice.of(seq_len=8192), "llamapar cost --help"]
    given.needed("seq_len", "a sequence length is needed", "the time of a step grows with it", choose)
    return _explained(given, cost(given.model, given.layout, **given.of(*_OPTIONS)))


def _explained(given: Given, found: Cost) -> Answer:
    if not given["explain"] or given["json"]:
        return answer(found)
    return Answer(True, lambda: f"{as_text(found)}\n\n{as_text(reasons(found))}", found.as_dict)


COST = Command(
    _cost,
    "how long a step takes, term by term with its formula, from published constants",
    "cost",
    ("model", *LAYOUT, *_OPTIONS, "explain", "config", "launch"),
    "llamapar cost --model llama3.1-405b --tp 8 --pp 16 --dp 128 --virtual-stages 8 --seq-len 8192 "
    "--global-batch 2048 --recompute none --explain\n"
    "  llamapar cost --model llama3.1-8b --dp 8 --zero 3 --seq-len 8192 --gpu a100-80gb --json\n"
    "  llamapar cost --config train.toml --launch run.slurm",
    exits="0 a time",
    positional=MODEL_WORD,
    helps={
        "gpu": f"on which it runs: {', '.join(HARDWARE)} (default {DEFAULT_GPU})",
        "framework": "whose layer split and habits there are, where they are not given",
        "global_batch": "sequences of a step, all DP groups together (default: enough for a full pipeline)",
    },
)

_SEARCHED = ("gpus", "seq_len", "global_batch")
_PLAN = (*("gpu", "schedule", "precision", "kernels", "flash", "overlap_tp", "cp_method"), "kv_replication")
_SHOWN = ("profile", "most_tp", "all_schedules", "top", "framework")

_PATIENCE = 1.0
"""Seconds between lines that say how far a search is."""


def _plan(given: Given) -> Answer:
    """Status 0 where some layout passes and fits, 1 where none does."""
    if given.files:
        return of_settings(given, lambda settings: _beside(given, settings))
    for name in _SEARCHED:
        word = OPTIONS[name].help
        given.needed(name, f"{OPTIONS[name].flag} is needed", f"{word}: a plan is for them", [PLAN_EXAMPLE])
    return _planned(given, searched(given, given.model))


def _beside(given: Given, settings: Settings) -> Answer:
    """The plan, and the time of the layout that the files say."""
    planned = _planned(given, searched(given, settings))
    try:
        own = cost(settings, **given.of(*_PLAN, "framework"))
    except LlamaparError:
        return planned
    said = f"as the files say: {own.layout}, {own.step_seconds:.4g} s"
    return Answer(
        planned.ok,
        lambda: planned.text() if given["export"] else f"{planned.text()}\n{said}",
        lambda: {**planned.data(), "as_said": own.as_dict()},
    )


def _planned(given: Given, found: Plan) -> Answer:
    name = None if given["export"] is None else OPTIONS["export"].chosen(given["export"])
    if name is None or given["json"]:
        return answer(found, bool(found.layouts))
    return Answer(
        True, lambda: str(late("export")(EXPORTS[name], found.best.job, given["framework"])), found.as_dict
    )


def searched(given: Given, model: ModelConfig | Settings) -> Plan:
    """The plan; how far it is goes to stderr, and Ctrl-C ends it with the best so far."""
    last = time.monotonic()

    def progress(judged: int, passing: int) -> None:
        nonlocal last
        if time.monotonic() - last > _PATIENCE:
            last = time.monotonic()
            write(
                sys.stderr,
                f"llamapar: {judged} layouts judged, {passing} of them pass; Ctrl-C: the best so far",
            )

    return plan(model, **given.of(*_SEARCHED, *_PLAN, *_SHOWN), progress=progress)


PLAN_EXAMPLE = "llamapar plan --model llama3.1-70b --gpus 64 --seq-len 8192 --global-batch 512"

PLAN = Command(
    _plan,
    "every layout of some GPUs for a fixed batch, the fastest first, with why others lose",
    "plan",
    ("model", *_SEARCHED, *_PLAN, *_SHOWN, "export", "config", "launch"),
    f"{PLAN_EXAMPLE}\n  {PLAN_EXAMPLE} --framework torchtitan --json\n"
    "  llamapar plan --config train.toml --launch run.slurm --gpus 256",
    exits="0 some layout passes and fits, 1 none does",
    positional=MODEL_WORD,
    helps={
        "gpu": f"on which it runs: {', '.join(HARDWARE)} (default {DEFAULT_GPU})",
        "framework": "by whose rules, layer split and habits (default: the Llama 3 paper's)",
    },
)
