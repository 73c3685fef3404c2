"""`plan`: every layout of some GPUs for a fixed batch, ranked by step time, with why the others lose.

`search` estimates all of them. Then `check`, `memory` and `cost` judge the fastest ones, and the order shown
is theirs. It does not depend on a starting point.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop
from itertools import islice
from typing import Unpack, cast

from llamapar.count.terms import FITS, GIB, TOO_MUCH, UNDECIDED, Memory
from llamapar.describe.arguments import checked_options
from llamapar.describe.hardware import Gpu, hardware
from llamapar.describe.job import Job
from llamapar.describe.keywords import PlanKeywords, PlanSettings
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.options import OPTIONS, Values
from llamapar.errors import LlamaparError, real, whole
from llamapar.frameworks import Framework, judge_of, recompute_of, split_of
from llamapar.frameworks.settings import takes_settings
from llamapar.records.tables import AsDict, Record
from llamapar.rules.memory_rule import memory_of
from llamapar.rules.report import check_job
from llamapar.rules.severity import codes, severities
from llamapar.rules.table import ERROR

from .cost import Cost, cost_of
from .layer import CONDITIONS, Conditions
from .ranking import TIGHT, Ranked, losses_and_gains, outcome_of, placed
from .search import Candidate, Degrees, Row, candidates, splits_of, unsearched

JUDGED, MOST_JUDGED = 24, 400
"""How many passing layouts the full functions judge, and how many if few of them leave the headroom."""

ALIKE = 2
"""How many passing layouts with equal degrees and recomputation are judged; the rest are variants of them."""

SLOW = 1.5
"""How many times the fastest layout's step is judged; nobody chooses a slower one."""

STEP = 500
"""How many layouts are estimated between two looks at whether to stop."""

Progress = Callable[[int, int], object]
"""Called with the number of layouts judged, and how many of them pass."""


@dataclass(frozen=True)
class PlanQuestion:
    """What a search is for: a job with GPUs, a batch and a schedule, and bytes of a GPU to keep free."""

    job: Job
    how: Conditions
    judge: Framework | None
    headroom: int

    def __post_init__(self) -> None:
        self.job.model.require_judged("a plan")

    @property
    def gpus(self) -> int:
        return self.job.gpus or 1

    def timed(self, job: Job) -> Cost:
        """The cost of a layout's step. Raises LlamaparError."""
        how = replace(self.how, recompute=recompute_of(self.judge, job.recompute))
        return cost_of(job, how)

    def candidates(self) -> Iterator[Row]:
        """Every layout of the search."""
        return candidates(self.job, self.how, self.gpus, self.judge)


