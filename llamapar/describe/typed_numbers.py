"""Numbers as people type them: 16384, 16,384, 16_384, 16k.

Only command lines and input boxes use this. Library functions refuse texts in place of numbers. A text that
could mean two numbers is refused, and the message offers both.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from llamapar.errors import Choice, LayoutError, shown

from .options import OPTIONS

_OF_1024 = ("ranks", "GPUs", "tokens")
"""Units for which k means 1,024."""

_UNITS = {"k": (2**10, 10**3), "m": (2**20, 10**6)}
_GROUPED = re.compile(r"[+-]?\d{1,3}([,_])\d{3}(?:\1\d{3})*")
_SHORT = re.compile(r"(\d{1,9}) ?([kKmM])")
_FRACTION = re.compile(r"[+-]?(?:\d*\.\d*|nan|inf(?:inity)?)", re.IGNORECASE)
_TWO_WAYS = re.compile(r"[+-]?\d{1,3}\.\d{3}")
_FIRST = re.compile(r"(\d[\d.,_' \u00a0\u202f]*)([kKmM]?)")


class Number(NamedTuple):
    """A number read from a text. note: how an ambiguous text was understood, else ""."""

    value: int | float
    note: str = ""


def parse_number(field: str, text: str) -> Number:
    """The number that a text gives for the option `field`.

    A fraction is returned as a float, for the library to judge. Raises LayoutError with the nearest readable
    forms.
    """
    text = text.strip()
    option = OPTIONS.get(field)
    if re.fullmatch(r"[+-]?\d+", text):
        # Python's int refuses texts of more than 4,300 digits; as a float the number is infinite, which is
        # refused later.
        return Number(int(text) if len(text) < 1000 else float(text))
    # Groups of exactly three digits by one sign only: 16,384 or 16_384, but not 16,38 and not 1,000_000.
    if _GROUPED.fullmatch(text):
        return Number(int(re.sub("[,_]", "", text)))
    if (short := _SHORT.fullmatch(text)) and _is_of_1024(field):
        unit = _UNITS[short[2].lower()][0]
        value = int(short[1]) * unit
        return Number(value, f"{field}={text} is read as {value} ({short[2]} = {unit:,})")
    # A text like 1.024 is a fraction in English and a thousand in German, so it is refused with both
    # readings.
    real = option is not None and option.kind is float
    if real or (_FRACTION.fullmatch(text) and not _TWO_WAYS.fullmatch(text)):
        with suppress(ValueError):
            return Number(float(text))
    why = ""
    if short:
        why = "k is 1,024 for ranks and tokens; here it could be 1,000 as well"
    near = [Choice.of(**{field: n}) for n in dict.fromkeys(_near(field, text))]
    what = f"{field} is empty"
    if text:
        what = f"{field}={shown(text)}"
    raise LayoutError(f"{what}: a whole number is needed", why, near, field)


def typed(field: str, value: object) -> object:
    """A text as the number it gives; an unreadable text stays a text, for the library's error to show."""
    if not isinstance(value, str):
        return value
    try:
        read = parse_number(field, value).value
    except LayoutError:
        return value
    # Above 2**53 a JavaScript panel would round the number before showing it.
    if isinstance(read, int) and abs(read) < 2**53:
        return read
    return value


def _is_of_1024(field: str) -> bool:
    return field in OPTIONS and OPTIONS[field].unit in _OF_1024


def _near(field: str, text: str) -> list[int]:
    """Numbers that an unreadable text may have meant; [1] if it contains no digit."""
    with suppress(ValueError):
        # "8.0" was meant as 8.
        if (whole := float(text)).is_integer() and 1 <= whole < 2**20 and not _TWO_WAYS.fullmatch(text):
            return [int(whole)]
    found = _FIRST.search(text[:40])
    if not found:
        return [1]
    # Seven digits are enough for a suggestion; what was typed beyond them is left out.
    digits = int(re.sub(r"\D", "", found[1])[:7])
    parts = re.match(r"\d{1,7}(?:[.,]\d{1,6})?", found[1])
    amount = 1.0
    if parts:
        amount = float(parts[0].replace(",", "."))
    if found[2]:
        units = _UNITS[found[2].lower()]
        return [max(1, round(amount * unit)) for unit in (units[:1] if _is_of_1024(field) else units)]
    if digits == amount:
        return [max(1, digits)]
    return [max(1, digits), max(1, round(amount))]
