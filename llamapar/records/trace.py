"""What a run did, as plain records: collectives, attention calls and the shape tape. No torch here.

Figures, panels and the command read these; `execution` writes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from llamapar.errors import LlamaparError

from .tables import Record, html_table, paragraphs

_T = TypeVar("_T")

PHASES = ("forward", "backward", "gradients", "update")
"""forward and backward of the program, then the sums of parameter gradients, then the weights' update."""


@dataclass(frozen=True)
class CollectiveEvent:
    """One collective in which a rank took part.

    kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", …. axis: the mesh axis of the group.
    group: global ranks. shape: of the rank's input. bytes: of its output for an all-gather, of its
    input otherwise.
    """

    kind: str
    axis: str
    group: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    phase: str

    def __str__(self) -> str:
        return f"{self.kind} over {self.axis}, {list(self.shape)} {self.dtype}"


def causal_pairs(positions: range, keys: range | None = None) -> int:
    """(query, key) pairs of a causal mask for queries at `positions`: the sum of p + 1.

    keys: those that are there; unless said, all from 0 on.
    """
    there = range(positions.stop) if keys is None else keys

    def before(position: int) -> int:
        queries_past = max(0, position - there.start)
        partly = min(queries_past, len(there))
        return math.comb(partly + 1, 2) + (queries_past - partly) * len(there)

    return before(positions.stop) - before(positions.start)


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention kernel: queries [batch, heads, queries, …] against `keys` keys."""

    batch: int
    heads: int
    queries: int
    keys: int
    causal: bool
    phase: str

    @property
    def pairs(self) -> int:
        """(query, key) pairs of one head of one sequence that the kernel was handed."""
        return causal_pairs(range(self.queries)) if self.causal else self.queries * self.keys


@dataclass(frozen=True)
class Trace:
    """What one rank did, in order."""

    rank: int
    events: tuple[CollectiveEvent, ...] = ()
    attention: tuple[AttentionCall, ...] = ()
    shapes: frozenset[tuple[int, ...]] = field(default=frozenset(), compare=False)
    """Shapes of every tensor that the rank made, forward and backward; engines differ in theirs."""

    def bytes(self, axis: str | None = None, phase: str | None = None) -> int:
        """Bytes of the events of an axis and a phase; None means all."""
        return sum(
            e.bytes
            for e in self.events
            if (axis is None or e.axis == axis) and (phase is None or e.phase == phase)
        )

    @property
    def by_axis(self) -> dict[str, int]:
        """Axis → bytes, in the order of first use."""
        return {axis: self.bytes(axis) for axis in dict.fromkeys(e.axis for e in self.events)}

    def pairs(self, phase: str = "forward") -> int:
        """(query, key) pairs handed to the attention kernels, for one head of one sequence."""
        return sum(c.pairs for c in self.attention if c.phase == phase)

    def __str__(self) -> str:
        lines = [f"rank {self.rank}: {count(self.events)}, {self.bytes():,} bytes"]
        width = max((len(e.kind) for e in self.events), default=0)
        for i, e in enumerate(self.events):
            lines.append(
                f"  {i:>3}  {e.phase:<9}  {e.kind:<{width}}  {e.axis:<2}  {list(e.shape)} {e.dtype}  "
                f"{e.bytes:,} B  ranks {', '.join(map(str, e.group))}"
            )
        return "\n".join(lines)

    __repr__ = __str__


def count(events: Sequence[CollectiveEvent]) -> str:
    """ "1 collective", "12 collectives"."""
    return f"{len(events)} collective{'s' * (len(events) != 1)}"


@dataclass(frozen=True)
class Place:
    """What the ranks of one axis hold of a tensor: pieces along `dim`, copies, or summands.

    kind: "piece", "copy", "summand"; a summand with a dim is one of a piece, which other ranks have as well.
    "own" where every rank has numbers of its own and the whole tensor is none of these.
    """

    kind: str
    dim: int | None = None


@dataclass(frozen=True)
class TapeStep:
    """One assignment of a program: what the tensor is globally, and what each rank holds of it.

    where: "function:line" counted from the function's first line. code: that line.
    global_shape: None where only the cut program gets there. local: rank → shape.
    places: axis → how its ranks hold the tensor; of shapes alone the pieces are known, and no more.
    error: rank → the genuine error that the line raised. why: what `check` says of the layout, or what is
    wrong with the tensor. cause: the error's cause and its arithmetic, by `lp.explain`.

    Where numbers were kept: values: rank → its tensor. at: rank → for each dim the ranges of the whole that
    the rank holds. reads: indexes of the steps whose tensors the line read. events: rank → collectives of
    the line. depth: 0 in the program itself, 1 in a helper that it calls. phase: one of PHASES.
    fault: "begins" at the first tensor that is not what one process has, "spreads" at later ones.
    """

    where: str
    code: str
    name: str
    global_shape: tuple[int, ...] | None
    local: Mapping[int, tuple[int, ...]]
    places: Mapping[str, Place] = field(default_factory=dict)
    error: Mapping[int, str] = field(default_factory=dict)
    why: str = ""
    cause: str = ""
    values: Mapping[int, Any] = field(default_factory=dict, compare=False, repr=False)
    at: Mapping[int, tuple[tuple[range, ...], ...]] = field(default_factory=dict)
    reads: tuple[int, ...] = ()
    events: Mapping[int, tuple[CollectiveEvent, ...]] = field(default_factory=dict)
    depth: int = 0
    phase: str = PHASES[0]
    fault: str = ""

    @property
    def cut(self) -> dict[int, tuple[str, ...]]:
        """dim → the axes that cut it."""
        found: dict[int, tuple[str, ...]] = {}
        for axis, place in self.places.items():
            if place.dim is not None:
                found[place.dim] = (*found.get(place.dim, ()), axis)
        return found

    @property
    def even(self) -> bool:
        """Whether all ranks hold the same shape."""
        return len(set(self.local.values())) <= 1

    @property
    def event(self) -> CollectiveEvent | None:
        """The line's first collective, as the first rank that takes part has it."""
        return next((events[0] for events in self.events.values() if events), None)


