"""What ranks raised, and numbers that differ, as one Explanation."""

import pytest

import llamapar as lp
from explaining import frame
from llamapar.diagnosis.of_ranks import explain_ranks

HALF = "RuntimeError: shape '[1, 4, -1, 128]' is invalid for input of size 256"
PEER = lp.PeerError("rank 3 was waiting in all_reduce when rank 1 raised")
CLOSED = frame("dist.all_reduce(x)", "RuntimeError: Connection closed by peer [127.0.0.1]:1234")


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (frame("x.view(1, 4, -1, 128)", HALF), CLOSED),
        (RuntimeError(HALF.partition(": ")[2]), PEER),
    ],
    ids=["tracebacks", "exceptions"],
)
def test_equal_errors_are_one_group_and_those_of_peers_come_last(first, last):
    told = explain_ranks({3: last, 1: first, 0: first, 2: first})
    assert told.best.category == "kv_heads_lt_tp"
    assert str(told).splitlines()[1] == f"where  {HALF}  (ranks 0–2)"
    assert told.rivals[-1].startswith("rank 3: ")
    assert told.rivals[-1].endswith(str(last).splitlines()[-1])
