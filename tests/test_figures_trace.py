"""The picture of a trace: every collective where it belongs, totals that are exact, and small plain JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from llamapar.figures import style, trace
from llamapar.records.trace import PHASES, CollectiveEvent, Trace

MIME = "application/vnd.plotly.v1+json"
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
    kinds = (
        ("all_gather", "tp", "forward"),
        ("reduce_scatter", "cp", "backward"),
        ("all_reduce", "dp", "gradients"),
    )
    events = []
    for i in range(n):
        kind, axis, phase = kinds[3 * i // n]
        events.append(CollectiveEvent(kind, axis, ALL, (1, 1024, 16384), "bfloat16", 2**25 + i, phase))
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


def stored_size(record: Any) -> int:
    """Bytes that the picture takes in a notebook's file."""
    picture = lp.view(record)._repr_mimebundle_()[MIME]
    notebook = {"cells": [{"outputs": [{"data": {MIME: picture}}]}]}
    return len(json.dumps(notebook, indent=1, ensure_ascii=False).encode())


# -- text ----------------------------------------------------------------------------------------


def test_summary() -> None:
    assert lp.view(SMALL).summary == (
        "rank 0: 7 collectives, 1,696 bytes\n"
        "  TP: 768 bytes: forward 512 (1 all_gather, 1 reduce_scatter); backward 256 (1 all_gather)\n"
        "  CP: 528 bytes: forward 64 (1 all_gather); backward 64 (1 reduce_scatter); "
        "gradients 400 (1 all_reduce)\n"
        "  DP: 400 bytes: gradients 400 (1 all_reduce)"
    )


def test_summary_of_nothing() -> None:
    view = lp.view(Trace(5))
    assert view.summary == "rank 5: 0 collectives, 0 bytes"
    assert view.spec["data"] == []
    [note] = view.spec["layout"]["annotations"]
    assert note["text"] == "rank 5 took part in no collective"


def test_summary_says_what_is_not_drawn() -> None:
    assert (
        lp.view(long(200)).summary.splitlines()[-1]
        == "drawn are the first 127 of 200 collectives, and the last"
    )


def test_hover() -> None:
    hovers = [text for made in lp.view(SMALL).spec["data"] for text in made["hovertext"]]
    assert hovers[0] == "all_gather, forward · [64] float32 · 256 B · ranks 0–1"
    assert hovers[-1] == "all_reduce, gradients · [100] float32 · 400 B · ranks 0, 4, 5"


# -- what is drawn -------------------------------------------------------------------------------


def test_bars_are_the_collectives() -> None:
    assert bars(SMALL) == {i: (e.bytes, style.COLOURS[e.axis]) for i, e in enumerate(SMALL.events)}


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


def test_phases_are_named_over_their_collectives() -> None:
    layout = lp.view(SMALL).spec["layout"]
    named = [(note["text"], note["x"]) for note in layout["annotations"]]
    assert named == [("forward", 1), ("backward", 3.5), ("gradients", 5.5)]
    assert [(band["x0"], band["x1"]) for band in layout["shapes"]] == [(-0.5, 2.5), (4.5, 6.5)]


def test_kinds_are_written_over_few_bars() -> None:
    layout = lp.view(SMALL).spec["layout"]
    assert layout["title"]["subtitle"]["text"] == "AR all-reduce, AG all-gather, RS reduce-scatter"
    texts = [made["text"] for made in lp.view(SMALL).spec["data"]]
    assert texts == [["AG", "RS", "AG"], ["AG", "RS", "AR"], ["AR"]]
    assert all("text" not in made for made in lp.view(long(trace.LABELLED + 1)).spec["data"])


def test_many_bars_have_the_bytes_of_each_axis_over_them() -> None:
    layout = lp.view(long(trace.LABELLED + 1)).spec["layout"]
    assert layout["title"]["subtitle"]["text"] == "TP 470 MB, CP 470 MB, DP 436 MB"
    one = Trace(0, (event("all_reduce", "tp", 4, "forward"),) * (trace.LABELLED + 1))
    assert "subtitle" not in lp.view(one).spec["layout"]["title"]  # the title has them


def test_phases_without_room_are_not_named() -> None:
    head = event("broadcast", "tp", 1, "forward")
    named = lp.view(Trace(0, (head, *[event("all_reduce", "dp", 4, "gradients")] * 50))).spec["layout"]
    assert [note["text"] for note in named["annotations"]] == ["gradients"]


def test_many_stretches_are_not_marked() -> None:
    turns = [event("all_reduce", "tp", 4, PHASES[i % 2]) for i in range(30)]
    layout = lp.view(Trace(0, tuple(turns))).spec["layout"]
    assert (layout["shapes"], layout["annotations"]) == ([], [])


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
    assert {colour for _, colour in bars(record).values()} == {
        style.COLOURS["tp"],
        style.COLOURS["dp"],
        style.PAD,
    }


def test_a_long_trace_is_cut_and_small() -> None:
    record = long(250)
    drawn = bars(record)
    assert len(drawn) == trace.DRAWN
    assert [drawn[i][0] for i in range(127)] == [e.bytes for e in record.events[:127]]
    assert drawn[trace.DRAWN][0] == record.events[-1].bytes
    subtitle = lp.view(record).spec["layout"]["title"]["subtitle"]["text"]
    assert subtitle == "drawn are the first 127 of 250 collectives, and the last"
    assert stored_size(record) < 32 * 1024  # beside it a notebook stores a PNG; 40 KiB together


# -- what is a trace -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result() -> Any:
    return lp.run("block", "tiny", lp.Layout(tp=2, cp=2, dp=2), seq_len=16)


def test_a_result_is_drawn_as_its_trace(result: Any) -> None:
    view = lp.view(result)
    assert view == lp.view(result.trace)
    assert sum(y for y, _ in bars(result.trace).values()) == result.trace.bytes()
    assert set(view.spec["layout"]) >= {"yaxis", "yaxis2", "yaxis3"}
    assert "go.Figure" not in repr(view)
    assert view.figure.layout.xaxis.title.text == "collectives of rank 0, in order"  # plotly takes it


def test_a_recording_is_drawn_as_its_trace() -> None:
    with lp.record() as recording:
        pass
    assert lp.view(recording).summary == "rank 0: 0 collectives, 0 bytes"


def test_twice_is_the_same(result: Any) -> None:
    again = lp.run("block", "tiny", lp.Layout(tp=2, cp=2, dp=2), seq_len=16)
    assert lp.view(result.trace) == lp.view(again.trace)


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
        assert size == (events[-1] if place == trace.DRAWN else events[place]).bytes
    assert stored_size(record) < 40 * 1024
    told = [int(n.replace(",", "")) for n in _totals(lp.view(record).summary)]
    assert sum(told) == record.bytes()


def _totals(summary: str) -> list[str]:
    """The bytes of each axis."""
    return [
        line.partition(" bytes")[0].rpartition(" ")[2] for line in summary.splitlines() if line[:2] == "  "
    ]
