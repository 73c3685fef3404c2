"""`llamapar check`: is this layout right? Reads flags, or a run's own files."""

from __future__ import annotations

from llamapar.errors import LlamaparError
from llamapar.frameworks.settings import Settings
from llamapar.rules.memory_rule import load_of
from llamapar.rules.report import Report

from .commands import MODEL_WORD, Command, CommandAnswer, Given, answered, noted, plain


def _whole(given: Given, *settings: Settings) -> CommandAnswer:
    """The verdict. Raises LlamaparError where no rule objects, and the files contradict themselves."""
    verdict = plain(given, *settings)
    told = [contradiction for read in settings for contradiction in read.contradictions]
    if verdict.ok and told:
        others = "; ".join(map(str, told[1:]))
        raise LlamaparError(f"contradiction: {told[0]}", others, field=told[0].field)
    return verdict


def _check(given: Given) -> CommandAnswer:
    """The verdict; if the files leave facts open, what is missing."""
    if given["settings"] and not given.files:
        raise LlamaparError(
            "no file of settings is named",
            "--settings says what files say",
            ["--config FILE", "--launch FILE"],
            "config",
        )
    return answered(given, _whole)


def _below(given: Given, report: Report) -> list[str]:
    """What a rank needs of the named GPU where it fits, in which case no finding says it; and the note."""
    load = None
    if report.job.gpu and not report.memory:
        load = load_of(report.job, report.judge)
    if load is None:
        return noted(given, report)
    return [f"memory: {load.gib} GiB a rank fit {report.job.gpu}", *noted(given, report)]


COMMAND = Command(
    "judge a layout: what is wrong, why, what would pass, and what each framework does",
    "check",
    "llamapar check --model llama3.1-405b --tp 8 --cp 16 --pp 16 --dp 4 --gpus 16384 --seq-len 131072\n"
    "  llamapar check --config train.toml --gpus 128 -- --parallelism.tensor_parallel_degree 16",
    exits="0 no errors, 1 errors, or the files leave facts open or contradict each other",
    ok="ok",
    positional=MODEL_WORD,
    below=_below,
    answer=_check,
)
