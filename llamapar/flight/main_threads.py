"""A hang from the stacks of its ranks: the output of `py-spy dump` and of Python's faulthandler.

Of each process the main thread counts. The innermost function of torch.distributed on its stack is the call
in which it waits, and the innermost line of a run's own code says where. A stack shows no number of a call
and no group: ranks at one line may be in different steps. So a rank is *likely* to be missed only where all
others are in one collective and it is surely outside of any.

Left out: frames of C and C++ (`py-spy --native`), locals, and stacks that are written outermost first.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from llamapar.describe.layout import AXES, Layout
from llamapar.diagnosis.hypothesis import LIKELY, POSSIBLE
from llamapar.records.tables import Plain, plural

from .dumps import (
    LAST_NUMBER,
    MAX_FRAMES,
    MAX_RANKS,
    CollectiveCall,
    Dump,
    Folder,
    SharedTables,
    of_library,
)
from .groups import Group, rank_label
from .hang import ONE_WAY, Hang, Parting, Wait
from .log_lines import MOST
from .verdict import RankPositions

# -- reading ---------------------------------------------------------------------------------------

_PREFIX = re.compile(r"\s?\[[a-zA-Z_]{0,30}(\d{1,5})\]:? ?|\s{0,5}(\d{1,5}): ")
"""Whose line it is, as torch ("[rank3]: "), torchrun ("[default3]:") and `srun -l` (" 3: ") write it."""

_HEADING = re.compile(r"(?i)==> (.{1,1000}) <==|\W{0,9}rank\W{0,3}(\d{1,5})\W{0,9}(?:\(.{0,500})?")
_NO_RANK = re.compile(r"(?i)(?:node|host|pid)\W?\d+\D*$")
"""The end of a file's name whose number is not a rank's."""

_BEGIN = re.compile(r"(?:Process (\d{1,9}): |Timeout \(|Fatal Python error)")
_THREAD = re.compile(
    r"(?:Current )?thread (?:0x\w{1,20} |\d{1,9} )?(?:\[[^\]]{0,99}\] )?"
    r'\((?:most recent call first\):|[\w+]{1,20}\)(?:: "(.{0,200})")?)',
    re.IGNORECASE,
)
_FRAME = re.compile(
    r'\s{0,9}(?:File "([^"]{1,1000})", line (\d{1,9}) in (\S{1,300})'
    r"|([^\s()]{1,300}) \((.{1,1000}):(\d{1,9})\)$)"
)


@dataclass
class Taken:
    """The stacks of one process. rank: None if nothing says it.

    threads: name and frames, innermost first, each frame in the form of a flight record's.
    """

    rank: int | None
    file: str
    process: str
    threads: list[tuple[str, list[Plain]]] = field(default_factory=list)

    @property
    def main(self) -> list[Plain]:
        """The frames of its main thread; [] for a process that is no rank."""
        named = [frames for name, frames in self.threads if name == "MainThread"]
        # faulthandler names no thread, and writes the main one last. Any other begins in `_bootstrap`.
        plain = [
            frames for _, frames in self.threads if frames and not frames[-1]["name"].startswith("_bootstrap")
        ]
        frames = (named or plain or [[]])[-1]
        return [] if any(_NO_RANKS.search(frame["filename"]) for frame in frames) else frames


_NO_RANKS = re.compile(r"utils/data/_utils/worker\.py|elastic/agent/|_inductor/compile_|resource_tracker")
"""Files in which a process stands that is no rank: a worker of a DataLoader or of the compiler, torchrun."""


def processes(lines: Sequence[str]) -> list[Taken]:
    """The stacks in kept lines, one for each process and moment."""
    found, now, begun = list[Taken](), dict[int | None, Taken](), dict[int | None, str]()
    file, rank = "", None
    for line in lines[:MOST]:
        prefix = _PREFIX.match(line)
        if not prefix and (heading := _HEADING.fullmatch(line)):
            file = heading[1] or ""
            where = Path(file)
            # torchrun --log-dir names the folder after the rank, 3/stderr.log
            name = where.parent.name if where.stem in ("stdout", "stderr") else where.stem
            number = None if _NO_RANK.search(name) else LAST_NUMBER.search(heading[2] or name)
            rank = int(number[1]) if number else None
            now.clear()
            begun.clear()
            continue
        text = line[prefix.end() :] if prefix else line
        own = int(prefix[prefix.lastindex or 0]) if prefix else None
        if begin := _BEGIN.match(text):
            now.pop(own, None)
            begun[own] = begin[1] or ""
        elif thread := _THREAD.match(text):
            name = thread[1] or ""
            if own not in now or (name == "MainThread" and dict(now[own].threads).get(name) is not None):
                now[own] = Taken(rank if own is None else own, "" if prefix else file, begun.get(own, ""))
                found.append(now[own])
            now[own].threads.append((name, []))
        elif own in now and (frame := _FRAME.match(text)) and len(now[own].threads[-1][1]) < MAX_FRAMES:
            path, at, function = frame.groups()[:3] if frame[1] else (frame[5], frame[6], frame[4])
            name = function.rpartition(".")[2]  # without its class
            now[own].threads[-1][1].append({"filename": path, "line": int(at), "name": name})
    return [one for one in found if one.main]


def _of_ranks(each: Sequence[Taken]) -> tuple[dict[int, Taken], list[str]]:
    """The last stacks of every rank, or of every stack by its number, and what to say of the others."""
    of_file = dict[str, set[str]]()
    for one in each:
        of_file.setdefault(one.file, set()).add(one.process)
    found, moved, unknown = dict[int, Taken](), set[int](), dict[object, Taken]()
    for one in each:
        # A number in a file's name is no rank if it is the process', or if the file shows several processes.
        shared = one.file and (len(of_file[one.file]) > 1 or str(one.rank) == one.process)
        if one.rank is None or one.rank >= MAX_RANKS or shared:
            unknown[one.process or id(one)] = one
            continue
        if one.rank in found and found[one.rank].main != one.main:
            moved.add(one.rank)
        found[one.rank] = one
    if not found:
        return dict(enumerate([*unknown.values()][:MAX_RANKS])), [NAMELESS]
    notes = [f"{plural(len(unknown), 'stack')} without a rank left out"] if unknown else []
    if moved:
        notes.append(f"{rank_label(None, sorted(moved))} moved between stacks, or two ranks have one number")
    return found, notes


ONE_MOMENT = "a stack shows no number of its call: ranks at one line may be in different steps"
NAMELESS = "the stacks name no ranks: their numbers here are those in the text's order"


# -- places ----------------------------------------------------------------------------------------

_WAITS = frozenset(
    (
        "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
        "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list",
        "gather", "gather_object", "init_process_group", "monitored_barrier", "new_group", "recv",
        "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
        "scatter_object_list", "send", "send_object_list", "wait_tensor",
    )
)  # fmt: skip
"""Functions of torch.distributed in which a rank waits for others."""

_PIPELINE = re.compile(r"(?=.*?(send)_)?(?=.*?(recv)_)?(?:send|recv)_(?:forward|backward)\w*")
"""Functions of Megatron-LM's kind that wait for a stage in C++, where no frame of torch is on the stack."""

