"""The `llamapar` command: a shell over the library that reads words and answers in text or JSON.

Input that cannot work is refused on stderr in the library's own words, never by a traceback; with --json
the object {"error": …} on stdout says the same, so that a script always reads one JSON value.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from llamapar import interrupts
from llamapar.describe.layout import AXES
from llamapar.describe.options import FACTS, LAYOUT
from llamapar.errors import LlamaparError
from llamapar.place import ranks
from llamapar.rules.report import check

from . import parsing, run_command, settings_command
from .checkpoint_command import CHECKPOINT
from .commands import MODEL_WORD, Answer, Command, Given, Group, answer
from .cost_command import COST, PLAN
from .explain_command import EXPLAIN
from .memory_command import LOADING, MEMORY
from .model_command import MODEL
from .schedule_command import SCHEDULE
from .writing import as_dict, as_text, in_flags, write


def _check(given: Given) -> Answer:
    if given.files:
        return settings_command.check_settings(given)
    if given["settings"]:
        choose = ["--config FILE", "--launch FILE"]
        raise LlamaparError(
            "no file of settings is named", "--settings says what files say", choose, "config"
        )
    report = check(given.model, given.layout, **given.facts, **given.of("framework"))
    return answer(report, report.ok, given.note)


def _ranks(given: Given) -> Answer:
    grid = ranks(given.layout, **given.of("rank"))
    return Answer(
        True,
        lambda: as_text(grid),
        lambda: {
            "rank": grid.rank,
            "coord": grid.coord._asdict(),
            "groups": {axis: list(group) for axis, group in grid.peers.items()},
        },
    )


COMMANDS: dict[str, Command | Group] = {
    "model": MODEL,
    "check": Command(
        _check,
        "judge a layout: what is wrong, why, what would pass, and what each framework does",
        "check",
        ("model", "job", *LAYOUT, *FACTS, "framework", "config", "launch", "settings"),
        "llamapar check --model llama3.1-405b --tp 8 --cp 16 --pp 16 --dp 4 --gpus 16384 --seq-len 131072\n"
        "  llamapar check --config train.toml --gpus 128 -- --parallelism.tensor_parallel_degree 16",
        exits="0 no errors, 1 the layout has errors",
        positional=MODEL_WORD,
    ),
    "ranks": Command(
        _ranks,
        "where a global rank sits, and who its peers are on each axis",
        "ranks",
        (*AXES, "order", "rank"),
        "llamapar ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345\n"
        "  llamapar ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345 --order megatron-lm",
        exits="0 a rank",
    ),
    "run": run_command.RUN,
    "memory": MEMORY,
    "cost": COST,
    "plan": PLAN,
    "loading": LOADING,
    "schedule": SCHEDULE,
    "checkpoint": CHECKPOINT,
    "explain": EXPLAIN,
}
"""The commands by name."""

_DESCRIPTION = (
    "See how a Llama-style model is cut over GPUs by tensor (TP), context (CP), pipeline (PP) and data (DP) "
    "parallelism, and whether that works, before it costs a GPU-hour."
)

_TOP = Group(_DESCRIPTION, COMMANDS, "llamapar model llama3.1-405b")

_STATUS = (
    'Bad input is reported on stderr; with --json, {"error": {"field", "message", "why", "choose"}} on '
    "stdout too."
)


def _answer(argv: Sequence[str]) -> int:
    """Answer a command line, in writing; its exit status. Bad input is refused on stderr at once."""
    try:
        command, given = parsing.read(argv, _TOP, _STATUS)
        answered = command.answer(given)
        status, text = int(not answered.ok), answered.written(given["json"])
    except LlamaparError as problem:
        write(sys.stderr, as_text(f"llamapar: {in_flags(problem)}"))
        status, text = 2, json.dumps({"error": as_dict(problem)}) if "--json" in argv else ""
    if failure := write(sys.stdout, text):
        write(sys.stderr, f"llamapar: {failure}")
        return 2
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """The `llamapar` command; the exit status is returned."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        if argv[:1] == ["run"] and run_command.launched():
            return run_command.as_a_rank(lambda: _answer(argv))
        return _answer(argv)
    except SystemExit:  # argparse has shown the help that was asked for
        return 0
    except KeyboardInterrupt:
        return interrupts.STATUS
