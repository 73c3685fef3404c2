"""Parse the values of options from words; the library judges them.

So the command and Python refuse the same values in the same words.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable

from llamapar.describe.hardware import Gpu, hardware
from llamapar.describe.layout import ORDERS, PAPER_ORDER
from llamapar.describe.options import OPTIONS
from llamapar.describe.splits import LAYER_SPLITS
from llamapar.describe.typed_numbers import parse_number
from llamapar.errors import Choice, LayoutError, LlamaparError, one_of, shown, whole
from llamapar.frameworks import FRAMEWORKS, padding_rule
from llamapar.frameworks import framework as find_framework

from .output import write_line


def option_value(name: str, text: str) -> object:
    """The value of an option from a text. Raises LlamaparError if the text has none."""
    if name in _READERS:
        return _READERS[name](text)
    if OPTIONS[name].is_count:
        return _count(name, text)
    return text


def _count(name: str, text: str) -> int | float:
    """A number; if a short form is ambiguous, stderr says how it was read."""
    value, note = parse_number(name, text)
    if note:
        write_line(sys.stderr, f"llamapar: {note}")
    return value


def _order(text: str) -> str:
    """A rank order from its axes ("tp-cp-pp-dp"), or from the name of a framework that uses it."""
    if text in ORDERS:
        return text
    try:
        named = find_framework(text)
    except LlamaparError:
        near = difflib.get_close_matches(text[:100].lower(), [*ORDERS, *FRAMEWORKS], n=3, cutoff=0.4)
        why = "an order is the four axes joined by -, fastest first, or a framework's name"
        choose = [Choice.of(order=name) for name in near or [PAPER_ORDER]]
        raise LayoutError(f"order={shown(text)} is not known", why, choose, "order") from None
    if named.order is None:
        why = f"{named.title} has no rank order that is known here"
        raise LayoutError(f"order={text} is not known", why, [Choice.of(order=PAPER_ORDER)], "order")
    return named.order


def _layer_split(text: str) -> str:
    """A name of LAYER_SPLITS, with hyphens instead of spaces."""
    names = {name.replace(" ", "-"): name for name in LAYER_SPLITS}
    return names[one_of("layer_split", text.replace(" ", "-"), names, LayoutError)]


def _gpu(text: str) -> Gpu:
    """A GPU; stderr says which one a short name stands for."""
    found = hardware(text)
    if found.text == found.name != text:
        write_line(sys.stderr, f"llamapar: --gpu {text} is {found.name}")
    return found


_READERS: dict[str, Callable[[str], object]] = {
    "order": _order,
    "padding": padding_rule,
    "layer_split": _layer_split,
    "gpu": _gpu,
    "framework": lambda text: find_framework(text).spelled,
    "saves": lambda text: tuple(OPTIONS["saves"].chosen(word.strip()) for word in text.split(",")),
    # What is no number is refused by the lesson, which knows the smallest that works.
    "minutes": lambda text: int(text) if text.isdecimal() else text,
    # Lengths with commas between them: "10,20,34".
    "documents": lambda text: tuple(whole("documents", _count("documents", n)) for n in text.split(",")),
}
"""The options that have forms of their own; the others are read by their type."""
