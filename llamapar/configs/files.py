"""The files of one job, in the forms that readers need.

Each text is parsed when a reader first asks for its form. What readers look at is noted in the draft, and
`unread` lists the rest.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from .documents import OVERRIDE, READERS, Document, Entry, read_document
from .draft import Draft
from .flags import Flags, as_one, flags_of, is_launch, script_flags
from .launch import batch_of
from .launch_lines import Script, ShellCommand, Word, directives_of, read_lines
from .meter import Meter


@dataclass(frozen=True)
class Files:
    """Texts by name, parsed by the kind that the name indicates: settings, Python, else a launch script."""

    texts: dict[str, str]
    overrides: Sequence[str] = ()
    used: list[Document] = field(default_factory=list)
    """What was read, beside files of settings."""

    @cached_property
    def meter(self) -> Meter:
        """Counts the steps of reading these files."""
        return Meter(", ".join(self.texts), sum(map(len, self.texts.values())))

    @cached_property
    def documents(self) -> dict[str, Document]:
        """Files of settings in the given order."""
        return {
            name: read_document(name, text, self.meter)
            for name, text in self.texts.items()
            if name.rpartition(".")[2].lower() in READERS
            and (not name.endswith(".conf") or text.lstrip().startswith("{"))
        }

    @cached_property
    def scripts(self) -> dict[str, Script]:
        """Launch scripts; each sees what any script's directives say about the machine."""
        held = {
            name: _fenced(text)
            for name, text in self.texts.items()
            if name not in self.documents and not name.endswith(".py")
        }
        found = dict[str, str]()
        for text in held.values():
            found = batch_of(directives_of(text)).environment | found

        def read_one(name: str, environment: dict[str, str]) -> Script:
            others = {other: text for other, text in held.items() if other != name}
            return read_lines(held[name], environment, others, self.meter)

        read = {name: read_one(name, found) for name in held}
        # What one script sets in front of a command, the script that the command starts finds.
        for name in read if len(read) > 1 else ():
            commands = [c for other, script in read.items() if other != name for c in script.commands]
            given = {key: word.text for c in commands for key, word in c.environment.items()}
            read[name] = read_one(name, found | given)
        return read

    @cached_property
    def line(self) -> Flags:
        """The arguments of the launch and those of the person, which win over what files say."""
        # Of several commands those count that name a file of settings of this job.
        naming = [
            (name, command)
            for name, command in self.launches
            if any(
                w.text.endswith((*self.documents,)) for w in (*command.words, *command.environment.values())
            )
        ]
        found = as_one(flags_of(command.words, name) for name, command in naming or self.launches)
        return self._overridden(found or Flags("the launch", ()))

    @cached_property
    def launches(self) -> list[tuple[str, ShellCommand]]:
        """The commands that start a program, with their files."""
        held = ((name, command) for name, script in self.scripts.items() for command in script.commands)
        return [(name, command) for name, command in held if is_launch(command.words)]

    def _overridden(self, flags: Flags) -> Flags:
        said = flags_of([Word(text, OVERRIDE) for text in self.overrides])
        return replace(flags, entries=(*flags.entries, *said.entries), values={**flags.values, **said.values})

    @cached_property
    def absent(self) -> str:
        """The file of settings that a launch names and that is not among these; "" without one."""
        for _, command in self.launches:
            texts = [word.text for word in command.words]
            program = next((n for n, text in enumerate(texts) if text.endswith((".py", ".sh"))), 0)
            for text in (*(word.text for word in command.environment.values()), *texts[program + 1 :]):
                name = re.split(r"[/=]", text)[-1]
                if re.search(r"\.(?:toml|ya?ml)$", name) and name not in (*self.texts, "base.yml"):
                    return name
        return ""

    def with_key(self, *paths: str) -> Document | None:
        """The first file of settings with one of these keys, or a key below it."""
        for document in self.documents.values():
            if document.get(*paths) or any(True for path in paths for _ in document.under(path)):
                return document
        return None

    def flags(self, *marks: str) -> Flags | None:
        """The arguments of the commands with one of these flags."""
        found = as_one(
            flags for name, script in self.scripts.items() if (flags := script_flags(script, name, *marks))
        )
        if found is not None:
            return self._overridden(found)
        return None

    def command_lines(self) -> Iterator[str]:
        """Each command of the scripts, and each variable's words, as one line."""
        held = (words for script in self.scripts.values() for words in script.lines)
        return (" ".join(word.text for word in words) for words in held)

    def environment(self, *names: str) -> Document:
        """The variables of these names that scripts set, before a command or for themselves."""
        found = list[Entry]()
        for name, (file, script) in itertools.product(names, self.scripts.items()):
            words = [c.environment[name] for c in script.commands if name in c.environment]
            words += script.variables.get(name, ())
            found += [Entry(name, word.text, word.line, file) for word in words]
        # The last entry of a document counts, and here the first does.
        return Document("the launch", tuple(reversed(found)))

    def unread(self, draft: Draft) -> Iterator[tuple[str, Entry]]:
        """The settings that no reader used, with their files."""
        read = (*self.documents.values(), *self.used)
        held = ((entry.file or document.name, entry) for document in read for entry in document.entries)
        seen = {(name, path) for name, path, _ in draft.asked}
        yield from ((name, entry) for name, entry in held if (name, entry.path) not in seen)


def _fenced(text: str) -> str:
    """Prose reduced to the commands in its code fences, on their lines; any other text unchanged."""
    lines = text.splitlines()
    fences = [line.lstrip().startswith("```") for line in lines]
    if not any(fences):
        return text
    opened = zip(lines, fences, itertools.accumulate(fences), strict=True)
    return "\n".join(line if many % 2 and not fence else "" for line, fence, many in opened)
