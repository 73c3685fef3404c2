"""`llamapar check`: is this layout right? Reads flags, or a run's own files."""

from __future__ import annotations

from llamapar.describe.options import FACTS, LAYOUT
from llamapar.errors import LlamaparError
from llamapar.frameworks.settings import Settings
from llamapar.rules.report import check

from .commands import MODEL_WORD, Command, CommandAnswer, Given, answer
from .settings_files import KNOWN, of_settings


def _check(given: Given) -> CommandAnswer:
    if given.files:
        return _check_settings(given)
    if given["settings"]:
        choose = ["--config FILE", "--launch FILE"]
        raise LlamaparError(
            "no file of settings is named", "--settings says what files say", choose, "config"
        )
    report = check(given.model, given.layout, **given.facts, **given.of("framework"))
    return answer(report, report.ok, given.note)


def _check_settings(given: Given) -> CommandAnswer:
    """The files' settings, then the verdict; if they are incomplete, the missing facts."""
    rest = {name: value for name, value in given.facts.items() if name not in KNOWN}

    def judged(settings: Settings) -> CommandAnswer:
        report = check(settings, **rest, **given.of("framework"))
        return answer(report, report.ok)

    return of_settings(given, judged, findings=[])


COMMAND = Command(
    _check,
    "judge a layout: what is wrong, why, what would pass, and what each framework does",
    "check",
    ("model", "job", *LAYOUT, *FACTS, "framework", "config", "launch", "settings"),
    "llamapar check --model llama3.1-405b --tp 8 --cp 16 --pp 16 --dp 4 --gpus 16384 --seq-len 131072\n"
    "  llamapar check --config train.toml --gpus 128 -- --parallelism.tensor_parallel_degree 16",
    exits="0 no errors, 1 the layout has errors",
    positional=MODEL_WORD,
)
