"""Errors that a person sees when their input cannot work, and the checks of single values that raise them.

Every error says *what* is wrong with both numbers, *why* it cannot work, and the nearest valid choices.
The checks of plain values (`whole`, `real`, `flag`, `one_of`) are here so that every room refuses bad input
in the same words. The checks that relate two values to each other are in `rules`.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Self

MAX_DEGREE = 2**20
"""Largest accepted degree of one mesh axis."""

MAX_SIZE = 2**31 - 1
"""Largest accepted model dimension, sequence length or batch."""


def install(extra: str) -> str:
    """The command that installs what an extra adds to the installed package, from a wheel or a checkout."""
    return f"pip install 'llamapar[{extra}]'"


@dataclass(frozen=True)
class Choice:
    """A suggestion: the values that fields could have instead, as data.

    `str` gives it in Python's form, tp=8; the command and the panels print it in their own.
    values: pairs of a field's name and a plain value. bare: only the value is printed, for a suggested name.
    when: the condition under which it helps, in words.
    """

    values: tuple[tuple[str, object], ...]
    bare: bool = False
    when: str = ""

    @classmethod
    def of(cls, when: str = "", /, **values: object) -> Choice:
        """A suggestion of one field's value, or of several fields at once."""
        return cls(tuple(values.items()), when=when)

    def __str__(self) -> str:
        if self.bare:
            return str(self.values[0][1])
        # As Python writes a value, but a float with at most 12 significant digits.
        text = " ".join(
            f"{name}={value:.12g}" if isinstance(value, float) else f"{name}={value!r}"
            for name, value in self.values
        )
        if self.when:
            return f"{text} {self.when}"
        return text


class LlamaparError(ValueError):
    """Invalid input from a person: `what` is wrong (with the numbers), `why`, and what to `choose` instead.

    choices: the suggestions as they were passed in: a Choice, a fix, or a text.
    choose: the same suggestions as texts.
    """

    def __init__(self, what: str, why: str = "", choose: Iterable[object] = (), field: str = ""):
        self.what = what = printable(what)
        self.why = why = printable(why)
        self.choices = tuple(choose)
        self.choose = tuple(map(str, self.choices))
        self.field = field
        lines = [what]
        if why:
            lines.append(f"  why  {why}")
        if self.choose:
            lines.append(f"  try  {', or '.join(self.choose)}")
        super().__init__("\n".join(lines))

    @property
    def line(self) -> str:
        """The same in one line: what, why and what to choose."""
        line = f"{self.what}: {self.why}" if self.why else self.what
        if self.choose:
            return f"{line}; try {', or '.join(self.choose)}"
        return line


class LayoutError(LlamaparError):
    """A layout, or a job under it, that cannot work.

    When `lp.require` raises it, `report` is the whole Report.
    """

    report: Any = None


class ModelError(LlamaparError):
    """A model that cannot be used: its dimensions, its name or its file is wrong."""


class PeerError(LlamaparError):
    """This rank did nothing wrong: it was stopped because another rank raised."""


class CheckpointError(LlamaparError):
    """A checkpoint that cannot be read or written; the message names the file or tensor."""


def shown(value: object, limit: int = 60) -> str:
    """`repr(value)` on one line, cut to `limit` characters; safe for values of any size."""
    # Python refuses to print integers of more than 4,300 digits, so a huge one is described instead.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception as problem:  # a hostile __repr__ must not hide the real message
        text = f"<{type(value).__name__}, repr failed: {type(problem).__name__}>"
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…"


def printable(text: str) -> str:
    """`text` with control characters, newlines apart, escaped so that a terminal does not obey them."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def encoding(head: bytes) -> str:
    """The encoding of a text file by its first bytes: UTF-16 with a byte order mark, else UTF-8."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    return "utf-8-sig"


