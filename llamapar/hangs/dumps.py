"""Dumps of torch's flight recorder, one for each rank, read as data: nothing in them is executed.

Formats: the pickle and the JSON of `torch/csrc/distributed/c10d/FlightRecorder.hpp` (torch 2.13, version
2.10). gloo leaves `state` empty (`retired` marks finished calls), and records neither a group's ranks nor
sends and receives. Left out: times and stacks, which `torchfrtrace` shows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from llamapar.errors import shown
from llamapar.records.tables import Plain

from .inert import refused

MAX_ENTRIES = 100_000
"""Most entries of one dump; torch keeps 2,000 unless told otherwise."""

MAX_TENSORS = 8
"""Most sizes of a call that are kept."""

MAX_DIMS = 16
"""Most dims of a tensor."""

MAX_RANKS = 2**16
"""Most ranks of a run, and so most dumps of one folder."""

MAX_MEMBERS = 16 * MAX_RANKS
"""Most members of all groups together: each rank of the largest run may call something in 16 groups."""

VERSION = 2
"""The main version of the form that is read; torch raises it when a field changes its meaning."""

WORLD = "default_pg"
"""What torch calls the group of all ranks."""

NAMELESS = ""
"""The name of the group of a log's line that names none."""


class CollectiveCall(NamedTuple):
    """A rank's call: group and its description, operation, sizes, dtypes; point: a send or a receive."""

    group: str
    label: str
    op: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...] = ()
    point: bool = False

    @property
    def shape(self) -> str:
        """ "[1, 1024, 4096] bf16", of the first input tensor, or of the first output."""
        sizes = (self.inputs or self.outputs)[:1]
        dtype = ""
        if self.dtypes:
            dtype = _SHORT.get(self.dtypes[0], self.dtypes[0].lower())
        if sizes:
            return f"{list(sizes[0])} {dtype}".strip()
        return ""

    @property
    def numel(self) -> tuple[int, int]:
        """How many numbers go in and come out: the watchdog's NumelIn and NumelOut."""
        return sum(map(math.prod, self.inputs)), sum(map(math.prod, self.outputs))

    @property
    def ends(self) -> list[int]:
        """Source and destination of "send 0->1" and of "recv 1<-0", as ranks within the group."""
        ranks = [int(rank) for rank in re.findall(r"\d{1,9}", self.op)]
        if "<-" in self.op:
            return ranks[::-1]
        return ranks


_SHORT = {
    "BFloat16": "bf16",
    "Float": "fp32",
    "Half": "fp16",
    "Double": "fp64",
    "Long": "int64",
    "Int": "int32",
}


Entry = tuple[CollectiveCall, int, bool]
"""A call, its number within its group, and whether it has ended."""


@dataclass(frozen=True, eq=False)
class Dump:
    """One rank's record: its calls in order, and the ranks of a group, if recorded."""

    calls: Sequence[Entry]
    members: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @cached_property
    def open(self) -> Collection[tuple[CollectiveCall, int]]:
        """Each group's first call that has not ended, with its number."""
        # Of equal keys the last one stays, which is the first call.
        return {
            call.group: (call, number) for call, number, ended in reversed(self.calls) if not ended
        }.values()

    @cached_property
    def last(self) -> dict[str, int]:
        """Group → number of the rank's last collective there."""
        return {call.group: number for call, number, _ in self.calls if not call.point}