_OUTSIDE = {
    "/torch/utils/data/": "the DataLoader",
    "/torch/serialization.py": "torch.save or torch.load",
    "/torch/distributed/checkpoint/": "a checkpoint",
    "/pdb.py": "the debugger",
}
"""Part of a library's file → what a rank does there; it waits for no other rank."""

_OWN = "its own code, or in work.wait() or .item()"
"""C++ leaves no frame."""

MOST_TOLD = 6
"""Most places that the cause tells, those outside of collectives first; the table has all."""


def _place(frames: Sequence[Plain]) -> tuple[str, str]:
    """Where a thread stands, and how it waits: "peers" for other ranks, "else" for something else, or ""."""
    for frame in frames:
        name, file = frame["name"].strip("_"), f"/{frame['filename']}"
        if name in _WAITS and "/torch/distributed/" in file:
            return name.removesuffix("_object_list"), "peers"
        if words := next((words for part, words in _OUTSIDE.items() if part in file), ""):
            return words, "else"
        if not of_library(frame["filename"]):
            break
    for frame in frames[:8]:
        if ends := _PIPELINE.fullmatch(frame["name"]):
            return " and ".join(filter(None, ends.groups())), "peers"
    file = frames[0]["filename"]
    if not of_library(file):
        return _OWN, ""
    return f"{frames[0]['name']} of {file.rpartition('/')[2]}", "" if "torch/" in file else "else"


@dataclass(frozen=True, eq=False)
class StackHang(Hang):
    """A hang whose ranks show one place each: a call without number, sizes and group."""

    @cached_property
    def parted(self) -> Parting | None:
        """None: places have no order in which ranks could part."""

    @cached_property
    def waits(self) -> dict[int, tuple[Wait, ...]]:
        """Rank → its wait, for whom is not known."""
        return {rank: (Wait(rank, 0, ()),) for rank, dump in self.dumps.items() if not dump.done[0]}

    def of_rank(self, rank: int) -> tuple[str, str, str]:
        """(where its main thread is, what it does there, the line of code)."""
        if rank not in self.dumps:
            return "", "left no stack", ""
        dump = self.dumps[rank]
        waits = "waits for other ranks" if rank in self.waits else "is in no collective"
        return dump.calls[0].op, waits, dump.stacks[0].line

    def starts(self, ranks: Sequence[int]) -> dict[int, int]:
        """Rank → its place as a column, below 0: its only call stands so far to the right."""
        return {rank: -self.places[rank] for rank in ranks}


