"""The arguments of a command line by name, whichever script starts the command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from .documents import Document, Entry
from .launch_lines import Script, Word

_FLAG = re.compile(r"--?[A-Za-z][\w.:-]*")
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w.]*")
"""What stands before "=" where arguments are key=value, as torchtune takes them."""


def _plain(name: str) -> str:
    """An argument's name without leading dashes, and with dashes for underscores."""
    return name.lstrip("-+").replace("_", "-")


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


_HOLDS_ARGUMENTS = re.compile(r"arg|opt|flag|extra|param|overrid", re.I)
"""In the names of variables that hold arguments, and not one value."""


def flags_of(words: Sequence[Word], name: str = "") -> Flags:
    """The arguments among words. name: of the script that they stand in."""
    entries = dict[str, Entry]()
    values = dict[str, list[str]]()
    # What stands before the program, as `torchrun $LAUNCH train.py`, is not for the program.
    program = next((n for n, word in enumerate(words) if word.text.endswith(".py")), -1)
    unresolved: Word | None = None
    key = ""
    for at, word in enumerate(words):
        flag, equals, value = word.text.partition("=")
        # A negative number would look like a flag, but _FLAG asks for a letter after the dashes.
        if _FLAG.fullmatch(flag) or (equals and _KEY.fullmatch(flag)):
            own = _plain(flag)
            key = own
            if equals:
                key = ""
            values[own] = [value] if equals else []
            entries[own] = Entry(flag, value if equals else True, word.line, name)
        elif (
            # A word that a run makes may hold arguments: behind the value of a flag, or by its name.
            at > program
            and re.fullmatch(r"(?:\$[^$/.]*)+", word.text)
            and (values.get(key) or _HOLDS_ARGUMENTS.search(word.text))
        ):
            unresolved = unresolved or word
        elif key:
            if not values[key]:
                entries[key] = Entry(entries[key].path, word.text, entries[key].line, name)
            values[key].append(word.text)
    return Flags(name, tuple(entries.values()), values=values, words=tuple(words), unresolved=unresolved)


def is_known(entry: Entry | None) -> bool:
    """Whether an argument's value is known without a run."""
    return entry is not None and "$" not in str(entry.value)


def as_one(several: Iterable[Flags]) -> Flags | None:
    """The arguments of several commands as one; of what differs between them nothing is known."""
    found: Flags | None = None
    for flags in several:
        if found is None:
            found = flags
            continue
        entries = dict(found.by_path)
        for key, entry in flags.by_path.items():
            old = entries.setdefault(key, entry)
            if old.value != entry.value:
                entries[key] = Entry(old.path, f"${old.value} or {entry.value}", old.line, old.file)
        found = Flags(
            found.name,
            tuple(entries.values()),
            values={**flags.values, **found.values},
            words=(*found.words, *flags.words),
            unresolved=found.unresolved or flags.unresolved,
        )
    return found


def script_flags(script: Script, name: str, *marks: str) -> Flags | None:
    """The arguments of the commands that contain one of `marks` (names without dashes).

    If there is none (a sourced file, a command that is built but not seen to run), those in every variable
    that contains flags.
    """
    read = []
    for words in script.started:
        flags = flags_of(words, name)
        if flags.words[0].text.startswith("--"):
            # A comment between continued lines ends the command, so these are no command's.
            cut = (replace(entry, value=f"${entry.value}, behind a comment") for entry in flags.entries)
            flags = replace(flags, entries=tuple(cut))
        read.append(flags)
    if any(flags.get(*marks) for flags in read):
        found = [flags for flags in read if flags.get(*marks) or flags.words[0].text.startswith("--")]
        return as_one(found)
    read = [flags_of(words, name) for words in script.variables.values()]
    if any(flags.get(*marks) for flags in read):
        return as_one(flags for flags in read if any(entry.path.startswith("--") for entry in flags.entries))
    return None


_PROGRAM = re.compile(
    r"(?:^|/)(?:torchrun|srun|mpirun|deepspeed|accelerate|tune|axolotl|python[\d.]*|pretrain\w*|\w+-cli)$|\.(?:py|sh)$"
)


def is_launch(words: Sequence[Word]) -> bool:
    """Whether a command starts a program."""
    return any(_PROGRAM.search(word.text) for word in words) and words[0].text not in (
        "source",
        ".",
        "echo",
    )
