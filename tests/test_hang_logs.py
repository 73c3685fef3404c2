"""A hang from its log alone: what the watchdog's lines of the ranks show, and what they leave open."""

from __future__ import annotations

from typing import Any

import pytest

import llamapar as lp
from llamapar.diagnosis import Level
from llamapar.diagnosis.hang_lines import MOST, WatchdogLines
from llamapar.hangs.answer import Hang
from llamapar.hangs.dumps import MAX_RANKS
from llamapar.hangs.watchdog import dumps_of_log
from soon import within

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


def both(rank: int, group: str = GROUPS["2.6"], **call: Any) -> str:
    """The two lines of a rank whose call timed out."""
    return line(TIMED_OUT, rank, **call) + line(group, rank)


@pytest.mark.parametrize("torch", GROUPS)
def test_another_size_in_the_same_call_is_told_in_the_words_of_every_version(torch: str) -> None:
    sizes = (64, 64, 32, 64)
    told = lp.explain("".join(both(rank, GROUPS[torch], came=n, went=n) for rank, n in enumerate(sizes)))
    assert told.verdict == "unknown"
    assert told.best is not None
    assert told.best.cause == (
        "group of all ranks: ranks 0, 1, 3 wait in all_reduce #12, [64]; "
        "group of all ranks: rank 2 waits in all_reduce #12, [32]"
    )


SUBGROUP = GROUPS["2.6"].replace("[PG ID 0 PG GUID 0(default_pg)", "[PG ID 1 PG GUID 3(mesh_tp)")
SHARDS = {"op": "_ALLGATHER_BASE", "came": 4_194_304, "went": 33_554_432}
NAMELESS = "a group that no line names"
SHOWN: dict[str, tuple[str, list[int], str]] = {
    "a rank's own line": (
        line(SIGNAL, 3) + both(0),
        [3],
        "group of all ranks: rank 3 (tp 3, dp 0) never entered all_reduce #12, [64]; rank 0 waits; "
        "it is in no collective, or gone",
    ),
    "of the others no line": (
        "".join(both(rank, SUBGROUP, op="_REDUCE_SCATTER_BASE", came=512) for rank in (8, 9, 10, 12)),
        [],
        "tp group of dp 1: ranks 8, 9, 10, 12 wait in reduce_scatter #12, [512]",
    ),
    "two ranks of a pasted log": (
        line(TIMED_OUT, 0) + line(TIMED_OUT, 4),
        [],
        f"{NAMELESS}: ranks 0, 4 wait in all_reduce #12, [64]",
    ),
    "other operations": (
        line(TIMED_OUT, 0) + line(TIMED_OUT, 1, op="BROADCAST") + line(TIMED_OUT, 2),
        [],
        f"{NAMELESS}: ranks 0, 2 wait in all_reduce #12, [64]; "
        f"{NAMELESS}: rank 1 waits in broadcast #12, [64]",
    ),
}
"""What the lines say → ranks that are behind, and the cause."""


@pytest.mark.parametrize(("text", "behind", "cause"), SHOWN.values(), ids=SHOWN)
def test_what_a_log_shows(text: str, behind: list[int], cause: str) -> None:
    told = lp.explain(text, layout={"tp": 8, "dp": 2})
    assert isinstance(told.hang, Hang)
    assert told.best is not None
    assert (list(told.hang.behind), told.best.cause, told.best.level) == (behind, cause, Level.POSSIBLE)
    assert (told.verdict, told.best.category) == ("unknown", "rank_mapping_hang")


def test_the_numbers_of_one_line_are_read_against_the_model_and_the_layout() -> None:
    told = lp.explain(line(TIMED_OUT, 5, **SHARDS), "llama3-8b", {"tp": 8, "dp": 2})
    assert told.best is not None
    assert told.best.equations == (
        "all_gather of 33,554,432 = 8,192 · 4,096: tokens of the residual stream, over tp",
        "all_gather of 33,554,432 / 4,194,304 = 8 ranks in the group, as tp",
    )
    alone = lp.explain(line(TIMED_OUT, 5, came=1, went=1))
    assert alone.best is not None
    assert alone.best.equations == ("all_reduce of 1 = a norm, a loss or a flag",)
    assert alone.best.needs == ("model", "tp")
    assert "pass --model, --tp to narrow this down" in str(alone)
    assert alone.next == ("flight records of every rank: docs/explain.md says how to record them",)


def test_a_layout_of_fewer_ranks_is_not_used() -> None:
    told = lp.explain(both(12), layout={"tp": 4, "dp": 2})
    assert told.best is not None
    assert told.best.cause == "group of all ranks: rank 12 waits in all_reduce #12, [64]"


def test_an_error_in_the_same_log_is_the_cause() -> None:
    error = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "m.py", line 3, in f\n' + (
        "[rank1]: RuntimeError: shape '[1, 8192, -1, 128]' is invalid for input of size 524288\n"
    )
    told = lp.explain(error + line(TIMED_OUT, 0) + line(GROUPS["2.6"], 0))
    assert told.hang is None
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
        found = dumps_of_log(read.lines)
    assert len(read.lines) <= max(MOST, len(text))
    assert max(found, default=0) < MAX_RANKS
