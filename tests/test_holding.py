"""GPUs and global batch are held while axes move; what gave is said, from code as from the page."""

import math
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llamapar as lp
from llamapar.describe.layout import AXES
from llamapar.panels.state import State
from wire import AT_8K, receive


def degrees(panel):
    return [panel.job.layout.size(axis) for axis in AXES]


@pytest.mark.parametrize("change", [{"tp": 16}, {"cp": 12}, {"tp": 8}, {"job": "", "tp": 16}], ids=str)
def test_what_gives_is_the_same_by_code_and_by_a_message_of_the_page(change):
    """A whole job that is brought keeps its own degrees; texts/holding.txt has what gives."""
    by_code, by_hand = lp.explorer(), lp.explorer()
    by_code.set(**change)
    assert receive(by_hand, kind="set", changes=change) is None
    assert degrees(by_code) == degrees(by_hand)
    for panel in (by_code, by_hand):
        gave = by_code.gave
        assert panel.payload["gave"] == panel.gave == gave
        assert gave in repr(panel)
        assert gave in panel.snapshot().summary
        if "job" not in change:  # which is kept as it says
            assert panel.report.job.gpus == math.prod(degrees(panel))
        assert panel.report.job.sequences == 128


@pytest.mark.parametrize("wrong", ["x", 0, -1, 2.5, None, 10**30, True])
def test_a_slip_in_a_box_loses_no_gpus(wrong):
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


def test_counts_of_a_dp_group_follow_so_that_the_batch_stays():
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
def test_powers_of_two_never_change_the_gpus_nor_the_batch(moves):
    state = State.opened({"gpus": 2**16, "dp": 32, "tp": 8, "cp": 16, "pp": 16, "global_batch": 2**12})
    for axis, degree in moves:
        state = state.move({axis: degree})
        assert math.prod(state.values[each] for each in AXES) == state.values["gpus"] == 2**16
        assert state.values[axis] == degree
        assert state.values["global_batch"] == 2**12
