"""Flight records: read inertly, judged against hangs that were raised on purpose, and told in axes."""

from __future__ import annotations

import base64
import functools
import json
import os
import pickle
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import llamapar as lp
from flights import OPEN, dump, entry, files, folder, hangs, many, multiplied, positions, spare, torchs_pickle
from llamapar.cli.main import main
from llamapar.count.wire import sending
from llamapar.diagnosis.known import Known
from llamapar.flight import answer, drop, dumps, inert, verdict
from llamapar.flight.order import collectives_in_order
from llamapar.flight.verdict import RankPositions
from peak import Peak
from soon import within

CASES = hangs()
PASSED = {
    *("order-0", "order-1", "order-3", "branch-1", "truncated-3", "again-branch-1", "again-size-2"),
    *("again-truncated-3", "fresh-layers-0", "fresh-saves-1", "later-drops-1"),
}
"""Faults that gloo let pass: nothing hung."""

UNSEEN = {"crosses-3"}
"""A hang in sends, which gloo does not record."""


def culprits(row: dict[str, Any]) -> set[int]:
    """The ranks that a reader of the dumps can name: none where two stages simply differ."""
    alike = row["fault"] in ("crosses", "sends cross") and len(row["ranks"]) > 1
    return set() if alike else set(row["ranks"])


def named(name: str) -> dict[str, Any]:
    return next(row for row in CASES if row["name"] == name)


def read(made: Iterable[tuple[int, Any]], form: Callable[[Any], bytes] | None = None) -> dumps.Folder:
    """The dumps by rank, as JSON unless in another form."""
    form = form or (lambda one: json.dumps(one).encode())
    return drop.of_bytes((f"nccl_trace_rank_{rank}", form(one)) for rank, one in made)


# -- genuine hangs ---------------------------------------------------------------------------------


@functools.cache
def standings() -> list[tuple[dict[str, Any], RankPositions]]:
    return [(row, verdict.standing(folder(row))) for row in CASES]


def test_the_culprit_of_genuine_hangs_is_named() -> None:
    seen = [(row, found) for row, found in standings() if row["name"] not in PASSED | UNSEEN]
    assert len(seen) >= 60
    right = [row["name"] for row, found in seen if set(found.ranks) == culprits(row)]
    assert len(right) >= 0.95 * len(seen)
    sure = [(row, found) for row, found in seen if found.level is lp.Level.LIKELY]
    assert [row["name"] for row, found in sure if not set(found.ranks) <= culprits(row)] == []


def test_where_nothing_waits_nobody_is_blamed() -> None:
    quiet = [found for row, found in standings() if row["name"] in PASSED | UNSEEN]
    assert len(quiet) == len(PASSED | UNSEEN)
    assert {(found.kind, found.ranks) for found in quiet} == {("none", ())}


def test_the_kinds_of_faults_are_told_apart() -> None:
    told: dict[str, set[str]] = {}
    for row, found in standings():
        if found.ranks:
            told.setdefault(row["fault"], set()).add(found.kind)
    assert "skip" in told["skip"]
    assert "size" in told["size"]
    assert told["operation"] <= {"operation", "skip"}
    assert "slow" in told["slow"]
    assert told["slow"] <= {"slow", "late"}
    assert told["death"] == {"gone"}
    assert told["late"] | told["raises"] <= {"late", "gone"}  # gone: where another dump was lost
    assert "group" in told["group"]
    assert not {"gone", "slow", "late"} & told["branch"]


def test_torchs_analyzer_finds_the_same_collective() -> None:
    """Of its collectives with an error, ours is one; it names each that waits, ours is the first."""
    agree, asked = 0, 0
    for row, found in standings():
        theirs = re.findall(r"group info: (\S+?)(?::|$)", row["torch"], re.MULTILINE)
        if found.collective is None or not theirs:
            continue
        asked += 1
        agree += bool({found.collective.group, found.group and found.group.name} & {*theirs})
    assert asked >= 50
    assert agree >= 0.8 * asked


@pytest.mark.parametrize("kind", ["skip", "size", "operation", "late", "death"])
def test_the_culprit_is_found_among_1024_ranks(kind: str) -> None:
    """Two of each kind; `benchmarks/flight.py --hangs` asks of all."""
    rows = [row for row in CASES if row["fault"] == kind and list(row["degrees"]) == ["dp", "tp"]]
    rows = [row for row in rows if row["name"] not in PASSED and row["groups"] == "mesh" and spare(row)][:2]
    assert rows
    for row in rows:
        large, ranks, _ = many(row, 1024)
        found = verdict.standing(large)
        assert set(found.ranks) == ranks
        assert found.layout is not None
        assert found.layout.world == 1024


