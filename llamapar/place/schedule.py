"""`schedule`: the published pipeline schedules by name, and the errors where one is not defined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import starmap
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.job import only_flexible
from llamapar.describe.keywords import ScheduleKeywords
from llamapar.describe.layout import Layout
from llamapar.describe.options import Values
from llamapar.errors import MAX_DEGREE, Choice, LayoutError, one_of, whole
from llamapar.records.tables import plural

from .orders import ORDERS, Action, Operation, Order, ScheduleNumbers
from .pipeline import Schedule, rank_of
from .walk import Walk, walk

__all__ = ["MAX_ACTIONS", "Action", "Schedule", "schedule", "schedule_of"]

SETTLED = 4
"""Rounds after which each further one makes a pipeline later by the same time."""

MAX_ACTIONS = 2**20
"""The most operations in a table: a few hundred MB of Python objects."""

SEVERAL = {"1f1b": "interleaved-1f1b", "gpipe": "looped-bfs"}
"""Name of a one-stage schedule → its name with several stages a rank."""


def schedule_of(
    name: str, pp: int, virtual_stages: int, micro_batches: int, nc: int | None = None
) -> Schedule:
    """The schedule that a layout means by a name: over several stages 1f1b is interleaved, gpipe looped.

    Raises LayoutError as `schedule` does.
    """
    own = own_name(name, virtual_stages)
    return schedule(own, pp=pp, virtual_stages=virtual_stages, micro_batches=micro_batches, nc=nc)


def fewer_micro_batches(most: int, pp: int, virtual_stages: int) -> list[Choice]:
    """The most micro-batches with at most `most` forwards, in whole rounds of the pipeline; or none."""
    many = most // (pp * virtual_stages)
    if many > pp:
        many -= many % pp  # an interleaved schedule refuses a last round that is shorter
    if many:
        return [Choice.of(micro_batches=many)]
    return []


def own_name(name: str, virtual_stages: int) -> str:
    """A layout's schedule name → the name of the schedule with that many stages a rank."""
    if virtual_stages > 1:
        return SEVERAL.get(name, name)
    return name


@checked_options
def schedule(name: str, **options: Unpack[ScheduleKeywords]) -> Schedule:
    """A published pipeline schedule as a table: for each rank, its operations in order.

    name: gpipe, 1f1b, interleaved-1f1b, looped-bfs, interleaved-zero-bubble, zbv, dualpipev, or flexible
    (Llama 3's own). virtual_stages: stages of a rank; by default 1 for the first two and 2 for the others.
    nc: micro-batches that a stage takes in a row in the flexible schedule; by default pp.

    Raises LayoutError, with what would work, if the schedule is not defined for these numbers.
    """
    # Everything that can be refused by its numbers alone is refused here, before a table is made.
    order, plan = _planned(name, **Values(options))
    rows = tuple(tuple(starmap(Action, order.row(plan, rank))) for rank in range(plan.pp))
    own = None
    if name == "flexible":
        own = plan.round
    made = Schedule(name, plan.pp, plan.virtual_stages, plan.micro_batches, order.placement, rows, own)
    # Only this case can fail, and checking every table would walk all of it.
    if _last_round_is_short(name, plan) and made.problem:
        pp = plan.pp
        many = plan.micro_batches
        size = plan.round
        # Rounds that divide the micro-batches leave no short one; the two nearest to what was asked for are
        # offered.
        fitting = [n for n in range(pp, many + 1) if many % n == 0]
        raise LayoutError(
            f"{order.title} with {plural(many, 'micro-batch')} in rounds of nc={size}",
            f"the last round has {many % size}, fewer than pp={pp}: ranks would wait for one another",
            [Choice.of(nc=n) for n in sorted(fitting, key=lambda n: (abs(n - size), n))[:2]],
            "nc",
        )
    return made


