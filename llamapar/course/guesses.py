"""An answer as the reader gives it, in a box or in code: read, compared with the truth, said in words.

Nothing that somebody typed is evaluated. A text that could mean two answers, or none, is refused with forms
that are read. Of the truth, only its kind and how many numbers it has decide how a text is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import llamapar as lp
from llamapar.errors import Choice, shown

MOST = 4096
"""Numbers of the longest range that is read."""

LARGEST = 1e300
"""Above it, Python cannot always compare a whole number with a fraction."""

_SIGNS = str.maketrans("\u2010\u2011\u2012\u2013\u2014\u2212\u00a0\u2009\u202f\u00d7", "------   x")
"""Dashes, spaces and a cross that look like those of a keyboard."""

_APART = re.compile(r"^[a-z._]+(?=[\[({])|\band\b|(?<=\d) ?x ?(?=\d)")
"""Words that say no more than a comma: Coord(…) and torch.Size([…]), "3 and 4", "32 x 128"."""

_DIGITS = (
    r"0|[1-9]\d{0,29}",
    r"[1-9]\d{0,2}(?:,\d{3}){1,9}(?!\d)|[1-9]\d{0,2}(?:[ _']\d{3}){1,9}(?!\d)|0|[1-9]\d{0,29}",
)
"""A number's digits, and with a comma or a space before groups of three. Neither begins with a 0 too many."""

_FORMS = {
    "a list of numbers": ("0, 15", "16–19"),
    "a whole number": ("16", "8,192"),
    "a number": ("0.25", "1/4", "25 %"),
}

_SEPARATORS = re.compile(r"[\s,;:=&()\[\]{}]+")
_YES_OR_NO = {"True": ("yes", "true", "y"), "False": ("no", "false", "n")}
_DEGREE = re.compile(r"\b(tp|cp|pp|dp|zero|virtual_stages|dp_replicate)[=:\s]*(\d{1,6})\b,?")


