"""Stacks of a hang, by py-spy and faulthandler: alone, and beside records and logs."""

from __future__ import annotations

import functools
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import llamapar as lp
from flights import stacked, witnesses
from llamapar.cli.main import main
from llamapar.flight.drop import of_bytes
from llamapar.flight.log_lines import WatchdogLines
from llamapar.flight.main_threads import NAMELESS, processes, where_stacks_stand
from soon import within
from test_flight import dropped

CASES = {row["name"]: row for row in stacked()}
KINDS = ("py-spy", "faulthandler", "log", "records", "joined")


@functools.cache
def told(name: str, kind: str) -> Any:
    """The explanation of a genuine hang by one kind of witness; None if that shows nothing."""
    try:
        return lp.explain(flight=of_bytes(witnesses(CASES[name])[kind]))
    except lp.LlamaparError:
        return None


# -- genuine hangs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_of_genuine_hangs_no_wrong_rank_is_called_likely(kind: str) -> None:
    found = Counter[tuple[bool, str]]()
    for name, row in CASES.items():
        answer = told(name, kind)
        if answer is not None and answer.flight.ranks:
            found[{*answer.flight.ranks} <= {*row["ranks"]}, str(answer.best.level)] += 1
    assert found[False, "likely"] == 0
    assert found[True, "likely"] + found[True, "possible"] >= 4


def test_every_rank_with_a_stack_stands_somewhere() -> None:
    """Both tools say the same of the same hang, but for a process that cannot tell of itself."""
    for name, row in CASES.items():
        spy, own = told(name, "py-spy").flight, told(name, "faulthandler").flight
        assert [*spy.hang.dumps] == [
            int(rank) for rank, text in row["py-spy"].items() if "MainThread" in text
        ]
        for rank in own.hang.dumps:
            assert own.hang.of_rank(rank)[0] == spy.hang.of_rank(rank)[0], (name, rank)


def test_all_of_both_stages_receive_and_none_sends() -> None:
    answer = told("stages receive", "py-spy")
    assert (answer.flight.kind, answer.flight.ranks, answer.verdict) == ("cycle", (), "unknown")
    words = "none is in send: each waits for another one, in a cycle"
    assert re.fullmatch(
        rf"ranks 0, 1, 2, 3 are in recv \(line \d+ of .*, in receive\); {words}", answer.best.cause
    )
    assert "nobody can be named" in json.dumps(lp.view(answer).spec)
    # Records of gloo show no receive, so the stacks alone know it.
    assert told("stages receive", "joined").flight.kind == "cycle"


def test_the_picture_has_a_place_for_each_side() -> None:
    answer = told("data", "py-spy")
    assert answer.flight.kind == "late"
    by_name = {trace["name"]: trace for trace in lp.view(answer).spec["data"]}
    assert set(by_name) == {"in no collective", "waits there", "here"}
    assert by_name["in no collective"]["y"] == by_name["here"]["y"] == [3]
    assert sorted(by_name["waits there"]["y"]) == [0, 1, 2]
    assert "rank 3 · the DataLoader" in by_name["in no collective"]["hovertext"][0]
    axis = lp.view(answer).spec["layout"]["xaxis"]
    assert axis["title"]["text"] == "places in the program"
    assert axis["ticktext"][-1] == "the DataLoader<br>(in step)"


def test_joined_the_stack_gives_the_line_and_the_records_the_call() -> None:
    answer = told("saves", "joined")
    assert "barrier #" in str(answer)
    assert "torch.save or torch.load" in answer.best.cause
    assert "in checkpoint" in answer.best.cause


# -- forms -----------------------------------------------------------------------------------------

SPY = """Process {pid}: python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    {name} (torch/distributed/distributed_c10d.py:2799)
        Arguments:
            tensor: <Tensor at 0x7f>
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    Trainer.step (train.py:{line})
    <module> (train.py:9)
Thread 0x7F11 (active+gil): "QueueFeederThread"
    Condition.wait (threading.py:327)
    Thread._bootstrap (threading.py:1002)
"""
FAULT = """Timeout (0:01:00)!
Thread 0x00007f30f9ffb6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f312b273b80 [python] (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2799 in {name}
  File "/home/me/run/train.py", line {line} in step
"""
LOADER = """Thread 688514 (idle): "MainThread"
    wait (threading.py:306)
    get (queue.py:179)
    _try_get_data (torch/utils/data/dataloader.py:1011)
    __next__ (torch/utils/data/dataloader.py:530)
    Trainer.step (train.py:3)
"""


