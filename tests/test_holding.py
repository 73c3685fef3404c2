"""GPUs and global batch are held while axes move; what gave is said, from code as from the page."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llamapar as lp
from llamapar.describe.layout import AXES
from llamapar.panels.explorer_panel import Explorer
from llamapar.panels.state import State
from wire import AT_8K, receive


def degrees(panel: Explorer) -> list[int]:
    return [panel.job.layout.size(axis) for axis in AXES]


@pytest.mark.parametrize(
    ("change", "then", "gave"),
    [
        ({"tp": 16}, [16, 16, 16, 4], "DP went from 8 to 4, so the job keeps its 16,384 GPUs."),
        ({"tp": 4}, [4, 16, 16, 16], "DP went from 8 to 16, so the job keeps its 16,384 GPUs."),
        ({"tp": 4, "cp": 8}, [4, 8, 16, 32], "DP went from 8 to 32, so the job keeps its 16,384 GPUs."),
        ({"tp": 16, "cp": 8}, [16, 8, 16, 8], "The job keeps its 16,384 GPUs."),
        ({"dp": 16}, [8, 16, 16, 16], "The job now has 32,768 GPUs instead of 16,384."),
        ({"tp": 16, "dp": 4}, [16, 16, 16, 4], "The job keeps its 16,384 GPUs."),
        ({"tp": 16, "dp": 8}, [16, 16, 16, 8], "The job now has 32,768 GPUs instead of 16,384."),
        ({"gpus": 8192}, [8, 16, 16, 4], "DP went from 8 to 4, so the job now has 8,192 GPUs."),
        ({"gpus": 8192, "tp": 4}, [4, 16, 16, 8], "The job now has 8,192 GPUs instead of 16,384."),
        (
            {"gives": "cp", "tp": 16},
            [16, 8, 16, 8],
            "CP went from 16 to 8, so the job keeps its 16,384 GPUs.",
        ),
        (
            {"cp": 12},
            [8, 12, 16, 8],
            "CP 12 needs a multiple of 1,536 GPUs, so the job now has 12,288 instead of 16,384.",
        ),
        (
            {"tp": 3, "cp": 5},
            [3, 5, 16, 8],
            "TP 3 with CP 5 needs a multiple of 240 GPUs, so the job now has 1,920 instead of 16,384.",
        ),
        ({"tp": 8}, [8, 16, 16, 8], ""),
        ({"seq_len": 65536}, [8, 16, 16, 8], ""),
        ({"job": "", "tp": 16}, [16, 16, 16, 8], ""),
    ],
    ids=str,
)
def test_what_gives(change: dict[str, Any], then: list[int], gave: str) -> None:
    """By `set` and by a message of the page alike; a whole job that is brought keeps its own degrees."""
    by_code, by_hand = lp.explorer(), lp.explorer()
    by_code.set(**change)
    assert receive(by_hand, kind="set", changes=change) is None
    for panel in (by_code, by_hand):
        assert (degrees(panel), panel.gave) == (then, gave)
        assert panel.payload["gave"] == gave
        assert gave in repr(panel)
        assert gave in panel.snapshot().summary
        job = panel.report.job
        if "job" not in change:  # which is kept as it says
            assert job.gpus == math.prod(then)
        assert job.sequences == 128


@pytest.mark.parametrize("wrong", ["x", 0, -1, 2.5, None, 10**30, True])
def test_a_slip_in_a_box_loses_no_gpus(wrong: Any) -> None:
    panel = lp.explorer(**AT_8K)
    with pytest.raises(lp.LayoutError, match=r"^tp"):
        panel.set(tp=wrong)
    assert panel.payload["gave"] == ""
    panel.set(tp=4)
    assert degrees(panel) == [4, 1, 16, 256]
    with nullcontext() if wrong is None else pytest.raises(lp.LayoutError, match=r"^gpus"):
        panel.set(gpus=wrong)
    panel.set(tp=8)
    assert panel.payload["values"]["dp"] == 128


def test_counts_of_a_dp_group_follow_so_that_the_batch_stays() -> None:
    panel = lp.explorer("llama3-8b", tp=2, dp=4, micro_batch=2, micro_batches=6, batch_per_dp=12)
    batch = panel.report.job.sequences
    panel.set(tp=4)
    assert panel.gave == (
        "DP went from 4 to 2, so the job keeps its 8 GPUs; batch_per_dp went from 12 to 24; "
        "micro_batches went from 6 to 12; the global batch stays."
    )
    assert panel.report.job.sequences == batch == 48
    panel.set(dp=32)
    assert "micro_batches went from 12 to nothing, for it would not be whole" in panel.gave
    assert panel.report.job.sequences == batch  # as global_batch, which no rule can meet then
    panel.set(dp=2, micro_batches=7)  # said: meant
    assert panel.payload["values"]["micro_batches"] == 7


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["tp", "cp", "pp"]), st.sampled_from([1, 2, 4, 8, 16])), max_size=12)
)
def test_powers_of_two_never_change_the_gpus_nor_the_batch(moves: list[tuple[str, int]]) -> None:
    state = State.opened({"gpus": 2**16, "dp": 32, "tp": 8, "cp": 16, "pp": 16, "global_batch": 2**12})
    for axis, degree in moves:
        state = state.move({axis: degree})
        assert math.prod(state.values[each] for each in AXES) == state.values["gpus"] == 2**16
        assert state.values[axis] == degree
        assert state.values["global_batch"] == 2**12
