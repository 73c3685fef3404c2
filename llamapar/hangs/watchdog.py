"""The lines of torch's watchdog in a log, read as the end of each rank's flight record.

The watchdog writes the collective that timed out (its number, operation and sizes) and, for its group, the
numbers of the last collective that was enqueued and the last that completed. Lines of ProcessGroupNCCL.cpp,
torch 2.1 to 2.13 (pytorch/pytorch, torch/csrc/distributed/c10d). A log lists no members of a group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from llamapar.diagnosis.hang_lines import MOST

from .dumps import MAX_RANKS, NAMELESS, WORLD, CollectiveCall, Dump, Entry

_RANK = re.compile(r"\[[rR]ank ?(\d{1,5})\]")
_GROUP = re.compile(r"\[PG (?:ID )?(\d{1,9})(?: PG GUID (\d{1,9}))? ?(?:\(([^)]{1,80})\))? Rank (\d{1,5})\]")
_WORK = re.compile(r"SeqNum=(\d{1,18}), OpType=_?(\w{1,40}), NumelIn=(\d{1,18}), NumelOut=(\d{1,18})")
_AT = re.compile(r" at (?:NCCL )?work(?: sequence id)?: (\d{1,18})")
_LAST = re.compile(r"ast enqueued (?:NCCL )?work: (-?\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})")

_OPS = {
    "ALLGATHER": "all_gather",
    "ALLGATHER_BASE": "all_gather",
    "ALLREDUCE": "all_reduce",
    "REDUCE_SCATTER_BASE": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
}
"""OpType, without its underscore → the operation's name; others are written small."""

_UNSAID = CollectiveCall(NAMELESS, "", "a collective", (), ())


def dumps_of_log(lines: Sequence[str]) -> dict[int, Dump]:
    """The last call of each rank in each group, by rank; {} without a line that says where a rank stands."""
    stands = dict[tuple[int, str], tuple[int, bool, str]]()  # rank and group → number, whether ended, label
    calls = dict[tuple[int, int], CollectiveCall]()  # rank and number → its call
    for text in lines[:MOST]:
        group, work, last = (form.search(text) for form in (_GROUP, _WORK, _LAST))
        named = _RANK.search(text) or group
        rank = MAX_RANKS
        if named:
            rank = int(named.groups()[-1])
        if rank >= MAX_RANKS:
            continue
        if work:
            op = _OPS.get(work[2], work[2].lower())
            call = CollectiveCall(NAMELESS, "", op, ((int(work[3]),),), ((int(work[4]),),))
            calls.setdefault((rank, int(work[1])), call)
        if group and (work or last):
            at = work or _AT.search(text)
            enqueued, completed = map(int, last.groups()) if last else (0, 0)
            # Before anything has completed, torch writes whatever lay in memory as the last completed call.
            number = int(at[1]) if at else min(enqueued, completed + 1)
            label = group[3] or ""
            if group[1] == "0":
                label = WORLD
            stands.setdefault((rank, group[2] or group[1]), (number, not at and enqueued == completed, label))
    # The line with the sizes may not name its group; then the rank's next line does, by the same number.
    for rank, number in calls.keys() - {(rank, number) for (rank, _), (number, _, _) in stands.items()}:
        stands[rank, NAMELESS] = (number, False, "")
    found = defaultdict[int, list[Entry]](list)
    for (rank, key), (number, ended, label) in sorted(stands.items()):
        call = calls.get((rank, number), _UNSAID)
        found[rank].append((call._replace(group=key, label=label), number, ended))
    return {rank: Dump(calls) for rank, calls in found.items()}