def whole(
    field: str,
    value: object,
    low: int = 1,
    high: int = MAX_SIZE,
    error: type[LlamaparError] = LayoutError,
) -> int:
    """`value` as an int within [low, high].

    Else raises `error`, which names `field` and the nearest valid choice.
    """
    if type(value) is int and low <= value <= high:
        return value  # nearly always, and thousands of times in a search
    need = f"{field} must be a whole number from {low} to {high}"

    def refuse(choices: Iterable[int], why: str = "") -> LlamaparError:
        near = dict.fromkeys(min(max(c, low), high) for c in choices)
        return error(f"{field}={shown(value)}: {need}", why, [Choice.of(**{field: c}) for c in near], field)

    if value is None:
        raise error(f"{field} is empty: {need}", "", [Choice.of(**{field: low})], field)
    if isinstance(value, bool):
        raise refuse([int(value)], "True and False are not counts")
    if isinstance(value, str):
        near = low
        with suppress(ValueError):
            if len(value) < 20:
                near = int(value)
        raise refuse([near], "text is never read as a number here")
    if isinstance(value, float):
        if math.isnan(value):
            raise refuse([low], "NaN is not a number")
        if abs(value) > 2 * high:  # infinity, too
            raise refuse([high if value > 0 else low])
        raise refuse([math.floor(value), math.ceil(value)], "a fraction of it cannot be placed")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise refuse([low], f"{type(value).__name__} is not a whole number") from None
    if not low <= number <= high:
        raise refuse([number])
    return number


def real(
    field: str,
    value: object,
    low: float,
    high: float,
    error: type[LlamaparError] = LayoutError,
) -> float:
    """`value` as a finite float within [low, high]; else raises `error`, naming `field`."""
    need = f"{field} must be a number from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise error(f"{field}={shown(value)}: {need}", field=field)
    if not low <= value <= high:  # False for NaN as well
        near = low  # of NaN, too
        if value > high:
            near = high
        raise error(f"{field}={shown(value)}: {need}", "", [Choice.of(**{field: near})], field)
    return float(value)


def flag(field: str, value: object, error: type[LlamaparError] = LayoutError) -> bool:
    """`value` if it is True or False; else raises `error`, naming `field`."""
    if isinstance(value, bool):
        return value
    raise error(
        f"{field}={shown(value)}: {field} must be True or False",
        "",
        [Choice.of(**{field: True}), Choice.of(**{field: False})],
        field,
    )


def one_of(
    field: str,
    value: object,
    names: Iterable[str],
    error: type[LlamaparError] = LayoutError,
) -> str:
    """`value` if it is one of `names`; else raises `error`, listing the nearest names first."""
    names = list(names)
    if isinstance(value, str) and value in names:
        return value
    near: list[str] = []
    if isinstance(value, str):
        # Compared without case, and only 100 characters of the input: difflib takes quadratic time.
        folded = {name.lower(): name for name in names}
        close = difflib.get_close_matches(value.lower()[:100], list(folded), n=3, cutoff=0.4)
        near = [folded[name] for name in close]
    raise error(
        f"{field}={shown(value)} is not known",
        f"known are {', '.join(names)}",
        [Choice(((field, name),), bare=True) for name in near or names[:3]],
        field,
    )


class Fields:
    """Base of dataclasses that refuse unknown field names and suggest the nearest ones.

    word: what its fields are called in the message. error: the exception to raise.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    _word: ClassVar[str]
    _error: ClassVar[type[LlamaparError]]

    def __init_subclass__(cls, word: str, error: type[LlamaparError] = LayoutError) -> None:
        cls._word = word
        cls._error = error

    # The check is in __new__ because the __init__ that a dataclass generates would raise a bare TypeError
    # first.
    def __new__(cls, *_: object, **named: object) -> Self:
        if not named.keys() <= cls.__dataclass_fields__.keys():
            cls._refuse_unknown(named)
        return super().__new__(cls)

    @classmethod
    def _refuse_unknown(cls, names: Iterable[object]) -> None:
        """Raises the error for the first name that is not a field."""
        for name in names:
            one_of(cls._word, name, cls.__dataclass_fields__, cls._error)


def _alike(word: str, other: str) -> int:
    """How many letters two words share at their start."""
    pairs = enumerate(zip(word, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(word), len(other)))


def is_slip(word: str, other: str) -> bool:
    """Whether two words look like a typo of each other.

    Both have at least five letters, and differ by one letter or by two letters that changed places.
    """
    most = max(len(word), len(other))
    least = min(len(word), len(other))
    if word == other or least < 5 or most - least > 1:
        return False
    before = _alike(word, other)
    after = _alike(word[before:][::-1], other[before:][::-1])
    swapped = sorted(word) == sorted(other) and before + after == most - 2
    return before + after >= most - 1 or swapped
