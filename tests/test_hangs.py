"""Whom a hang waits for: hangs raised on purpose, random layouts, torch's own cases, and the doors."""

import functools
import itertools
import json
import pickle
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llamapar as lp
from flights import OPEN, dump, entry, files, hangs, multiplied, positions
from llamapar.cli.main import main
from llamapar.describe.layout import AXES
from llamapar.diagnosis import Level
from llamapar.diagnosis.known import Known
from llamapar.hangs.answer import Hang, explain_dumps
from soon import within

CASES = hangs()
PASSED = {
    *("order-0", "order-1", "order-3", "branch-1", "truncated-3", "again-branch-1", "again-size-2"),
    *("again-truncated-3", "fresh-layers-0", "fresh-saves-1", "later-drops-1"),
}
"""Faults that gloo let pass: nothing hung."""


def laid_out(row: dict[str, Any]) -> lp.Layout:
    """The layout of a case; its axes are slowest first."""
    order = dict.fromkeys([*reversed(row["degrees"]), *AXES])
    return lp.Layout.of({**row["degrees"], "order": "-".join(order)})


def told(made: dict[int, Any], layout: lp.Layout | None = None, model: str | None = None) -> lp.Explanation:
    """The explanation of dumps by rank, in the protocol that torch writes."""
    named = [(f"nccl_trace_rank_{rank}", pickle.dumps(one, 2)) for rank, one in made.items()]
    return explain_dumps(named, Known.of(model, layout, None, {}))


def hang_of(found: lp.Explanation) -> Hang:
    assert isinstance(found.hang, Hang)
    return found.hang


# -- genuine hangs ---------------------------------------------------------------------------------


@functools.cache
def answers() -> list[tuple[dict[str, Any], lp.Explanation]]:
    return [(row, explain_dumps(files(row), Known(layout=laid_out(row)))) for row in CASES]


def test_of_genuine_hangs_no_wrong_rank_is_called_likely():
    """A rank that is likely the one to look at is at fault; where nothing hung, nobody is."""
    likely = [
        (row, hang_of(found).behind)
        for row, found in answers()
        if found.best is not None and found.best.level is Level.LIKELY
    ]
    assert len(likely) >= 30
    assert [row["name"] for row, behind in likely if not {*behind} <= {*row["ranks"]}] == []
    assert not {row["name"] for row, _ in likely} & PASSED


def test_who_is_behind_has_not_entered_the_call_by_its_own_dump():
    """Read from the dumps by hand: each rank of a waiting group, and the number of its last call there."""
    asked = 0
    for row, found in answers():
        if row["form"] != "json" or found.hang is None:
            continue
        last = {}
        for rank, text in row["dumps"].items():
            try:
                entries = json.loads(text)["entries"]
            except ValueError:
                continue
            for one in entries:
                last[one["process_group"][0], int(rank)] = one["collective_seq_id"]
        for one in hang_of(found).waits:
            asked += 1
            assert all(last[one.name, rank] >= one.number for rank in one.ranks), row["name"]
            assert all(last.get((one.name, rank), -1) < one.number for rank in one.behind), row["name"]
    assert asked > 100


def test_torchs_analyzer_says_the_same_of_our_values_as_of_its_own_file():
    """make_flights.py kept what it printed. It takes a list of outputs for one, which is no fault."""
    same, asked = 0, 0
    for row, found in answers():
        printed = re.split(r"(?=Not all ranks joining|Collective sequence number)", row["torch"])
        theirs = {part for part in printed if "group info" in part and "Found input numel" not in part}
        groups = {name for part in theirs for name in re.findall(r"group info: (\S+?)(?::|$)", part, re.M)}
        if found.hang is not None and groups:
            asked += 1
            waits = {one.where for one in hang_of(found).waits if one.name in groups}
            same += bool(waits & hang_of(found).differ.keys())
    assert asked >= 100
    assert same == asked


def test_a_llama_that_stopped_is_told_its_tensor():
    """The code itself noted where its rank stopped (make_positions.py)."""
    for row in positions():
        known = Known.of("tiny", lp.Layout.of(row["degrees"]), None, {"seq_len": 16})
        found = explain_dumps(files(row), known)
        hang = hang_of(found)
        assert list(hang.behind) == [row["culprit"]]
        assert found.best is not None
        assert found.best.level is Level.LIKELY
        read = next(text for text in found.best.equations if "MISSING" not in text)
        words = "the residual stream, over tp"
        if row["truth"][1] == "the loss":
            words = "the loss, over tp"
        elif hang.waits[0].numel == (1, 1):
            words = "all_reduce of 1 = a norm, a loss or a flag"
        assert read.endswith(words), (row["truth"], read)