@pytest.mark.parametrize(("fault", "may_go_on"), [("late", True), ("skip", False)])
def test_nccls_form_as_json_and_as_pickle(fault: str, may_go_on: bool) -> None:
    """A rank that has not come yet is told with a doubt: it may come."""
    made = list(multiplied(16, 40, culprit=5, fault=fault))
    found = [verdict.standing(read(made, form)) for form in (None, torchs_pickle, pickle.dumps)]
    assert len({one.cause for one in found}) == 1
    assert found[0].ranks == (5,)
    assert found[0].kind == fault
    assert str(found[0].layout) == "tp=8 cp=1 pp=1 dp=2"
    assert inert._torchs(torchs_pickle(made[0][1])) is not None  # it takes the quick way
    doubt = "written while the run still went on, the records would look the same"
    assert (doubt in answer.explain_flight(read(made), Known()).note) == may_go_on


PAIR, BOTH = ("pp0", "mesh_pp"), {"pp0": [0, 1]}
P2P = {"is_p2p": True, "p2p_seq_id": 1}


def test_a_receive_waits_for_who_sends() -> None:
    waits = dump([entry(0, PAIR, "recv 1<-0", 0, [4, 8], **P2P, **OPEN)], BOTH)
    found = verdict.standing(read([(0, dump([], BOTH)), (1, waits)]))
    assert (found.kind, found.ranks) == ("late", (0,))
    assert found.cause.startswith("pp group: rank 0 (pp 0) never entered recv #1, [4, 8] bf16; rank 1 waits")


@pytest.mark.parametrize(("state", "kind", "ranks"), [("completed", "none", ()), ("started", "late", (0,))])
def test_a_batch_of_sends_has_the_state_of_its_end(state: str, kind: str, ranks: tuple[int, ...]) -> None:
    """NCCL never marks the calls of a batch as done, but for the entry that ends it."""
    sends = P2P | {"state": "scheduled", "retired": False}
    end = {**sends, "input_sizes": [], "output_sizes": [], "input_dtypes": [], "output_dtypes": []}
    batch = [
        entry(0, PAIR, "send 1->0", 0, [4, 8], **sends),
        entry(1, PAIR, "recv 1<-0", 0, [4, 8], **sends),
        entry(2, PAIR, "coalesced", 0, [], **{**end, "state": state}),
    ]
    late = [entry(0, PAIR, "all_reduce", 1, [1])]
    found = verdict.standing(read([(0, dump(late, BOTH)), (1, dump(late + batch, BOTH))]))
    assert (found.kind, found.ranks) == (kind, ranks)


