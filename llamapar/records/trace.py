"""Records of what a run did: collectives, attention calls and the shape tape. No torch.

`execution` writes them; figures, panels and the command read them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from llamapar.errors import LlamaparError

from .tables import AsDict, Plain, Record, html_table, noun, paragraphs

_T = TypeVar("_T")

PHASES = ("forward", "backward", "gradients", "update")
"""In order: the program's forward and backward, the reduction of parameter gradients, the weight update."""


def sent_bytes(kind: str, payload: int, ranks: int, kept: int | None = None) -> int:
    """Bytes that leave one rank in a collective of `ranks` ranks, by a ring: what llamapar calls "sent".

    payload: bytes of the tensor: of the rank's output for an all-gather, of its input for every other kind.
    kept: bytes of an all-to-all that stay on the rank; by default 1/n. A broadcast, and every other kind with
    a root, sends at most its tensor, and this is the number here.

    Source of the factors: NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus Bandwidth".
    """
    if kind == "recv" or ranks == 1:
        return 0
    if kept is not None:
        return payload - kept
    if kind == "all_reduce":  # a reduce-scatter, then an all-gather
        return 2 * (ranks - 1) * payload // ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) * payload // ranks
    return payload


@dataclass(frozen=True)
class CollectiveEvent(AsDict):
    """One collective in which a rank took part.

    kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", …. axis: the mesh axis of the group.
    group: global ranks; of a send or recv, the rank itself and its peer. shape: of the rank's input.
    payload, kept: as in `sent_bytes`.
    """

    json_names = ("kind", "axis", "group", "shape", "dtype", "payload", "sent", "phase")

    kind: str
    axis: str
    group: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    payload: int
    phase: str
    kept: int | None = None

    @property
    def sent(self) -> int:
        """Bytes that leave the rank."""
        return sent_bytes(self.kind, self.payload, len(self.group), self.kept)

    def __str__(self) -> str:
        return f"{self.kind} over {self.axis}, {list(self.shape)} {self.dtype}"


def causal_pairs(positions: range, keys: range | None = None) -> int:
    """The number of (query, key) pairs under a causal mask, for queries at `positions`: the sum of p + 1.

    keys: positions of the keys present; by default all from 0 on.
    """
    there = range(positions.stop) if keys is None else keys

    def before(position: int) -> int:
        # Queries 0..position-1: those within the keys see 1, 2, 3, … of them, and those past the keys see
        # all.
        queries_past = max(0, position - there.start)
        partly = min(queries_past, len(there))
        return math.comb(partly + 1, 2) + (queries_past - partly) * len(there)

    # Prefix sums keep this exact and instant for a sequence of millions of tokens.
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
        """(query, key) pairs that the kernel received, for one head of one sequence."""
        if self.causal:
            return causal_pairs(range(self.queries))
        return self.queries * self.keys


class Sends:
    """What a rank sends in `events`, each with an axis, a phase and the bytes sent, added up."""

    @property
    def events(self) -> Sequence[Any]:
        raise NotImplementedError

    def bytes(self, axis: str | None = None, phase: str | None = None) -> int:
        """Bytes that the rank sends on an axis in a phase; None means all."""
        mine = (e for e in self.events if axis in (None, e.axis) and phase in (None, e.phase))
        return sum(e.sent for e in mine)

    @property
    def by_axis(self) -> dict[str, int]:
        """Axis → bytes that the rank sends, in the order of first use."""
        return {axis: self.bytes(axis) for axis in dict.fromkeys(e.axis for e in self.events)}

    @property
    def axes_in_words(self) -> str:
        """Bytes sent by axis: "tp 1,024 B, cp 512 B"; empty where nothing is sent."""
        return ", ".join(f"{axis} {size:,} B" for axis, size in self.by_axis.items())


