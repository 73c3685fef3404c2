"""What the table of options says, by the name of an option and of who takes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .configfile import Values as Values
from .option import Option as Option
from .option import as_argument as as_argument
from .option_rows import AS_TYPED, NEEDED, OTHER_DEFAULTS, OTHER_TYPES, TABLE
from .option_rows import EXPORT_TITLES as EXPORT_TITLES

OPTIONS: dict[str, Option] = {option.name: option for option in TABLE}
"""Every option by name."""


def options_of(function: str) -> list[str]:
    """The options that a public function, a panel, or Layout or Job takes by name, in the table's order."""
    return [
        name for name, option in OPTIONS.items() if {function, f"{function}()"} & {*option.takers.split()}
    ]


def flags(command: str) -> tuple[str, ...]:
    """The options that `llamapar command` offers, in the table's order."""
    rows = OPTIONS.items()
    return tuple(name for name, option in rows if {command, f"--{command}"} & {*option.takers.split()})


LAYOUT, FACTS = options_of("Layout"), options_of("Job")
"""Options that are fields of a Layout, and of a Job beside its model and layout."""


def annotation(name: str, function: str) -> str:
    """The type of an option in one public function, as source."""
    option = OPTIONS[name]
    kind = OTHER_TYPES.get((name, function)) or option.python or option.kind.__name__
    if option.is_count and function in AS_TYPED:
        kind += " | str"
    if may_be_none(name, function):
        return f"{kind} | None"
    return kind


def may_be_none(name: str, function: str) -> bool:
    """Whether None is a value of an option in one public function."""
    return default(name, function) is None and name not in NEEDED.get(function, ())


def default(name: str, function: str = "") -> object:
    """The default of an option in one public function; None for a name that is not in the table."""
    usual = None
    if name in OPTIONS:
        usual = OPTIONS[name].default
    return OTHER_DEFAULTS.get(function, {}).get(name, usual)


def offer(name: str, choices: Iterable[str]) -> None:
    """Set the choices of an option; called by the room that owns them."""
    OPTIONS[name] = replace(OPTIONS[name], choices=tuple(choices))
