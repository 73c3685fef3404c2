"""The arguments of a command line by name, whichever script starts the command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .documents import Document, Entry
from .shell import Script
from .shell_words import HOLE, Word

_FLAG = re.compile(r"--?[A-Za-z][\w.:-]*")


def _plain(name: str) -> str:
    """An argument's name without leading dashes, and with dashes for underscores."""
    return name.lstrip("-").replace("_", "-")


@dataclass(frozen=True)
class Flags(Document):
    """The arguments of a command under their plain names; the last one counts. A switch has the value True.

    values: all words up to the next flag. unresolved: a word that may hold further arguments, which only a
    run of the script can tell.
    """

    values: Mapping[str, list[str]] = field(default_factory=dict)
    words: tuple[Word, ...] = ()
    unresolved: Word | None = None

    @cached_property
    def by_path(self) -> dict[str, Entry]:
        """Plain name → its argument."""
        return {_plain(entry.path): entry for entry in self.entries}

    def get(self, *paths: str) -> Entry | None:
        """The argument under the first of these names that is given."""
        return super().get(*map(_plain, paths))


def split_words(words: Iterable[Word]) -> Iterator[Word]:
    """Words; a command line in quotes is split."""
    for word in words:
        # A variable in quotes may hold a whole command line: "--tp 8 --pp 2".
        if re.search(r"\s-{1,2}\w", f" {word.text}") and " " in word.text.strip():
            for part in word.text.split():
                yield Word(part, word.line)
        else:
            yield word


_HOLDS_ARGUMENTS = re.compile(r"arg|opt|flag|extra|param|overrid", re.I)
"""In the names of variables that hold arguments, and not one value."""


def flags_of(words: Sequence[Word], name: str = "") -> Flags:
    """The arguments among words. name: of the script that they stand in."""
    entries, values = dict[str, Entry](), dict[str, list[str]]()
    held = [*split_words(words)]
    # What stands before the program, as `torchrun $LAUNCH train.py`, is not for the program.
    program = next((n for n, word in enumerate(held) if word.text.endswith(".py")), -1)
    unresolved: Word | None = None
    key = ""
    for at, word in enumerate(held):
        flag, equals, value = word.text.partition("=")
        # A negative number would look like a flag, but _FLAG asks for a letter after the dashes.
        if _FLAG.fullmatch(flag):
            own = _plain(flag)
            key = "" if equals else own
            values[own] = [value] if equals else []
            entries[own] = Entry(flag, value if equals else True, word.line)
        elif at > program and _is_unresolved(word.text, follows=bool(values.get(key))):
            unresolved = unresolved or word
        elif key:
            if not values[key]:
                entries[key] = Entry(entries[key].path, word.text, entries[key].line)
            values[key].append(word.text)
    made = tuple(entries.values())
    return Flags(name, made, values=values, words=tuple(held), unresolved=unresolved)


def _is_unresolved(text: str, follows: bool) -> bool:
    """Whether a word may hold further arguments. follows: it stands behind the value of a flag."""
    return re.fullmatch(rf"(?:{HOLE}\w*)+", text) is not None and (
        follows or _HOLDS_ARGUMENTS.search(text) is not None
    )


def is_known(entry: Entry | None) -> bool:
    """Whether an argument's value is known without a run."""
    return entry is not None and HOLE not in str(entry.value)


def program_words(script: Script, *marks: str) -> tuple[Word, ...]:
    """The words of the commands that contain one of `marks` (flags, without dashes).

    If there is none (a sourced file, a command that is built but not seen to run), the words of every
    variable that contains flags.
    """
    wanted = {*map(_plain, marks)}

    def carries(words: Iterable[Word]) -> bool:
        held = (word.text for word in split_words(words) if word.text.startswith("-"))
        return any(_plain(text.partition("=")[0]) in wanted for text in held)

    commands = [c.words for c in script.commands if c.words[0].text != "echo"]
    found = [words for words in commands if carries(words)]
    # A comment between continued lines ends the command. Its remaining flags are read too, and the cut is
    # reported.
    if any(map(is_cut_off, found)):
        found = [words for words in commands if is_cut_off(words) or carries(words)]
    if not found:
        variables = [*script.variables.values()]
        found = [words for words in variables if carries(words)]
        found += [
            words
            for words in variables
            if found
            and not carries(words)
            and any(_FLAG.fullmatch(w.text) and w.text.startswith("--") for w in split_words(words))
        ]
    return tuple(word for words in found for word in words)


_PROGRAM = re.compile(r"(?:^|/)(?:torchrun|srun|mpirun|deepspeed|pretrain\w*)$|\.(?:py|sh)$")


def runs_something(script: Script) -> bool:
    """Whether a script starts a program, or is the arguments of one; false if it only sets variables."""
    commands = [c.words for c in script.commands if c.words[0].text not in ("source", ".", "echo")]
    held = [*commands, *script.variables.values()]
    return any(map(is_cut_off, commands)) or any(
        _PROGRAM.search(word.text) for words in held for word in split_words(words)
    )


def is_cut_off(words: Sequence[Word]) -> bool:
    """Whether a command begins with an argument, because its own command has ended above."""
    return words[0].text.startswith("--")
