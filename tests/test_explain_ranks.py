"""Several ranks in one paste: one reading for each message, and what their causes share."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llamapar as lp
from explaining import frame

RESHAPED = "RuntimeError: shape '[1, {0}, 32, 128]' is invalid for input of size {1}"
SIZES = "RuntimeError: The size of tensor a ({0}) must match the size of tensor b ({1}) at dimension 2"


def paste(*messages: str) -> str:
    return "\n".join(f"[rank{rank}]: {message}" for rank, message in enumerate(messages))


def traceback(rank: int, line: str, message: str) -> list[str]:
    return [f"[rank{rank}]: {row}" for row in frame(line, message).splitlines()]


def found(told: lp.Explanation) -> list[tuple[str, str]]:
    return [(d.title, str(d.level)) for d in told.diagnoses if d.level > lp.Level.WEAK]


def test_a_rank_s_target_is_not_divided_by_another_rank_s_size() -> None:
    """Both hold 8 of 32 heads, of 1024 and of 512 tokens; mixed, they would be 16 of 32."""
    first, second = RESHAPED.format(1024, 1024 * 8 * 128), RESHAPED.format(512, 512 * 8 * 128)
    told = lp.explain(paste(first, second))
    assert told.ranks == (0, 1)
    assert told.best.cause.startswith("8 heads of 128 are read as 32")
    assert told.best.equations == ("1048576 = 1024·8·128", "32/8 = 4")


@pytest.mark.parametrize(
    ("third", "level"),
    [
        (SIZES.format(16, 52), "possible"),  # the rest of 52 over 3
        (SIZES.format(18, 52), "weak"),  # the same again
    ],
)
def test_a_share_of_another_size_makes_a_degree_surer(third: str, level: str) -> None:
    told = lp.explain(paste(SIZES.format(18, 52), third))
    no_share = lp.explain(paste(SIZES.format(18, 52), SIZES.format(11, 52)))
    assert "tp=3" not in str(no_share)
    assert told.best.cause == "18 and 52 are shares of size 52 over tp=3, which does not divide"
    assert str(told.best.level) == level


def test_ranks_of_a_log_are_read_apart() -> None:
    first, second = RESHAPED.format(1024, 1024 * 8 * 128), RESHAPED.format(512, 512 * 8 * 128)
    both = traceback(0, "k = k.view(shape)", first), traceback(1, "v = v.view(shape)", second)
    told = lp.explain("\n".join(row for pair in zip(*both, strict=True) for row in pair))
    assert told.ranks == (0, 1)
    assert told.best.equations == ("1048576 = 1024·8·128", "32/8 = 4")
    assert str(told.best.level) == "likely"


@settings(max_examples=60)
@given(
    st.sampled_from([RESHAPED.format(1024, 2**20), SIZES.format(18, 52), SIZES.format(1024, 4096)]),
    st.integers(2, 5),
)
def test_the_same_message_of_more_ranks_is_the_same_evidence(message: str, ranks: int) -> None:
    alone, together = lp.explain(paste(message)), lp.explain(paste(*[message] * ranks))
    assert found(together) == found(alone)
    assert together.ranks == tuple(range(ranks))
