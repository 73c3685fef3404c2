"""Numbers as people write them: what is read, what is refused, and that what is offered is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from llamapar.describe.typed_numbers import parse_number, typed

READ = [
    ("tp", "8", 8, ""),
    ("seq_len", " 8192 ", 8192, ""),
    ("seq_len", "1,024", 1024, ""),
    ("seq_len", "1_024", 1024, ""),
    ("batch_tokens", "16,777,216", 2**24, ""),
    ("dim", "16_384", 16384, ""),
    ("gpus", "16k", 16384, "gpus=16k is read as 16384 (k = 1,024)"),
    ("seq_len", "128K", 131072, "seq_len=128K is read as 131072 (K = 1,024)"),
    ("seq_len", "8 k", 8192, "seq_len=8 k is read as 8192 (k = 1,024)"),
    ("batch_tokens", "16M", 2**24, "batch_tokens=16M is read as 16777216 (M = 1,048,576)"),
    ("dp", "2k", 2048, "dp=2k is read as 2048 (k = 1,024)"),
    ("rank", "-1", -1, ""),
    ("tp", "2.5", 2.5, ""),
    ("memory_gib", "1.024", 1.024, ""),
    ("memory_gib", "1,024", 1024, ""),
    ("timeout", "1e3", 1000.0, ""),
]


@pytest.mark.parametrize(("field", "text", "value", "note"), READ, ids=[row[1] for row in READ])
def test_what_is_read(field: str, text: str, value: float, note: str) -> None:
    assert parse_number(field, text) == (value, note)


REFUSED = [
    ("seq_len", "1.024", ["seq_len=1024", "seq_len=1"]),
    ("seq_len", "1,02", ["seq_len=102", "seq_len=1"]),
    ("seq_len", "1,0000", ["seq_len=10000", "seq_len=1"]),
    ("seq_len", "1,024_000", ["seq_len=1024000", "seq_len=1"]),
    ("seq_len", "16kb", ["seq_len=16384"]),
    ("seq_len", "1.5k", ["seq_len=1536"]),
    ("seq_len", "1e3", ["seq_len=1000"]),
    ("seq_len", "16 384", ["seq_len=16384", "seq_len=16"]),
    ("vocab_size", "128k", ["vocab_size=131072", "vocab_size=128000"]),
    ("global_batch", "2M", ["global_batch=2097152", "global_batch=2000000"]),
    ("tp", "many", ["tp=1"]),
    ("memory_gib", "64GB", ["memory_gib=64"]),
]


@pytest.mark.parametrize(("field", "text", "choices"), REFUSED, ids=[row[1] for row in REFUSED])
def test_what_could_be_two_numbers_is_refused_with_both(field: str, text: str, choices: list[str]) -> None:
    with pytest.raises(lp.LayoutError, match=f"^{field}='{text}': a whole number is needed") as refusal:
        parse_number(field, text)
    assert list(refusal.value.choose) == choices
    assert typed(field, text) == text


def offered(field: str, text: str) -> tuple[str, ...]:
    """What a refusal offers instead; nothing where the text is read."""
    try:
        parse_number(field, text)
    except lp.LayoutError as refusal:
        return refusal.choose or ("nothing",)
    return ()


TEXTS = st.text(max_size=12) | st.text("0123456789.,_kKmMbe+-' ", max_size=12)


@given(st.sampled_from(["tp", "seq_len", "vocab_size", "memory_gib"]), TEXTS)
def test_what_is_offered_is_read(field: str, text: str) -> None:
    for choice in offered(field, text):
        assert parse_number(field, choice.partition("=")[2]).value >= 1


@given(st.integers(-(2**52), 2**52))
def test_a_number_is_read_as_itself_however_it_is_grouped(n: int) -> None:
    for text in (str(n), f"{n:,}", f"{n:_}"):
        assert parse_number("batch_tokens", text) == (n, "")
        assert typed("batch_tokens", text) == n


def test_what_is_no_text_or_no_count_stays() -> None:
    for value in (8, None, True, 2.5, [8], "2.5", "nan", "9" * 30, "1,02"):
        assert typed("tp", value) is value
