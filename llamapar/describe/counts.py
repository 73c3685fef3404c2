"""Numbers as people write them where they type: 16384, 16,384, 16_384, 16k.

For command lines and boxes alone: a text that reaches a function of the library is refused there. A form
that could mean two numbers is refused, with both offered.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from llamapar.errors import Choice, LayoutError, shown

from .options import OPTIONS

_OF_1024 = ("ranks", "GPUs", "tokens")
"""Units of which people mean 1,024 by k."""

_UNITS = {"k": (2**10, 10**3), "m": (2**20, 10**6)}
_GROUPED = re.compile(r"[+-]?\d{1,3}([,_])\d{3}(?:\1\d{3})*")
_SHORT = re.compile(r"(\d{1,9}) ?([kKmM])")
_FRACTION = re.compile(r"[+-]?(?:\d*\.\d*|nan|inf(?:inity)?)", re.IGNORECASE)
_TWO_WAYS = re.compile(r"[+-]?\d{1,3}\.\d{3}")
_FIRST = re.compile(r"(\d[\d.,_' \u00a0\u202f]*)([kKmM]?)")


class Number(NamedTuple):
    """note: what was understood, where the text leaves that open; else ""."""

    value: int | float
    note: str = ""


def number(field: str, text: str) -> Number:
    """What a text says for `field`. A fraction is read as one, for the library to judge.

    Raises LayoutError with the nearest forms that are read.
    """
    text, option = text.strip(), OPTIONS.get(field)
    if re.fullmatch(r"[+-]?\d+", text):
        return Number(int(text) if len(text) < 1000 else float(text))
    if _GROUPED.fullmatch(text):
        return Number(int(re.sub("[,_]", "", text)))
    if (short := _SHORT.fullmatch(text)) and _is_of_1024(field):
        unit = _UNITS[short[2].lower()][0]
        value = int(short[1]) * unit
        return Number(value, f"{field}={text} is read as {value} ({short[2]} = {unit:,})")
    real = option is not None and option.kind is float
    if real or (_FRACTION.fullmatch(text) and not _TWO_WAYS.fullmatch(text)):
        with suppress(ValueError):
            return Number(float(text))
    why = "k is 1,024 for ranks and tokens; here it could be 1,000 as well" if short else ""
    near = [Choice.of(**{field: n}) for n in dict.fromkeys(_near(field, text))]
    what = f"{field}={shown(text)}" if text else f"{field} is empty"
    raise LayoutError(f"{what}: a whole number is needed", why, near, field)


def typed(field: str, value: object) -> object:
    """A text as the count that it says; whatever cannot be read stays, for its refusal to show it."""
    if not isinstance(value, str):
        return value
    try:
        read = number(field, value).value
    except LayoutError:
        return value
    return read if isinstance(read, int) and abs(read) < 2**53 else value


def _is_of_1024(field: str) -> bool:
    return field in OPTIONS and OPTIONS[field].unit in _OF_1024


def _near(field: str, text: str) -> list[int]:
    """Counts that a text may mean, 1 where it says none."""
    with suppress(ValueError):
        if (whole := float(text)).is_integer() and 1 <= whole < 2**20 and not _TWO_WAYS.fullmatch(text):
            return [int(whole)]
    found = _FIRST.search(text[:40])
    if not found:
        return [1]
    digits = int(re.sub(r"\D", "", found[1])[:7])
    parts = re.match(r"\d{1,7}(?:[.,]\d{1,6})?", found[1])
    amount = float(parts[0].replace(",", ".")) if parts else 1.0
    if found[2]:
        units = _UNITS[found[2].lower()]
        return [max(1, round(amount * unit)) for unit in (units[:1] if _is_of_1024(field) else units)]
    return [max(1, digits)] if digits == amount else [max(1, digits), max(1, round(amount))]
