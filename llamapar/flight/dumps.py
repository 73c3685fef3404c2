"""Dumps of torch's flight recorder, one for each rank, read as data: nothing in them is executed.

Formats: the pickle and the JSON of `torch/csrc/distributed/c10d/FlightRecorder.hpp` (torch 2.13, version
2.10). gloo leaves `state` and times empty (`retired` marks finished calls), and records neither a group's
ranks nor sends and receives.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from llamapar.errors import printable, shown
from llamapar.records.tables import Plain

from .inert import refused

LAST_NUMBER = re.compile(r"(\d{1,8})\D*$")
"""In the name of a file: the rank that it is of."""

MAX_ENTRIES = 100_000
"""Most entries of one dump; torch keeps 2,000 unless told otherwise."""

MAX_FRAMES = 64
"""Most frames of a call's stack that are kept, the innermost ones."""

MAX_TENSORS, MAX_DIMS, MAX_PATH = 8, 16, 1024
"""Most sizes of a call that are kept, most dims of one, and most characters of a file's name."""

MAX_RANKS = 2**16
"""Most ranks of a run, and so most dumps of one folder."""

MAX_MEMBERS = 16 * MAX_RANKS
"""Most members of all groups together: each rank of the largest run may call something in 16 groups."""

VERSION = 2
"""The main version of the form that is read; torch raises it when a field changes its meaning."""

WORLD = "default_pg"
"""What torch calls the group of all ranks."""


class CollectiveCall(NamedTuple):
    """A rank's call, without its time: group and its description, operation, sizes, dtypes.

    ends: source and destination of a send or a receive, as ranks within the group; (-1, -1) for a batch.
    """

    group: str
    label: str
    op: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    ends: tuple[int, int] | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """The part that must be equal on every rank of the group; some sizes exist only on the root."""
        sizes: tuple[object, ...] = (self.inputs, self.outputs)
        if self.op in _UNEQUAL:
            sizes = _UNEQUAL[self.op](self)
        return (self.op, sizes, self.dtypes)

    @property
    def shape(self) -> str:
        """ "[1, 1024, 4096] bf16", of the first input tensor, or of the first output."""
        sizes = (self.inputs or self.outputs)[:1]
        dtype = _SHORT.get(self.dtypes[0], self.dtypes[0].lower()) if self.dtypes else ""
        return f"{list(sizes[0])} {dtype}".strip() if sizes else ""


_UNEQUAL = {
    "scatter": lambda call: call.outputs,
    "gather": lambda call: call.inputs,
    "all_to_all": lambda call: (),
}
_SHORT = {
    "BFloat16": "bf16",
    "Float": "fp32",
    "Half": "fp16",
    "Double": "fp64",
    "Long": "int64",
    "Int": "int32",
}


class Stack(NamedTuple):
    """From where a call was made. line: the innermost one of a run's own code. frames: innermost first."""

    line: str = ""
    frames: tuple[str, ...] = ()


NO_STACK = Stack()


@dataclass(frozen=True, eq=False)
class Dump:
    """One rank's record: its calls in order, as columns.

    numbers: of each call within its group. done: 1 if it has ended. created: time of the call, ns. stacks:
    empty if no frames were recorded. members: ranks of a group, if recorded. lost: number of calls that the
    ring buffer has already dropped.
    """

    rank: int
    calls: list[CollectiveCall]
    numbers: array[int]
    done: bytearray
    created: array[int]
    stacks: list[Stack]
    members: Mapping[str, tuple[int, ...]]
    lost: int

    def __len__(self) -> int:
        return len(self.calls)

    @cached_property
    def open(self) -> tuple[int, ...]:
        """Index of each group's first call that has not ended."""
        first: dict[str, int] = {}
        at = self.done.find(0)
        while at >= 0:
            first.setdefault(self.calls[at].group, at)
            at = self.done.find(0, at + 1)
        return tuple(first.values())

    @cached_property
    def last(self) -> dict[str, int]:
        """Group → number of the rank's last collective there."""
        found: dict[str, int] = {}
        for call, number in zip(self.calls, self.numbers, strict=True):
            if call.ends is None:
                found[call.group] = number
        return found

    @cached_property
    def at(self) -> dict[tuple[str, int], int]:
        """(group, number) of a collective → its index."""
        pairs = enumerate(zip(self.calls, self.numbers, strict=True))
        return {(call.group, number): i for i, (call, number) in pairs if call.ends is None}