class SharedTables:
    """Data shared by dumps, stored once: calls and groups.

    A few bytes of a pickle can refer to a long list or text again. So nothing is copied whole, the cost of an
    entry is bounded, and shared data is read once.
    """

    def __init__(self) -> None:
        self.calls: dict[CollectiveCall, CollectiveCall] = {}
        self.ranks: dict[str, tuple[int, ...]] = {}

    def call(self, entry: Plain) -> CollectiveCall:
        """The call of an entry. Raises TypeError, ValueError or LookupError for a field unlike torch's."""
        get = entry.get
        group, label = entry["process_group"]
        name = entry["profiling_name"]
        dtypes = (get("input_dtypes") or get("output_dtypes") or ())[:4]
        inputs, outputs = (_sizes(get(field) or []) for field in ("input_sizes", "output_sizes"))
        words = (group, label, name, *dtypes)
        sizes = (*inputs, *outputs)
        plain = {*map(type, words)} == {str} and {type(n) for size in sizes for n in size} <= {int}
        if not plain or any(len(size) > MAX_DIMS for size in sizes):
            raise TypeError
        if not all(word[:200].isprintable() for word in words):
            raise ValueError
        op = (name[:200].partition(":")[2] or name)[:60]
        point = bool(get("is_p2p"))
        call = CollectiveCall(group[:200], label[:200], op, inputs, outputs, tuple(dtypes), point)
        return self.calls.setdefault(call, call)

    def members(self, config: object, where: str) -> dict[str, tuple[int, ...]]:
        """Group → its ranks, for the groups whose ranks NCCL records."""
        found = dict[str, tuple[int, ...]]()
        for name, group in config.items() if isinstance(config, dict) else ():
            text = None
            if isinstance(group, dict):
                text = group.get("ranks")
            if type(name) is type(text) is str:
                if text not in self.ranks:
                    self.ranks[text] = tuple(dict.fromkeys(map(int, re.findall(r"\d{1,8}", text))))
                found[name] = self.ranks[text]
        most = max(map(max, filter(None, {*found.values()})), default=0)
        if most >= MAX_RANKS:
            raise refused(where, f"a group has rank {most:,}, and at most {MAX_RANKS:,} ranks are read")
        judge_members(found.values(), where)
        return found


def judge_members(groups: Iterable[Sequence[int]], where: str) -> None:
    """Raise LlamaparError if groups together have more members than the ranks of one run."""
    if (total := sum(map(len, groups))) > MAX_MEMBERS:
        raise refused(where, f"its groups have {total:,} members, at most {MAX_MEMBERS:,} are read")


def _sizes(tensors: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    # One dim more than is allowed, so that a tensor with too many is refused.
    return tuple([tuple(size[: MAX_DIMS + 1]) for size in tensors[:MAX_TENSORS]])


def dump_of(value: Plain, where: str, known: SharedTables) -> Dump:
    """A rank's dump from plain values. Raises LlamaparError, with the reason, for one unlike torch's."""
    version = value.get("version")
    entries = value.get("entries", [])
    if not isinstance(version, str) or version.partition(".")[0] != str(VERSION):
        what = "missing"
        if isinstance(version, str | int | float):
            what = shown(version)
        raise refused(where, f"its version is {what}, {VERSION}.x is read")
    if not isinstance(entries, list):
        raise refused(where, "its entries are no list")
    if len(entries) > MAX_ENTRIES:
        raise refused(where, f"{len(entries):,} entries, at most {MAX_ENTRIES:,} are read")
    calls = list[Entry]()
    members = known.members(value.get("pg_config"), where)
    try:
        for entry in entries:
            call = known.call(entry)
            number = entry["p2p_seq_id" if call.point else "collective_seq_id"]
            if type(number) is not int or abs(number) >= 2**63:
                raise TypeError
            calls.append((call, number, bool(entry.get("retired")) or entry.get("state") == "completed"))
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError):
        raise refused(where, f"entry {len(calls)} lacks a field, or has it in another form") from None
    return Dump(_settled(calls), members)


def _settled(calls: Sequence[Entry]) -> list[Entry]:
    """The calls, those of a batch with the state of the entry that ends it: NCCL leaves theirs "scheduled".

    Source: https://github.com/pytorch/pytorch/issues/137969.
    """
    batches = {
        (call.group, call.point, number)
        for call, number, ended in calls
        if ended and call.op.endswith("coalesced")
    }
    return [
        (call, number, ended or (call.group, call.point, number) in batches) for call, number, ended in calls
    ]
