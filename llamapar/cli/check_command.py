"""`llamapar check`: is this layout right? Reads flags, or a run's own files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llamapar.describe.options import FACTS, LAYOUT
from llamapar.errors import LlamaparError
from llamapar.frameworks.settings import Settings
from llamapar.rules.report import check

from .commands import MODEL_WORD, Command, CommandAnswer, Given, answered, returned

_MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
"""Multiples of tp·cp·pp that are tried as the number of GPUs."""

_VOCABULARIES = (32000, 128256, 151936)
"""Sizes that are tried of a vocabulary: those of Llama 2, Llama 3 and Qwen 2.5."""


def _check(given: Given) -> CommandAnswer:
    """The verdict; if the files are incomplete, what is missing and what is certain."""
    if given["settings"] and not given.files:
        choose = ["--config FILE", "--launch FILE"]
        raise LlamaparError(
            "no file of settings is named", "--settings says what files say", choose, "config"
        )
    return answered(given, if_known=_if_known, findings=[])


def _if_known(given: Given, settings: Settings) -> list[str]:
    """The errors with each tried number of GPUs and vocabulary; none if something else is missing too."""
    known = settings.known()
    try:
        if "dp" in known or not known.keys() >= {"tp", "cp", "pp"}:
            return _if_sized(given, settings)
        ranks = known["tp"] * known["cp"] * known["pp"]
        worlds = {ranks * times: given.settings(gpus=ranks * times) for times in _MULTIPLES}
        found = _grouped("gpus", worlds, lambda settings: "; ".join(_if_sized(given, settings)))
        return [*found, f"gpus is no multiple of {ranks}: fails, because tp·cp·pp is {ranks}"]
    except LlamaparError:
        return []


def _if_sized(given: Given, settings: Settings) -> list[str]:
    """The errors, with each tried vocabulary if the files do not say its size."""

    def errors(settings: Settings) -> str:
        found = returned(given, check, settings).errors
        return f"fails: {' and '.join(f'{e.code} {e.message}' for e in found)}" if found else "passes"

    try:
        return [errors(settings)]
    except LlamaparError as problem:
        if problem.field != "vocab_size":
            raise
    sized = {n: replace(settings, model={**settings.model, "vocab_size": n}) for n in _VOCABULARIES}
    return _grouped("vocab_size", sized, errors)


def _grouped(name: str, tried: dict[int, Settings], outcome: Callable[[Settings], str]) -> list[str]:
    """The tried values in groups of equal outcome, one line each."""
    groups: dict[str, list[str]] = {}
    for value, settings in tried.items():
        groups.setdefault(outcome(settings), []).append(str(value))
    return [f"{name}={', '.join(group)}: {found}" for found, group in groups.items()]


COMMAND = Command(
    "judge a layout: what is wrong, why, what would pass, and what each framework does",
    "check",
    ("model", "job", *LAYOUT, *FACTS, "framework", "config", "launch", "settings"),
    "llamapar check --model llama3.1-405b --tp 8 --cp 16 --pp 16 --dp 4 --gpus 16384 --seq-len 131072\n"
    "  llamapar check --config train.toml --gpus 128 -- --parallelism.tensor_parallel_degree 16",
    exits="0 no errors, 1 the layout has errors",
    ok="ok",
    positional=MODEL_WORD,
    answer=_check,
)
