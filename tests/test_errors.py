"""The texts of refusals, whole, and that no value can break the machinery that makes them."""

from __future__ import annotations

import pytest

from inputs import BAD_COUNTS, Hostile
from llamapar.errors import LayoutError, flag, one_of, shown, whole

NEED = "tp must be a whole number from 1 to 8"

REFUSALS = {
    "zero": f"tp=0: {NEED}\n  try  tp=1",
    "negative": f"tp=-1: {NEED}\n  try  tp=1",
    "fraction": f"tp=2.5: {NEED}\n  why  a fraction of it cannot be placed\n  try  tp=2, or tp=3",
    "text": f"tp='8': {NEED}\n  why  text is never read as a number here\n  try  tp=8",
    "nan": f"tp=nan: {NEED}\n  why  NaN is not a number\n  try  tp=1",
    "infinity": f"tp=inf: {NEED}\n  try  tp=8",
    "huge": f"tp=an integer of 100 bits: {NEED}\n  try  tp=8",
    "absurd": f"tp=an integer of 16610 bits: {NEED}\n  try  tp=8",
    "none": f"tp is empty: {NEED}\n  try  tp=1",
    "true": f"tp=True: {NEED}\n  why  True and False are not counts\n  try  tp=1",
    "list": f"tp=[1]: {NEED}\n  why  list is not a whole number\n  try  tp=1",
    "hostile": f"tp=<Hostile, repr failed: RuntimeError>: {NEED}\n"
    "  why  Hostile is not a whole number\n  try  tp=1",
}


@pytest.mark.parametrize("kind", BAD_COUNTS)
def test_whole_refuses_with_the_nearest_choice(kind: str) -> None:
    with pytest.raises(LayoutError, match=r"^tp(=| is empty)") as refusal:
        whole("tp", BAD_COUNTS[kind], 1, 8)
    assert str(refusal.value) == REFUSALS[kind]
    assert refusal.value.field == "tp"


def test_whole_takes_anything_that_is_an_index() -> None:
    class Index:
        def __index__(self) -> int:
            return 7

    assert whole("tp", Index(), 1, 8) == 7
    assert type(whole("tp", Index(), 1, 8)) is int
    assert [whole("n", n, 0, 3) for n in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [0, 1, "true", None, Hostile()])
def test_flag_takes_true_and_false_alone(value: object) -> None:
    with pytest.raises(LayoutError, match="must be True or False") as refusal:
        flag("tied", value)
    assert refusal.value.choose == ("tied=True", "tied=False")
    assert flag("tied", True) is True


def test_one_of_lists_the_nearest_first() -> None:
    names = ("torchtitan", "picotron", "nanotron", "vllm")
    assert one_of("framework", "vllm", names) == "vllm"
    with pytest.raises(LayoutError, match="framework='torchtitn' is not known") as refusal:
        one_of("framework", "torchtitn", names)
    assert str(refusal.value) == (
        "framework='torchtitn' is not known\n"
        "  why  known are torchtitan, picotron, nanotron, vllm\n"
        "  try  torchtitan"
    )
    for odd in (None, 3, ["vllm"], Hostile(), "x" * 10**6):
        with pytest.raises(LayoutError, match="is not known") as refusal:
            one_of("framework", odd, names)
        assert refusal.value.choose == names[:3]


def test_shown_is_one_short_line_for_any_value() -> None:
    nested: list[object] = []
    for _ in range(10**5):
        nested = [nested]
    assert shown("a\n\nb") == r"'a\n\nb'"
    assert shown("x" * 99) == "'" + "x" * 58 + "…"
    assert shown(10**18) == "1000000000000000000"
    assert shown(-(10**5000)) == "an integer of 16610 bits"
    assert shown([10**5000]) == "<list, repr failed: ValueError>"
    assert shown(Hostile()) == "<Hostile, repr failed: RuntimeError>"
    assert shown(nested) == "<list, repr failed: RecursionError>"
