"""What torch's watchdog writes of a hang, made from the ranks' flight records.

The lines are those of ProcessGroupNCCL.cpp: of torch 2.6, and of 2.9 where a group's status has other words
(pytorch/pytorch, torch/csrc/distributed/c10d). In each group the watchdog sees a rank's first call that has
not ended; of a rank that is in none it writes the status of the group of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from llamapar.flight.dumps import WORLD, CollectiveCall, Folder

TYPES = {
    "all_reduce": "ALLREDUCE",
    "all_gather": "ALLGATHER",
    "all_gather_into_tensor": "_ALLGATHER_BASE",
    "_all_gather_base": "_ALLGATHER_BASE",
    "reduce_scatter": "REDUCE_SCATTER",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "reduce_scatter_tensor": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL",
    "barrier": "BARRIER",
    "broadcast": "BROADCAST",
}
"""Name in a flight record → OpType (torch/csrc/distributed/c10d/Work.cpp, opTypeToString)."""

STATUS = {
    "2.6": "Exception (either an error or timeout) detected by watchdog at work: {at}, "
    "last enqueued NCCL work: {enqueued}, last completed NCCL work: {done}.",
    "2.9": " failure detected by watchdog at work sequence id: {at} PG status: "
    "last enqueued work: {enqueued}, last completed work: {done}",
}
SIGNAL = (
    "Received a dump signal due to a collective timeout from  rank 7 and we will try our best to dump the "
    "debug info. Last enqueued NCCL work: {done}, last completed NCCL work: {done}.This is most likely"
)


def as_log(folder: Folder, torch: str = "2.6") -> str:
    """The log of all ranks."""
    return "\n".join(line for rank in folder.dumps for line in _of_rank(folder, rank, torch))


def _of_rank(folder: Folder, rank: int, torch: str) -> Iterator[str]:
    dump = folder.dumps[rank]
    names = {name: i for i, name in enumerate(dict.fromkeys(call.group for call in dump.calls))}
    for name in names:
        mine = [at for at, call in enumerate(dump.calls) if call.group == name and call.ends is None]
        if not mine:
            continue
        label = dump.calls[mine[0]].label
        number = 0 if label == WORLD else names[name] + 1
        guid = 0 if label == WORLD else sum(map(ord, name)) + 1
        where = f"[PG ID {number} PG GUID {guid}({label}) Rank {rank}]"
        start = f"[rank{rank}]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:1664] "
        first = next((at for at in mine if not dump.done[at]), None)
        told = {"enqueued": dump.numbers[mine[-1]], "done": dump.numbers[mine[-1]]}
        if first is not None:
            told |= {"at": dump.numbers[first], "done": dump.numbers[first] - 1}
            call = work(dump.calls[first], told["at"])
            yield f"{start}[Rank {rank}] Watchdog caught collective operation timeout: {call}"
            yield start + f"{where} {STATUS[torch]}".format(**told)
        elif label == WORLD:
            yield start + f"{where} {SIGNAL}".format(**told)


def work(call: CollectiveCall, number: int) -> str:
    """ "WorkNCCL(SeqNum=…) ran for …", as it is written of a call."""
    came, went = (sum(map(math.prod, sizes)) for sizes in (call.inputs, call.outputs))
    op = TYPES.get(call.op, call.op.upper())
    return (
        f"WorkNCCL(SeqNum={number}, OpType={op}, NumelIn={came}, NumelOut={went}, Timeout(ms)=600000) "
        "ran for 600061 milliseconds before timing out."
    )