def called(op: str, number: int, size: list[int], **more: Any) -> dict[str, Any]:
    """A call of all ranks in float32."""
    dtypes = {"input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    return entry(number - 1, ("0", "default_pg"), op, number, size, **(dtypes | more))


# Of NCCL's calls what torch's own tests say: those of rank 0 and of rank 1, torch's verdict, and ours, of two
# ranks of which neither is the larger side.
# Sources: pytorch/pytorch test/distributed/flight_recorder/test_fr_analysis.py at
# cbbdb8ae8843168a54322a87640072a3091534b8 (pairs of events); the same file in ROCm/pytorch at
# 407564617cf1e846e62c82bfe58168726cb8e3d4 (uneven all-gather, gather).
REDUCED = called("all_reduce", 1, [4, 4], **OPEN)
GATHER, TWO = called("gather", 1, [4, 4], **OPEN), {"output_sizes": [[4, 4], [4, 4]]}
HALF = {"input_dtypes": ["Half"], "output_dtypes": ["Half"]}
OTHER = "#1, [4, 4] fp32 where the other rank calls"
TORCHS = [
    (REDUCED, REDUCED, "FULLY_MATCHED", "has entered all_reduce #1"),
    (
        REDUCED,
        called("all_gather", 1, [4, 4], **OPEN),
        "COLLECTIVE_TYPE_MISMATCH",
        f"called all_reduce {OTHER} all_gather #1",
    ),
    (
        REDUCED,
        REDUCED | {"input_sizes": [[5, 4]]},
        "SIZE_OR_SYNTAX_MISMATCH",
        f"sizes or dtypes: all_reduce {OTHER} all_reduce #1, [5, 4]",
    ),
    (REDUCED, REDUCED | {"output_sizes": [[5, 4]]}, "SIZE_OR_SYNTAX_MISMATCH", "has other sizes or dtypes"),
    (
        REDUCED,
        REDUCED | HALF,
        "COLLECTIVE_DTYPE_MISMATCH",
        f"sizes or dtypes: all_reduce {OTHER} all_reduce #1, [4, 4] fp16",
    ),
    (GATHER | TWO, GATHER | {"output_sizes": [[]]}, "FULLY_MATCHED", "has entered gather #1"),
]


@pytest.mark.parametrize(("one", "other", "theirs", "ours"), TORCHS)
def test_pairs_of_torchs_own_tests_are_told_as_torch_tells_them(
    one: dict[str, Any], other: dict[str, Any], theirs: str, ours: str
) -> None:
    from torch.distributed.flight_recorder.components.utils import match_one_event

    assert match_one_event(one, other, {"0": {0, 1}}, "0").state.name == theirs
    made = ((rank, dump([row], {"0": [0, 1]})) for rank, row in enumerate((one, other)))
    found = verdict.standing(read(made, torchs_pickle))
    assert found.ranks == ()  # of two ranks neither is the larger side
    assert ours in found.cause


def test_the_crash_of_torchs_tutorial() -> None:
    """Rank 0 calls an all-reduce of [4, 5] besides, on NCCL. torch's analyzer names the last, which rank 1
    has not joined; the first at which the two differ comes two before. Source: pytorch/tutorials
    unstable_source/flight_recorder_tutorial.rst at 29bf2b8020e7babf1fd1d86661f18e64cd0a2b88."""

    def stack(line: int) -> list[dict[str, Any]]:
        frames = [
            ("all_reduce", "/home/cpio/local/pytorch/torch/distributed/distributed_c10d.py", 2696),
            ("wrapper", "/home/cpio/local/pytorch/torch/distributed/c10d_logger.py", 83),
            ("<module>", "/home/cpio/test/crash.py", line),
        ]
        return [{"name": name, "filename": file, "line": at} for name, file, at in frames]

    a, b = [3, 4], [4, 5]
    lines = ([(23, a), (23, a), (29, b), (44, a), (44, a)], [(23, a), (23, a), (44, a), (44, a)])
    rows = [
        [called("all_reduce", number, size, frames=stack(line)) for number, (line, size) in enumerate(own, 1)]
        for own in lines
    ]
    rows[0][-1] |= {"state": "scheduled", "retired": False}
    made = ((rank, dump(own, {"0": [0, 1]}, "2.5")) for rank, own in enumerate(rows))
    found = verdict.standing(read(made, torchs_pickle))
    assert (found.kind, found.ranks, found.level) == ("tie", (), lp.Level.POSSIBLE)
    assert "all_reduce #3, [4, 5] fp32" in found.cause
    assert "last common: all_reduce #2, [3, 4] fp32 of the group of all ranks" in found.cause
    third = found.hang.dumps[0].stacks[2]
    assert third.frames[-1] == "line 29 of cpio/test/crash.py, in <module>"


def test_what_is_read_is_what_torchs_sources_write() -> None:
    import torch

    folder = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
    keys = re.findall(r'DEFINE_CONSTANT\(\w+_key, "(\w+)"\)', (folder / "FlightRecorder.hpp").read_text())
    assert 'DEFINE_CONSTANT(version_val, "2.10")' in (folder / "FlightRecorder.hpp").read_text()
    own = {*entry(0, ("0", ""), "barrier", 1, [1]), *dump([], {})}
    own |= {"frames", "name", "filename", "line", "ranks"}
    written = {*keys, *re.findall(r'"(\w+)"', (folder / "FlightRecorderDetail.hpp").read_text())}
    assert own - written == set()


SPAWN = "pytorch-3.10/lib/python3.10/multiprocessing/spawn.py"


def test_the_entry_that_torchs_tutorial_shows() -> None:
    """What NCCL wrote in test_short_pickle, word for word, of version 2.5; the second entry is cut there."""
    frames = [
        {"name": "test_short_pickle", "filename": "pytorch/test/distributed/test_c10d_nccl.py", "line": 3647},
        {"name": "spawn_main", "filename": f".conda/envs/{SPAWN}", "line": 116},
        {"name": "<module>", "filename": "<string>", "line": 1},
    ]
    genuine = {
        "frames": frames, "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1724779239936775119, "input_sizes": [[3, 4]], "input_dtypes": ["Float"],
        "output_sizes": [[3, 4]], "output_dtypes": ["Float"], "state": "completed",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": 1724779239975811724,
        "retired": True, "timeout_ms": 600000, "is_p2p": False,
    }  # fmt: skip
    one = read([(0, dump([genuine], {"0": [0, 1]}, "2.5"))], torchs_pickle).dumps[0]
    assert (f"{one.calls[0].op}, {one.calls[0].shape}", one.numbers[0], one.done[0]) == (
        "all_reduce, [3, 4] fp32",
        1,
        1,
    )
    assert one.stacks[0].line == "line 3647 of test_c10d_nccl.py, in test_short_pickle"
    assert one.members == {"0": (0, 1)}


def test_a_ring_buffer_that_lost_its_beginning() -> None:
    """Buffers that begin at different calls: nobody is blamed for what is no longer there."""
    made = multiplied(16, 60, culprit=5)
    cut = ((rank, one | {"entries": one["entries"][rank % 7 :]}) for rank, one in made)
    found = verdict.standing(read(cut))
    assert (found.kind, found.ranks, found.level) == ("late", (5,), lp.Level.LIKELY)


def test_the_layout_is_given_or_found() -> None:
    row = named("skip-2")
    found = verdict.standing(folder(row))
    assert str(found.layout) == "tp=4 cp=1 pp=1 dp=2"
    as_pp = verdict.standing(folder(row), lp.Layout(tp=4, pp=2))
    assert as_pp.ranks in ((), tuple(row["ranks"]))
    with pytest.raises(lp.LayoutError, match=r"name rank 7, but the layout .* has only 4 ranks"):
        verdict.standing(folder(row), lp.Layout(tp=4))


def test_degrees_that_are_given_get_the_order_of_the_records() -> None:
    """A mesh of (pp, dp, tp) has dp before pp; degrees alone would be read in the paper's order."""
    found = lp.explain(flight=folder(named("death-0")), tp=2, pp=2, gpus=12)
    assert found.flight is not None
    assert found.flight.layout is not None
    assert str(found.flight.layout) == "tp=2 cp=1 pp=2 dp=3"
    assert found.flight.layout.order.startswith("tp-dp-pp")
    assert found.flight.ranks == (6,)


# -- what a collective belongs to -------------------------------------------------------------------


def truth(row: dict[str, Any]) -> str:
    """Where a rank stopped, as the code itself told it (make_positions.py)."""
    layer, part, phase = row["truth"]
    where = part if layer is None else f"layer {layer}'s {part}"
    return f"{where}, {phase}" if phase in ("forward", "backward") else where


def place(found: RankPositions) -> str | None:
    """Where it is told to have stopped."""
    words = re.search(r"never entered \S+ #\d+, \[.*?\] \w+(?: \((.*?)\))?; ranks? ", found.cause)
    assert words is not None
    return words[1]


def test_a_stopped_rank_is_told_the_layer_and_the_part() -> None:
    told: dict[str, list[bool]] = {}
    for row in positions():
        found = lp.explain(flight=folder(row), model="tiny", layout=row["degrees"]).flight
        assert found.ranks == (row["culprit"],)
        assert place(found) in (None, truth(row)), row["kind"]
        told.setdefault(row["kind"], []).append(place(found) is not None)
    assert all(told["as it is"])
    assert not any(any(told[kind]) for kind in told.keys() - {"as it is"})


QUICK = {2, 6, 9, 11, 14, 23, 30}
"""Of the stops in whole steps those that every run of the tests looks at."""


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_stops_in_the_first_steps_and_under_schedules_are_told(quick: bool) -> None:
    """Of jobs that are known; whatever is said is true, of look-alikes too."""
    told: dict[str, list[bool]] = {}
    for row in positions("positions_steps.jsonl.gz"):
        if quick and row["number"] not in QUICK:
            continue
        job = dict(row["known"])
        model = lp.model("tiny").replace(n_layers=job.pop("n_layers"))
        for known in (job | {"schedule": row["schedule"]}, *([] if quick else [job, {}])):
            found = lp.explain(flight=folder(row), model=model, layout=row["degrees"], **known).flight
            assert row["culprit"] in found.ranks
            assert found.ranks == (row["culprit"],) or found.level < lp.Level.LIKELY
            said = place(found)
            assert said is None or re.sub(r", micro-batch \d+$", "", said) == truth(row), row["number"]
            told.setdefault(row["kind"] if known else "nothing known", []).append(said is not None)
    right = told["as it is"] + told["gradients"]
    assert sum(right) >= 0.75 * len(right)
    assert not any(told["recomputes"] + told.get("twice forward", []))


def test_a_schedule_that_nobody_knows_is_refused() -> None:
    row = next(iter(positions()))
    with pytest.raises(lp.LayoutError, match=r"schedule='2f2b' is not known"):
        lp.explain(flight=folder(row), model="tiny", schedule="2f2b")


# -- the order of what a rank sends, against the traces of runs, which the same formulas do not know of ----

RUNS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {"tp": 2, "cp": 2}, {}),
    ("llama", {"tp": 2, "sequence_parallel": False}, {}),
    ("llama", {"tp": 2, "cp": 2}, {"cp_method": "ring"}),
    ("step", {"tp": 2, "pp": 2, "dp": 2, "zero": 3}, {"micro_batches": 4}),
    ("step", {"pp": 2, "cp": 2, "tp": 2}, {"micro_batches": 4, "schedule": "gpipe"}),
    ("step", {"tp": 2, "dp": 2, "zero": 1}, {"micro_batches": 2}),
    ("llama", {"tp": 2, "pp": 2}, {"micro_batches": 4, "schedule": "interleaved-zero-bubble"}),
    ("step", {"tp": 2, "pp": 2, "dp": 2}, {"micro_batches": 4, "schedule": "interleaved-1f1b"}),
    ("step", {"tp": 2, "pp": 2, "dp": 2, "zero": 2}, {"micro_batches": 4, "schedule": "zbv"}),
    ("step", {"tp": 2, "pp": 2, "zero": 1}, {"micro_batches": 4, "schedule": "looped-bfs"}),
]