def spy(rank: int, name: str = "all_reduce", line: int = 12) -> str:
    return SPY.format(pid=4000 + rank, name=name, line=line)


def fault(rank: int, name: str = "all_reduce", line: int = 12) -> str:
    return FAULT.format(name=name, line=line)


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{row}\n" for row in text.splitlines())


def shuffled(texts: list[str]) -> str:
    """The lines of all in turn, as a launcher mixes them."""
    rows = [text.splitlines() for text in texts]
    return "\n".join(each[i] for i in range(max(map(len, rows))) for each in rows if i < len(each))


ONE_LATE = [*(spy(rank) for rank in range(3)), LOADER]
FORMS = {
    "torch's prefix": shuffled([prefixed(f"[rank{r}]: ", text) for r, text in enumerate(ONE_LATE)]),
    "torchrun's prefix": shuffled([prefixed(f"[default{r}]:", text) for r, text in enumerate(ONE_LATE)]),
    "a number": shuffled([prefixed(f"[{r}]: ", text) for r, text in enumerate(ONE_LATE)]),
    "srun -l": shuffled([prefixed(f" {r}: ", text) for r, text in enumerate(ONE_LATE)]),
    "headings": "".join(f"=== rank {r} (node{r // 2}) ===\n{text}\n" for r, text in enumerate(ONE_LATE)),
    "tail": "".join(f"==> stacks/stack_rank_{r}.txt <==\n{text}\n" for r, text in enumerate(ONE_LATE)),
    "faulthandler": "".join(f"Rank {r}:\n{fault(r)}\n" for r in range(3)) + f"Rank 3:\n{LOADER}",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_ranks_in_one_text(text: str) -> None:
    answer = lp.explain(f"step 5 loss 2.1\n{text}")
    assert answer.flight is not None
    assert answer.best is not None
    assert (answer.flight.kind, answer.flight.ranks, str(answer.best.level)) == ("late", (3,), "likely")
    assert answer.verdict == "unknown"
    words = "rank 3 is in the DataLoader (line 3 of train.py, in step); ranks 0, 1, 2 are in all_reduce "
    assert answer.best.cause == f"{words}(line 12 of train.py, in step); rank 3 did not come"
    assert "ranks at one line may be in different steps" in answer.note


def written(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def test_files_of_a_folder_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, {f"stack_rank_{rank}.txt": text for rank, text in enumerate(ONE_LATE)})
    assert main(["explain", "--flight", str(tmp_path)]) == 0
    assert "rank 3 did not come" in capsys.readouterr().out
    (tmp_path / "all").write_text(FORMS["srun -l"])
    assert main(["explain", "--file", str(tmp_path / "all")]) in (0, 1)
    assert "rank 3 did not come" in capsys.readouterr().out


def test_the_logs_of_torchruns_folders(tmp_path: Path) -> None:
    """--log-dir writes attempt_0/RANK/stderr.log."""
    for rank, text in enumerate(ONE_LATE):
        (tmp_path / str(rank)).mkdir()
        written(tmp_path / str(rank), {"stderr.log": f"step 3 loss 2.1\n{text}", "stdout.log": ""})
    answer = lp.explain(flight=tmp_path)
    assert answer.flight is not None
    assert answer.flight.ranks == (3,)


def test_a_cycle_tells_the_stages() -> None:
    text = "".join(f"rank {rank}\n{spy(rank, 'recv')}" for rank in range(4))
    answer = lp.explain(text, layout={"pp": 2, "dp": 2})
    assert answer.best is not None
    assert answer.best.cause.endswith("each waits for another one, in a cycle of stages 0, 1")


NAMES = {
    "processes": {f"stack_{4000 + rank}.txt": text for rank, text in enumerate(ONE_LATE[:3])},
    "nodes": {f"trace-node{rank}.out": text for rank, text in enumerate(ONE_LATE)},
    "several in one": {"stacks_7.txt": "\n".join(ONE_LATE)},
    "pasted": {"stacks.txt": "\n".join(ONE_LATE)},
}


@pytest.mark.parametrize("texts", NAMES.values(), ids=NAMES)
def test_stacks_without_a_rank_name_nobody(texts: dict[str, str], tmp_path: Path) -> None:
    answer = lp.explain(flight=written(tmp_path, texts))
    assert answer.flight is not None
    assert (answer.flight.kind, answer.flight.ranks) == ("few", ())
    assert NAMELESS in answer.note


def standing(*texts: str) -> Any:
    lines = [row for rank, text in enumerate(texts) for row in [f"rank {rank}", *text.splitlines()]]
    return where_stacks_stand(lines)


OWN = 'Thread 1 (active): "MainThread"\n    evaluate (train.py:40)\n    <module> (train.py:9)\n'
AUTOGRAD = """Thread 1 (idle): "MainThread"
    _engine_run_backward (torch/autograd/graph.py:800)
    backward (torch/autograd/__init__.py:300)
    step (train.py:5)
Thread 2 (idle): "Dummy-3"
    all_reduce (torch/distributed/distributed_c10d.py:2000)
    hook (train.py:70)
"""
CALLS = """Thread 2 (idle): "Thread-5"
    all_gather_object (torch/distributed/distributed_c10d.py:3000)
    save (train.py:80)
    Thread._bootstrap (threading.py:1002)
"""
JOINS = f"""Thread 1 (idle): "MainThread"
    join (threading.py:1119)
    step (train.py:5)
{CALLS}"""
MEGATRON = """Thread 1 (active): "MainThread"
    _communicate (megatron/core/pipeline_parallel/p2p_communication.py:300)
    {name} (megatron/core/pipeline_parallel/p2p_communication.py:400)
    train (train.py:9)
"""
JUDGED: dict[str, tuple[list[str], str, tuple[int, ...], str]] = {
    "its own code may be a wait": ([spy(0), spy(1), spy(2), OWN], "late", (3,), "possible"),
    "half are elsewhere": ([spy(0), spy(1), LOADER, LOADER], "few", (), "possible"),
    "all in one call": ([spy(0), spy(1), spy(2)], "few", (), "possible"),
    "another call": ([spy(0), spy(1), spy(2, "barrier", 20), spy(3)], "branch", (2,), "possible"),
    "one against one": ([spy(0), spy(1, "barrier", 20)], "few", (), "possible"),
    "the root may have left": ([spy(0, "broadcast"), spy(1, "broadcast"), LOADER], "late", (2,), "possible"),
    "two places and one outside": ([spy(0), spy(1), spy(2, "barrier", 20), LOADER], "late", (3,), "possible"),
    "autograd's own thread": ([AUTOGRAD, AUTOGRAD, LOADER], "late", (2,), "likely"),
    "a lock that a thread in a call holds": ([spy(0), spy(1), spy(2), JOINS], "branch", (3,), "possible"),
    "a thread in a call beside the data": ([spy(0), spy(1), LOADER + CALLS], "late", (2,), "possible"),
    "a lock": ([spy(0), spy(1), JOINS.partition("Thread 2")[0]], "late", (2,), "likely"),
    "all receive": ([MEGATRON.format(name="recv_forward"), spy(1, "recv")], "cycle", (), "possible"),
    "one sends as well": (
        [MEGATRON.format(name="send_forward_recv_backward"), spy(1, "recv")],
        "few",
        (),
        "possible",
    ),
    "all send": ([spy(0, "send"), spy(1, "isend"), spy(2, "send")], "late", (1,), "possible"),
}
"""Stacks of ranks 0, 1, … → kind of hang, ranks that are named, how sure."""


@pytest.mark.parametrize(("texts", "kind", "ranks", "level"), JUDGED.values(), ids=JUDGED)
def test_what_stacks_prove(texts: list[str], kind: str, ranks: tuple[int, ...], level: str) -> None:
    found = standing(*texts)
    assert (found.kind, found.ranks, str(found.level)) == (kind, ranks, level)


def test_a_missing_stack_is_told() -> None:
    lines = [row for rank in (0, 1, 3) for row in [f"rank {rank}", *spy(rank).splitlines()]]
    found = where_stacks_stand(lines)
    assert found is not None
    assert (found.kind, found.ranks, str(found.level)) == ("gone", (2,), "possible")
    assert "rank 2 left no stack" in found.cause
    late = where_stacks_stand([*lines[:-1], "rank 4", *LOADER.splitlines()])
    assert late is not None
    assert (late.ranks, str(late.level)) == ((4,), "possible")  # rank 2 may be the one


def test_workers_and_launchers_are_no_ranks() -> None:
    worker = LOADER.replace("torch/utils/data/dataloader.py:1011", "torch/utils/data/_utils/worker.py:250")
    agent = (
        'Thread 9 (idle): "MainThread"\n    _invoke_run (torch/distributed/elastic/agent/server/api.py:900)\n'
    )
    assert processes((worker + agent).splitlines()) == []
    assert len(processes((worker + agent + spy(0)).splitlines())) == 1


def test_a_rank_that_moved_is_told() -> None:
    """Two dumps of one rank that differ: it moves, or two nodes give one local rank."""
    found = standing(spy(0) + spy(0, "barrier", 30), spy(1))
    assert any("rank 0 moved between stacks" in note for note in found.hang.folder.notes)


def test_records_and_stacks_that_contradict_are_told(tmp_path: Path) -> None:
    """The records of one hang beside the stacks of another."""
    records = witnesses(CASES["saves"])["records"]
    other = [(f"stack_rank_{r}.txt", text.encode()) for r, text in enumerate(ONE_LATE)]
    answer = lp.explain(flight=of_bytes([*records, *other]))
    assert answer.flight is not None
    assert answer.best is not None
    assert "the dumps contradict this: group of all ranks: rank 0 never entered barrier" in answer.note
    assert "rank 3 is in the DataLoader" in answer.best.cause
    assert str(answer.best.level) == "possible"


# -- hostile input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        spy(0) * 20_000,
        '(most recent call first)\n  File "' + "a" * 10**6,
        '"MainThread"\n' + "a (" * 400_000 + ":1)",
        '"MainThread"\n' + "\n".join(["a (" + "b:" * 900 + "x)"] * 2_000),
        '"MainThread"\n' + "[rank" * 300_000,
        '"MainThread"\n' + "\n".join(f"[rank{i % 99_999}]: Thread 1 (idle)" for i in range(100_000)),
        '"MainThread"\n' + ("==> " * 400 + "\n") * 500,
    ],
    ids=["again", "one file", "brackets", "colons", "prefixes", "many ranks", "headings"],
)
def test_texts_of_any_kind_are_read_soon(text: str) -> None:
    read = WatchdogLines()
    with within(6.0):
        for _ in read.watch([text]):
            pass
        where_stacks_stand(read.lines)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_texts_never_fail(seed: int) -> None:
    """Lines cut, swapped, repeated and mixed with others: an answer or a refusal, and a picture of it."""
    draw = random.Random(seed)
    rows = [
        *FORMS["headings"].splitlines(),
        *FORMS["a number"].splitlines(),
        "==> / <==",
        "==>  <==",
        "rank 7",
    ]
    rows += [row[draw.randrange(len(row) + 1) :] for row in rows] + [
        row[: draw.randrange(40)] for row in rows
    ]
    text = "\n".join(draw.choices(rows, k=draw.choice([5, 40, 400])))
    name = draw.choice(["rank_0.txt", "..txt", "stderr.log", "9" * 8 + ".log", "a\n.txt"])
    answer = lp.explain(f"{text}\n{spy(0)}")
    assert answer.flight is None or lp.view(answer).summary
    assert lp.explain(flight=of_bytes([(name, f"{text}\n{spy(0)}".encode())])).flight is not None


