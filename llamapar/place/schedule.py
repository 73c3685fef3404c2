"""Pipeline schedules as data: which rank runs what, in which order, and whether that can be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from llamapar.describe.arguments import named
from llamapar.errors import MAX_DEGREE, Choice, LayoutError, one_of, shown, whole
from llamapar.records.tables import Record, cut, plural

from .orders import ORDERS, Action, Order, Plan
from .walk import problem_of

MAX_ACTIONS = 2**20
"""Operations in a table at most: a few hundred MB of Python objects."""

_WRITTEN = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")
PLACEMENTS = ("loop", "v")


@dataclass(frozen=True, repr=False)
class Schedule(Record):
    """The order in which each pipeline rank runs its operations: a table with one row a rank.

    placement: "loop" puts stage s on rank s % pp; "v" goes up the ranks and down again.
    ranks: each rank's operations in order. An overlapped forward and backward are two entries.
    nc: micro-batches that a stage takes in a row, of the flexible schedule.

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
        """A schedule of one's own, a text for each rank: "0F0 0F1 0B0 0B1", as stage, kind, micro-batch.

        Raises LayoutError for an entry that is none; whether the table can run says `problem`.
        """
        if isinstance(rows, str) or not rows:
            raise LayoutError(f"rows={shown(rows)}: a text for each rank", field="ranks")
        table = tuple(tuple(map(_read, row.replace(",", " ").split())) for row in rows)
        every = [action for row in table for action in row]
        stages = max((action.stage for action in every), default=0) + 1
        many = max((action.micro_batch for action in every), default=0) + 1
        one_of("placement", placement, PLACEMENTS)
        return cls(name, len(table), -(-stages // len(table)), many, placement, table)

    @property
    def stages(self) -> int:
        """How many stages the pipeline has: pp·virtual_stages."""
        return self.pp * self.virtual_stages

    @property
    def title(self) -> str:
        """What it is called in a sentence."""
        return ORDERS[self.name].title if self.name in ORDERS else self.name

    def rank_of(self, stage: int) -> int:
        """The PP rank that holds a stage."""
        lap, place = divmod(stage, self.pp)
        return self.pp - 1 - place if self.placement == "v" and lap % 2 else place

    def stages_of(self, rank: int) -> list[int]:
        """The stages that a PP rank holds, in the order of the pipeline."""
        return [stage for stage in range(self.stages) if self.rank_of(stage) == rank]

    @cached_property
    def problem(self) -> LayoutError | None:
        """Why the table cannot run, as an error to raise; None where it can.

        Every operation has to stand once, on the rank of its stage, after what it needs, and no ranks may
        wait for one another.
        """
        return problem_of(self.ranks, self.rank_of, self.pp, self.stages, self.micro_batches)

    @property
    def ok(self) -> bool:
        return self.problem is None

    @property
    def reason(self) -> str:
        """Why it cannot run, in words; empty where it can."""
        return str(self.problem or "")

    def check(self) -> Schedule:
        """Itself if it can run; raises the LayoutError that says why not."""
        if self.problem:
            raise self.problem
        return self

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """The most chunks in flight on each rank: forwards whose backward, or whose W, has not run yet."""
        return tuple(max(self.flying(rank), default=0) for rank in range(self.pp))

    def flying(self, rank: int) -> list[int]:
        """Chunks in flight on a rank while each of its operations runs."""
        now, counts = 0, list[int]()
        for kind, _, _ in self.ranks[rank]:
            now += kind == "F"
            counts.append(now)
            now -= kind in "BW"
        return counts

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        v = f"·{self.virtual_stages}" if self.virtual_stages > 1 else ""
        title = f"{self.title}: {plural(self.micro_batches, 'micro-batch')} over pp={self.pp}{v}"
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


@named()
def schedule(
    name: str, *, pp: int = 1, virtual_stages: int | None = None, micro_batches: int, nc: int | None = None
) -> Schedule:
    """A pipeline schedule of the field as a table: for each rank, its operations in order.

    name: gpipe, 1f1b, interleaved-1f1b, looped-bfs, interleaved-zero-bubble, zbv, dualpipev, or flexible,
    Llama 3's own. virtual_stages: stages of a rank; unless said, 1 for the first two and 2 for the others.
    nc: micro-batches that a stage takes in a row in the flexible schedule; unless said, pp of them.

    Raises LayoutError, with what would do, where the schedule is not defined.
    """
    order = ORDERS[one_of("schedule", name, ORDERS)]
    pp = whole("pp", pp, 1, MAX_DEGREE)
    many = whole("micro_batches", micro_batches)
    v = order.virtual_stages or 2
    if virtual_stages is not None:
        v = whole("virtual_stages", virtual_stages, 1, MAX_DEGREE)
    if 3 * pp * v * many > MAX_ACTIONS:
        what = f"{plural(many, 'micro-batch')} over pp·virtual_stages = {pp * v:,} stages"
        raise LayoutError(what, f"a table has at most {MAX_ACTIONS:,} entries", field="micro_batches")
    _require_its_own(name, order, pp, v, many)
    if nc is not None and name != "flexible":
        why = "nc is of the flexible schedule; the others choose their rounds themselves"
        raise LayoutError(f"nc={shown(nc)} with {order.title}", why, [Choice.of(schedule="flexible")], "nc")
    size = _round(name, order, pp, many)
    if name == "flexible":
        size = whole("nc", min(pp, many) if nc is None else nc, 1, many)
    plan = Plan(pp, v, many, size)
    rows = tuple(tuple(order.row(plan, rank)) for rank in range(pp))
    made = Schedule(name, pp, v, many, order.placement, rows, size if name == "flexible" else None)
    if name == "flexible" and 0 < many % size < pp and made.problem:
        raise _short_last_round(order, pp, many, size)
    return made


def _require_its_own(name: str, order: Order, pp: int, v: int, many: int) -> None:
    """Refuses numbers of stages and micro-batches that the schedule is not made for."""
    needed: dict[str, object] = {}
    what, why = "", ""
    if name == "dualpipev" and many < 2 * pp:
        needed["micro_batches"] = 2 * pp
        what = f"{order.title} with {plural(many, 'micro-batch')} for {2 * pp} stages"
        why = "it needs at least one for every stage"
    if order.virtual_stages not in (None, v):
        needed["virtual_stages"] = order.virtual_stages
        what = f"{order.title} with virtual_stages={v}"
        why = f"it has {order.virtual_stages} on each rank"
    if needed:
        choices = [Choice.of(**needed)]
        if order.placement == "loop":
            choices.append(Choice.of(schedule="interleaved-1f1b" if name == "1f1b" else "looped-bfs"))
        raise LayoutError(what, why, choices, list(needed)[-1])


def _round(name: str, order: Order, pp: int, many: int) -> int:
    """Micro-batches that a stage takes in a row: pp or a little more, so that rounds are equal."""
    rounds = max(1, many // pp)
    if name.startswith("interleaved") and many % rounds:
        near = [pp * (many // pp), pp * (many // pp + 1)]
        raise LayoutError(
            f"{order.title} with {plural(many, 'micro-batch')} for pp={pp}",
            f"its {rounds} rounds, of at least pp each, have to be equal",
            [Choice.of(micro_batches=n) for n in near],
            "micro_batches",
        )
    return many // rounds


def _short_last_round(order: Order, pp: int, many: int, size: int) -> LayoutError:
    fitting = [n for n in range(pp, many + 1) if many % n == 0]
    return LayoutError(
        f"{order.title} with {plural(many, 'micro-batch')} in rounds of nc={size}",
        f"the last round has {many % size}, fewer than pp={pp}: ranks would wait for one another",
        [Choice.of(nc=n) for n in sorted(fitting, key=lambda n: (abs(n - size), n))[:2]],
        "nc",
    )
