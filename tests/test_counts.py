"""Numbers as people write them: what is read, what is refused, and that what is offered is read."""

from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from llamapar.describe.typed_numbers import parse_number, typed


def offered(field, text):
    """What a refusal offers instead; nothing where the text is read."""
    try:
        parse_number(field, text)
    except lp.LayoutError as refusal:
        return refusal.choose or ("nothing",)
    return ()


TEXTS = st.text(max_size=12) | st.text("0123456789.,_kKmMbe+-' ", max_size=12)


@given(st.sampled_from(["tp", "seq_len", "vocab_size", "memory_gib"]), TEXTS)
def test_what_is_offered_is_read(field, text):
    for choice in offered(field, text):
        assert parse_number(field, choice.partition("=")[2]).value >= 1


@given(st.integers(-(2**52), 2**52))
def test_a_number_is_read_as_itself_however_it_is_grouped(n):
    for text in (str(n), f"{n:,}", f"{n:_}"):
        assert parse_number("batch_tokens", text) == (n, "")
        assert typed("batch_tokens", text) == n