@dataclass(frozen=True, repr=False)
class Plan(AsDict, Record):
    """Layouts by step time, the fastest first.

    considered: how many were estimated. seconds: that the search took. complete: nothing stopped it.
    """

    json_names = ("considered", "seconds", "complete", "layouts")

    asked: PlanQuestion = field(repr=False)
    layouts: tuple[Ranked, ...]
    considered: int
    seconds: float
    complete: bool

    @property
    def model(self) -> ModelConfig:
        return self.asked.job.model

    @property
    def gpus(self) -> int:
        return self.asked.gpus

    @property
    def gpu(self) -> Gpu:
        return self.asked.how.gpu

    @property
    def best(self) -> Ranked:
        """The fastest layout. Raises LlamaparError if none fits."""
        if not self.layouts:
            what = f"no layout of {self.gpus} {self.gpu.name} holds {self.model.name} with this batch"
            raise LlamaparError(what, "more GPUs, or a longer pipeline, would", ["a larger --gpus"], "gpus")
        return self.layouts[0]

    @property
    def frontier(self) -> tuple[Ranked, ...]:
        """The shown layouts for which no other is both faster and smaller, fastest first."""
        found: list[Ranked] = []
        for one in self.layouts:
            if not found or one.memory_bytes < found[-1].memory_bytes:
                found.append(one)
        return tuple(found)

    def why(
        self,
        layout: LayoutLike,
        micro_batch: int | None = None,
        recompute: str | None = None,
        schedule: str | None = None,
    ) -> str:
        """Why a layout loses to the fastest one, in one line. Raises LayoutError for an invalid layout.

        Arguments that are not given are taken from the fastest layout.
        """
        best = self.best
        judge = self.asked.judge
        size = micro_batch
        if micro_batch is None:
            size = best.job.micro_batch
        job = self.asked.job.replace(
            layout=Layout.of(layout),
            micro_batch=whole("micro_batch", size),
            recompute=OPTIONS["recompute"].chosen(recompute or best.job.recompute),
            schedule=OPTIONS["schedule"].chosen(schedule or best.job.schedule),
        )
        # The trainer's own split first; another only if this one is refused.
        ways = [job, *(job.replace(layer_split=split) for split in splits_of(judge)[1:])]
        job = next((way for way in ways if not codes(severities(way, judge), ERROR)), job)
        errors = [f for f in check_job(job, judge).arithmetic if f.severity == ERROR]
        if errors:
            return errors[0].message
        try:
            one = Ranked(job, self.asked.timed(job), memory_of(job, judge), self.asked.headroom)
        except LlamaparError as problem:
            return problem.what
        needs = f"{one.gib} of {self.gpu.hbm_bytes / GIB:.1f} GiB"
        if (outcome := one.held.within(self.gpu.hbm_bytes)) == TOO_MUCH:
            return f"stage {one.held.worst.stage} needs {needs}"
        undecided = ""
        if outcome == UNDECIDED:
            undecided = f"; whether it fits is undecided: {needs}"
        left_out = unsearched(job, self.asked.job, self.asked.how, judge)
        skipped = ""
        if left_out:
            skipped = f"; not searched: {left_out}"
        return losses_and_gains(one.cost, best.cost) + undecided + skipped

    @property
    def unsure(self) -> str:
        """How many of the shown layouts may not fit or are tight, in words; empty if none."""
        open_ones = [one for one in self.layouts if one.outcome == UNDECIDED]
        facts = " or ".join(dict.fromkeys(fact for one in open_ones for fact in one.held.open_facts))
        tight = sum(one.outcome == TIGHT for one in self.layouts)
        many = len(self.layouts)
        until = ""
        if facts:
            until = f" until {facts} is known"
        told = ""
        if open_ones:
            told = f"; {len(open_ones)} of {many} may not fit{until}"
        kept = (
            f"; {tight} of {many} tight: expected to leave less than {self.asked.headroom / GIB:.1f} GiB free"
        )
        return told + (kept if tight else "")

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        splits = any(one.job.layer_split for one in self.layouts)
        copies = any(one.layout.dp_replicate > 1 for one in self.layouts)
        for one in self.layouts:
            lay = one.layout
            job = one.job
            rows.append(
                [
                    one.place,
                    *(lay.tp, lay.cp, lay.pp, lay.dp, *([lay.dp_replicate] if copies else [])),
                    job.micro_batch,
                    lay.virtual_stages,
                    *([split_of(self.asked.judge, job.layer_split)] if splits else []),
                    lay.zero,
                    job.recompute,
                    f"{one.cost.step_seconds:.4g}",
                    f"{one.cost.mfu:.1%}",
                    one.gib,
                    one.outcome,
                    one.why,
                ]
            )
        title = f"{self.model.name} on {self.gpus} {self.gpu.name}: {self.considered:,} layouts"
        head = ["", "tp", "cp", "pp", "dp", *["copies"] * copies, "micro-batch", "virtual"]
        head += [*["layers"] * splits, "ZeRO", "recompute"]
        stopped = "; stopped, the best so far"
        if self.complete:
            stopped = ""
        foot = "none passes and fits"
        if self.layouts:
            foot = f"{self.seconds:.1f} s{stopped}{self.unsure}"
        return title, [*head, "seconds", "MFU", "GiB", "fits?", "why"], rows, foot


@takes_settings(PlanSettings)
@checked_options
def plan(
    model: ModelLike,
    gpus: int,
    *,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    **options: Unpack[PlanKeywords],
) -> Plan:
    """Layouts of some GPUs for a fixed batch, the fastest first: legal by `check`, timed by `cost`.

    A layout that certainly does not fit by `memory` is left out. One that `memory` leaves undecided stays and
    is marked; without a framework that is most of them, because it is unknown what the trainer keeps. Layouts
    whose steps differ by less than the error of `cost` share a place ("1="). Of layouts with the same degrees
    only the fastest is shown, and beside it the fastest that surely fits.

    model: as in `check`; the result of `read_settings` also gives GPUs, lengths and framework.
    gpus: how many; all are used. global_batch: sequences of a step, never changed. top: layouts to show.
        headroom: memory of a GPU that should stay free, below 1 a share, else GiB; layouts that need it come
        last, marked as tight. Other arguments: as in `cost`.
    progress: called with layouts judged, and how many pass. cancel: asked whether to stop with the best so
    far.

    It tries tp, cp, pp, dp, micro-batches of at most 16 sequences, virtual stages, ZeRO, HSDP and
    recomputation; with a framework, only its ZeRO stages, layer splits and HSDP.
    Raises LayoutError for bad input; LlamaparError for bad hardware.
    """
    found = hardware(options["gpu"])
    judge = judge_of(options["framework"])
    facts = Values({name: options[name] for name in _JOB})  # type: ignore[literal-required]
    gpus = whole("gpus", gpus, 1, OPTIONS["gpus"].most)
    job = Job.of(model, Layout(), gpus=gpus, micro_batch=1, gpu=found, **facts)
    asked = Values({name: options[name] for name in CONDITIONS})  # type: ignore[literal-required]
    how = Conditions.of(judge, found, "selective", **asked)
    free = real("headroom", options["headroom"], 0.0, found.hbm_bytes / GIB)
    question = PlanQuestion(job, how, judge, round(free * (GIB if free >= 1 else found.hbm_bytes)))
    return search(question, options["top"], progress, cancel)


