"""Parse a command line into a command and its values; other words are refused with the nearest names."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NoReturn

from llamapar.describe import options
from llamapar.describe.jobs import JOBS
from llamapar.describe.options import OPTIONS, Values
from llamapar.errors import LlamaparError, one_of, shown

from . import option_values
from .commands import Command, CommandGroup, Given
from .output import write_line

_WORD = "_word"
"""Ends the name under which a word is kept that stands for the value of the command's option."""


class _Form(argparse.HelpFormatter):
    """Help with prose wrapped; an example, which starts with blanks, stays one line for a shell."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        rows = text.splitlines()
        return "\n".join(row if row.startswith(" ") else textwrap.fill(row, width) for row in rows)


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting, and writes its help like all other output."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Form, allow_abbrev=False, **settings)
        self.color = False  # Python 3.14 colours help, and `write` removes escapes.

    def error(self, message: str) -> NoReturn:
        raise LlamaparError(message, "", [f"{self.prog} --help"])

    def _print_message(self, message: str, file: object = None) -> None:
        if failure := write_line(sys.stdout, message):
            raise LlamaparError(failure)


def parse(argv: Sequence[str], top: CommandGroup, status: str) -> Given:
    """The values typed after the command that `argv` names.

    status: the last sentence of every help. Raises LlamaparError; SystemExit after a help was shown.
    """
    command, path = _named(argv, top)
    about = command.what.rstrip(".")
    parser = _Parser(prog=" ".join(["llamapar", *path]), description=f"{about[0].upper()}{about[1:]}.")
    if isinstance(command, CommandGroup):
        _fill_group(parser, command, status)
        if command is top:
            version = import_module(__name__.partition(".")[0]).__version__
            parser.add_argument("--version", action="version", version=f"llamapar {version}")
        parser.parse_args(["--version" if list(argv) == ["--version"] else "--help"])
    assert isinstance(command, Command)
    _fill(parser, command, status)
    words, overrides = _apart(argv[len(path) :])
    for word in words[: words.index("--")] if "--" in words else words:
        if word.startswith("--") and word.endswith("=--"):  # argparse would drop the value and then fail.
            raise LlamaparError(f"{shown(word)}: a value is needed", "", [f"{parser.prog} --help"])
    found, unknown = parser.parse_known_args(words)
    given = Given(parser.prog, command, vars(found))
    if unknown:
        raise _refusal(unknown[0], given)
    values = _with_words(given.values) | {"overrides": overrides}
    typed = {name: text for name in command.options if isinstance(text := values[name], str)}
    values |= {name: option_values.option_value(name, text) for name, text in typed.items()}
    return _with_job(replace(given, values=values))


def _with_words(typed: Values) -> Values:
    """The values of options, including those given as bare words."""
    values = {name: value for name, value in typed.items() if not name.endswith(_WORD)}
    for name in (name for name in values if typed.get(name + _WORD) is not None):
        word = typed[name + _WORD]
        flagged = values[name]
        if flagged is not None:
            what = f"{shown(word)} and {OPTIONS[name].flag} {shown(flagged)} both name a {name}"
            raise LlamaparError(what, "one of them is enough", [str(word)], name)
        values[name] = word
    return values


def _apart(words: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """The command's own words, and those after --, which belong to the framework of the named files."""
    end = words.index("--") if "--" in words else len(words)
    if any(word.startswith(("--config", "--launch")) for word in words[:end]):
        return words[:end], [*words[end + 1 :]]
    return words, []


def _with_job(given: Given) -> Given:
    """The given values; a published job supplies the rest."""
    if not given.of("job"):
        return given
    published = JOBS[OPTIONS["job"].chosen(given["job"])]
    job = published.job
    settings: Values = {
        **vars(job.layout),
        **vars(job),
        "model": job.model.name,
        "framework": published.framework,
    }
    known = {name: value for name, value in settings.items() if name in given.about.options}
    own = given.of(*known)
    is_changed = any(own[name] != known[name] for name in own)
    note = published.note
    if is_changed:
        note = ""
    return replace(given, values={**given.values, **known, **own}, note=note)


def _named(argv: Sequence[str], top: CommandGroup) -> tuple[Command | CommandGroup, Sequence[str]]:
    """The command that the first words name (a group if they ask for its help), and those words."""
    command: Command | CommandGroup = top
    for i, word in enumerate([*argv, ""]):
        if isinstance(command, Command) or word in ("-h", "--help") or (i == 0 and word == "--version"):
            return command, argv[:i]
        if not word or word.startswith("-"):
            article = "a"
            if command.word[0] in "aeiou":
                article = "an"
            choose = [*command.commands, " ".join(["llamapar", *argv[:i], "--help"])]
            raise LlamaparError(f"{article} {command.word} is needed first", "", choose, command.word)
        command = command.commands[one_of(command.word, word, command.commands, LlamaparError)]
    return command, argv


def _fill_group(parser: _Parser, group: CommandGroup, status: str) -> None:
    """Add the names of a group's commands, and what each does."""
    made = parser.add_subparsers(metavar=group.word.upper(), title=f"{group.word}s", parser_class=_Parser)
    for name in group.commands:
        try:
            what = group.commands[name].what
        except LlamaparError as missing:  # The command's room is optional.
            what = missing.what
        made.add_parser(name, help=what)
    parser.epilog = _epilog(group.example, f"0 and 1 as the help of each {group.word} says", status)


def _fill(parser: _Parser, command: Command, status: str) -> None:
    """Add a command's options and words."""
    for name, help_text in command.positional:
        own = name
        if name in command.options:
            own = name + _WORD
        parser.add_argument(own, nargs="?", metavar=name.upper(), help=help_text)
    for name in (*command.options, "json"):
        option = OPTIONS[name]
        about = option.about(options.default(name, command.function), command.helps.get(name, ""))
        if option.kind is bool and option.default is False:  # its opposite need not be typed
            parser.add_argument(option.flag, help=about, action="store_true")
        elif option.kind is bool:
            parser.add_argument(option.flag, help=about, action=argparse.BooleanOptionalAction)
        else:
            metavar = option.metavar or ("N" if option.is_count else name.upper())
            action = "store"
            if option.kind is list:
                action = "append"
            parser.add_argument(option.flag, action=action, metavar=metavar, help=about)
    parser.epilog = _epilog(command.example, command.exits, status)


def _epilog(example: str, exits: str, status: str) -> str:
    return f"example:\n  {example}\n\nexit status: {exits}, 2 bad usage or bad input\n{status}"


def _refusal(word: str, given: Given) -> LlamaparError:
    """The error for an unknown option or an extra word, with its likely meaning."""
    help_of = [f"{given.command} --help"]
    if word.startswith("-"):
        known = [OPTIONS[name].flag for name in (*given.about.options, "json")]
        near = difflib.get_close_matches(word.partition("=")[0][:100], known, n=2)
        return LlamaparError(f"{shown(word)} is not an option of {given.command}", "", near or help_of)
    meant = given.about.surplus.format(word=word)
    free = meant and not given.of(meant.split()[0].lstrip("-"))
    return LlamaparError(f"{shown(word)} is one word too many", "", [meant] if free else help_of)
