"""A command as a row of data, the values typed after it, and its answer.

Most commands call a public function with the values and write what it returns; a special one answers by a
function of its own.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

from llamapar.describe.layout import Layout
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.options import LAYOUT, Values, flags
from llamapar.errors import LlamaparError, install
from llamapar.frameworks.settings import JOB_FACTS, Settings
from llamapar.late import imported, late

from .output import Foldable, as_text, error_as_dict

KNOWN = ("model", *JOB_FACTS)
"""What a person says beside files of settings."""

SCHEMA = 2
"""The version of all JSON answers: docs/programs.md says what raises it."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Given:
    """The values typed after a command, by name; None for an option that was not given.

    command: its full name, "llamapar check". about: its row. note: a sentence about a published job, if one
    was named and nothing of it was changed.
    """

    command: str
    about: Command
    values: Values
    note: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def needed(self, name: str, what: str, why: str = "", choose: Iterable[object] = ()) -> str:
        """A required value. Raises LlamaparError if it was not given."""
        if self[name] is None:
            raise LlamaparError(what, why, choose, name)
        return str(self[name])

    def require(self) -> None:
        """Raises LlamaparError for the first of the command's needs that was not given."""
        for name, need in self.about.needs.items():
            self.needed(name, *need)

    def of(self, *names: str) -> Values:
        """The given options; the library judges their values."""
        return {name: value for name in names if (value := self.values.get(name)) is not None}

    @property
    def model(self) -> ModelConfig:
        """The named model. Raises LlamaparError without one."""
        why = f"presets are {', '.join(PRESETS)}"
        choose = ["llama3.1-405b", "a config.json or params.json", f"{self.command} --help"]
        return find_model(self.needed("model", "a model is needed", why, choose))

    @property
    def layout(self) -> Layout:
        """The layout of the given options."""
        return Layout(**self.of(*LAYOUT))

    @property
    def files(self) -> list[str]:
        """The named files of settings and launch scripts."""
        return [file for files in self.of("config", "launch").values() for file in files]

    def settings(self, **known: object) -> Settings:
        """What the named files say. known: facts that a person could have given beside them."""
        said = self.of(*KNOWN) | known
        return late("read_settings")(*self.files, overrides=self["overrides"], known=said)


@dataclass(frozen=True)
class CommandAnswer:
    """The answer of a command, written in one of its forms. ok: whether the exit status is 0."""

    ok: bool
    text: Callable[[], str]
    data: Callable[[], Mapping[str, object]]

    def written(self, as_json: bool) -> str:
        """The text, or the data as JSON with the version of its schema."""
        if as_json:
            return json.dumps({"schema": SCHEMA, **self.data()}, allow_nan=False)
        return self.text()


class FoldableRecord(Foldable, Protocol):
    """The kind of answer that most commands give."""

    def as_dict(self) -> Mapping[str, object]: ...


# -- the answer of a plain command ---------------------------------------------------------------


def returned(given: Given, function: Callable[..., Result], *settings: Settings, **more: object) -> Result:
    """What a public function returns for the given values: words by place, then the options that it has.

    settings: what the named files say, in place of the words and of all that a person says beside files.
    """
    words = [name for name, _ in given.about.positional]
    parameters = inspect.signature(function).parameters
    options = given.of(*(name for name in parameters if name not in (KNOWN if settings else words)))
    if settings:
        return function(*settings, **options, **more)
    given.require()
    subject = [given.model if name == "model" else given[name] for name in words]
    if "layout" in parameters:
        options["layout"] = given.layout
    return function(*subject, **options, **more)


def plain(given: Given, *settings: Settings) -> CommandAnswer:
    """The answer of the command's function."""
    return answer_of(given, returned(given, late(given.about.function), *settings))


def answer_of(given: Given, found: FoldableRecord) -> CommandAnswer:
    """A record as text and as JSON, with the exit status that it stands for."""
    command = given.about
    return CommandAnswer(
        not command.ok or bool(getattr(found, command.ok)),
        lambda: "\n".join([as_text(found), *command.below(given, found)]),
        found.as_dict,
    )


def noted(given: Given, found: object) -> list[str]:
    """The note of a published job."""
    if given.note:
        return [given.note]
    return []


def answered(given: Given, make: Callable[..., CommandAnswer] = plain) -> CommandAnswer:
    """The made answer; if files of settings are named, what they say with the answer made from them below."""
    if not given.files:
        return make(given)
    if typed := given.of(*LAYOUT):
        name = next(iter(typed))
        why = "the layout is read from the files"
        choose = ["what the framework's command takes, after --", "the command without --config"]
        raise LlamaparError(f"{name}={typed[name]} beside files of settings", why, choose, name)
    settings = given.settings()
    if given.values.get("settings"):
        return CommandAnswer(True, lambda: as_text(settings), settings.as_dict)
    try:
        below = make(given, settings)
    except LlamaparError as problem:
        below = _not_judged(problem)
    if below.ok and given.of("export"):  # The output is settings to run with, so add nothing around them.
        return below
    return CommandAnswer(
        below.ok,
        lambda: f"{as_text(settings)}\n\n{below.text()}",
        lambda: {**below.data(), "settings": settings.as_dict()},
    )


def _not_judged(problem: LlamaparError) -> CommandAnswer:
    """The answer about files that leave facts open."""
    return CommandAnswer(
        False,
        lambda: f"not judged: {problem}",
        lambda: {"ok": None, "error": error_as_dict(problem)},
    )


# -- rows ----------------------------------------------------------------------------------------


class Command(NamedTuple):
    """A command. what: its help. exits: the meaning of status 0, and of status 1 if it has one.

    name: by which the rows of the table say that it offers them. calls: the public function that it calls,
    where that has another name; it supplies the options' defaults, and gets those that are its parameters.
    positional: the words after the command, by name, which are the function's first arguments; a name of an
    option stands for its value. surplus: the likely meaning of a further word. helps: help texts of options
    with another meaning here.

    needs: what it cannot do without, by name, with the error's text, reason and choices.
    ok: the attribute of the function's answer that decides between status 0 and 1, if it has one.
    below: the lines below the answer's text.
    answer: what makes the answer; a special command has a function of its own.
    """

    what: str
    name: str
    example: str
    exits: str
    positional: tuple[tuple[str, str], ...] = ()
    surplus: str = ""
    helps: Mapping[str, str] = MappingProxyType({})
    needs: Mapping[str, tuple[str, str, tuple[object, ...]]] = MappingProxyType({})
    ok: str = ""
    below: Callable[..., list[str]] = noted
    answer: Callable[[Given], CommandAnswer] = answered
    calls: str = ""

    @property
    def function(self) -> str:
        return self.calls or self.name

    @property
    def options(self) -> tuple[str, ...]:
        """The options that it offers, in the table's order."""
        return flags(self.name)


class CommandGroup(NamedTuple):
    """Commands that the next word selects. word: what each of them is called."""

    what: str
    commands: Mapping[str, Command | CommandGroup]
    example: str
    word: str = "command"


MODEL_WORD = (("model", "the same as --model"),)
"""The word of a command that is about a model."""


def with_torch(module: str, what: str, why: str = "") -> ModuleType:
    """A module that needs torch. what: its purpose. Raises LlamaparError if it cannot be imported."""
    try:
        return imported(module)
    except ModuleNotFoundError as problem:
        missing = f"{problem.name} is not installed, and {what} needs it"
        raise LlamaparError(missing, why, [install("run")]) from None
    except ImportError as problem:  # The installed torch is too old.
        raise LlamaparError(str(problem), "", [install("run")]) from None
