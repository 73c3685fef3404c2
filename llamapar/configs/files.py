"""The files of one job, in the forms that readers need.

Each text is parsed when a reader first asks for its form. What readers look at is noted in the draft, and
`unread` lists the rest.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from llamapar.frameworks.settings import Contradiction

from .documents import OVERRIDE, READERS, Document, Entry, Scalar, read_document
from .draft import Draft
from .flags import Flags, flags_of, is_cut_off, program_words
from .launch import batch_of, take_world
from .meter import Meter
from .python_source import ConfigurationClass, keyword_literals, read_python
from .shell import Script, read_shell
from .shell_words import Word, directives_of


@dataclass(frozen=True)
class Files:
    """Texts by name, parsed by the kind that the name indicates: settings, Python, else a shell script."""

    texts: dict[str, str]
    overrides: Sequence[str] = ()
    commands: dict[str, Flags] = field(default_factory=dict)
    """Arguments of the scripts that were looked into."""
    called: dict[str, Document] = field(default_factory=dict)
    """Keywords of calls that were looked into, by their first classes."""
    functions: tuple[str, ...] = ()
    """Functions that a person asked for, of those that make a configuration."""
    made: dict[ConfigurationClass, Document | None] = field(default_factory=dict)
    """Configurations that were looked for in the Python files."""

    @cached_property
    def meter(self) -> Meter:
        """Counts the steps of reading these files."""
        return Meter(", ".join(self.texts), sum(map(len, self.texts.values())))

    @cached_property
    def documents(self) -> dict[str, Document]:
        """Files of settings in the given order."""
        said = tuple(self._overriding())
        return {
            name: read_document(name, text, self.meter).overridden(said)
            for name, text in self.texts.items()
            if name.rpartition(".")[2].lower() in READERS
            and (not name.endswith(".conf") or text.lstrip().startswith("{"))
        }

    def _overriding(self) -> Iterator[Entry]:
        """Overrides of keys, in the forms `--a.b 8`, `--a.b=8` and `a.b=8`."""
        words = [*self.overrides]
        while words:
            key, equals, value = words.pop(0).partition("=")
            if not equals and key.startswith("-"):
                # A flag followed by another flag is a switch.
                value = words.pop(0) if words and not words[0].startswith("--") else "true"
            if equals or key.startswith("-"):
                yield Entry(key.lstrip("-"), _scalar(value), OVERRIDE)

    @cached_property
    def scripts(self) -> dict[str, Script]:
        """Shell scripts; each sees what any script's directives say about the machine."""
        held = {
            name: _fenced(text)
            for name, text in self.texts.items()
            if name not in self.documents and not name.endswith(".py")
        }
        found = dict[str, str]()
        for text in held.values():
            found = batch_of(directives_of(text)).environment | found

        def read_one(name: str, arguments: Sequence[str] = ()) -> Script:
            others = {other: text for other, text in held.items() if other != name}
            return read_shell(held[name], arguments, found, self.meter, others)

        read = {name: read_one(name) for name in held}
        # A script that another one calls is read again, with the arguments of that call in place of $1,
        # $2, …; the last call counts.
        called = dict[str, list[str]]()
        for caller, script in read.items():
            for command in script.commands:
                words = [word.text for word in command.words]
                for name in read:
                    at = next((n for n, word in enumerate(words) if word.rpartition("/")[2] == name), None)
                    if at is not None and name != caller and len(words) > at + 1:
                        called[name] = words[at + 1 :]
        return read | {name: read_one(name, words) for name, words in called.items()}

    @cached_property
    def python(self) -> dict[str, str]:
        """Python sources."""
        return {name: text for name, text in self.texts.items() if name.endswith(".py")}

    def configuration(self, made: ConfigurationClass) -> Document | None:
        """The configuration from the function that was asked for, that a script names, or that is alone."""
        if made not in self.made:
            words = {part for line in self.command_lines() for part in re.split(r"[=.:\s]", line)}
            named = (self.functions or words).__contains__
            self.made[made] = read_python(self.python, made, named, self.meter)
        return self.made[made]

    def calls(self, *classes: str) -> Document | None:
        """The keywords of calls of some classes, in the first text that calls the first of them."""
        for name, text in self.texts.items():
            found = keyword_literals(text, classes, self.meter) if f"{classes[0]}(" in text else {}
            if classes[0] in found:
                made = Document(name, tuple(itertools.chain.from_iterable(found.values())))
                self.called[classes[0]] = made
                return made
        return None

    def with_key(self, *paths: str) -> Document | None:
        """The first file of settings with one of these keys, or a key below it."""
        for document in self.documents.values():
            if document.get(*paths) or any(True for path in paths for _ in document.under(path)):
                return document
        return None

    def flags(self, *marks: str) -> Flags | None:
        """The arguments of the script with one of these flags."""
        for name, script in self.scripts.items():
            if words := program_words(script, *marks):
                made = flags_of((*words, *(Word(text, OVERRIDE) for text in self.overrides)), name)
                self.commands[name] = made
                return made
        return None

    def command_lines(self) -> Iterator[str]:
        """Each command of the scripts, and each variable's words, as one line."""
        held = (words for script in self.scripts.values() for words in script.lines)
        return (" ".join(word.text for word in words) for words in held)

    def take_world(self, draft: Draft) -> None:
        """Read the number of GPUs that the scripts start; the last script with a number counts."""
        for name, script in self.scripts.items():
            take_world(draft, name, script)

    def environment(self, *names: str) -> Document:
        """The variables of these names that scripts set, before a command or for themselves."""
        found = list[Entry]()
        for name, script in itertools.product(names, self.scripts.values()):
            words = [c.environment[name] for c in script.commands if name in c.environment]
            found += [Entry(name, word.text, word.line) for word in (*words, *script.variables.get(name, ()))]
        # The last entry of a document counts, and here the first does.
        return Document("the launch", tuple(reversed(found)))

    def unread(self, draft: Draft) -> Iterator[tuple[str, Entry]]:
        """The settings that no reader used, with their files."""
        read = (*self.documents.values(), *self.called.values(), *self.commands.values())
        held = ((document.name, entry) for document in read for entry in document.entries)
        seen = {(name, path) for name, path, _ in draft.asked}
        yield from ((name, entry) for name, entry in held if (name, entry.path) not in seen)

    def tell_cut_off(self, draft: Draft) -> None:
        """Report arguments after a comment, which ends their command."""
        for name, script in self.scripts.items():
            lines = [line.strip() for line in self.texts[name].splitlines()]
            cut = [c.words[0] for c in script.commands if is_cut_off(c.words)]
            behind = [w for w in cut if 2 < w.line <= len(lines) and lines[w.line - 2].startswith("#")]
            if behind and any(lines[at - 1].endswith("\\") for at in range(1, behind[0].line - 1)):
                first = behind[0]
                why = (
                    f"the comment above {name}:{first.line} ends the command: "
                    f"it gets no {first.text}, nor what follows"
                )
                draft.contradictions.append(Contradiction("launch", (first.text, "nothing"), why))

    def tell_repeated(self, draft: Draft) -> None:
        """Report keys that occur twice, of which the last counts."""
        for name, document in self.documents.items():
            for first, last in document.repeated:
                why = f"the key stands twice in {name}, lines {first.line} and {last.line}; the last counts"
                draft.contradictions.append(Contradiction(first.path, (first.value, last.value), why))


def _scalar(text: str) -> Scalar:
    """A word of a command line as a value."""
    if re.fullmatch(r"-?[0-9]{1,15}", text):
        return int(text)
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)


def _fenced(text: str) -> str:
    """Prose reduced to the commands in its code fences, on their lines; any other text unchanged."""
    lines = text.splitlines()
    fences = [line.lstrip().startswith("```") for line in lines]
    if not any(fences):
        return text
    opened = zip(lines, fences, itertools.accumulate(fences), strict=True)
    return "\n".join(line if many % 2 and not fence else "" for line, fence, many in opened)
