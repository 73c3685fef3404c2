"""A schedule in time: known bubbles, chunks in flight, what ranks wait for, and the same as text."""

import random
import re

import pytest

import llamapar as lp
from llamapar.panels import answers
from llamapar.place.orders import ORDERS, Action
from soon import within


def small(name, **given):
    return lp.schedule(name, **{"pp": 4, "micro_batches": 8, **given})


# -- what others have counted ----------------------------------------------------------------------


def test_known_bubbles():
    """ISCA 2025 section 3.1.1 prints 12 and 5 %; the formula is (pp - 1) / (v·m)."""
    for many, bubble in ((16, 0.1171875), (32, 0.05859375)):
        made = lp.schedule("interleaved-1f1b", pp=16, virtual_stages=8, micro_batches=many).timeline()
        assert made.bubble == bubble == 15 / (8 * many)
        assert made.idle_share == pytest.approx(bubble / (1 + bubble))
    for pp, many in ((2, 2), (4, 8), (8, 8), (5, 20)):
        for name in ("gpipe", "1f1b"):
            made = lp.schedule(name, pp=pp, micro_batches=many).timeline()
            assert made.bubble == pytest.approx((pp - 1) / many)


def test_a_name_promises_nothing():
    """torch's ZBV has bubbles at its ends even where the halves of a backward take as long as a forward."""
    bubbles = dict.fromkeys(("zbv", "dualpipev", "interleaved-zero-bubble"), 0.0625)
    bubbles |= dict.fromkeys(("interleaved-1f1b", "looped-bfs"), 0.1875)
    assert {name: small(name).timeline().bubble for name in bubbles} == bubbles


def test_the_order_of_the_paper_when_sending_takes_time():
    """ISCA 2025 figure 9, pp=4 and 12 micro-batches: 401.9, 401.7, 398.5 TFLOPs; 49.1, 46.4, 42.4 GB."""
    given = {"pp": 4, "virtual_stages": 2, "micro_batches": 12}
    made = [
        lp.schedule("flexible", **given, nc=3).timeline(p2p=0.5),  # all forward, then all backward
        lp.schedule("flexible", **given, nc=6).timeline(p2p=0.5),
        lp.schedule("interleaved-1f1b", **given).timeline(p2p=0.5),
    ]
    throughput = [1 / one.end for one in made]
    assert throughput[0] >= throughput[1] > throughput[2]
    chunks = [max(one.schedule.in_flight) for one in made]
    assert chunks == [24, 13, 11]


def test_it_is_quick():
    schedule = lp.schedule("interleaved-1f1b", pp=16, virtual_stages=8, micro_batches=128)
    assert sum(map(len, schedule.ranks)) == 32_768
    with within(1.0):  # some 0.3 s
        schedule.timeline()


# -- what a timeline is ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("p2p", [0.0, 0.3])
def test_nothing_runs_before_what_it_needs(name, p2p):
    """Each operation starts at the latest of its rank's last end and what it needs, read here by itself."""
    made = small(name).timeline(forward=1.5, backward=2.5, inputs=1.25, weights=0.75, p2p=p2p)
    s = made.schedule
    ends = {
        action: end
        for row, each in zip(s.ranks, made.ends, strict=True)
        for action, end in zip(row, each, strict=True)
    }
    for rank, row in enumerate(s.ranks):
        free = 0.0
        for action, start, end in zip(row, made.starts[rank], made.ends[rank], strict=True):
            _, stage, number = action
            before = [("F", stage - 1)] if action.kind == "F" else [("F", stage)]
            before += [(kind, stage + 1) for kind in "BI" if action.kind in "BI"]
            before += [("I", stage)] if action.kind == "W" else []
            found = [Action(kind, where, number) for kind, where in before]
            ready = [ends[one] + p2p * (s.rank_of(one.stage) != rank) for one in found if one in ends]
            assert start == max([free, *ready])
            assert end == start + {"F": 1.5, "B": 2.5, "I": 1.25, "W": 0.75}[action.kind]
            free = end


def test_a_walk_ends_exactly_where_something_can_go_on():
    """Shuffled tables: `problem` and a search that runs whatever is ready say the same."""
    drawn = random.Random(14)
    fine = 0
    for _ in range(300):
        schedule = lp.schedule("1f1b", pp=2, micro_batches=3)
        rows = [list(row) for row in schedule.ranks]
        for row in rows:
            i = drawn.randrange(len(row) - 1)
            row[i], row[i + 1] = row[i + 1], row[i]
        table = lp.Schedule("own", 2, 1, 3, "loop", tuple(map(tuple, rows)))
        done = set()
        left = rows
        while any(row and needed(row[0]) <= done and (done.add(tuple(row.pop(0))) or True) for row in left):
            pass
        assert table.ok == (not any(left)), table.reason
        fine += table.ok
    assert 0 < fine < 300


def needed(action):
    kind, stage, number = action
    if kind == "F":
        return {("F", stage - 1, number)} if stage else set()
    return {("F", stage, number), *([("B", 1, number)] if stage == 0 else [])}


def test_a_table_that_cannot_run_has_no_timeline():
    with pytest.raises(lp.LayoutError, match=r"^rank 0 cannot run 0B0"):
        lp.Schedule.read(["0B0 0F0", "1F0 1B0"]).timeline()
    for given in ({"forward": -1.0}, {"p2p": float("nan")}):
        with pytest.raises(lp.LayoutError, match=r"must be a number from 0 to 1e\+09"):
            small("1f1b").timeline(**given)


# -- at a time -------------------------------------------------------------------------------------


def test_the_chunks_over_time_peak_where_the_table_says():
    for name in ORDERS:
        made = small(name).timeline()
        for rank in range(4):
            times = [*made.starts[rank], *made.ends[rank]]
            assert max(made.flying(rank, at) for at in times) == made.schedule.in_flight[rank]
            assert (made.flying(rank, made.end), made.running(rank, made.end)) == (0, None)


# -- as text ---------------------------------------------------------------------------------------


def test_two_timelines_on_one_axis():
    one, other = (lp.schedule(name, pp=2, micro_batches=2).timeline() for name in ("gpipe", "1f1b"))
    both = one.beside(other)
    assert both.text() == f"{one.text()}\n\n{other.text()}"
    assert both.at(4).text() == f"{both.text()}\n\n{one.at(4)}\n\n{other.at(4)}"
    long = lp.schedule("1f1b", pp=2, micro_batches=4).timeline()
    both = other.beside(long)  # past the shorter's end its cursor stands there
    assert [moment.time for moment in both.at(long.end).moments] == [other.end, long.end]
    with pytest.raises(lp.LayoutError, match=f"time={long.end + 1}"):
        both.at(long.end + 1)


def test_a_bubble_is_a_share_of_compute_wherever_a_percentage_stands_beside_the_word():
    """The panel's line on time and a step's terms speak of idle shares, of all time."""
    made = lp.schedule("1f1b", pp=4, micro_batches=8).timeline()
    cost = lp.cost("llama3-8b", {"pp": 4}, seq_len=8192, global_batch=8)
    assert cost.seconds["pipeline idle"] > 0
    hover = [text for bar in lp.view(cost).spec["data"] for text in bar["hovertext"]]
    said = " ".join(
        [
            made.title,
            str(made),
            *answers._fast(lp.check("llama3-8b", {"pp": 4}, seq_len=8192, global_batch=8)),
            str(cost),
            *hover,
        ]
    )
    assert set(re.findall(r"bubble [^;\n]*?%( of compute)?", said)) == {" of compute"}
    assert re.search(r"a rank is idle for \d+% of it", said)
