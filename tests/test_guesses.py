"""One reader of answers: each question's truth in all the forms that people write, and what is refused."""

import json
import re
from itertools import product

import numpy as np
import pytest
import torch

import llamapar as lp
from llamapar.course.boxes import box
from llamapar.course.exercises import EXERCISES, PREDICTIONS
from llamapar.course.guesses import as_guess, singular
from llamapar.course.questions import QUESTIONS, Quiz
from test_boxes import item_of, misses, right
from wire import receive

ASKED = [
    *(("predictions", name, 0) for name in PREDICTIONS),
    *(("exercises", name, 0) for name in EXERCISES),
    *(("questions", name, seed) for name in QUESTIONS for seed in (0, 1)),
]
"""Every question of the course: its kind, its name, and the seed of its numbers."""

FRACTIONS = {3 / 11: "3/11", 1 / 16: "1 / 16", 15 / 128: "15/128", 7 / 16: "7/16", 3 / 12: "3/12"}


def asked(kind, name, seed):
    return Quiz(seed).question(name) if kind == "questions" else item_of(name)


# -- how people write ------------------------------------------------------------------------------


def whole_numbers(n, unit):
    yield from (n, float(n), np.int64(n), torch.tensor(n), str(n), f" {n} ", f"{n}.0", f"{3 * n}/3")
    yield from (f"{n:,}", f"{n:_}", f"{n:,}".replace(",", " "), f"{n:,}".replace(",", "\u202f"))
    yield f"{n:,}".replace("-", "−")
    if unit:
        yield from (f"{n} {unit}", f"{n:,} {unit.upper()}", f"{n}{unit}", f"{n} {singular(unit)}")


def fractions(x, unit):
    yield from (x, np.float64(x), f"{x:.4g}", repr(x), f"{x:.3g} {unit}", f"{x:,.3f}{unit}")
    if unit in ("", "times"):
        yield from (f"{100 * x:.1f} %", f"{100 * x:,.1f}%", f"{100 * x:.1f} percent")
    if unit == "%":
        yield f"{x} percent"
    if x < 1:
        yield f"{x:.4f}".removeprefix("0")
        yield from (text for value, text in FRACTIONS.items() if value == x)


def lists(numbers, unit, ends):
    yield from (numbers, tuple(numbers), np.array(numbers), list(np.array(numbers)), list(map(str, numbers)))
    for brackets, separator in product(("[]", "()", "{}", ("", ""), ("Coord(", ")")), (", ", ",", "; ", " ")):
        yield f"{brackets[0]}{separator.join(map(str, numbers))}{brackets[1]}"
    yield f"{', '.join(map(str, numbers))},"
    yield f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if numbers[1:] else str(numbers[0])
    yield ", ".join(f"{n:,}" for n in numbers)
    if len(numbers) == 2:
        yield from (f"{numbers[0]}x{numbers[1]}", f"{numbers[0]} × {numbers[1]}")
    names = re.findall(r"[\w-]+", unit)[-len(numbers) :]
    if len(names) == len(numbers) > 1:
        yield ", ".join(f"{name} {n}" for name, n in zip(names, numbers, strict=True))
        yield f"({', '.join(f'{name}={n}' for name, n in zip(names, numbers, strict=True))})"
    run = list(range(numbers[0], numbers[-1] + 1)) == numbers[:] and len(numbers) > 1
    if run:
        yield range(numbers[0], numbers[-1] + 1)
    if run or ends:
        for dash in ("-", "–", " – ", "..", "...", "…", " to "):
            yield f"{numbers[0]}{dash}{numbers[-1]}"


def spellings(item, value):
    """A value as people write it who are asked a question."""
    if isinstance(value, lp.Layout):
        said = as_guess(value)
        yield from (value, said, f"lp.Layout({said.replace(' ', ', ')})", {
            "tp": value.tp, "cp": value.cp, "pp": value.pp, "dp": value.dp, "zero": value.zero})  # fmt: skip
        yield said.upper().replace("=", " ").replace(" CP", ", CP")
    elif item.choices:
        label = next(label for choice, label, _ in item.choices if choice == value)
        yield from (value, label, f" {label.upper()} ", label.replace("-", " "), as_guess(value))
        if isinstance(value, bool):
            yield from ("Yes", "y", "true", "TRUE") if value else ("NO", "n", "false", "False")
    elif isinstance(value, int):
        yield from whole_numbers(value, item.unit)
    elif isinstance(value, float):
        yield from fractions(value, item.unit)
    elif isinstance(value[0], str):
        yield from (value, str(value), json.dumps(value), "; ".join(value), "\n".join(value).lower())
    else:
        yield from lists(list(value), item.unit, "first and last" in item.text)


@pytest.mark.parametrize(("kind", "name", "seed"), ASKED)
def test_the_truth_is_right_however_it_is_written(kind, name, seed):
    item = asked(kind, name, seed)
    for written in spellings(item, item.truth):
        assert item.is_right(item.read(written)) is True, written


@pytest.mark.parametrize(("kind", "name", "seed"), ASKED)
def test_a_wrong_answer_is_wrong_however_it_is_written(kind, name, seed):
    """Or it is refused, which costs nothing."""
    item = asked(kind, name, seed)
    for wrong in [] if item.judge else misses(item):
        for written in spellings(item, wrong):
            assert not right(item, written), written


# -- what is refused ---------------------------------------------------------------------------------

NEVER = (
    "", " ", "many", "__import__('os')._exit(1)", "1e5", "5?", "2³²", "3 4 five", "nan", float("nan"),
    float("inf"), object(), {3, 4}, {"a": 1}, 1j, b"64", [[1], [2]], "9" * 5000, "," * 50, "1-2-3", "7/0",
    10**400,
)  # fmt: skip
OF_A_NUMBER = (
    "48, 63",
    "48 63",
    "5-7",
    "16 apples",
    "3 and 4",
    [64],
    (3, 4),
    True,
    "yes",
    "0,438",
    "1,23",
    "8.192.0",
)
OF_WHOLE_NUMBERS = ("8.192", "25 %")
OF_A_LIST = ("1-9999", "9-3", "2,105,185", "dp 3, tp 1", "yes", True)


@pytest.mark.parametrize(("kind", "name", "seed"), ASKED)
def test_what_cannot_be_read_costs_nothing(kind, name, seed, progress_file, capsys):
    item = asked(kind, name, seed)
    texts = [*NEVER]
    if item.kind == "number":
        texts += [*OF_A_NUMBER, *(OF_WHOLE_NUMBERS if isinstance(item.truth, int) else ())]
    elif item.kind == "list" and len(item.truth) == 2:
        texts += OF_A_LIST
    elif item.kind == "choice":
        texts += [17, "none of them", 2 if isinstance(item.truth, bool) else True, 1.5]
    panel = box(item, kind, name, tells=kind == "predictions")
    before = panel.payload
    for text in texts:
        with pytest.raises(lp.LlamaparError, match=r"\n  (why|try)  ") as refused:
            item.read(text)
        if not item.board and not isinstance(text, dict):
            assert refused.value.why == "nothing was kept", text
        assert "Error" not in str(refused.value)
        if isinstance(text, str):
            assert receive(panel, kind="guess", value=text) is not None, text
            assert panel.payload == before, "no hint is taken, and no answer is shown"
    assert not progress_file.exists()
    capsys.readouterr()