@dataclass(frozen=True, repr=False)
class Tape(Record):
    """Every assignment of a program, in order, with what each rank holds after it; the errors last.

    ranks: how many of the layout's `world` ranks were run. source: of the program, where numbers were kept.
    coords: rank → its index on each axis. sizes: names of dims → sizes.
    """

    program: str
    layout: str
    steps: tuple[TapeStep, ...]
    ranks: int
    world: int
    source: str = ""
    coords: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def errors(self) -> dict[int, str]:
        """rank → its error, in torch's own words."""
        return {rank: text for step in self.steps for rank, text in step.error.items()}

    @property
    def failed(self) -> TapeStep | None:
        """The first step that raised."""
        return next((step for step in self.steps if step.error), None)

    def step(self, name: str) -> TapeStep:
        """The last step that made `name`."""
        found = [step for step in self.steps if step.name == name]
        if not found:
            names = dict.fromkeys(step.name for step in self.steps if step.name)
            raise LlamaparError(f"no step made {name!r}", "", names, "name")
        return found[-1]

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        title = f"{self.program}, {self.layout}: shapes of {self.ranks} of {self.world} ranks"
        rows: list[list[object]] = []
        for step in self.steps:
            rows.append(
                [
                    f"{step.where} ✗" if step.error else step.where,
                    step.code,
                    step.name,
                    list(step.global_shape) if step.global_shape is not None else "",
                    ", ".join(f"dim {dim} by {'·'.join(axes)}" for dim, axes in sorted(step.cut.items())),
                    _by_shape(step),
                ]
            )
        why = "\n".join(filter(None, (self.failed.why, self.failed.cause))) if self.failed else ""
        return title, ["line", "code", "name", "global shape", "cut", "on a rank"], rows, why

    def _repr_html_(self) -> str:
        title, head, rows, foot = self._table()
        return html_table(title, head, rows, left=True, code=(1, 3)) + paragraphs(foot)


def _by_shape(step: TapeStep) -> str:
    if step.error:
        return _by_text(step.error)
    if step.even and step.local:
        return str(list(next(iter(step.local.values()))))
    return "; ".join(f"{list(shape)} on {some(ranks)}" for shape, ranks in grouped(step.local))


def _by_text(errors: Mapping[int, str]) -> str:
    return "; ".join(f"{some(ranks)}: {text}" for text, ranks in grouped(errors))


def grouped(of_ranks: Mapping[int, _T]) -> Iterator[tuple[_T, list[int]]]:
    """Each value once, in the order of its first rank, with the ranks that have it."""
    groups: dict[_T, list[int]] = {}
    for rank, value in of_ranks.items():
        groups.setdefault(value, []).append(rank)
    yield from groups.items()


def some(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0–7", "ranks 0, 2"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