def test_names_are_no_markup_and_numbers_are_bounded() -> None:
    evil = 'Thread 1 (idle): "MainThread"\n    <img/src=x> (<script>alert(1)</script>.py:' + "9" * 9 + ")\n"
    huge = evil.replace("9" * 9, "9" * 400)
    answer = lp.explain(flight=of_bytes([("r_0.txt", evil.encode()), ("r_1.txt", (huge + spy(1)).encode())]))
    assert "<script" not in answer._repr_html_()
    assert "<img" not in answer._repr_html_()
    hover = [text for trace in lp.view(answer).spec["data"] for text in trace["hovertext"]]
    assert not any("<" in text for text in hover)
    far = lp.explain(flight=of_bytes([("stack_rank_99999.txt", spy(0).encode())]))
    assert NAMELESS in far.note


def test_a_text_without_a_stack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lp.LlamaparError, match="no flight records"):
        lp.explain(flight=written(tmp_path, {"rank_0.txt": "(most recent call first)\nThread 1\n"}))


def test_the_clinic_takes_stacks_and_records_in_one_drop() -> None:
    sent = witnesses(CASES["saves"])["joined"]
    clinic = lp.clinic()
    assert dropped(clinic, sent) is None
    assert str(clinic.explanation) == str(lp.explain(flight=of_bytes(sent)))
    clinic = lp.clinic(text=FORMS["torch's prefix"])
    assert clinic.explanation.flight is not None
