"""The `llamapar` command: a shell over the library that reads words and answers in text or JSON.

Input that cannot work is refused on stderr in the library's own words, never by a traceback. With --json the
object {"error": …} on stdout says the same, so a script always reads one JSON value.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module

from llamapar import interrupts
from llamapar.describe.options import OPTIONS
from llamapar.errors import LlamaparError
from llamapar.late import late, offered

from . import parsing
from .commands import Command, CommandAnswer, CommandGroup
from .output import as_text, error_as_dict, in_flags, write_line
from .plain_commands import PLAIN

_OF_THE_COURSE = ("course", "lesson")
_NAMES = (
    *("model", "check", "ranks", "run", "memory", "cost", "plan"),
    *("loading", "schedule", "checkpoint", "explain", "debug", "course", "explorer", "lesson"),
)


class Commands(Mapping[str, Command | CommandGroup]):
    """The commands by name: `llamapar NAME` is a row of PLAIN or of the course, or `NAME_command.COMMAND`.

    Each command imports only the rooms that it needs, so `llamapar check` does not wait for those of `plan`.
    """

    def __getitem__(self, name: str) -> Command | CommandGroup:
        if name in PLAIN:
            late(PLAIN[name].function)  # Its room hands in choices that the help names.
            return PLAIN[name]
        if name in _OF_THE_COURSE:
            rows: Mapping[str, Command] = offered("course", "COURSE_COMMANDS")
            return rows[name]
        return import_module(f".{name}_command", __package__).COMMAND

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


_TOP = CommandGroup(
    "See how a Llama-style model is cut over GPUs by tensor (TP), context (CP), pipeline (PP) and data (DP) "
    "parallelism, and whether that works, before it costs a GPU-hour.",
    Commands(),
    "llamapar model llama3.1-405b",
)

_STATUS = (
    'Bad input is reported on stderr; with --json, {"error": {"field", "message", "why", "choose"}} on '
    "stdout too."
)


def _answer(argv: Sequence[str]) -> int:
    """Answer a command line in writing, and return the exit status. Invalid input is refused on stderr at
    once.
    """
    options: Collection[str] = OPTIONS
    try:
        given = parsing.parse(argv, _TOP, _STATUS)
        options = {*given.about.options, *(name for name, _ in given.about.positional)}
        answered = given.about.answer(given)
        status = int(not answered.ok)
        text = answered.written(given["json"])
    except LlamaparError as problem:
        write_line(sys.stderr, as_text(f"llamapar: {in_flags(problem, options)}"))
        error = {"error": error_as_dict(problem, options)}
        status = 2
        text = CommandAnswer(False, str, lambda: error).written("--json" in argv)
    if failure := write_line(sys.stdout, text):
        write_line(sys.stderr, f"llamapar: {failure}")
        return 2
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `llamapar` command and return its exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["debug"] and argv[1:2] not in ([], ["-h"], ["--help"]):
        from . import debug_command

        return debug_command.run(argv[1:])  # Outside what follows, because a script ends as it wants.
    try:
        if argv[:1] == ["run"]:
            from . import run_command  # Import here, because other commands do not need it.

            if run_command.under_torchrun():
                return run_command.as_a_rank(lambda: _answer(argv))
        return _answer(argv)
    except SystemExit:  # argparse has already printed the requested help.
        return 0
    except KeyboardInterrupt:
        return interrupts.STATUS