def row_of(
    name: str, rank: int, pp: int, virtual_stages: int, micro_batches: int, nc: int | None = None
) -> tuple[Sequence[Operation], list[int]]:
    """One rank's row in the table of `schedule_of`, made without the other rows, and the rank's stages."""
    own = own_name(name, virtual_stages)
    order, plan = _planned(own, pp, virtual_stages, micro_batches, nc)
    if _last_round_is_short(own, plan):  # all of the table says whether it can run
        row: Sequence[Operation] = schedule_of(name, pp, virtual_stages, micro_batches, nc).ranks[rank]
    else:
        row = order.row(plan, rank)
    stages = range(pp * virtual_stages)
    return row, [stage for stage in stages if rank_of(stage, pp, order.placement) == rank]


def walk_of(name: str, pp: int, virtual_stages: int, micro_batches: int, nc: int | None = None) -> Walk:
    """An order in which the operations of `schedule_of`'s table can run.

    No records are made, because that takes longer than the walk. Raises LayoutError.
    """
    own = own_name(name, virtual_stages)
    plan = _planned(own, pp, virtual_stages, micro_batches, nc)[1]
    if _last_round_is_short(own, plan):
        return schedule_of(name, pp, virtual_stages, micro_batches, nc).walked
    return _walked(own, plan)


@lru_cache(maxsize=16)
def _walked(name: str, plan: ScheduleNumbers) -> Walk:
    rows = [ORDERS[name].row(plan, rank) for rank in range(plan.pp)]
    return walk(rows, plan.pp * plan.virtual_stages, plan.micro_batches)


def ends_of(
    name: str,
    pp: int,
    virtual_stages: int,
    micro_batches: int,
    nc: int | None,
    durations: Sequence[Mapping[str, float]],
    p2p: float,
) -> tuple[float, float]:
    """When `schedule_of`'s table is done: with instant transfers, and with transfers of p2p each.

    durations: for each stage, by kind of operation. Of many rounds only some are walked. Raises LayoutError.
    """
    own = own_name(name, virtual_stages)
    plan = _planned(own, pp, virtual_stages, micro_batches, nc)[1]
    rounds = plan.micro_batches // plan.round
    if rounds > 2 * SETTLED + 1 and not _last_round_is_short(own, plan):
        shorter = [plan.micro_batches - (rounds - n) * plan.round for n in (SETTLED, SETTLED + 1)]
        few, more = (_walked(own, replace(plan, micro_batches=n)).ends(durations, p2p) for n in shorter)
        later = [other - one for one, other in zip(few, more, strict=True)]
        work = [0.0] * pp
        for stage, takes in enumerate(durations):
            work[rank_of(stage, pp, ORDERS[own].placement)] += plan.round * (takes["F"] + takes["B"])
        # The busiest rank works without a pause from then on, or else the rest is no repetition.
        if all(math.isclose(one, max(work), rel_tol=1e-6) for one in later):
            return few[0] + (rounds - SETTLED) * later[0], few[1] + (rounds - SETTLED) * later[1]
    return walk_of(name, pp, virtual_stages, micro_batches, nc).ends(durations, p2p)