def as_guess(value: object) -> str:
    """A value as a reader would say it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, lp.Layout):  # in the form that `read_layout` reads
        return f"{value} zero={value.zero} virtual_stages={value.virtual_stages}"
    return value[:300] if isinstance(value, str) else shown(value, 300)


def singular(unit: str) -> str:
    """One of a unit: 1 rank, 1 copy, and 1 s."""
    return re.sub(r"(?<=\w\w)s$", "", re.sub("ie(?=s$)", "y", unit))


def _refusal(answer: object, why: str, *forms: object) -> lp.LlamaparError:
    what = f"{shown(answer)} {why}"
    if answer == "":
        what = "there is no answer yet"
    return lp.LlamaparError(what, "nothing was kept", forms)


def read_numbers(
    answer: object, many: int | None = None, unit: str = "", *, whole: bool = False, ends: bool = False
) -> list[int | float]:
    """Numbers: 8192, "8,192", "64 rows", "1/4", "(48 63)", "16–19", "2,048, 8". Raises LlamaparError.

    many: of a list, how many are asked for; it decides whether a comma stands between two of them. None: one
    number. unit: its words may stand at the numbers, in their order. whole: whether whole numbers are asked
    for: then a percentage is none, nor is "8.192". ends: whether a range is its first and last number.
    """
    if hasattr(answer, "tolist"):  # numpy's and torch's numbers
        answer = answer.tolist()
    if many is not None and isinstance(answer, list | tuple | range):
        return [number for entry in answer for number in read_numbers(entry)]
    if isinstance(answer, int | float) and not isinstance(answer, bool) and abs(answer) < LARGEST:
        return [answer]
    text = answer if isinstance(answer, str) else ""
    text = _APART.sub(",", text.translate(_SIGNS).casefold().replace("percent", "%").strip())
    for word in (unit.casefold(), singular(unit).casefold()):
        text = text.removesuffix(word).strip()
    names = _SEPARATORS.sub(" ", unit.casefold()).split()
    readings = []
    # "8.192" is a fraction in English, and thousands in German.
    fraction = r"\.(?!\d{3}(?!\d))\d{1,30}" if whole else r"\.\d{1,30}"
    for digits in _DIGITS:
        number = rf"[+-]?(?=\.?\d)(?:{digits})?(?:{fraction})?(?!\d|\.\d)"
        token = rf"(?<![\d./-])({number})(?:\s*(/|-|\.\.+|…|to)\s*({number}))?\s*({'' if whole else '%?'})"
        left = _SEPARATORS.sub(" ", re.sub(token, " ", text)).split()
        runs = [_run(match, ends) for match in re.finditer(token, text)]
        numbers = [number for run in runs for number in run]
        if runs and all(runs) and left in ([], names, names[-(many or 1) :]) and numbers not in readings:
            readings.append(numbers)
    fitting = [numbers for numbers in readings if len(numbers) == (many or 1)] or readings
    if len(fitting) == 1 and (many is not None or len(fitting[0]) == 1):
        return fitting[0]
    if len(readings) > 1:
        raise _refusal(answer, "can be read in two ways", *("; ".join(map(str, one)) for one in readings))
    asked = "a number"
    if many is not None:
        asked = "a list of numbers"
    elif whole:
        asked = "a whole number"
    raise _refusal(answer, f"is not {asked}{unit and f' ({unit})'}", *_FORMS[asked])


def _run(token: re.Match[str], ends: bool) -> list[int | float]:
    """The number that a token is, or those of its range; nothing where it is neither."""
    first, sign, second, percent = token.groups()
    bare = (re.sub("[,_' ]", "", digits) for digits in (first, second or "1"))
    low, high = (float(digits) if "." in digits else int(digits) for digits in bare)
    if sign is None or sign == "/":
        below = high
        if percent:
            below *= 100
        if not below:
            return []
        return [low / below if low % below else low // below]
    if percent or not (isinstance(low, int) and isinstance(high, int) and low < high < low + MOST):
        return []
    if ends:
        return [low, high]
    return list(range(low, high + 1))


# -- words -------------------------------------------------------------------------------------------


def read_choice(answer: object, choices: Sequence[tuple[object, str, str]]) -> object:
    """The value of a choice, from itself or its label. Raises LlamaparError."""
    text = _plain(as_guess(answer))
    names = {
        value: [_plain(label), _plain(as_guess(value)), *_YES_OR_NO.get(str(value), ())]
        for value, label, _ in choices
    }
    meant = [value for value, said in names.items() if text in said]
    if len(meant) != 1:
        raise _refusal(answer, "is none of the choices", *(label for _, label, _ in choices))
    return meant[0]


def _plain(text: str) -> str:
    """Words without case, and with spaces for what joins them: "all-gather", "TP=8"."""
    return " ".join(re.split(r"[\s_=-]+", text.casefold())).strip()


def read_layout(answer: object) -> lp.Layout:
    """A layout: lp.Layout(tp=8), {"tp": 8}, "tp=8 dp=4", "TP 8, DP 4". Raises LlamaparError."""
    if isinstance(answer, lp.Layout | Mapping):
        return lp.Layout.of(answer)
    text = answer.casefold() if isinstance(answer, str) else ""
    pairs = _DEGREE.findall(text)
    degrees = {name: int(degree) for name, degree in pairs}
    left = _DEGREE.sub("", text).strip(" ,()")
    if not pairs or len(degrees) < len(pairs) or left not in ("", "lp.layout", "layout"):
        raise _refusal(answer, "is not a layout", Choice.of(tp=8, pp=2, dp=4))
    return lp.Layout.of(degrees)


# -- the truth ---------------------------------------------------------------------------------------


def is_right(guess: Any, truth: object) -> bool:
    """Whether a guess is the truth, a fraction to within a twentieth."""
    if isinstance(truth, float):
        return bool(abs(guess - truth) <= abs(truth) / 20)
    return not difference(guess, truth)


def difference(answer: Any, target: Any) -> str:
    """The first place where an answer, as it was read, leaves the target, in words; else an empty text."""
    if isinstance(target, list | tuple | range):
        if len(answer) != len(target):
            entries = "entries"
            if len(answer) == 1:
                entries = "entry"
            return f"{len(answer)} {entries}, expected {len(target)}"
        inner = (difference(got, expected) for got, expected in zip(answer, target, strict=True))
        return next((f"entry {i}: {words}" for i, words in enumerate(inner) if words), "")
    if answer == target:
        return ""
    if {type(answer), type(target)} <= {int, float}:
        return f"{shown(answer)} is too {'large' if answer > target else 'small'}"
    return f"{shown(answer)} is not it"
