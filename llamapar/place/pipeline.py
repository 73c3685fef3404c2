"""A pipeline schedule as a table and as a timeline: when each operation runs, and how much time is bubble."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from string import ascii_lowercase

from llamapar.describe.arguments import checked_options
from llamapar.errors import LayoutError, one_of, real, shown
from llamapar.records.tables import Plain, Record, cut, fold, plural

from .orders import ORDERS, Action, pipeline_in_words
from .walk import WORDS, Result, Walk, flying, needs, problem_of, result_of, walk

LONGEST = 1e9
"""The longest duration accepted, in any unit."""

_WRITTEN = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")
PLACEMENTS = ("loop", "v")


def rank_of(stage: int, pp: int, placement: str = "loop") -> int:
    """The PP rank that holds a stage: a loop starts again at rank 0, a V goes back the way it came."""
    lap, place = divmod(stage, pp)
    # Every second lap of a V runs from the last rank to the first.
    if placement == "v" and lap % 2:
        return pp - 1 - place
    return place


@dataclass(frozen=True, repr=False)
class Schedule(Record):
    """The order in which each pipeline rank runs its operations: a table with one row a rank.

    placement: "loop" puts stage s on rank s % pp; "v" goes up the ranks and down again.
    ranks: each rank's operations in order. An overlapped forward and backward are two entries.
    nc: micro-batches that a stage takes in a row, in the flexible schedule.

    A table is not checked when it is made: `problem` says whether it can run.
    """

    name: str
    pp: int
    virtual_stages: int
    micro_batches: int
    placement: str
    ranks: tuple[tuple[Action, ...], ...]
    nc: int | None = None

    @classmethod
    def read(cls, rows: Sequence[str], placement: str = "loop", name: str = "own") -> Schedule:
        """A custom schedule from one text for each rank: "0F0 0F1 0B0 0B1" (stage, kind, micro-batch).

        Raises LayoutError for an entry that cannot be read; `problem` says whether the table can run.
        """
        if isinstance(rows, str) or not rows:
            raise LayoutError(f"rows={shown(rows)}: a text for each rank", field="ranks")
        # Commas are taken as blanks, because torch's own CSV of a schedule separates entries so.
        table = tuple(tuple(map(_read, row.replace(",", " ").split())) for row in rows)
        every = [action for row in table for action in row]
        stages = max((action.stage for action in every), default=0) + 1
        many = max((action.micro_batch for action in every), default=0) + 1
        one_of("placement", placement, PLACEMENTS)
        # Rounded up: a table that leaves out the last rank's last stage still has so many a rank, and
        # `problem` names what is missing.
        return cls(name, len(table), -(-stages // len(table)), many, placement, table)

    @property
    def stages(self) -> int:
        """Number of stages in the pipeline: pp·virtual_stages."""
        return self.pp * self.virtual_stages

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        if self.name in ORDERS:
            return ORDERS[self.name].title
        return self.name

    def rank_of(self, stage: int) -> int:
        """The PP rank that holds a stage."""
        return rank_of(stage, self.pp, self.placement)

    def stages_of(self, rank: int) -> list[int]:
        """The stages that a PP rank holds, in pipeline order."""
        return [stage for stage in range(self.stages) if self.rank_of(stage) == rank]

    @cached_property
    def problem(self) -> LayoutError | None:
        """Why the table cannot run, as an error to raise; None if it can.

        Every operation must be there once, on the rank of its stage, after what it needs, and no ranks may
        wait for one another.
        """
        return problem_of(self.ranks, self.walked, self.rank_of, self.pp, self.stages, self.micro_batches)

    @cached_property
    def walked(self) -> Walk:
        """An order in which the operations can run, whatever their durations."""
        return walk(self.ranks, self.stages, self.micro_batches)

    @property
    def ok(self) -> bool:
        return self.problem is None

    @property
    def reason(self) -> str:
        """Why the table cannot run, in words; empty if it can."""
        return str(self.problem or "")

    def check(self) -> Schedule:
        """The schedule itself if it can run. Else raises the LayoutError in `problem`."""
        if self.problem:
            raise self.problem
        return self

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """For each rank, the most chunks in flight: forwards whose backward, or whose W, has not run yet."""
        return tuple(max(self.flying(rank), default=0) for rank in range(self.pp))

    def flying(self, rank: int) -> list[int]:
        """Chunks in flight on a rank during each of its operations."""
        return flying(self.ranks[rank])

    @checked_options
    def timeline(
        self,
        *,
        forward: float = 1.0,
        backward: float = 2.0,
        inputs: float = 1.0,
        weights: float = 1.0,
        p2p: float = 0.0,
    ) -> Timeline:
        """When each operation runs. Durations are in forwards of one stage, or in seconds if given so.

        inputs, weights: the halves of a split backward. Two calls of autograd.grad cost more than one
        backward, because the second computes the gradients of inputs again. p2p: from the end of an operation
        to its use on another rank; no rank is busy meanwhile. Overlapped pairs run one after the other.

        Raises LayoutError for a table that cannot run.
        """
        durations = {"F": forward, "B": backward, "I": inputs, "W": weights}
        for kind, value in durations.items():
            real(WORDS[kind], value, 0.0, LONGEST)
        real("p2p", p2p, 0.0, LONGEST)
        self.check()
        # The walk numbers operations in the order in which they can run; here each rank's are picked out
        # again.
        starts, ends = (
            tuple(tuple(map(times.__getitem__, row)) for row in self.walked.rows)
            for times in self.walked.times([durations] * self.stages, p2p)
        )
        return Timeline(self, durations, p2p, starts, ends)

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        over = pipeline_in_words(self.pp, self.virtual_stages)
        title = f"{self.title}: {plural(self.micro_batches, 'micro-batch')} over {over}"
        rows: list[list[object]] = []
        for rank in cut(self.pp):
            stages = ", ".join(map(str, self.stages_of(rank)))
            rows.append([rank, stages, self.in_flight[rank], " ".join(map(str, self.ranks[rank]))])
        return title, ["pp rank", "stages", "in flight", "operations"], rows, self.reason


def _read(text: str) -> Action:
    found = _WRITTEN.fullmatch(text)
    if found is None:
        why = "an entry is a stage, F, B, I or W, and a micro-batch"
        raise LayoutError(f"{shown(text)} is no operation", why, ["0F0", "3B1"], "ranks")
    stage, kind, number = found.groups()
    return Action(kind, int(stage), int(number))


@dataclass(frozen=True, repr=False)
class Timeline(Record):
    """Start and end of each operation of a schedule: rows as in the schedule, times from 0."""

    schedule: Schedule
    durations: dict[str, float]
    p2p: float
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]

    @cached_property
    def end(self) -> float:
        """When the last operation ends."""
        return max((row[-1] for row in self.ends if row), default=0.0)

    @cached_property
    def compute(self) -> tuple[float, ...]:
        """How long each rank computes."""
        each = self.durations
        return tuple(sum(each[action.kind] for action in row) for row in self.schedule.ranks)

    @property
    def idle(self) -> tuple[float, ...]:
        """How long each rank waits, from the start of the step to its end."""
        return tuple(self.end - busy for busy in self.compute)

    @property
    def bubble(self) -> float:
        """Idle time over compute time of all ranks: (pp - 1)/(v·m) for 1F1B and GPipe.

        A percentage called "bubble" is always this ratio; a share of the whole time is called idle ("Scaling
        Llama 3 Training", ISCA 2025, section 3.1.1).
        """
        return sum(self.idle) / (sum(self.compute) or 1.0)

    @property
    def idle_share(self) -> float:
        """Idle time over the total time of all ranks: bubble/(1 + bubble)."""
        return sum(self.idle) / (self.end * len(self.ends) or 1.0)

    def runs(self, rank: int) -> Iterator[tuple[Action, float, float]]:
        """Each operation of a rank with its start and end."""
        return zip(self.schedule.ranks[rank], self.starts[rank], self.ends[rank], strict=True)

    def running(self, rank: int, time: float) -> int | None:
        """Index of the operation that a rank runs at a time; None if it waits or is done."""
        place = bisect_right(self.starts[rank], time) - 1
        if place >= 0 and time < self.ends[rank][place]:
            return place
        return None

    def flying(self, rank: int, time: float) -> int:
        """Chunks in flight on a rank at a time."""
        place = bisect_right(self.starts[rank], time) - 1
        if place < 0:
            return 0
        count = self._flying[rank][place]
        # `flying` counts during an operation. Once a B or W is over its chunk is released, though the
        # next operation has not started yet.
        over = time >= self.ends[rank][place] and self.schedule.ranks[rank][place].kind in "BW"
        return count - over

    @cached_property
    def ended(self) -> dict[Result, tuple[float, int, Action]]:
        """Result of an operation → when it ends, on which rank, and the operation."""
        return {
            result_of(action): (end, rank, action)
            for rank in range(self.schedule.pp)
            for action, _, end in self.runs(rank)
            if action.kind != "W"
        }

    @cached_property
    def _flying(self) -> list[list[int]]:
        """Of each rank; every moment of a film asks all of them."""
        return [self.schedule.flying(rank) for rank in range(self.schedule.pp)]

    @checked_options
    def at(self, time: float) -> Moment:
        """What every rank does at a time, and what it waits for. Raises LayoutError past the end."""
        return Moment(self, real("time", time, 0.0, self.end))

    def beside(self, *others: Timeline) -> Timelines:
        """This timeline and others, drawn below one another on one time axis."""
        return Timelines((self, *others))

    @property
    def title(self) -> str:
        s = self.schedule
        over = pipeline_in_words(s.pp, s.virtual_stages)
        nc = ""
        if s.nc:
            nc = f", nc={s.nc}"
        many = plural(s.micro_batches, "micro-batch")
        return f"{s.title}, {over}, {many}{nc}: bubble {self.bubble:.2%} of compute"

    def as_dict(self) -> Plain:
        """The table and its figures, as plain values for JSON."""
        s = self.schedule
        ranks = [[list(action) for action in row] for row in s.ranks]
        return {"bubble": self.bubble, "in_flight": list(s.in_flight), "ranks": ranks}

    # -- as text -------------------------------------------------------------------------------

    def text(self, width: int | None = None) -> str:
        """A row for each rank with time to the right, broken into blocks of `width` characters."""
        s = self.schedule
        heads = [f"rank {rank}" for rank in range(s.pp)]
        left = max(map(len, heads)) + 1
        lines = [self._drawn(rank) for rank in range(s.pp)]
        longest = max(map(len, lines), default=0)
        most = longest or 1
        if width is not None:
            # A whole number of cells: labels stay whole where durations are multiples of the shortest.
            most = max(self._cell, (width - left) // self._cell * self._cell)
        blocks = []
        for start in range(0, longest, most):
            parts = [
                f"{head:{left}}{line[start : start + most]}" for head, line in zip(heads, lines, strict=True)
            ]
            blocks.append("\n".join(part.rstrip() for part in parts))
        flying = ", ".join(map(str, s.in_flight))
        split = any(action.kind == "W" for row in s.ranks for action in row)
        halves = ""
        if split:
            halves = ", I and W its halves for inputs and weights"
        foot = [
            f"idle {self.idle_share:.2%} of the time; chunks in flight at most, by rank: {flying}",
            f"F forward, B backward{halves}, each with its micro-batch; dots are bubbles",
        ]
        if s.virtual_stages > 1:
            foot.append("the letter is the rank's stage, a its first")
        told = [fold(line, width) for line in foot]
        return "\n".join([fold(self.title, width), "\n\n".join(blocks), *told])

    @property
    def _cell(self) -> int:
        """Characters for the shortest operation: its label and a space."""
        return len(str(self.schedule.micro_batches - 1)) + 2 + (self.schedule.virtual_stages > 1)

    def _drawn(self, rank: int) -> str:
        """A rank's row: labels with dashes while an operation runs, dots while the rank waits."""
        # Scaled so that even the shortest operation has room for its label.
        column = self._cell / min((d for d in self.durations.values() if d), default=1.0)
        line = ""
        for action, start, end in self.runs(rank):
            line = line.ljust(round(start * column), ".")
            label = f"{action.kind}{action.micro_batch}"
            if self.schedule.virtual_stages > 1:
                label += ascii_lowercase[action.stage // self.schedule.pp % 26]
            line += label.ljust(round(end * column) - len(line) - 1, "-") + " "
        return line.ljust(round(self.end * column), ".")

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"


@dataclass(frozen=True, repr=False)
class Timelines(Record):
    """Timelines of several schedules on one time axis. time: where the cursor is, or None."""

    timelines: tuple[Timeline, ...]
    time: float | None = None

    @property
    def end(self) -> float:
        """When the longest of them ends."""
        return max(one.end for one in self.timelines)

    @checked_options
    def at(self, time: float) -> Timelines:
        """The same timelines with a cursor at a time. Raises LayoutError past the end of the longest."""
        return replace(self, time=real("time", time, 0.0, self.end))

    @property
    def moments(self) -> tuple[Moment, ...]:
        """Each timeline's Moment at the cursor, or at its own end if that is earlier; () without a cursor."""
        time = self.time
        if time is None:
            return ()
        return tuple(one.at(min(time, one.end)) for one in self.timelines)

    def text(self, width: int | None = None) -> str:
        return "\n\n".join([*(one.text(width) for one in self.timelines), *map(str, self.moments)])


@dataclass(frozen=True, repr=False)
class Moment(Record):
    """What every rank does at one time of a timeline, and what the waiting ranks wait for."""

    timeline: Timeline
    time: float

    def doing(self, rank: int) -> tuple[str, str]:
        """The operation that a rank runs, and what it waits for; one of the two is empty."""
        line = self.timeline
        row = line.schedule.ranks[rank]
        place = line.running(rank, self.time)
        if place is not None:
            return str(row[place]), ""
        # The rank waits, so the operation that starts next is the one that waits for something.
        later = bisect_right(line.starts[rank], self.time)
        if later == len(row):
            return "", "done"
        # Of the operations that it needs, the one that ends last.
        end, peer, other = max(line.ended[need] for need in needs(row[later], line.schedule.stages - 1))
        waits = f"{row[later]} waits for {other} of rank {peer}"
        if end <= self.time:
            waits += ", which is on its way"
        return "", waits

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        line = self.timeline
        rows: list[list[object]] = []
        for rank in range(line.schedule.pp):
            runs, waits = self.doing(rank)
            rows.append([rank, runs or "-", waits, line.flying(rank, self.time)])
        title = f"{line.schedule.title} at time {self.time:g} of {line.end:g}"
        return title, ["pp rank", "runs", "waits", "in flight"], rows, ""
