"""A guess as the reader gives it: read from a text, compared with a truth, said in words.

Nothing that somebody typed is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import llamapar as lp
from llamapar.describe.typed_numbers import parse_number
from llamapar.errors import Choice, shown

JUDGED = (bool, int, float, str, list, tuple, range, Mapping)
"""What a truth can be for a guess to be held against it."""

_SPAN = re.compile(r"(\d+)\s*(?:[-–]|to)\s*(\d+)")
_DEGREE = re.compile(r"\b(tp|cp|pp|dp|zero|virtual_stages)\s*[= ]\s*(\d{1,6})\b,?")
_DECIMAL = re.compile(r"[+-]?\d*\.\d+")
_RATIO = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)")


def as_guess(value: object) -> str:
    """A value as a reader would say it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, lp.Layout):  # in the form that `read_layout` reads
        more = {name: getattr(value, name) for name in ("zero", "virtual_stages")}
        said = [f"{name}={n}" for name, n in more.items() if n != getattr(lp.Layout(), name)]
        return " ".join([str(value), *said])
    return value[:300] if isinstance(value, str) else shown(value, 300)


def parse_guess(text: str) -> object:
    """The number, yes or no that a text says; else the text."""
    if text.strip().casefold() in ("yes", "no"):
        return text.strip().casefold() == "yes"
    try:
        return parse_number("guess", text).value
    except lp.LayoutError:
        return text


def read_number(text: str, unit: str = "") -> int | float:
    """What somebody typed as a number: "8,192", "64 rows", "25 %", "1/4". Raises LlamaparError."""
    bare = text.strip().removesuffix(unit).strip() if unit else text.strip()
    bare = bare.removesuffix(unit.removesuffix("s")).strip() if unit else bare  # "1 row", "3 rows"
    if ratio := _RATIO.fullmatch(bare):
        above, below = map(float, ratio.groups())
        if below:
            return above / below
    share = bare.endswith("%")
    bare = bare.removesuffix("%").strip()
    value = float(bare) if _DECIMAL.fullmatch(bare) else parse_guess(bare)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        what = f"{shown(text)} is not a number" if bare else "there is no number yet"
        raise lp.LlamaparError(what, "nothing was kept", ["a number, such as 16 or 8,192"])
    return value / 100 if share else value


def read_list(text: str) -> list[int | float]:
    """What somebody typed as a list: "48, 63", "[48, 63]", "48 63", or "48–63". Raises LlamaparError."""
    bare = text.strip().strip("[]()").strip()
    if span := _SPAN.fullmatch(bare):
        return [int(end) for end in span.groups()]
    parts = re.split(r"\s*[,;]\s*|\s+", bare) if bare else []
    try:
        return [read_number(part) for part in parts if part] or [read_number(bare)]
    except lp.LlamaparError:
        what = f"{shown(text)} is not a list of numbers" if bare else "there are no numbers yet"
        raise lp.LlamaparError(what, "nothing was kept", ["numbers with commas, such as 0, 15"]) from None


def read_layout(text: str) -> lp.Layout:
    """What somebody typed as a layout: "tp=8 dp=4", "TP 8, DP 4". Raises LlamaparError."""
    axes: dict[str, Any] = {axis: int(degree) for axis, degree in _DEGREE.findall(text.casefold())}
    if not axes or _DEGREE.sub("", text.casefold()).strip(" ,()") not in ("", "lp.layout", "layout"):
        raise lp.LlamaparError(
            f"{shown(text)} is not a layout", "nothing was kept", [Choice.of(tp=8, pp=2, dp=4)]
        )
    return lp.Layout(**axes)


def is_right(guess: object, truth: object) -> bool | None:
    """Whether a guess is the truth, a fraction to within a twentieth; None where nothing can judge."""
    if not isinstance(truth, JUDGED):
        return None
    if isinstance(guess, str) and isinstance(truth, str):
        return guess.strip().casefold() == truth.strip().casefold()
    if isinstance(guess, str):
        guess = parse_guess(guess)
    if isinstance(truth, float) and isinstance(guess, (int, float)) and not isinstance(guess, bool):
        return abs(guess - truth) <= abs(truth) / 20
    return not difference(guess, truth)


def difference(answer: Any, target: Any) -> str:
    """The first place where an answer leaves the target, in words; empty where it does not."""
    if isinstance(target, Mapping):
        if not isinstance(answer, Mapping):
            return f"a dict is expected, got {shown(answer)}"
        for key, value in target.items():
            if key not in answer:
                return f"{key} is missing"
            if inner := difference(answer[key], value):
                return f"{key}: {inner}"
        extra = [key for key in answer if key not in target]
        return f"{shown(extra[0])} does not belong" if extra else ""
    if isinstance(target, (list, tuple)):
        if isinstance(answer, str) or not isinstance(answer, (Sequence, range)):
            return f"a list of {len(target)} is expected, got {shown(answer)}"
        if len(answer) != len(target):
            return f"{len(answer)} entries, expected {len(target)}"
        for i, (got, expected) in enumerate(zip(answer, target, strict=True)):
            if inner := difference(got, expected):
                return f"entry {i}: {inner}"
        return ""
    if isinstance(answer, bool) == isinstance(target, bool) and answer == target:
        return ""
    numbers = [isinstance(one, int | float) and not isinstance(one, bool) for one in (answer, target)]
    if not all(numbers):
        return f"{shown(answer)} is not it"
    return f"{shown(answer)} is too {'large' if answer > target else 'small'}"