_JOB = ("seq_len", "global_batch", "schedule", "grad_dtype", "kv_replication", "cp_method")
"""Options of `plan` that its job has as they are given."""


def search(
    asked: PlanQuestion,
    top: int,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Plan:
    """The Plan that answers a PlanQuestion."""
    steps = searching(asked, top, progress, cancel)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(Plan, end.value)


def searching(
    asked: PlanQuestion,
    top: int,
    progress: Progress | None,
    cancel: Callable[[], bool] | None,
) -> Generator[None, None, Plan]:
    """The same, one step at a time, for callers with other work in between."""
    started = time.perf_counter()
    every: list[Row] = []
    searched = asked.candidates()
    while several := list(islice(searched, STEP)):
        every += several
        if cancel is not None and cancel():
            break
        yield
    considered = len(every)
    # Those that are expected to fit first, by estimated seconds. Judging stops after enough of them, so the
    # order has to be right enough before the exact functions see it.
    heapify(every)
    passing: list[Ranked] = []
    tight: list[tuple[Job, Memory]] = []
    complete = cancel is None or not cancel()
    try:
        for judged, one in enumerate(_judged(every, asked, tight), 1):
            if one is not None:
                passing.append(one)
            many = len(passing) + len(tight)
            if progress is not None:
                progress(judged, many)
            distinct = len({one.degrees for one in passing})
            if many >= JUDGED and (distinct >= top or many >= MOST_JUDGED):
                break
            if cancel is not None and cancel():
                complete = False
                break
            yield
    except KeyboardInterrupt:
        complete = False
    # Whoever wants memory to stay free takes a slower layout for it, so those without headroom come last, and
    # are timed only if there is a place for them.
    for job, held in tight if len({one.degrees for one in passing}) < top else ():
        with suppress(LlamaparError):
            passing.append(Ranked(job, asked.timed(job), held, asked.headroom))
    passing.sort(key=lambda one: (one.outcome == TIGHT, one.cost.step_seconds))
    # Of equal degrees, the fastest and the fastest that surely fits; the other variants would fill the list.
    first: dict[Degrees, Ranked] = {}
    sure: dict[Degrees, Ranked] = {}
    for one in passing:
        # Ask for the lower bound last, because where facts are open it counts every trainer's.
        if one.degrees not in first and one.held.low_bytes <= asked.how.gpu.hbm_bytes:
            first[one.degrees] = one
        if one.outcome == FITS:
            sure.setdefault(one.degrees, one)
    kept = [one for one in passing if one in (first.get(one.degrees), sure.get(one.degrees))]
    shown = [
        replace(one, why=_why(one, kept[0]) if place else "the fastest")
        for place, one in enumerate(placed(kept[:top]))
    ]
    return Plan(asked, tuple(shown), considered, time.perf_counter() - started, complete)


def _why(one: Ranked, best: Ranked) -> str:
    """What a layout loses to the first one; of a faster one also why it stands below."""
    faster = one.cost.step_seconds < best.cost.step_seconds
    below = ""
    if faster:
        below = "; below, because it is tight"
    return losses_and_gains(one.cost, best.cost) + below


def _judged(
    every: list[Row], asked: PlanQuestion, tight: list[tuple[Job, Memory]]
) -> Iterator[Ranked | None]:
    """Each candidate judged by the full functions; None if it does not pass or does not fit.

    It is None, too, where a layout is tight, which goes to `tight`.
    """
    passed: Counter[tuple[object, ...]] = Counter()
    fastest = math.inf
    while every:
        candidate = Candidate._make(heappop(every))
        if candidate.seconds > SLOW * fastest:
            continue
        kind = (*candidate[2:6], candidate.recompute)
        # Tight ones are counted apart: a slower one of their kind may leave the headroom.
        if passed[kind] == ALIKE or passed[*kind, candidate.zero, TIGHT] == ALIKE:
            continue
        one = candidate.job(asked.job)
        found = None
        if not codes(severities(one, asked.judge), ERROR):
            with suppress(LlamaparError):  # a schedule that is not defined for it
                # Memory first, because a step's timeline takes longer.
                held = memory_of(one, asked.judge)
                outcome = outcome_of(held, asked.headroom)
                if outcome == TIGHT:
                    tight.append((one, held))
                    passed[*kind, candidate.zero, TIGHT] += 1
                elif outcome != TOO_MUCH:
                    found = Ranked(one, asked.timed(one), held, asked.headroom)
                    passed[kind] += 1
                    # A slower layout that leaves the headroom is worth more than a tight one.
                    fastest = min(fastest, found.cost.step_seconds)
        yield found