@pytest.mark.parametrize(
    ("program", "layout", "options"),
    [*RUNS[:1], *(pytest.param(*run, marks=pytest.mark.soak) for run in RUNS[1:])],
    ids=str,
)
def test_the_order_is_that_of_a_run(program: str, layout: dict[str, Any], options: dict[str, Any]) -> None:
    model = lp.model("tiny") if layout.get("pp", 1) > 1 else lp.model("tiny").replace(n_layers=2)
    sequences = layout.get("dp", 1) * options.get("micro_batches", 1)
    options = {"global_batch": sequences, **options}
    traces = lp.run(program, model, layout, seq_len=16, **options).traces
    for rank in (0, len(traces) - 1):
        found = collectives_in_order(sending(program, model, layout, 16, rank=rank, **options))
        for axis in ("tp", "cp", "dp"):
            ran = [(e.kind, e.payload, e.phase) for e in traces[rank].events if e.axis == axis]
            assert [(one.kind, one.bytes, one.phase) for one in found if one.axis == axis] == ran


def test_a_collective_says_what_it_belongs_to() -> None:
    whole = collectives_in_order(sending("llama", "tiny", {"tp": 2}, 16))
    assert [str(one) for one in whole[:4]] == [
        "the embedding, forward",
        "layer 0's attention, forward",
        "layer 0's attention, forward",
        "layer 0's MLP, forward",
    ]
    passes = [str(one) for one in whole if one.phase != "gradients"]
    assert passes[-3:] == ["layer 0's attention, backward"] * 2 + ["the embedding, backward"]
    assert {str(one) for one in whole} >= {"the loss, forward", "the output layer, backward", "the gradients"}
    steps = collectives_in_order(sending("step", "tiny", {"tp": 2, "pp": 2}, 16, rank=2, micro_batches=2))
    assert str(steps[0]) == "layer 2's attention, forward, micro-batch 0"
    assert str(steps[-1]) == "the norm of the gradients"


