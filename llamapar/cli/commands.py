"""What a command is: its options, what was typed after it, and its answer."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, Protocol

from llamapar.describe.layout import Layout
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.options import FACTS, LAYOUT, Values
from llamapar.errors import LlamaparError, install

from .writing import Foldable, as_text


@dataclass(frozen=True)
class Given:
    """What was typed after a command, read: values by name, None where an option was not given.

    command: the words that name it, "llamapar check". note: what is known of a published job, where it was
    named and nothing of it was changed.
    """

    command: str
    values: Values
    note: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def needed(self, name: str, what: str, why: str = "", choose: Iterable[object] = ()) -> str:
        """A value that must be given. Raises LlamaparError where it was not."""
        if self[name] is None:
            raise LlamaparError(what, why, choose, name)
        return str(self[name])

    def of(self, *names: str) -> Values:
        """The options that were given; the library judges their values."""
        return {name: value for name in names if (value := self.values.get(name)) is not None}

    @property
    def model(self) -> ModelConfig:
        """The model that was named; LlamaparError where none was."""
        why = f"presets are {', '.join(PRESETS)}"
        choose = ["llama3.1-405b", "a config.json or params.json", f"{self.command} --help"]
        return find_model(self.needed("model", "a model is needed", why, choose))

    @property
    def layout(self) -> Layout:
        """The layout of the options that were given."""
        return Layout(**self.of(*LAYOUT))

    @property
    def files(self) -> list[str]:
        """The files of settings and launch scripts that were named."""
        named = self.of("config", "launch")
        return [file for files in named.values() for file in files]

    @property
    def facts(self) -> Values:
        """The facts of a job that were given."""
        return self.of(*FACTS)


@dataclass(frozen=True)
class Answer:
    """What a command answers, of which one form is made. ok: whether the exit status is 0."""

    ok: bool
    text: Callable[[], str]
    data: Callable[[], Mapping[str, object]]

    def written(self, as_json: bool) -> str:
        """The text, or the data as JSON."""
        return json.dumps(self.data(), allow_nan=False) if as_json else self.text()


class Record(Foldable, Protocol):
    """What most commands answer with."""

    def as_dict(self) -> Mapping[str, object]: ...


def answer(record: Record, ok: bool = True, note: str = "") -> Answer:
    """A record in its own two forms, the text with a note below."""
    return Answer(ok, lambda: "\n".join(filter(None, [as_text(record), note])), record.as_dict)


def with_torch(module: str, what: str, why: str = "") -> ModuleType:
    """A module that needs torch. what: it does. Raises LlamaparError where it cannot be had."""
    try:
        return importlib.import_module(f"llamapar.{module}")
    except ModuleNotFoundError as problem:
        missing = f"{problem.name} is not installed, and {what} needs it"
        raise LlamaparError(missing, why, [install("run")]) from None
    except ImportError as problem:  # a torch that is too old
        raise LlamaparError(str(problem), "", [install("run", "--upgrade ")]) from None


MODEL_WORD = (("model", "the same as --model"),)
"""The word of a command that is about a model."""


class Command(NamedTuple):
    """what: its help. exits: what its status 0 means, and its status 1 where it has one.

    function: the public function whose defaults its options have. options: names of OPTIONS.
    positional: the words after it, by name; one that is an option's name stands for its value.
    surplus: what one more may mean.
    helps: of options that mean something else here.
    """

    answer: Callable[[Given], Answer]
    what: str
    function: str
    options: tuple[str, ...]
    example: str
    exits: str
    positional: tuple[tuple[str, str], ...] = ()
    surplus: str = ""
    helps: Mapping[str, str] = MappingProxyType({})


class Group(NamedTuple):
    """Commands of which the next word names one. word: what each of them is called."""

    what: str
    commands: Mapping[str, Command | Group]
    example: str
    word: str = "command"
