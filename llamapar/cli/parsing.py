"""A command line as a command and its values; what is neither is refused with the nearest names."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from llamapar.errors import LlamaparError, one_of, shown

from .words import OPTIONS, SWITCHES, Command, Group, option, reader, write


class _Parser(argparse.ArgumentParser):
    """argparse that raises, and that writes its help as everything else is written."""

    def __init__(self, **settings: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=form, allow_abbrev=False, **settings)
        self.color = False  # Python 3.14 colours help, and `write` lets no escape through

    def error(self, message: str) -> NoReturn:
        raise LlamaparError(message, "", [f"{self.prog} --help"])

    def _print_message(self, message: str, file: Any = None) -> None:
        if failure := write(file or sys.stdout, message):
            raise LlamaparError(failure)


def read(argv: Sequence[str], top: Group, status: str) -> tuple[Command, argparse.Namespace]:
    """The command that `argv` names, and its options as values.

    status: what every help says last. Raises LlamaparError; SystemExit once a help was shown.
    """
    command, path = _named(argv, top)
    about = command.what.rstrip(".")
    parser = _Parser(prog=" ".join(["llamapar", *path]), description=f"{about[0].upper()}{about[1:]}.")
    if isinstance(command, Group):
        _fill_group(parser, command, status)
        parser.parse_args(["--help"])
    assert isinstance(command, Command)
    _fill(parser, command, status)
    words = argv[len(path) :]
    for word in words[: words.index("--")] if "--" in words else words:
        if word.startswith("--") and word.endswith("=--"):  # argparse drops the value, and breaks
            raise LlamaparError(f"{shown(word)}: a value is needed", "", [f"{parser.prog} --help"])
    args, unknown = parser.parse_known_args(words)
    if unknown:
        raise _refusal(unknown[0], command, args)
    for field in command.options:
        if isinstance(text := getattr(args, field), str):
            setattr(args, field, reader(field)(text))
    return command, args


def _named(argv: Sequence[str], top: Group) -> tuple[Command | Group, Sequence[str]]:
    """The command that the first words name, a group where they ask for its help; and those words."""
    command: Command | Group = top
    for i, word in enumerate([*argv, ""]):
        if isinstance(command, Command) or word in ("-h", "--help"):
            return command, argv[:i]
        if not word or word.startswith("-"):
            article = "an" if command.word[0] in "aeiou" else "a"
            choose = [*command.commands, " ".join(["llamapar", *argv[:i], "--help"])]
            raise LlamaparError(f"{article} {command.word} is needed first", "", choose, command.word)
        command = command.commands[one_of(command.word, word, command.commands, LlamaparError)]
    return command, argv


def _fill_group(parser: _Parser, group: Group, status: str) -> None:
    """The names of a group's commands, and what each does."""
    made = parser.add_subparsers(metavar=group.word.upper(), title=f"{group.word}s", parser_class=_Parser)
    for name, each in group.commands.items():
        made.add_parser(name, help=each.what)
    parser.epilog = _epilog(group.example, f"0 and 1 as the help of each {group.word} says", status)


def _fill(parser: _Parser, command: Command, status: str) -> None:
    """What a command takes."""
    parser.set_defaults(prog=parser.prog)
    for field, help_text in command.positional:
        parser.add_argument(field, nargs="?", metavar=field.upper(), help=help_text)
    for field in (*command.options, "json"):
        if field in OPTIONS:
            metavar, about = OPTIONS[field]
            parser.add_argument(option(field), metavar=metavar, help=command.helps.get(field, about))
            continue
        about = command.helps.get(field, SWITCHES[field])
        if field == "sequence_parallel":
            both = argparse.BooleanOptionalAction
            parser.add_argument(option(field), action=both, default=None, help=about)
        else:
            parser.add_argument(option(field), action="store_true", help=about)
    parser.epilog = _epilog(command.example, command.exits, status)


def _epilog(example: str, exits: str, status: str) -> str:
    return f"example:\n  {example}\n\nexit status: {exits}, 2 bad usage or bad input\n{status}"


def _refusal(word: str, command: Command, args: argparse.Namespace) -> LlamaparError:
    """An option that the command does not have, or a word too many, with what it may have meant."""
    help_of = [f"{args.prog} --help"]
    if word.startswith("-"):
        known = map(option, (*command.options, "json"))
        near = difflib.get_close_matches(word.partition("=")[0][:100], list(known), n=2)
        return LlamaparError(f"{shown(word)} is not an option of {args.prog}", "", near or help_of)
    meant = command.surplus.format(word=word)
    free = meant and getattr(args, meant.split()[0].lstrip("-"), None) is None
    return LlamaparError(f"{shown(word)} is one word too many", "", [meant] if free else help_of)