@dataclass(frozen=True)
class Folder:
    """Dumps by rank, and the reason for each rank whose dump cannot be read. noun: what a rank leaves.

    lines: of logs and stacks that lie beside the dumps, as `log_lines` keeps them. notes: what else to say.
    """

    dumps: Mapping[int, Dump]
    broken: Mapping[int, str] = field(default_factory=dict)
    noun: str = "dump"
    lines: Sequence[str] = ()
    notes: tuple[str, ...] = ()


# -- entries ---------------------------------------------------------------------------------------


class SharedTables:
    """Data shared by dumps, stored once: calls, places, groups.

    A few bytes of a pickle can refer to a long list or text again. So nothing is copied whole, the cost of an
    entry is bounded, and shared data is read once.
    """

    def __init__(self) -> None:
        self.calls: dict[object, CollectiveCall] = {}
        self.frames: dict[object, tuple[str, str]] = {}
        self.stacks: dict[Stack, Stack] = {}
        self.ranks: dict[str, tuple[int, ...]] = {}
        self.batches = False  # whether a call that ends a batch was seen

    def call(self, entry: Plain) -> CollectiveCall:
        """The call of an entry. Raises TypeError, ValueError or LookupError for a field unlike torch's."""
        get = entry.get
        group, label = entry["process_group"]
        name = entry["profiling_name"]
        sizes_in, sizes_out = get("input_sizes") or [], get("output_sizes") or []
        dtypes = (get("input_dtypes") or get("output_dtypes") or ())[:4]
        # One tensor is the usual case; here another function call would double the time.
        inputs = (tuple(sizes_in[0][:_CUT]),) if len(sizes_in) == 1 else _sizes(sizes_in)
        outputs = (tuple(sizes_out[0][:_CUT]),) if len(sizes_out) == 1 else _sizes(sizes_out)
        point = bool(get("is_p2p"))
        key = (group, label, name, point, inputs, outputs, *dtypes)
        found = self.calls.get(key)
        if found is None:
            words, sizes = (group, label, name, *dtypes), (*inputs, *outputs)
            if {*map(type, words)} != {str} or not {type(n) for size in sizes for n in size} <= {int}:
                raise TypeError
            if max(map(len, sizes), default=0) > MAX_DIMS or not all(w[:200].isprintable() for w in words):
                raise ValueError
            what = name[:200].partition(":")[2] or name[:200]
            ends = _ENDS.fullmatch(what)
            op, pair = what, (-1, -1) if point else None
            if ends is not None:
                op, first, arrow, second = ends.groups()
                pair = (int(first), int(second)) if arrow == "->" else (int(second), int(first))
            call = CollectiveCall(group[:200], label[:200], op[:60], inputs, outputs, tuple(dtypes), pair)
            found = self.calls[key] = call
            self.batches = self.batches or op.endswith("coalesced")
        return found

    def stack(self, frames: object, seen: dict[tuple[int, ...], Stack]) -> Stack:
        """The stack of an entry's frames. seen: stacks of this dump; equal frames are one object there."""
        if not isinstance(frames, list):
            return NO_STACK
        kept = frames[:MAX_FRAMES]
        key = tuple(map(id, kept))
        if key not in seen:
            each = [self.frame(frame) for frame in kept]
            texts = tuple(text for text, _ in each)
            if len(frames) > len(kept):
                texts += (f"and {len(frames) - len(kept):,} more",)
            stack = Stack(next((line for _, line in each if line), ""), texts)
            seen[key] = self.stacks.setdefault(stack, stack)
        return seen[key]

    def frame(self, frame: Plain) -> tuple[str, str]:
        """A frame as text, and its line of code unless it is a library's."""
        file, line, name = frame["filename"], frame["line"], frame["name"]
        if not (type(file) is type(name) is str and type(line) is int):
            raise TypeError
        key = (file, line, name)
        if key not in self.frames:
            path = file[-MAX_PATH:]
            parts = ["a cell"] if "/ipykernel_" in path else path.split("/")
            names = ("/".join(parts[-3:])[-100:], parts[-1][-100:])
            text, line = (printable(f"line {line} of {part}, in {name[:100]}") for part in names)
            self.frames[key] = text, "" if of_library(path) else line
        return self.frames[key]

    def members(self, config: object, where: str) -> dict[str, tuple[int, ...]]:
        """Group → its ranks, for the groups whose ranks NCCL records."""
        found, most = dict[str, tuple[int, ...]](), 0
        for name, group in config.items() if isinstance(config, dict) else ():
            text = group.get("ranks", "") if isinstance(group, dict) else ""
            if type(name) is str and type(text) is str:
                if text not in self.ranks:
                    self.ranks[text] = tuple(dict.fromkeys(map(int, re.findall(r"\d{1,8}", text))))
                    most = max(most, max(self.ranks[text], default=0))
                found[name] = self.ranks[text]
        if most >= MAX_RANKS:
            raise refused(where, f"a group has rank {most:,}, and at most {MAX_RANKS:,} ranks are read")
        judge_members(found.values(), where)
        return {name: ranks for name, ranks in found.items() if ranks}