# -- what is no flight record ----------------------------------------------------------------------

GOOD = dump([entry(0, ("0", "default_pg"), "barrier", 1, [1])], {"0": [0, 1]})


class Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/called-by-a-flight-record",)


def nested(pairs: int) -> bytes:
    """Pairs of pairs as a key: hashing it takes 2**pairs steps."""
    text = b"\x80\x02}K\x01K\x02\x86q\x00"
    for i in range(pairs):
        text += b"h%ch%c\x86q%c" % (i, i, i + 1)
    return text + b"K\x01s."


def changed(**more: Any) -> bytes:
    return json.dumps(GOOD | more).encode()


def barrier(number: int, size: Any) -> bytes:
    return changed(entries=[entry(0, ("0", ""), "barrier", number, [size])])


CALLS = b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R."
ENTRIES = b'{"version": "2.10", "entries": ['
HOSTILE = {
    "calls": (pickle.dumps(Calls()), r"its pickle names 'posix.system'"),
    "calls in torch's form": (CALLS, r"its pickle names 'posix.system'"),
    "deep": (ENTRIES + b"[" * 10**6, r"its JSON is nested too deeply"),
    "digits": (b'{"version": ' + b"9" * 10**5 + b"}", r"its JSON holds a number of thousands of digits"),
    "million": (ENTRIES + b"{}," * (10**6 - 1) + b"{}]}", r"1,000,000 entries, at most 100,000 are read"),
    "large": (b"{" + b" " * 2**25, r"more than 33,554,432 bytes"),
    "version": (changed(version="3.1"), r"its version is '3.1', 2.x is read"),
    "no version": (b"{}", r"its version is missing, 2.x is read"),
    "no mapping": (pickle.dumps([1]), r"it is list, not a mapping"),
    "text": (b"hello", r"neither JSON nor a pickle"),
    "no list": (changed(entries=3), r"its entries are no list"),
    "field": (changed(entries=[{}]), r"entry 0 lacks a field"),
    "sizes": (barrier(1, "x"), r"entry 0 lacks a field"),
    "huge number": (barrier(2**70, 1), r"entry 1 lacks a field, or has it in another form"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_flight_record_is_refused_by_name(name: str, tmp_path: Path) -> None:
    data, words = HOSTILE[name]
    (tmp_path / "rank_0").write_bytes(data)
    with within(3), pytest.raises(lp.LlamaparError, match=f"rank_0: {words}"):
        lp.explain(flight=tmp_path)
    assert not Path("/tmp/called-by-a-flight-record").exists()


BROKEN = {
    "empty": (b"", "empty"),
    "cut JSON": (changed()[:-9], "its JSON is cut off or damaged"),
    "cut pickle": (torchs_pickle(GOOD)[:-9], "its pickle is cut off or damaged"),
    "cut Python's": (pickle.dumps(GOOD)[:-9], "its pickle is cut off or damaged"),
    "keys": (nested(40), "its pickle is cut off or damaged"),
    "deep keys": (b"\x80\x02}K\x01" + b"K\x01\x86" * 10**5 + b"K\x01s.", "its pickle is cut off or damaged"),
    "memo": (b"\x80\x02}r\xff\xff\xff\x3f.", "its pickle is cut off or damaged"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_dump_that_is_cut_off_or_damaged_is_told(name: str, tmp_path: Path) -> None:
    data, words = BROKEN[name]
    (tmp_path / "rank_0").write_bytes(data)
    (tmp_path / "rank_1").write_bytes(changed())
    with within(3):
        found = lp.explain(flight=tmp_path)
    assert f"rank 0's dump cannot be read: {words}" in found.note


# -- few bytes that refer to much ------------------------------------------------------------------


def short(number: int, group: str = "0", label: str = "default_pg", **more: Any) -> dict[str, Any]:
    """An entry with the fewest fields."""
    return {"process_group": (group, label), "profiling_name": "n", "collective_seq_id": number, **more}


def few(entries: list[Any], ranks: dict[str, str] | None = None, protocol: int = 2) -> bytes:
    """A pickled dump: what stands twice in it is written once. The groups have these ranks."""
    config = {name: {"ranks": text} for name, text in (ranks or {}).items()}
    return pickle.dumps(dump(entries, {}) | {"pg_config": config}, protocol)


def groups(names: int, ranks: str) -> bytes:
    """So many groups with the same text of ranks."""
    return few([short(1, str(i), "g") for i in range(names)], dict.fromkeys(map(str, range(names)), ranks))


def pairs_of_pairs(depth: int = 60) -> Any:
    """2**depth numbers in a few hundred bytes, were it followed."""
    pair: Any = (1, 2)
    for _ in range(depth):
        pair = (pair, pair)
    return pair


def frames(path: str, i: int) -> list[dict[str, Any]]:
    return [{"filename": path, "line": 40 * i + j, "name": "f"} for j in range(40)]


MANY, EVERYBODY, FAR = [[1]] * 8000, ", ".join(map(str, range(5000))), "/" * 20_000
PAIRS = pairs_of_pairs()
LACKS = "entry 0 lacks a field"
MULTIPLIED: dict[str, tuple[bytes, str]] = {
    "sizes of a thousand calls are one list": (
        few([short(1, input_sizes=MANY, profiling_name=f"n{i}") for i in range(1200)]),
        "",
    ),
    "numbers of twenty thousand tensors are one list": (
        few([short(1, input_sizes=[list(range(20_000))] * 20_000)]),
        f"{LACKS}, or has it in another form",
    ),
    "a description of pairs": (few([short(1, label=PAIRS)], protocol=4), LACKS),
    "a size of pairs": (few([short(1, input_sizes=[[PAIRS]])], protocol=4), LACKS),
    "an entry again and again": (few([short(1, profiling_name="coalesced")] * 18_000), ""),
    "a long path on every line": (few([short(1, frames=frames(FAR, i)) for i in range(40)]), ""),
    "groups of five thousand": (
        groups(400, EVERYBODY),
        "its groups have 2,000,000 members, at most 1,048,576 are read",
    ),
    "fewer of them": (groups(20, EVERYBODY), ""),
    "a rank far away": (
        few([short(1)], {"0": "0, 99999999"}),
        "a group has rank 99,999,999, and at most 65,536 ranks are read",
    ),
    "many groups of all ranks": (
        few([short(1, str(i)) for i in range(900)], {"0": "0, 65535"}),
        "the folder: its groups have 58,916,866 members",
    ),
    "a member twice": (groups(2, "0, 0"), ""),
}


@pytest.mark.parametrize("name", MULTIPLIED)
def test_a_few_bytes_cannot_ask_for_much_work_or_memory(name: str) -> None:
    data, words = MULTIPLIED[name]
    assert len(data) < 110_000
    with Peak() as peak, within(3):
        try:
            said = str(answer.explain_hang(verdict.standing(drop.of_bytes([("rank_0", data)]))))
        except lp.LlamaparError as problem:
            said = str(problem)
    assert words in said
    assert bool(words) == said.startswith(("rank_0: ", "the folder: ")), said
    assert peak.anonymous < 64 * 2**20


def test_a_batch_ends_what_was_called_since_the_last_end() -> None:
    """Also where an operation whose own name ends so stands inside; another number is another batch."""
    ops = [("send 0->1", 1), ("all_gather_coalesced", 2), ("all_gather", 2), ("coalesced", 2)]
    calls = [short(number, profiling_name=f"nccl:{op}", retired=False) for op, number in ops]
    calls[-1]["retired"] = True
    (one,) = read([(0, dump(calls, {}))]).dumps.values()
    assert list(one.done) == [0, 1, 1, 1]


@pytest.mark.parametrize("field", ["profiling_name", "label"])
def test_a_name_that_turns_a_text_around_is_refused(field: str) -> None:
    with pytest.raises(lp.LlamaparError, match=f"{LACKS}, or has it in another form"):
        drop.of_bytes([("rank_0", few([short(1, **{field: "all\u202e"})]))])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], r"0 files that end in a rank's number"),
        (["dump_of_20251123"], r"its name ends in 20,251,123, which is no rank"),
        (["rank_0.json", "other_0.json"], r"rank 0 comes twice: other_0.json and rank_0.json"),
    ],
)
def test_folders_that_are_refused(names: list[str], words: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(changed())
    with pytest.raises(lp.LlamaparError, match=words):
        lp.explain(flight=tmp_path)


def test_logs_and_hidden_files_beside_dumps_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(changed())
    for name in (".rank_0.swp", "stderr_0.log", "rank_0.TXT"):
        (tmp_path / name).write_text("no dump")
    assert [*drop.read_dumps(tmp_path).dumps] == [0]


def test_a_pipe_among_files_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank_0")
    for given in ([tmp_path / "rank_0"], tmp_path, tmp_path / "rank_0"):
        with pytest.raises(lp.LlamaparError, match=r"is a pipe|0 files that end in a rank|Not a directory"):
            lp.explain(flight=given)


def test_what_is_no_folder_or_not_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lp.LlamaparError, match=r"No such file or directory"):
        lp.explain(flight=tmp_path / "none")
    with pytest.raises(lp.LlamaparError, match=r"^no flight records\n"):
        lp.explain(flight=[])
    with pytest.raises(lp.LlamaparError, match=r"a text and flight records were given"):
        lp.explain("text", flight=tmp_path)


