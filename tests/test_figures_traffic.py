"""The picture of what a rank sends, measured: bars as long as its bytes, exact totals, small plain JSON."""

import re

from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from llamapar.figures import style
from llamapar.records.trace import PHASES, CollectiveEvent, Trace
from test_figures import layout_of_good_form, stored_size


def event(kind, axis, n, phase, group=(0, 1)):
    return CollectiveEvent(kind, axis, group, (n,), "float32", 4 * n, phase)


SMALL = Trace(
    0,
    (
        event("all_gather", "tp", 64, "forward"),
        event("all_gather", "cp", 16, "forward", (0, 2)),
        event("reduce_scatter", "tp", 64, "forward"),
        event("all_gather", "tp", 64, "backward"),
        event("reduce_scatter", "cp", 16, "backward", (0, 2)),
        event("all_reduce", "cp", 100, "gradients", (0, 2)),
        event("all_reduce", "dp", 100, "gradients", (0, 4, 5)),
    ),
)


def bars(record):
    """(name of the axis, row) → start, length and colour of each bar."""
    return {
        (made["name"], row): (start, size, made["marker"]["color"])
        for made in lp.view(record).spec["data"]
        for row, start, size in zip(made["y"], made["base"], made["x"], strict=True)
    }


def test_bars_are_the_bytes_of_each_phase_and_axis():
    tp, cp, dp = (style.COLOURS[axis] for axis in ("tp", "cp", "dp"))
    assert bars(SMALL) == {
        ("TP", 0): (0, 256, tp),
        ("CP", 0): (256, 32, cp),
        ("TP", 1): (0, 128, tp),
        ("CP", 1): (128, 32, cp),
        ("CP", 2): (0, 400, cp),
        ("DP", 2): (400, 533, dp),
    }
    layout = lp.view(SMALL).spec["layout"]
    assert layout["yaxis"]["ticktext"] == ["forward", "backward", "gradients"]
    assert layout["title"]["text"] == "Rank 0: 7 collectives, 1,381 bytes sent"
    assert layout["title"]["subtitle"]["text"] == "tp 384 B, cp 464 B, dp 533 B"


def test_a_hover_counts_its_collectives():
    hovers = [text for made in lp.view(SMALL).spec["data"] for text in made["hovertext"]]
    assert hovers[0] == "forward · TP 256 B<br>1 all_gather of 256 B<br>1 reduce_scatter of 256 B"
    many = Trace(0, tuple(event("all_reduce", "tp", n, "forward") for n in range(1, 11)))
    [[hover]] = [made["hovertext"] for made in lp.view(many).spec["data"]]
    assert hover.endswith("<br>1 all_reduce of 32 B<br>and 2 more")


def test_a_run_and_a_recording_are_drawn_as_their_traces():
    result = lp.run("block", "tiny", lp.Layout(tp=2, cp=2, dp=2), seq_len=16)
    view = lp.view(result)
    assert view == lp.view(result.trace)
    assert sum(size for _, size, _ in bars(result.trace).values()) == result.trace.bytes()
    assert view.figure.layout.xaxis.title.text == "bytes that the rank sends"  # plotly takes it
    with lp.record() as recording:
        pass
    assert lp.view(recording).summary == "rank 0: 0 collectives, 0 bytes sent"
    assert lp.view(recording).spec["data"] == []


@given(
    st.lists(
        st.builds(
            event,
            st.sampled_from(["all_reduce", "all_gather", "barrier"]),
            st.sampled_from(["tp", "cp", "dp", "world", "<b>", "x" * 50]),
            st.integers(0, 2**40),
            st.sampled_from(PHASES),
        ),
        max_size=300,
    )
)
def test_any_trace(events):
    record = Trace(0, tuple(events))
    assert sum(size for _, size, _ in bars(record).values()) == record.bytes()
    layout_of_good_form(record, 32)  # beside it a notebook stores a PNG; 40 KiB together
    assert stored_size(lp.view(record)) < 40 * 1024
    assert "<b>" not in str(lp.view(record).spec["data"])
    of_axes = re.findall(r"^  .*?([\d,]+) bytes", lp.view(record).summary, re.MULTILINE)
    assert sum(int(n.replace(",", "")) for n in of_axes) == record.bytes()
