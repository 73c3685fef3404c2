"""An option: the name, type, default, choices, bounds, help and unit of something that a person may set."""

from __future__ import annotations

from dataclasses import dataclass

from llamapar.errors import MAX_SIZE, flag, one_of, whole

from .hardware import Gpu
from .splits import Padding


@dataclass(frozen=True)
class Option:
    """One option.

    kind: the type of its value. default: its default value; None means unknown.
    help: one line; {choices} expands to the choices with the default marked, {names} to the choices alone.
    takers: who takes it, by name: "cost" is `lp.cost` and `llamapar cost`, "cost()" the function alone,
        "--cost" the command alone.
    unit: what it counts. least, most: the bounds of a count.
    python: its type in Python where that is wider than `kind`; who takes it judges its values.
    is_open: more values than the row says are possible, and who takes it judges them.
    metavar: what stands for its value in a usage line, where that is neither N nor its name.
    label, hint: what stands beside its control in a panel, where that is not its name, and under the mouse,
        where that is not its unit.
    """

    name: str
    kind: type[object]
    default: object
    help: str
    takers: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    least: int = 1
    most: int = MAX_SIZE
    python: str = ""
    is_open: bool = False
    metavar: str = ""
    label: str = ""
    hint: str = ""

    @property
    def flag(self) -> str:
        """Its flag on a command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_count(self) -> bool:
        """Whether people type a number for it."""
        return self.kind in (int, float)

    def words(self, value: object) -> list[str]:
        """The flag with a value, as a command line takes it."""
        if self.kind is bool:
            return [self.flag if value else f"--no-{self.flag[2:]}"]
        return [self.flag, as_argument(value)]

    def chosen(self, value: object) -> str:
        """`value` if it is one of the choices; else raises LayoutError with the nearest ones."""
        return one_of(self.name, value, self.choices)

    def checked(self, value: object) -> object:
        """`value` if its type, bounds or choices allow it; else raises LayoutError with the nearest."""
        if self.is_open or self.python:
            return value
        if self.kind is bool:
            return flag(self.name, value)
        if self.kind is int:
            return whole(self.name, value, self.least, self.most)
        if self.choices:
            return one_of(self.name, value, self.choices)
        return value

    def about(self, default: object, text: str = "") -> str:
        """Its help text, for a function in which it has the default `default`.

        text: replaces the help where the option means something else.
        """
        text = text or self.help
        if self.is_count and default is not None and "(default" not in text:
            return f"{text} (default {as_argument(default)})"
        names = [as_argument(choice) for choice in self.choices] or [""]
        *most, last = [f"{name} (default)" if name == default else name for name in names]
        return text.replace("{names}", ", ".join(names)).replace(
            "{choices}", " or ".join(filter(None, [", ".join(most), last]))
        )


def as_argument(value: object) -> str:
    """A value as a command line takes it: "64*tp", "10,20,34", "balanced-ends"."""
    if isinstance(value, Gpu):
        return value.text
    if isinstance(value, Padding):
        if value.per_tp:
            return f"{value.multiple}*tp"
        return str(value.multiple)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value).replace(" ", "-")
