"""The parts of a command: its options, the values typed after it, and its answer."""

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

from .output import Foldable, as_text


@dataclass(frozen=True)
class Given:
    """The values typed after a command, by name; None for an option that was not given.

    command: its full name, "llamapar check". note: a sentence about a published job, if one was named and
    nothing of it was changed.
    """

    command: str
    values: Values
    note: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def needed(self, name: str, what: str, why: str = "", choose: Iterable[object] = ()) -> str:
        """A required value. Raises LlamaparError if it was not given."""
        if self[name] is None:
            raise LlamaparError(what, why, choose, name)
        return str(self[name])

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
        named = self.of("config", "launch")
        return [file for files in named.values() for file in files]

    @property
    def facts(self) -> Values:
        """The given facts of a job."""
        return self.of(*FACTS)


@dataclass(frozen=True)
class CommandAnswer:
    """The answer of a command, written in one of its forms. ok: whether the exit status is 0."""

    ok: bool
    text: Callable[[], str]
    data: Callable[[], Mapping[str, object]]

    def written(self, as_json: bool) -> str:
        """The text, or the data as JSON."""
        return json.dumps(self.data(), allow_nan=False) if as_json else self.text()


class FoldableRecord(Foldable, Protocol):
    """The kind of answer that most commands give."""

    def as_dict(self) -> Mapping[str, object]: ...


def answer(record: FoldableRecord, ok: bool = True, note: str = "") -> CommandAnswer:
    """A record as text with a note below, and as JSON."""
    return CommandAnswer(ok, lambda: "\n".join(filter(None, [as_text(record), note])), record.as_dict)


def with_torch(module: str, what: str, why: str = "") -> ModuleType:
    """A module that needs torch. what: its purpose. Raises LlamaparError if it cannot be imported."""
    try:
        return importlib.import_module(f"llamapar.{module}")
    except ModuleNotFoundError as problem:
        missing = f"{problem.name} is not installed, and {what} needs it"
        raise LlamaparError(missing, why, [install("run")]) from None
    except ImportError as problem:  # The installed torch is too old.
        raise LlamaparError(str(problem), "", [install("run", "--upgrade ")]) from None


MODEL_WORD = (("model", "the same as --model"),)
"""The word of a command that is about a model."""


class Command(NamedTuple):
    """A command. what: its help. exits: the meaning of status 0, and of status 1 if it has one.

    function: the public function that supplies the options' defaults. options: names of OPTIONS. positional:
    the words after the command, by name; a name of an option stands for its value. surplus: the likely
    meaning of a further word. helps: help texts of options with another meaning here.
    """

    answer: Callable[[Given], CommandAnswer]
    what: str
    function: str
    options: tuple[str, ...]
    example: str
    exits: str
    positional: tuple[tuple[str, str], ...] = ()
    surplus: str = ""
    helps: Mapping[str, str] = MappingProxyType({})


class CommandGroup(NamedTuple):
    """Commands that the next word selects. word: what each of them is called."""

    what: str
    commands: Mapping[str, Command | CommandGroup]
    example: str
    word: str = "command"
