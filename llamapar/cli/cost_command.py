"""`llamapar cost`: the time of a step."""

from __future__ import annotations

from llamapar.describe.hardware import DEFAULT_GPU, HARDWARE
from llamapar.describe.options import LAYOUT
from llamapar.errors import Choice
from llamapar.timing.cost import Cost, cost
from llamapar.timing.reasons import reasons

from .commands import MODEL_WORD, Command, CommandAnswer, Given, answer
from .output import as_text
from .settings_files import of_settings

_STEP = ("gpus", "seq_len", "micro_batch", "global_batch", "recompute", "schedule", "nc", "layer_split")
_HOW = ("gpu", "precision", "kernels", "flash", "overlap_tp", "float8_all_gather", "kv_replication")
_OPTIONS = (*_STEP, *_HOW, "cp_method", "imbalance", "flops", "profile", "framework")


def _cost(given: Given) -> CommandAnswer:
    if given.files:
        return of_settings(given, lambda settings: _explained(given, cost(settings, **given.of(*_OPTIONS))))
    choose = [Choice.of(seq_len=8192), "llamapar cost --help"]
    given.needed("seq_len", "a sequence length is needed", "the time of a step grows with it", choose)
    return _explained(given, cost(given.model, given.layout, **given.of(*_OPTIONS)))


def _explained(given: Given, found: Cost) -> CommandAnswer:
    if not given["explain"] or given["json"]:
        return answer(found)
    return CommandAnswer(True, lambda: f"{as_text(found)}\n\n{as_text(reasons(found))}", found.as_dict)


COMMAND = Command(
    _cost,
    "how long a step takes, term by term with its formula, from published constants",
    "cost",
    ("model", *LAYOUT, *_OPTIONS, "explain", "config", "launch"),
    "llamapar cost --model llama3.1-405b --tp 8 --pp 16 --dp 128 --virtual-stages 8 --seq-len 8192 "
    "--global-batch 2048 --recompute none --explain\n"
    "  llamapar cost --model llama3.1-8b --dp 8 --zero 3 --seq-len 8192 --gpu a100-80gb --json\n"
    "  llamapar cost --config train.toml --launch run.slurm",
    exits="0 estimated",
    positional=MODEL_WORD,
    helps={
        "gpu": f"GPU to run on: {', '.join(HARDWARE)} (default {DEFAULT_GPU})",
        "framework": "framework whose layer split and habits apply unless you set them",
        "global_batch": "sequences in a step, over all DP groups (default: enough to fill the pipeline)",
    },
)