def where_stacks_stand(lines: Sequence[str], layout: Layout | None = None) -> RankPositions | None:
    """The position of every rank by its stack, and who is missed; None without a stack in the lines."""
    each, notes = _of_ranks(processes(lines))
    if not each:
        return None
    shared, dumps, sure = SharedTables(), dict[int, Dump](), set[int]()
    for rank, one in sorted(each.items()):
        op, how = _place(one.main)
        calls = [at for _, frames in one.threads if frames and (at := _place(frames))[1] == "peers"]
        if calls and how != "peers":
            # The main thread may wait for the one in a collective: autograd runs hooks in threads of its own.
            op, how = (op, "") if op in (_OWN, *_OUTSIDE.values()) else calls[0]
        call, stack = CollectiveCall("", "", op, (), (), ()), shared.stack(one.main, {})
        done = bytearray([how != "peers"])
        dumps[rank] = Dump(rank, [call], array("q", [-1]), done, array("q", [0]), [stack], {}, 0)
        sure |= {rank} if how == "else" else set()
    layout = layout if layout and max(dumps) < layout.world <= MAX_RANKS else None
    world = range(layout.world if layout else max(dumps) + 1)
    sides = dict[tuple[str, str], list[int]]()
    for rank, dump in dumps.items():
        sides.setdefault((dump.calls[0].op, dump.stacks[0].line), []).append(rank)
    # Places outside of collectives stand last, where the picture has most room for them.
    ordered = sorted(sides.values(), key=lambda ranks: (dumps[ranks[0]].done[0], len(ranks)))
    places = {rank: at for at, ranks in enumerate(ordered) for rank in ranks}
    folder = Folder(dumps, noun="stack", notes=(*notes, ONE_MOMENT))
    hang = StackHang(folder, {"": Group("", "", tuple(world))}, layout, places=places)
    return _judged(hang, ordered, sure)


def _judged(hang: StackHang, sides: Sequence[Sequence[int]], sure: AbstractSet[int]) -> RankPositions:
    """Who is missed. sides: ranks by place; sure: ranks that certainly wait for no other rank."""
    dumps = hang.dumps
    waiting = [ranks for ranks in sides if ranks[0] in hang.waits]
    outside = tuple(sorted(dumps.keys() - hang.waits.keys()))
    lost = tuple(rank for rank in hang.groups[""].ranks if rank not in dumps)
    ops = {dumps[rank].calls[0].op for rank in hang.waits}
    one_place, axes = len(waiting) == 1, [axis for axis in AXES if hang.layout and hang.layout.size(axis) > 1]
    told = [
        f"{rank_label(None, ranks)} {'is' if len(ranks) == 1 else 'are'} in {op}{f' ({line})' * bool(line)}"
        for ranks in reversed(sides)
        for op, _, line in [hang.of_rank(ranks[0])]
    ]
    kind, ranks, level = "few", tuple[int, ...](), POSSIBLE
    words = "for whom they wait, the stacks do not say"
    if ops in ({"recv"}, {"send"}) and len(hang.waits) > 1 and not outside and not lost:
        kind, other = "cycle", "send" if ops == {"recv"} else "recv"
        words = f"none is in {other}: each waits for another one, in a cycle"
        stages = {hang.layout.coord_of(rank).pp for rank in dumps} if hang.layout else set()
        words += f" of stages {', '.join(map(str, sorted(stages)))}" * (len(stages) > 1)
    elif NAMELESS in hang.folder.notes:
        pass
    elif outside and len(outside) < len(hang.waits):
        kind, ranks, words = "late", outside, f"{rank_label(None, outside)} did not come"
        met = one_place and len(hang.waits) > 1 and not lost and not ops & {*ONE_WAY, "recv", "send"}
        level = LIKELY if met and sure >= {*outside} else POSSIBLE
    elif one_place and not outside and 0 < len(lost) < len(hang.waits):
        kind, ranks = "gone", lost
        words = f"{rank_label(None, lost)} left no stack: ended, or the stack is lost"
    elif len(waiting) == 2 and len(waiting[0]) == 1 and len(waiting[1]) > 2 and len(axes) < 2 and not lost:
        kind, ranks, words = "branch", tuple(waiting[0]), "a stack does not say which call came first"
    if len(told) > MOST_TOLD:
        told[MOST_TOLD:] = [f"{len(told) - MOST_TOLD:,} more places"]
    cause = "; ".join([*told, words])
    return RankPositions(hang, kind, ranks, level, cause, hang.groups[""])