# -- what a layout says -----------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> lp.Layout:
    """Up to 64 ranks in any order of axes."""
    degrees = {axis: draw(st.sampled_from((1, 2, 3, 4))) for axis in AXES}
    while lp.Layout.of(degrees).world > 64:
        degrees[max(degrees, key=lambda axis: degrees[axis])] = 1
    return lp.Layout.of({**degrees, "order": "-".join(draw(st.permutations(AXES)))})


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_group_of_a_random_layout_gets_its_axes_and_coordinates(data):
    layout = data.draw(layouts())
    joint = ["-".join(names) for n in (1, 2) for names in itertools.combinations(AXES, n)]
    axes = data.draw(st.sampled_from(joint))
    members = [*layout.group(axes, data.draw(st.integers(0, layout.world - 1)))]
    late = data.draw(st.sampled_from(members))
    if len(members) == 1:
        return
    recorded = data.draw(st.booleans())  # NCCL records the members of a group, gloo does not
    label = data.draw(
        st.sampled_from((f"mesh_{axes.replace('-', '_')}", "undefined") if recorded else (f"mesh_{axes}",))
    )
    group, groups = ("7", label), {"7": members} if recorded else {}
    before = {rank: [entry(0, group, "all_reduce", 1, [8])] for rank in members}
    made = {rank: dump([], groups) for rank in range(layout.world)}
    for rank in members:
        waits = [] if rank == late else [entry(1, group, "all_reduce", 2, [8], **OPEN)]
        made[rank] = dump(before[rank] + waits, groups)
    found = told(made, layout)
    (one,) = hang_of(found).waits
    assert (list(one.behind), sorted([*one.ranks, late])) == ([late], members)
    wide = [axis for axis in AXES if layout.size(axis) > 1]
    own, coord = [axis for axis in axes.split("-") if axis in wide], layout.coord_of(late)
    assert [axis for axis in one.axes.split("-") if axis in wide] == own
    place = {axis: getattr(coord, axis) for axis in wide}
    assert dict(re.findall(r"(\w\w) (\d+)", one.where.partition(" of ")[2])) == {
        axis: str(at) for axis, at in place.items() if axis not in own
    }
    assert found.best is not None
    assert found.best.level is Level.LIKELY
    words = (
        f"rank {late} ({', '.join(f'{axis} {at}' for axis, at in place.items())}) never entered all_reduce #2"
    )
    assert words in found.best.cause


def test_degrees_get_the_order_in_which_the_records_lie():
    """A mesh of (pp, dp, tp) has dp before pp; degrees alone would be read in the paper's order."""
    row = next(row for row in CASES if row["name"] == "death-0")
    found = explain_dumps(files(row), Known(numbers={"tp": 2, "pp": 2, "world": 12}))
    assert found.known.layout is not None
    assert str(found.known.layout) == "tp=2 cp=1 pp=2 dp=3"
    assert found.known.layout.order == "tp-cp-dp-pp"
    assert {one.where for one in hang_of(found).waits} >= {"dp group of tp 1, pp 1", "pp group of tp 0, dp 1"}
    assert "no dump of rank 6" in found.rivals
    for tp in (4, 11):
        with pytest.raises(lp.LayoutError, match=rf"name rank 11, but the layout tp={tp} .* only {tp} ranks"):
            explain_dumps(files(row), Known(layout=lp.Layout(tp=tp)))


def test_a_thousand_ranks_are_read():
    made = dict(multiplied(1024, 40, culprit=341))
    with within(60):
        found = told(made, lp.Layout(tp=8, dp=128), "llama3-8b")
    assert list(hang_of(found).behind) == [341]
    assert len(str(found)) < 10_000


# -- torch's own cases -------------------------------------------------------------------------------

PAIR, BOTH = ("pp0", "mesh_pp"), {"pp0": [0, 1]}
P2P = {"is_p2p": True, "p2p_seq_id": 1}


def called(op: str, number: int, size: list[int], **more: Any) -> dict[str, Any]:
    """A call of all ranks in float32."""
    dtypes = {"input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    return entry(number - 1, ("0", "default_pg"), op, number, size, **(dtypes | more))


# Of NCCL's calls what torch's own tests say: those of rank 0 and of rank 1, and torch's verdict.
# Sources: pytorch/pytorch test/distributed/flight_recorder/test_fr_analysis.py at
# cbbdb8ae8843168a54322a87640072a3091534b8 (pairs of events); the same file in ROCm/pytorch at
# 407564617cf1e846e62c82bfe58168726cb8e3d4 (uneven all-gather, gather).
REDUCED = called("all_reduce", 1, [4, 4], **OPEN)
GATHER, TWO = called("gather", 1, [4, 4], **OPEN), {"output_sizes": [[4, 4], [4, 4]]}
HALF = {"input_dtypes": ["Half"], "output_dtypes": ["Half"]}


# -- the doors -------------------------------------------------------------------------------------

SKIP = next(row for row in CASES if row["name"] == "skip-2")


def test_the_command_explains_a_folder(tmp_path, capsys):
    for name, data in files(SKIP):
        (tmp_path / name).write_bytes(data)
    assert main(["explain", str(tmp_path), "--tp", "4", "--dp", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == f"llamapar: '{tmp_path}' is a folder: its flight records are read\n"
    assert "       group" in out
    assert main(["explain", str(tmp_path), "--tp", "4", "--dp", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["hang"]["waits"][0]["axes"] in ("tp", "dp")
    assert main(["explain", str(tmp_path), "--file", str(tmp_path)]) == 2
    assert "a text and a file were given; one is explained" in capsys.readouterr().err
