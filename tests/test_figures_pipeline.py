"""Timelines as pictures: cells that are the table, two halves a rank, a cursor, and small JSON."""

import base64
import json
from functools import cache

import pytest

import llamapar as lp
from llamapar.figures import pipeline
from llamapar.figures.pipeline import BUBBLE, BUSY, HALVES
from llamapar.place.orders import ORDERS
from test_figures import layout_of_good_form

PAPER = lp.schedule("interleaved-1f1b", pp=16, virtual_stages=8, micro_batches=16)
BREADTH = lp.schedule("looped-bfs", pp=16, virtual_stages=8, micro_batches=16)
LONG = lp.schedule("1f1b", pp=128, micro_batches=300)
TABLES = {name: lp.schedule(name, pp=4, micro_batches=8) for name in ORDERS} | {"405B": PAPER, "long": LONG}
ZBV = TABLES["zbv"].timeline()

EVERY = {
    **{name: lambda table=table: table for name, table in TABLES.items()},  # type: ignore[misc]
    "405B, a cursor": lambda: PAPER.timeline().at(150.5),
    "405B, two": lambda: PAPER.timeline().beside(BREADTH.timeline()),
    "two": lambda: TABLES["1f1b"].timeline().beside(ZBV),
    "sending": lambda: TABLES["zbv"].timeline(p2p=0.25),
    "long, two": lambda: LONG.timeline().beside(lp.schedule("gpipe", pp=128, micro_batches=300).timeline()),
    "one": lambda: lp.schedule("1f1b", pp=1, micro_batches=1),
}


@cache
def made(name):
    """Made when a test first asks for it, not by every process that collects."""
    return EVERY[name]()


def cells(trace):
    rows, columns = map(int, trace["z"]["shape"].split(", "))
    flat = base64.b64decode(trace["z"]["bdata"])
    assert len(flat) == rows * columns
    return [flat[i * columns : (i + 1) * columns] for i in range(rows)]


def maps(record):
    return [trace for trace in lp.view(record).spec["data"] if trace["type"] == "heatmap"]


@pytest.mark.parametrize("name", [*ORDERS, "405B"])
def test_cells_are_what_each_rank_runs_and_the_chunks_that_it_holds(name):
    """One column a unit of time, each rank's upper and lower half."""
    line = TABLES[name].timeline()
    drawn, flying = map(cells, maps(line))
    assert (len(drawn), len(flying)) == (2 * line.schedule.pp, line.schedule.pp)
    for rank in range(line.schedule.pp):
        for column, shown in enumerate(zip(*drawn[2 * rank : 2 * rank + 2], strict=True)):
            place = line.running(rank, column + 0.5)
            if place is None:
                assert shown == (BUBBLE, BUBBLE)
                continue
            action = line.schedule.ranks[rank][place]
            odd = action.micro_batch % 2
            assert shown == tuple(code + odd * (code != BUSY) for code in HALVES[action.kind])
        row = flying[rank]
        assert list(row) == [line.flying(rank, column + 0.5) for column in range(len(row))]
        assert max(row) == line.schedule.in_flight[rank]


def test_kinds_differ_without_colour():
    """By which halves they fill, and whether both alike."""
    filled = {kind: tuple(half not in (BUBBLE, BUSY) for half in both) for kind, both in HALVES.items()}
    assert filled == {"F": (True, True), "B": (True, True), "I": (True, False), "W": (False, True)}
    assert HALVES["F"][0] == HALVES["F"][1]
    assert HALVES["B"][0] != HALVES["B"][1]


@pytest.mark.parametrize("name", EVERY)
def test_form(name):
    layout = layout_of_good_form(made(name), 50)
    assert len(json.dumps(lp.view(made(name)).spec)) <= 40 * 1024
    assert "bubble" in layout["title"]["text"].lower()
    assert layout["uirevision"] == "pipeline"


def test_numbers_stand_where_they_fit():
    def numbers(record):
        return [n for t in lp.view(record).spec["data"] if "customdata" in t for n in t["text"]]

    assert sorted(numbers(TABLES["1f1b"])) == sorted([*range(8)] * 8)
    assert numbers(PAPER) == []


def test_time_that_is_no_whole_number_of_forwards():
    assert maps(made("sending"))[0]["dx"] == 0.25
    assert maps(TABLES["1f1b"].timeline(forward=0.37, backward=0.71))[0]["dx"] < 0.05


def test_two_schedules_have_one_time_axis():
    spec = lp.view(made("two")).spec
    assert [trace["yaxis"] for trace in maps(made("two"))] == ["y", "y2", "y3", "y4"]
    assert not any("xaxis" in trace for trace in spec["data"])
    assert spec["layout"]["xaxis"]["range"] == [0, 51]
    said = [label["text"] for label in spec["layout"]["annotations"]]
    assert said == [TABLES["1f1b"].timeline().title, ZBV.title]
    assert spec["layout"]["title"]["text"] == "Bubble of compute: 1F1B\u00a037.50%, ZBV\u00a06.25%"


def test_a_cursor_says_what_waits_for_what():
    moment = TABLES["1f1b"].timeline().at(4)
    view = lp.view(moment)
    waits = [f"{s}B0 waits for {s + 1}B0 of rank {s + 1}" for s in range(3)]
    assert [label["text"] for label in view.spec["layout"]["annotations"]] == [*waits, "3B0"]
    assert view.spec["layout"]["shapes"][0]["x0"] == 4
    assert view.summary.endswith(str(moment))


def test_a_table_that_cannot_run_is_refused_in_words():
    with pytest.raises(lp.LayoutError, match=r"^rank 0 cannot run 0B0"):
        lp.view(lp.Schedule.read(["0B0 0F0", "1F0 1B0"]))


def test_of_many_ranks_the_first_and_the_last_are_drawn():
    note = lp.view(LONG).spec["layout"]["title"]["subtitle"]["text"].replace("<br>", " ")
    assert note.endswith("drawn are the first 31 of 128 ranks, and the last")
    assert len(cells(maps(LONG)[0])) == 2 * pipeline.DRAWN
