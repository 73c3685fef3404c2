"""The picture of a trace: every collective where it belongs, totals that are exact, and small plain JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from llamapar.figures import style, trace
from llamapar.records.trace import PHASES, CollectiveEvent, Trace
from test_figures import layout_of_good_form, stored_size

ALL = tuple(range(8))


def event(kind: str, axis: str, n: int, phase: str, group: tuple[int, ...] = (0, 1)) -> CollectiveEvent:
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


def long(n: int) -> Trace:
    """A third each of three kinds."""
    kinds = [("all_gather", "tp", "forward"), ("reduce_scatter", "cp", "backward")]
    kinds.append(("all_reduce", "dp", "gradients"))
    told = [kinds[3 * i // n] for i in range(n)]
    shape = (1, 1024, 16384)
    events = [CollectiveEvent(k, a, ALL, shape, "bfloat16", 2**25 + i, p) for i, (k, a, p) in enumerate(told)]
    return Trace(3, tuple(events))


def bars(record: Trace) -> dict[int, tuple[int, str]]:
    """Place → (bytes, colour) of each bar."""
    found = {}
    for made in lp.view(record).spec["data"]:
        assert made["type"] == "bar"
        for x, y in zip(made["x"], made["y"], strict=True):
            assert x not in found
            found[x] = y, made["marker"]["color"]
    return found


def test_a_summary_adds_up_each_axis_and_a_hover_tells_one_collective() -> None:
    assert lp.view(SMALL).summary == (
        "rank 0: 7 collectives, 1,381 bytes sent\n"
        "  TP: 384 bytes: forward 256 (1 all_gather, 1 reduce_scatter); backward 128 (1 all_gather)\n"
        "  CP: 464 bytes: forward 32 (1 all_gather); backward 32 (1 reduce_scatter); "
        "gradients 400 (1 all_reduce)\n"
        "  DP: 533 bytes: gradients 533 (1 all_reduce)"
    )
    hovers = [text for made in lp.view(SMALL).spec["data"] for text in made["hovertext"]]
    assert hovers[0] == "all_gather, forward · [64] float32 · payload 256 B, sends 128 B · ranks 0–1"
    assert hovers[-1] == "all_reduce, gradients · [100] float32 · payload 400 B, sends 533 B · ranks 0, 4, 5"


def test_a_rank_without_collectives_has_a_note_and_no_bars() -> None:
    view = lp.view(Trace(5))
    assert view.summary == "rank 5: 0 collectives, 0 bytes sent"
    assert view.spec["data"] == []
    [note] = view.spec["layout"]["annotations"]
    assert note["text"] == "rank 5 took part in no collective"


# -- what is drawn -------------------------------------------------------------------------------


def test_bars_are_the_collectives() -> None:
    assert bars(SMALL) == {i: (e.sent, style.COLOURS[e.axis]) for i, e in enumerate(SMALL.events)}


def test_a_lane_an_axis_on_one_scale() -> None:
    layout = lp.view(SMALL).spec["layout"]
    lanes = [layout["yaxis"], layout["yaxis2"], layout["yaxis3"]]
    assert [lane["title"]["text"] for lane in lanes] == ["TP, bytes", "CP, bytes", "DP, bytes"]
    assert len({json.dumps(lane["range"]) for lane in lanes}) == 1
    assert lanes[0]["range"][1] > 400
    ends = [end for lane in reversed(lanes) for end in lane["domain"]]
    assert ends == sorted(ends)
    assert 0 <= ends[0] < ends[-1] <= trace.TALL + 1e-9
    assert layout["xaxis"]["title"]["text"] == "collectives of rank 0, in order"
    assert layout["xaxis"]["anchor"] == "y3"
    assert "yaxis4" not in layout


def test_phases_are_named_over_their_collectives_where_there_is_room() -> None:
    layout = lp.view(SMALL).spec["layout"]
    named = [(note["text"], note["x"]) for note in layout["annotations"]]
    assert named == [("forward", 1), ("backward", 3.5), ("gradients", 5.5)]
    assert [(band["x0"], band["x1"]) for band in layout["shapes"]] == [(-0.5, 2.5), (4.5, 6.5)]
    head = event("broadcast", "tp", 1, "forward")
    narrow = lp.view(Trace(0, (head, *[event("all_reduce", "dp", 4, "gradients")] * 50))).spec["layout"]
    assert [note["text"] for note in narrow["annotations"]] == ["gradients"]
    turns = [event("all_reduce", "tp", 4, PHASES[i % 2]) for i in range(30)]
    many = lp.view(Trace(0, tuple(turns))).spec["layout"]
    assert (many["shapes"], many["annotations"]) == ([], [])


def test_few_bars_have_their_kinds_over_them_and_many_the_bytes_of_each_axis() -> None:
    few, many = lp.view(SMALL).spec, lp.view(long(trace.LABELLED + 1)).spec
    said = few["layout"]["title"]["subtitle"]["text"]
    assert said == "AR all-reduce, AG all-gather, RS reduce-scatter"
    texts = [made["text"] for made in few["data"]]
    assert texts == [["AG", "RS", "AG"], ["AG", "RS", "AR"], ["AR"]]
    assert all("text" not in made for made in many["data"])
    assert many["layout"]["title"]["subtitle"]["text"] == "TP 411 MB, CP 411 MB, DP 763 MB"
    one = Trace(0, (event("all_reduce", "tp", 4, "forward"),) * (trace.LABELLED + 1))
    assert "subtitle" not in lp.view(one).spec["layout"]["title"]  # the title has them


def test_other_axes_have_lanes_too() -> None:
    axes = ["world", "kv_head", "dp", "tp", "fsdp"]
    record = Trace(0, tuple(event("all_reduce", axis, 4, "forward") for axis in axes))
    layout = lp.view(record).spec["layout"]
    titles = [layout[name]["title"]["text"] for name in ("yaxis", "yaxis2", "yaxis3", "yaxis4")]
    assert titles == ["TP", "DP", "world", "others"]  # there is no room for more
    assert {layout[name]["ticksuffix"] for name in ("yaxis", "yaxis4")} == {"B"}
    assert "yaxis5" not in layout
    *_, others = lp.view(record).spec["data"]
    assert others["x"] == [1, 4]
    assert others["hovertext"][0].startswith("all_reduce over kv_head, forward")
    colours = {colour for _, colour in bars(record).values()}
    assert colours == {style.COLOURS["tp"], style.COLOURS["dp"], style.PAD}


def test_a_long_trace_is_cut_and_small() -> None:
    record = long(250)
    drawn = bars(record)
    assert len(drawn) == trace.DRAWN
    assert [drawn[i][0] for i in range(127)] == [e.sent for e in record.events[:127]]
    assert drawn[trace.DRAWN][0] == record.events[-1].sent
    said = "drawn are the first 127 of 250 collectives, and the last"
    assert lp.view(record).spec["layout"]["title"]["subtitle"]["text"] == said
    assert lp.view(record).summary.splitlines()[-1] == said
    layout_of_good_form(record, 32)  # beside it a notebook stores a PNG; 40 KiB together


# -- what is a trace -----------------------------------------------------------------------------


def test_a_run_and_a_recording_are_drawn_as_their_traces() -> None:
    result: Any = lp.run("block", "tiny", lp.Layout(tp=2, cp=2, dp=2), seq_len=16)
    view = lp.view(result)
    assert view == lp.view(result.trace)
    assert sum(y for y, _ in bars(result.trace).values()) == result.trace.bytes()
    assert set(view.spec["layout"]) >= {"yaxis", "yaxis2", "yaxis3"}
    assert "go.Figure" not in repr(view)
    assert view.figure.layout.xaxis.title.text == "collectives of rank 0, in order"  # plotly takes it
    with lp.record() as recording:
        pass
    assert lp.view(recording).summary == "rank 0: 0 collectives, 0 bytes sent"


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
def test_any_trace(events: list[CollectiveEvent]) -> None:
    record = Trace(0, tuple(events))
    drawn = bars(record)
    assert len(drawn) == min(len(events), trace.DRAWN)
    for place, (size, _) in drawn.items():
        assert size == (events[-1] if place == trace.DRAWN else events[place]).sent
    assert stored_size(lp.view(record)) < 40 * 1024
    of_axes = re.findall(r"^  .*?([\d,]+) bytes", lp.view(record).summary, re.MULTILINE)
    assert sum(int(n.replace(",", "")) for n in of_axes) == record.bytes()