# -- the doors -------------------------------------------------------------------------------------


def written(row: dict[str, Any], where: Path) -> Path:
    for name, data in files(row):
        (where / name).write_bytes(data)
    return where


RAISES, SKIP = named("raises-0"), named("skip-2")


def test_the_command_explains_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(written(SKIP, tmp_path))
    assert main(["explain", "--flight", where]) == 0
    assert "skipped" in capsys.readouterr().out
    assert main(["explain", "--flight", where, "--tp", "4", "--dp", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["flight"]["ranks"] == SKIP["ranks"]
    assert said["diagnoses"][0]["level"] == "likely"
    assert main(["explain", "--flight", where, "--file", where]) == 2
    assert "a file and a flight were given; one is explained" in capsys.readouterr().err


def test_a_hang_is_told_and_has_a_picture() -> None:
    """A row a rank, its open call hollow, a cross where the culprit left, shapes under the mouse."""
    found = lp.explain(flight=folder(RAISES))
    assert found.best is not None
    assert found.flight is not None
    assert found.flight.ranks == tuple(RAISES["ranks"])
    for words in (f"rank {RAISES['ranks'][0]} (", " never entered ", " last common: "):
        assert words in found.best.cause
    assert "where every rank stands" in str(found)
    assert "where every rank stands" in found._repr_html_()
    view = lp.view(found)
    assert view.summary.startswith(found.best.cause)
    by_name = {trace["name"]: trace for trace in view.spec["data"]}
    assert set(by_name) == {"tp", "dp", "other groups", "waits there", "here"}
    assert by_name["here"]["y"] == RAISES["ranks"]
    assert set(by_name["waits there"]["y"]) == set(range(8)) - set(RAISES["ranks"])
    hover = by_name["waits there"]["hovertext"][0]
    assert re.fullmatch(
        r"rank 0 · tp group of dp 0: all_gather #14, \[\[4, 8\]\] to .* Float · line \d+ .*", hover
    )


def test_the_clinic_takes_a_folder_and_draws_whole_stacks(tmp_path: Path) -> None:
    clinic = lp.clinic(flight=written(RAISES, tmp_path))
    figure = clinic.payload["figure"]
    waits = next(trace for trace in figure["data"] if trace["name"] == "waits there")
    stacks = figure["layout"]["meta"]["stacks"]
    assert "meta" not in clinic.snapshot().spec["layout"]  # they are another machine's in a saved notebook
    frames = stacks[waits["customdata"][0]]
    assert frames[0].startswith("line ")
    assert frames[0].endswith(" of torch/distributed/distributed_c10d.py, in all_gather")
    assert [re.sub(r".*/", "", frame) for frame in frames[2:5]] == [
        *("make_flights.py, in do", "make_flights.py, in call", "make_flights.py, in step"),
    ]
    assert frames[-1].endswith("make_flights.py, in <module>")
    assert len(set(map(tuple, stacks))) == len(stacks)
    clinic.set(tp=3)
    assert clinic._state.problem is not None
    layout = "tp=3 cp=1 pp=1 dp=1"
    assert clinic._state.problem.what == f"the records name rank 7, but the layout {layout} has only 3 ranks"


def test_stacks_are_bounded_and_their_names_are_no_markup() -> None:
    frame = {"filename": "/home/<b>.py", "name": "<img src=x>" * 99, "line": 7}
    deep = [frame | {"line": i} for i in range(1000)]
    rows = [entry(1, ("0", "default_pg"), "barrier", 1, [1], frames=f, **OPEN) for f in ([frame], deep)]
    made = ((rank, dump([row], {"0": [0, 1, 2]})) for rank, row in enumerate(rows))
    found = read(made, torchs_pickle)
    (short,), (long,) = found.dumps[0].stacks, found.dumps[1].stacks
    assert short.line == f"line 7 of <b>.py, in {frame['name'][:100]}"  # type: ignore[index]
    assert short.frames == (f"line 7 of /home/<b>.py, in {frame['name'][:100]}",)  # type: ignore[index]
    assert len(long.frames) == dumps.MAX_FRAMES + 1
    assert long.frames[-1] == "and 936 more"
    view = lp.view(answer.explain_hang(verdict.standing(found)))
    hover = [text for trace in view.spec["data"] for text in trace["hovertext"]]
    assert any("&lt;b&gt;.py" in text for text in hover)
    assert not any("<" in text for text in hover)


def dropped(clinic: lp.Clinic, sent: list[tuple[str, bytes]], size: int = 0) -> dict[str, Any] | None:
    """What is refused of files that the page sends."""
    answers: list[Any] = []
    clinic.send = lambda content, buffers=None: answers.append(content)  # type: ignore[method-assign]
    pairs = [[name, base64.b64encode(data).decode()] for name, data in sent]
    clinic._receive(None, {"kind": "flight", "files": pairs, "bytes": size, "seq": 0, "id": "a"}, None)
    problem: dict[str, Any] | None = answers[-1]["problem"]
    return problem


def test_the_clinic_takes_dumps_like_the_command() -> None:
    clinic = lp.clinic("KV heads", tp=4, dp=2)
    assert dropped(clinic, files(SKIP)) is None
    assert clinic.text == ""
    said = lp.explain(flight=folder(SKIP), layout={"tp": 4, "dp": 2})
    assert str(clinic.explanation) == str(said)
    assert clinic.snapshot().spec == lp.view(said).spec
    clinic.set(text="n_kv_heads (8) must be divisible by tp (16)")
    assert clinic.explanation.flight is None


TOO_MANY = "100,000,000 bytes of flight records, at most 6,291,456 travel from the browser"


@pytest.mark.parametrize(
    ("sent", "size", "words"),
    [([("rank_0", HOSTILE[name][0])], 0, HOSTILE[name][1]) for name in ("calls", "sizes")]
    + [([], 10**8, TOO_MANY)],
)  # fmt: skip
def test_the_clinic_refuses_what_is_none_or_too_much(
    sent: list[tuple[str, bytes]], size: int, words: str
) -> None:
    clinic = lp.clinic("KV heads")
    problem = dropped(clinic, sent, size)
    assert problem is not None
    assert re.search(words, problem["what"])
    assert clinic.text == "KV heads"
    assert not Path("/tmp/called-by-a-flight-record").exists()


def test_a_picture_of_a_thousand_ranks_stays_small() -> None:
    row = next(row for row in CASES if row["fault"] == "late" and list(row["degrees"]) == ["dp", "tp"])
    found = verdict.standing(many(row, 1024)[0])
    view = lp.view(answer.explain_hang(found))
    assert len(json.dumps(view.spec)) < 150_000
    assert "992 more ranks are not drawn" in json.dumps(view.spec)