def _planned(
    name: str, pp: int, virtual_stages: int | None, micro_batches: int, nc: int | None
) -> tuple[Order, ScheduleNumbers]:
    """A schedule's order, and the numbers that it is made for. Raises LayoutError."""
    order = ORDERS[one_of("schedule", name, ORDERS)]
    pp = whole("pp", pp, 1, MAX_DEGREE)
    many = whole("micro_batches", micro_batches)
    # A schedule for any number of stages a rank gets 2, the fewest with which there is a second lap.
    v = order.virtual_stages or 2
    if virtual_stages is not None:
        v = whole("virtual_stages", virtual_stages, 1, MAX_DEGREE)
    # At most three operations for each stage and micro-batch: F, I and W.
    if 3 * pp * v * many > MAX_ACTIONS:
        what = f"{plural(many, 'micro-batch')} over pp·virtual_stages = {pp * v:,} stages"
        fewer = fewer_micro_batches(MAX_ACTIONS // 3, pp, v)
        raise LayoutError(what, f"a table has at most {MAX_ACTIONS:,} entries", fewer, "micro_batches")
    _require_its_own(name, order, pp, v, many)
    if nc is not None and name != "flexible":
        raise only_flexible(nc, order.title)
    if name == "flexible":
        size = whole("nc", min(pp, many) if nc is None else nc, 1, many)
        return order, ScheduleNumbers(pp, v, many, size)
    # Micro-batches that a stage takes in a row: pp, or slightly more so that rounds are equal.
    rounds = max(1, many // pp)
    if name.startswith("interleaved") and many % rounds:
        # Multiples of pp always make equal rounds of pp.
        near = [pp * (many // pp), pp * (many // pp + 1)]
        raise LayoutError(
            f"{order.title} with {plural(many, 'micro-batch')} for pp={pp}",
            f"its {rounds} rounds, of at least pp each, have to be equal",
            [Choice.of(micro_batches=n) for n in near],
            "micro_batches",
        )
    return order, ScheduleNumbers(pp, v, many, many // rounds)


def _require_its_own(name: str, order: Order, pp: int, v: int, many: int) -> None:
    """Refuses numbers of stages and micro-batches that the schedule is not made for."""
    needed: dict[str, object] = {}
    what = ""
    why = ""
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
        # These are GPipe and 1F1B, whose forms for several stages have names of their own.
        if order.placement == "loop":
            looped = "looped-bfs"
            if name == "1f1b":
                looped = "interleaved-1f1b"
            choices.append(Choice((("schedule", looped),), bare=True))
        raise LayoutError(what, why, choices, list(needed)[-1])


def _last_round_is_short(name: str, plan: ScheduleNumbers) -> bool:
    """Whether a short last round of Llama 3's schedule may leave ranks waiting for one another."""
    return name == "flexible" and 0 < plan.micro_batches % plan.round < plan.pp


def of_layout(
    asked: str | Schedule,
    layout: Layout,
    micro_batches: int | None,
    nc: int | None = None,
    global_batch: int | None = None,
) -> tuple[Schedule, Layout]:
    """The table of a layout's pipeline, and the layout with the table's stages a rank.

    A layout of one stage a rank leaves their number to the schedule. micro_batches: by default the table's
    own, or one for each sequence of global_batch, or the layout's usual number. Raises LayoutError if the
    schedule is not defined, or if a table belongs to another layout or cannot run.
    """
    v = layout.virtual_stages
    if micro_batches is not None:
        whole("micro_batches", micro_batches)
    elif isinstance(asked, Schedule):
        micro_batches = asked.micro_batches
    elif global_batch is not None:
        micro_batches = max(1, whole("global_batch", global_batch) // layout.dp)
    else:
        micro_batches = layout.usual_micro_batches
    if isinstance(asked, Schedule):
        table = asked.check()
    # A layout of several stages a rank means the looped form of the name; with one, the schedule's own
    # default decides.
    elif v > 1:
        table = schedule_of(asked, layout.pp, v, micro_batches, nc)
    else:
        table = schedule(asked, pp=layout.pp, micro_batches=micro_batches, nc=nc)
    own = {"pp": table.pp, "virtual_stages": table.virtual_stages, "micro_batches": table.micro_batches}
    # The layout's stages are compared only where it has several: one is also what an unset field holds.
    given = {"pp": layout.pp, "virtual_stages": v if v > 1 else own["virtual_stages"]}
    for field, value in (given | {"micro_batches": micro_batches}).items():
        if value != own[field]:
            raise LayoutError(
                f"{field}={value} for a schedule of {field}={own[field]}",
                "its table has a row for each rank, with every micro-batch at every stage",
                [Choice.of(**{field: own[field]})],
                field,
            )
    return table, layout.replace(virtual_stages=table.virtual_stages)
