"""Flight records as files: what is read of them, and what is refused, without anything being executed."""

import json
import os
import pickle
import re
from pathlib import Path

import pytest

import llamapar as lp
from flights import dump, entry
from llamapar.hangs.answer import explain_dumps
from llamapar.hangs.dump_files import read_dumps
from peak import Peak
from soon import within


def read(made, form=None):
    """The dumps by rank, as JSON unless in another form."""
    form = form or (lambda one: json.dumps(one).encode())
    return read_dumps((f"nccl_trace_rank_{rank}", form(one)) for rank, one in made)[0]


# -- what torch writes --------------------------------------------------------------------------


def test_what_is_read_is_what_torchs_sources_write():
    import torch

    folder = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
    keys = re.findall(r'DEFINE_CONSTANT\(\w+_key, "(\w+)"\)', (folder / "FlightRecorder.hpp").read_text())
    assert 'DEFINE_CONSTANT(version_val, "2.10")' in (folder / "FlightRecorder.hpp").read_text()
    own = {*entry(0, ("0", ""), "barrier", 1, [1]), *dump([], {})}
    own |= {"ranks"}
    written = {*keys, *re.findall(r'"(\w+)"', (folder / "FlightRecorderDetail.hpp").read_text())}
    assert own - written == set()


SPAWN = "pytorch-3.10/lib/python3.10/multiprocessing/spawn.py"


def test_the_entry_that_torchs_tutorial_shows():
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
    one = read([(0, dump([genuine], {"0": [0, 1]}, "2.5"))], pickle.dumps)[0]
    ((call, number, ended),) = one.calls
    assert (f"{call.op}, {call.shape}", number, ended) == ("all_reduce, [3, 4] fp32", 1, True)
    assert one.members == {"0": (0, 1)}


# -- what is no flight record ----------------------------------------------------------------------

GOOD = dump([entry(0, ("0", "default_pg"), "barrier", 1, [1])], {"0": [0, 1]})


class Calls:
    def __reduce__(self):
        return os.system, ("touch /tmp/called-by-a-flight-record",)


def nested(pairs):
    """Pairs of pairs as a key: hashing it takes 2**pairs steps."""
    text = b"\x80\x02}K\x01K\x02\x86q\x00"
    for i in range(pairs):
        text += b"h%ch%c\x86q%c" % (i, i, i + 1)
    return text + b"K\x01s."


def changed(**more):
    return json.dumps(GOOD | more).encode()


def barrier(number, size):
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
    "deep keys": (b"\x80\x02}K\x01" + b"K\x01\x86" * 10**5 + b"K\x01s.", r"its pickle has a list as a key"),
    "huge number": (barrier(2**70, 1), r"entry 0 lacks a field, or has it in another form"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_flight_record_is_refused_by_name(name, tmp_path):
    data, words = HOSTILE[name]
    (tmp_path / "rank_0").write_bytes(data)
    with within(3), pytest.raises(lp.LlamaparError, match=f"rank_0: {words}"):
        lp.explain(tmp_path)
    assert not Path("/tmp/called-by-a-flight-record").exists()


BROKEN = {
    "empty": (b"", "empty"),
    "cut JSON": (changed()[:-9], "its JSON is cut off or damaged"),
    "cut pickle": (pickle.dumps(GOOD)[:-9], "its pickle is cut off or damaged"),
    "keys": (nested(40), "its pickle is cut off or damaged"),
    "memo": (b"\x80\x02}r\xff\xff\xff\x3f.", "its pickle is cut off or damaged"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_dump_that_is_cut_off_or_damaged_is_told(name, tmp_path):
    data, words = BROKEN[name]
    (tmp_path / "rank_0").write_bytes(data)
    (tmp_path / "rank_1").write_bytes(changed())
    with within(3):
        found = lp.explain(tmp_path)
    assert f"rank 0's dump cannot be read: {words}" in str(found.rivals)


# -- few bytes that refer to much ------------------------------------------------------------------


def short(number, group="0", label="default_pg", **more):
    """An entry with the fewest fields."""
    return {"process_group": (group, label), "profiling_name": "n", "collective_seq_id": number, **more}


def few(entries, ranks=None, protocol=2):
    """A pickled dump: what stands twice in it is written once. The groups have these ranks."""
    config = {name: {"ranks": text} for name, text in (ranks or {}).items()}
    return pickle.dumps(dump(entries, {}) | {"pg_config": config}, protocol)


def groups(names, ranks):
    """So many groups with the same text of ranks."""
    return few([short(1, str(i), "g") for i in range(names)], dict.fromkeys(map(str, range(names)), ranks))


def pairs_of_pairs(depth=60):
    """2**depth numbers in a few hundred bytes, were it followed."""
    pair = (1, 2)
    for _ in range(depth):
        pair = (pair, pair)
    return pair


def frames(path, i):
    return [{"filename": path, "line": 40 * i + j, "name": "f"} for j in range(40)]


MANY, EVERYBODY, FAR = [[1]] * 8000, ", ".join(map(str, range(5000))), "/" * 20_000
PAIRS = pairs_of_pairs()
LACKS = "entry 0 lacks a field"
MULTIPLIED = {
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
        "the folder: its groups have 58,982,400 members",
    ),
    "a member twice": (groups(2, "0, 0"), ""),
}


@pytest.mark.parametrize("name", MULTIPLIED)
def test_a_few_bytes_cannot_ask_for_much_work_or_memory(name):
    data, words = MULTIPLIED[name]
    assert len(data) < 110_000
    with Peak() as peak, within(3):
        try:
            said = str(explain_dumps([("rank_0", data)]))
        except lp.LlamaparError as problem:
            said = str(problem)
    assert words in said
    assert bool(words) == said.startswith(("rank_0: ", "the folder: ")), said
    assert peak.anonymous < 64 * 2**20


def test_a_batch_ends_what_was_called_since_the_last_end():
    """Also where an operation whose own name ends so stands inside; another number is another batch."""
    ops = [("send 0->1", 1), ("all_gather_coalesced", 2), ("all_gather", 2), ("coalesced", 2)]
    calls = [short(number, profiling_name=f"nccl:{op}", retired=False) for op, number in ops]
    calls[-1]["retired"] = True
    (one,) = read([(0, dump(calls, {}))]).values()
    assert [ended for _, _, ended in one.calls] == [False, True, True, True]


@pytest.mark.parametrize("field", ["profiling_name", "label"])
def test_a_name_that_turns_a_text_around_is_refused(field):
    with pytest.raises(lp.LlamaparError, match=f"{LACKS}, or has it in another form"):
        read_dumps([("rank_0", few([short(1, **{field: "all\u202e"})]))])


def test_a_text_that_torchs_own_table_would_evaluate_is_read_as_numbers():
    """torch's `build_groups_memberships` evaluates members that are a quoted text."""
    made = Path("/tmp/called-by-a-flight-record")
    ranks = repr(f"[0, 1, __import__('pathlib').Path({str(made)!r}).touch()]")
    waits = entry(0, ("1", "mesh_tp"), "all_reduce", 1, [1], state="started", retired=False)
    hostile = json.dumps(dump([waits], {}) | {"pg_config": {"1": {"desc": "", "ranks": ranks}}}).encode()
    found = explain_dumps([("rank_0", hostile), ("rank_1", hostile)])
    assert not made.exists()
    assert found.best is not None
    assert found.best.cause == "tp group of ranks 0–1: ranks 0–1 wait in all_reduce #1, [1] bf16"