@dataclass(frozen=True)
class Trace(AsDict, Sends):
    """The collectives and attention calls of one rank, in order."""

    json_names = ("rank", "events")

    rank: int
    events: tuple[CollectiveEvent, ...] = ()
    attention: tuple[AttentionCall, ...] = ()
    shapes: frozenset[tuple[int, ...]] = field(default=frozenset(), compare=False)
    """Shapes of all tensors that the rank made, forward and backward; they differ between engines."""

    @property
    def by_kind(self) -> list[Plain]:
        """{"axis", "kind", "count", "bytes"} of everything the rank sends, in the order of first use."""
        found: dict[tuple[str, str], Plain] = {}
        for event in self.events:
            key = event.axis, event.kind
            row = found.setdefault(key, {"axis": event.axis, "kind": event.kind, "count": 0, "bytes": 0})
            row["count"] += 1
            row["bytes"] += event.sent
        return list(found.values())

    def pairs(self, phase: str = "forward") -> int:
        """(query, key) pairs that attention kernels received in a phase, for one head of one sequence."""
        return sum(c.pairs for c in self.attention if c.phase == phase)

    def __str__(self) -> str:
        lines = [f"rank {self.rank}: {collectives_in_words(self.events)}, {self.bytes():,} bytes sent"]
        width = max((len(e.kind) for e in self.events), default=0)
        for i, e in enumerate(self.events):
            lines.append(
                f"  {i:>3}  {e.phase:<9}  {e.kind:<{width}}  {e.axis:<2}  {list(e.shape)} {e.dtype}  "
                f"{e.payload:,} B, sends {e.sent:,} B  ranks {', '.join(map(str, e.group))}"
            )
        return "\n".join(lines)

    __repr__ = __str__


def sent_in_words(trace: Trace) -> str:
    """What a rank sends, in a line: "rank 0: 12 collectives: tp 1,024 B, cp 512 B"."""
    words = [collectives_in_words(trace.events), trace.axes_in_words]
    return f"rank {trace.rank}: {': '.join(filter(None, words))}"


def collectives_in_words(events: Sequence[CollectiveEvent]) -> str:
    """How many collectives, in words: "1 collective", "12 collectives"."""
    return f"{len(events)} {noun(len(events), 'collective')}"


@dataclass(frozen=True)
class Place:
    """How the ranks of one axis hold a tensor: as pieces along `dim`, as copies, or as summands.

    kind: "piece", "copy" or "summand". A summand with a dim is a summand of a piece.
    "own": every rank has different numbers that do not make up the whole tensor in any of these ways.
    """

    kind: str
    dim: int | None = None


@dataclass(frozen=True)
class TapeStep(AsDict):
    """One assignment of a program: the tensor's global shape, and what each rank holds of it.

    where: "function:line", counted from the function's first line. code: that line.
    global_shape: None if only the sharded program reaches the line. local: rank → shape.
    places: axis → how its ranks hold the tensor. From shapes alone only pieces are known.
    error: rank → the genuine error that the line raised. why: the verdict of `check` on the layout, or what
    is wrong with the tensor. cause: the error's cause and its arithmetic, by `lp.explain`.

    If the run kept numbers: values: rank → its tensor. whole: one process's tensor. agrees: whether the ranks
    together hold that, as `places` say. at: rank → for each dim, the ranges of the whole tensor that the rank
    holds. reads: indexes of the steps whose tensors the line read. events: rank → collectives of the line.
    depth: 0 in the program itself, 1 in a helper that it calls. phase: one of PHASES.
    fault: "begins" at the first tensor that differs from one process, "spreads" at later ones.
    """

    json_names = ("where", "code", "name", "global_shape", "local", "cut", "error", "why", "cause")

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
    whole: Any = field(default=None, compare=False, repr=False)
    agrees: bool = False

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
        """The line's first collective, as the first participating rank recorded it; None without one."""
        return next((events[0] for events in self.events.values() if events), None)


@dataclass(frozen=True, repr=False)
class Tape(AsDict, Record):
    """Every assignment of a program, in order, with what each rank holds after it; errors come last.

    ranks: how many of the layout's `world` ranks ran. source: the program's code, if the run kept numbers.
    coords: rank → its index on each axis. sizes: names of dims → sizes.
    """

    json_names = ("program", "layout", "ranks", "world", "steps")

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
        """The first step that raised; None if none did."""
        return next((step for step in self.steps if step.error), None)

    def step(self, name: str) -> TapeStep:
        """The last step that assigned `name`. Raises LlamaparError if no step did."""
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
        why = ""
        if self.failed:
            why = "\n".join(filter(None, (self.failed.why, self.failed.cause)))
        return title, ["line", "code", "name", "global shape", "cut", "on a rank"], rows, why

    def _repr_html_(self) -> str:
        title, head, rows, foot = self._table()
        return html_table(title, head, rows, left=True, code=(1, 3)) + paragraphs(foot)


def _by_shape(step: TapeStep) -> str:
    if step.error:
        return "; ".join(f"{some(ranks)}: {text}" for text, ranks in grouped(step.error))
    if step.even and step.local:
        return str(list(next(iter(step.local.values()))))
    return "; ".join(f"{list(shape)} on {some(ranks)}" for shape, ranks in grouped(step.local))


def grouped(of_ranks: Mapping[int, _T]) -> Iterator[tuple[_T, list[int]]]:
    """Each distinct value with the ranks that have it, in the order of its first rank."""
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
