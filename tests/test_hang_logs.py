"""A hang from its log alone: what the watchdog's lines of the ranks show, and what they leave open."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import llamapar as lp
from flights import folder, hangs
from llamapar.flight.dumps import MAX_RANKS
from llamapar.flight.log_lines import MOST, WatchdogLines
from llamapar.flight.watchdog import folder_of
from soon import within
from test_flight import culprits
from watchdogs import STATUS, as_log

CASES = hangs()


@pytest.mark.parametrize("torch", STATUS)
def test_of_genuine_hangs_no_wrong_rank_is_called_likely(torch: str) -> None:
    """Hangs that were provoked over gloo, told in the words of NCCL's watchdog, which gloo has not."""
    found = Counter[tuple[str, str]]()
    for row in CASES:
        told = lp.explain(as_log(folder(row), torch))
        where = told.flight
        if where is not None and told.best is not None:
            named = "right" if set(where.ranks) <= culprits(row) else "wrong"
            found[named if where.ranks else "nobody", str(told.best.level)] += 1
    assert found.total() >= 150
    assert found["wrong", "likely"] == 0
    assert found["wrong", "possible"] <= 1
    assert found["right", "likely"] >= 38
    assert set(found) <= {
        (n, level) for n in ("right", "wrong", "nobody") for level in ("likely", "possible")
    }


START = "[rank{rank}]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] "
TIMED_OUT = (
    START + "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={at}, OpType={op}, "
    "NumelIn={came}, NumelOut={went}, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
)
LAST = "last enqueued NCCL work: {at}, last completed NCCL work: {before}"
WORLD = START + "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
GROUPS = {
    "2.1": START + "[PG 0 Rank {rank}] Timeout at NCCL work: {at}, last enqueued NCCL work: {at}, "
    "last completed NCCL work: 3452013982.\n",
    "2.4": START + "[PG 0 (default_pg) Rank {rank}] Timeout at NCCL work: {at}, " + LAST + ".\n",
    "2.6": WORLD
    + "Exception (either an error or timeout) detected by watchdog at work: {at}, "
    + LAST
    + ".\n",
    "2.9": WORLD + " failure detected by watchdog at work sequence id: {at} PG status: "
    "last enqueued work: {at}, last completed work: {before}\n",
}
SIGNAL = (
    WORLD
    + "Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump "
    "the debug info. Last enqueued NCCL work: {before}, last completed NCCL work: {before}.This is most\n"
)


def line(form: str, rank: int, at: int = 12, op: str = "ALLREDUCE", came: int = 64, went: int = 64) -> str:
    return form.format(rank=rank, at=at, before=at - 1, op=op, came=came, went=went)


@pytest.mark.parametrize("torch", GROUPS)
def test_another_size_in_the_same_call_is_named_in_the_words_of_every_version(torch: str) -> None:
    text = ""
    for rank in range(4):
        came = 32 if rank == 2 else 64
        text += both(rank, GROUPS[torch], came=came, went=came)
    told = lp.explain(text)
    assert told.verdict == "sharding"
    assert told.best is not None
    assert told.flight is not None
    assert (told.flight.kind, told.flight.ranks, told.best.level) == ("size", (2,), lp.Level.LIKELY)
    words = "all_reduce #12, [32] where the other 3 of their role call all_reduce #12, [64]"
    assert words in told.best.cause


def both(rank: int, group: str = GROUPS["2.6"], **call: Any) -> str:
    """The two lines of a rank whose call timed out."""
    return line(TIMED_OUT, rank, **call) + line(group, rank)


SUBGROUP = GROUPS["2.6"].replace("[PG ID 0 PG GUID 0(default_pg)", "[PG ID 1 PG GUID 1")
GATHER = {"op": "_ALLGATHER_BASE", "came": 19008, "went": 152064}
SHOWN: dict[str, tuple[str, str, tuple[int, ...], str, str]] = {
    "a rank's own line": (
        line(SIGNAL, 3) + both(0),
        *("late", (3,), "likely", "rank 3 never entered all_reduce #12, [64]; rank 0 waits"),
    ),
    "one of eight, by the sizes": (
        "".join(both(rank, SUBGROUP, op="_REDUCE_SCATTER_BASE", came=512) for rank in (0, 1, 2, 3, 4, 6, 7)),
        *(
            "gone",
            (5,),
            "possible",
            "rank 5 never entered reduce_scatter #12, [512]; ranks 0, 1, 2, 3, 4, 6, 7",
        ),
    ),
    "two ranks of a pasted log": (
        line(TIMED_OUT, 0) + line(TIMED_OUT, 4),
        *("few", (), "possible", "ranks 0, 4 wait in all_reduce #12; for whom, the lines do not say"),
    ),
    "one line": (
        line(TIMED_OUT, 5, **GATHER),
        *("few", (), "possible", "all_gather of 19,008 to 152,064 elements: a group of 8 ranks"),
    ),
    "no group is named": (
        line(TIMED_OUT, 0) + line(TIMED_OUT, 1, op="BROADCAST") + line(TIMED_OUT, 2),
        *("operation", (1,), "possible", "if these ranks are of one group, which the log does not name: "),
    ),
    "all are in it": (
        "".join(both(rank) for rank in range(4)),
        *("inside", (), "possible", "group of all ranks: every rank that left a log line has entered"),
    ),
}
"""What the lines say → kind of hang, ranks that are named, how sure, and words of the cause."""


@pytest.mark.parametrize(("text", "kind", "ranks", "level", "words"), SHOWN.values(), ids=SHOWN)
def test_what_a_log_shows(text: str, kind: str, ranks: tuple[int, ...], level: str, words: str) -> None:
    told = lp.explain(text)
    assert told.flight is not None
    assert told.best is not None
    assert (told.flight.kind, told.flight.ranks) == (kind, ranks)
    assert str(told.best.level) == level
    assert words in told.best.cause
    assert (told.verdict, told.best.category) == ("unknown", "rank_mapping_hang")
    assert words in lp.view(told).summary


def test_a_degree_with_as_many_ranks_is_named() -> None:
    told = lp.explain(line(TIMED_OUT, 5, **GATHER), layout={"tp": 8, "dp": 2})
    assert told.best is not None
    assert told.best.cause.endswith("a group of 8 ranks, as tp")


def test_an_error_in_the_same_log_is_the_cause() -> None:
    error = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "m.py", line 3, in f\n' + (
        "[rank1]: RuntimeError: shape '[1, 8192, -1, 128]' is invalid for input of size 524288\n"
    )
    told = lp.explain(error + line(TIMED_OUT, 0) + line(GROUPS["2.6"], 0))
    assert told.flight is None
    assert told.best is not None
    assert told.best.category == "kv_heads_lt_tp"


@pytest.mark.parametrize(
    "text",
    [
        line(TIMED_OUT, 0) * 200_000,
        "[Rank 3] WorkNCCL(SeqNum=" * 100_000,
        "[PG ID 1 PG GUID " * 100_000 + " ast enqueued ",
        "".join(line(TIMED_OUT, rank % 99_999, at=rank + 1) for rank in range(100_000)),
    ],
    ids=["one line again", "one long line", "no group ends", "many ranks"],
)
def test_a_log_of_any_size_is_read_soon(text: str) -> None:
    read = WatchdogLines()
    with within(4.0):
        for _ in read.watch([text]):
            pass
        found = folder_of(read.lines)
    assert len(read.lines) <= max(MOST, len(text))
    assert found is None or max(found.dumps) < MAX_RANKS
