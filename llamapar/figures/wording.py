"""Words for parts of a whole, for sentences under maps and on ladders."""

from __future__ import annotations

from collections.abc import Sequence

from llamapar.records.tables import noun, plural


def sentence(text: str) -> str:
    """A reason as a sentence; the name of an argument stays as it is."""
    first, *_ = text.split(maxsplit=1)
    is_code = "=" in first or "_" in first
    return f"{text if is_code else text[:1].upper() + text[1:]}."


def number_in_words(n: int, word: str) -> str:
    """ "eight KV heads", "128 query heads": small numbers as words."""
    names = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return f"{names[n]} {noun(n, word)}" if n < len(names) else plural(n, word)


def listed(parts: Sequence[str]) -> str:
    """ "a, b and c"."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