def judge_members(groups: Iterable[Sequence[int]], where: str) -> None:
    """Raise LlamaparError if groups together have more members than the ranks of one run."""
    if (total := sum(map(len, groups))) > MAX_MEMBERS:
        raise refused(where, f"its groups have {total:,} members, at most {MAX_MEMBERS:,} are read")


_CUT = MAX_DIMS + 1  # Refuse tensors with too many dims.


def _sizes(tensors: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple([tuple(size[:_CUT]) for size in tensors[:MAX_TENSORS]])


_LIBRARIES = re.compile(
    r"-packages/(torch/|typing_ext)|^torch/|/llamapar/(spmd|execution)/|/lib/python3[^/]*/(?!(site|dist)-packages/)|^<"
)
"""Where code lies that nobody wrote for a run. py-spy writes a path from the folder of packages on."""


def of_library(path: str) -> bool:
    """Whether a file is torch's or Python's own; py-spy names Python's without their folder."""
    module = path.partition("/")[0].removesuffix(".py")
    return bool(_LIBRARIES.search(path)) or module in sys.stdlib_module_names


_ENDS = re.compile(r"(send|recv) (\d{1,9})(->|<-)(\d{1,9})")


def dump_of(rank: int, value: Plain, where: str, known: SharedTables) -> Dump:
    version, entries = value.get("version"), value.get("entries", [])
    if not isinstance(version, str) or version.partition(".")[0] != str(VERSION):
        what = shown(version) if isinstance(version, str | int | float) else "missing"
        raise refused(where, f"its version is {what}, {VERSION}.x is read")
    if not isinstance(entries, list):
        raise refused(where, "its entries are no list")
    if len(entries) > MAX_ENTRIES:
        raise refused(where, f"{len(entries):,} entries, at most {MAX_ENTRIES:,} are read")
    calls, stacks, seen = list[CollectiveCall](), list[Stack](), dict[tuple[int, ...], Stack]()
    numbers, created, done = array("q"), array("q"), bytearray()
    members = known.members(value.get("pg_config"), where)
    try:
        for entry in entries:
            get = entry.get
            calls.append(known.call(entry))
            numbers.append(entry["p2p_seq_id"] if get("is_p2p") else entry["collective_seq_id"])
            done.append(bool(get("retired")) or get("state") == "completed")
            created.append(get("time_created_ns") or 0)
            frames = get("frames")
            stacks.append(known.stack(frames, seen) if frames else NO_STACK)
        if known.batches:
            _settle_batches(calls, numbers, done)
        first = entries[0].get("record_id", 0) if entries else 0
        if type(first) is not int:
            raise TypeError
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError):
        raise refused(where, f"entry {len(calls)} lacks a field, or has it in another form") from None
    return Dump(rank, calls, numbers, done, created, stacks, members, first)


def _settle_batches(calls: Sequence[CollectiveCall], numbers: Sequence[int], done: bytearray) -> None:
    """Give the calls of a batch the state of the entry that ends it: NCCL leaves theirs "scheduled" for good.

    Source: https://github.com/pytorch/pytorch/issues/137969.
    """
    open_calls: dict[str, list[int]] = {}  # by group, since its last end
    for end, call in enumerate(calls):
        since = open_calls.setdefault(call.group, [])
        if call.op.endswith("coalesced"):
            for at in reversed(since):
                apart = (calls[at].ends is None) != (call.ends is None)
                if apart or numbers[at] != numbers[end]:
                    break
                done[at] = done[end]
            since.clear()
            if call.op == "coalesced":
                done[end] = 1
        since.append(end)
