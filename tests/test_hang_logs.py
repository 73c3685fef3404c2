"""A hang from its log alone: what the watchdog's lines of the ranks show, and what they leave open."""

import pytest

import llamapar as lp
from llamapar.diagnosis.hang_lines import MOST, WatchdogLines
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


def line(form, rank, at=12, op="ALLREDUCE", came=64, went=64):
    return form.format(rank=rank, at=at, before=at - 1, op=op, came=came, went=went)


def both(rank, group=GROUPS["2.6"], **call):
    """The two lines of a rank whose call timed out."""
    return line(TIMED_OUT, rank, **call) + line(group, rank)


@pytest.mark.parametrize("torch", GROUPS)
def test_another_size_in_the_same_call_is_told_in_the_words_of_every_version(torch):
    sizes = (64, 64, 32, 64)
    told = lp.explain("".join(both(rank, GROUPS[torch], came=n, went=n) for rank, n in enumerate(sizes)))
    assert told.verdict == "unknown"
    assert told.best is not None
    assert told.best.cause == (
        "group of all ranks: ranks 0, 1, 3 wait in all_reduce #12, [64]; "
        "group of all ranks: rank 2 waits in all_reduce #12, [32]"
    )


def test_an_error_in_the_same_log_is_the_cause():
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
def test_a_log_of_any_size_is_read_soon(text):
    read = WatchdogLines()
    with within(4.0):
        for _ in read.watch([text]):
            pass
        found = dumps_of_log(read.lines)
    assert len(read.lines) <= max(MOST, len(text))
    assert max(found, default=0) < MAX_RANKS
