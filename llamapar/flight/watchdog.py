"""A hang from its log alone: the lines of torch's watchdog, read as the end of each rank's flight record.

The watchdog writes the collective that timed out (its number, operation and sizes) and, for its group, the
numbers of the last collective that was enqueued and the last that completed. That is where every rank stands,
so `hang` and `verdict` judge it as they judge a flight record. Lines of ProcessGroupNCCL.cpp, torch 2.1 to
2.13 (pytorch/pytorch, torch/csrc/distributed/c10d).

A log lists no members of a group. Their number follows from the sizes of an all-gather or a reduce-scatter,
and who they are only where ranks of the group and of the run are the same.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .dumps import MAX_RANKS, NO_STACK, WORLD, CollectiveCall, Dump, Folder
from .hang import Hang, Parting
from .log_lines import MOST

_RANK, _OWN = re.compile(r"\[rank(\d{1,5})\]"), re.compile(r"\[Rank (\d{1,5})\]")
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


class LogHang(Hang):
    """A hang whose ranks show one call for each group, so that only calls of one number are compared."""

    @cached_property
    def parted(self) -> Parting | None:
        """The earliest collective in which its ranks made different calls."""
        entered = dict[tuple[str, int], dict[int, int]]()
        for rank, dump in self.dumps.items():
            for at in dump.open:
                entered.setdefault((dump.calls[at].group, dump.numbers[at]), {})[rank] = at
        found = []
        for ranks in entered.values():
            # One call of each rank, so it is a row of its own, as `_parting` compares them.
            rows = {rank: [self._codes[id(self.dumps[rank].calls[at])]] for rank, at in ranks.items()}
            sides = dict[int, dict[int, int]]()
            for rank, at in ranks.items():
                sides.setdefault(rows[rank][0], {})[rank] = at
            if len(sides) > 1:
                found.append(self._parting(list(sides.values()), rows, 0))
        return min(
            found, key=lambda p: min(self.dumps[r].created[i] for r, i in p.ranks.items()), default=None
        )


UNKNOWN_CALL = CollectiveCall("", "", "a collective", (), (), ())


@dataclass(frozen=True)
class Standing:
    """Where a rank stands in a group. at: its call that has not ended, 0 if it is in none.

    completed: its last call that has. label: the group's. local: the rank's number within it, -1 if unsaid.
    line: of the log's kept ones, by which waits are ordered.
    """

    at: int
    completed: int
    line: int
    label: str = ""
    local: int = -1


def folder_of(lines: Sequence[str]) -> Folder | None:
    """The end of each rank's record; None without a line that says where a rank stands."""
    stands = dict[tuple[int, str], Standing]()
    calls = dict[tuple[int, int], tuple[CollectiveCall, int]]()  # rank and number → call and line
    for line, text in enumerate(lines[:MOST]):
        group, ranked, work, last = (form.search(text) for form in (_GROUP, _RANK, _WORK, _LAST))
        named = ranked or _OWN.search(text) or group
        rank = int(named.groups()[-1]) if named else MAX_RANKS
        if rank >= MAX_RANKS:
            continue
        if work:
            op, came, went = _OPS.get(work[2], work[2].lower()), int(work[3]), int(work[4])
            call = CollectiveCall("", "", op, ((came,),), ((went,),), ())
            calls.setdefault((rank, int(work[1])), (call, line))
        if group and (work or last):
            at = work or _AT.search(text)
            enqueued, completed = map(int, last.groups()) if last else (0, 0)
            number = int(at[1]) if at else (completed + 1) * (enqueued > completed)
            label = WORLD if group[1] == "0" else group[3] or ""
            # Before anything has completed, torch writes whatever lay in memory.
            done = number - 1 if number else completed
            one = Standing(number, done, line, label, int(group[4]) if ranked else -1)
            stands.setdefault((rank, group[2] or group[1]), one)
    # The line with the sizes may not name its group; then the rank's next line does, by the same number.
    grouped = {(rank, stand.at) for (rank, _), stand in stands.items()}
    for (rank, number), (_, line) in calls.items():
        if (rank, number) not in grouped:
            stands.setdefault((rank, ""), Standing(number, number - 1, line))
    return _folder(stands, {key: call for key, (call, _) in calls.items()}) if stands else None


def _folder(
    stands: Mapping[tuple[int, str], Standing], calls: Mapping[tuple[int, int], CollectiveCall]
) -> Folder:
    """The dumps of ranks that stand at their calls; a call that one of a group tells is that of all."""
    told, local = dict[tuple[str, int], CollectiveCall](), dict[str, set[int]]()
    for (rank, key), stand in stands.items():
        local.setdefault(key, set()).add(rank if stand.local == rank else -1)
        if call := calls.get((rank, stand.at)):
            told.setdefault((key, stand.at), call)
    members = dict[str, tuple[int, ...]]()
    for (key, _), call in told.items():
        many = max(size_of_group(call), default=0)
        if -1 not in local[key] and max(local[key]) < many <= MAX_RANKS:
            members[key] = tuple(range(many))
    dumps, shared = dict[int, Dump](), dict[CollectiveCall, CollectiveCall]()
    for (rank, key), stand in sorted(stands.items(), key=lambda one: one[1].line):
        dump = dumps.setdefault(rank, Dump(rank, [], array("q"), bytearray(), array("q"), [], members, 1))
        for number, done in ((stand.completed, 1), (stand.at, 0)):
            if number > 0:
                own = None if done else calls.get((rank, number))
                call = (own or told.get((key, number), UNKNOWN_CALL))._replace(group=key, label=stand.label)
                dump.calls.append(shared.setdefault(call, call))
                dump.numbers.append(number)
                dump.done.append(done)
                dump.created.append(stand.line)
                dump.stacks.append(NO_STACK)
    return Folder(dict(sorted(dumps.items())), noun="log line")


def size_of_group(call: CollectiveCall) -> list[int]:
    """How many ranks a call has, by its sizes: of an all-gather or a reduce-scatter; else []."""
    less, more = sorted([*call.inputs[0], *call.outputs[0]]) if call.inputs and call.outputs else (0, 0)
    apart = call.op in ("all_gather", "reduce_scatter") and less and more % less == 0
    return [more // less] if apart else []
