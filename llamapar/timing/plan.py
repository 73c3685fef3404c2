"""`plan`: every layout of some GPUs for a fixed batch, ranked by step time, with why the others lose.

`search` estimates all of them. Then `check`, `memory` and `cost` judge the fastest ones, and the order shown
is theirs. It does not depend on a starting point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import cast

from llamapar.count.terms import FITS, GIB, TOO_MUCH, Memory
from llamapar.describe.arguments import checked_options
from llamapar.describe.hardware import DEFAULT_GPU, Gpu, GpuLike, hardware
from llamapar.describe.job import Job
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.options import OPTIONS
from llamapar.errors import LlamaparError, flag, real, whole
from llamapar.frameworks import Framework, recompute_of
from llamapar.frameworks import framework as find_framework
from llamapar.frameworks.settings import takes_settings
from llamapar.records.tables import AsDict, Plain, Record
from llamapar.rules.fix_search import codes, severities
from llamapar.rules.memory_rule import memory_of
from llamapar.rules.report import check_job
from llamapar.rules.table import ERROR

from .cost import Cost, PlanSettings, cost_of
from .layer import Conditions
from .search import EVERY_SCHEDULE, Candidate, candidates, splits_of

JUDGED = 50
"""How many passing layouts are judged by the full functions."""

MOST_PRICE = 1e6
"""The highest price of a GPU-hour that is accepted, in any currency."""

Progress = Callable[[int, int], object]
"""Called with the number of layouts judged, and how many of them pass."""


@dataclass(frozen=True)
class Ranked:
    """A layout that passes `check` and may fit, with its time and its `memory`."""

    job: Job
    cost: Cost
    held: Memory = field(repr=False)
    why: str = ""

    @property
    def memory_bytes(self) -> int:
        """The shown memory of its worst stage."""
        return self.held.worst.total_bytes

    @property
    def high_bytes(self) -> int:
        """Upper bound on the memory of its worst stage."""
        return self.held.high_bytes

    @property
    def outcome(self) -> str:
        """FITS, or UNDECIDED until more is known."""
        return self.held.within(self.cost.gpu.hbm_bytes)

    @property
    def gib(self) -> str:
        """Memory of its worst stage, in words; both ends of the range if they leave it undecided."""
        if self.outcome == FITS:
            return f"{self.memory_bytes / GIB:.1f}"
        return f"{self.held.low_bytes / GIB:.1f} to {self.high_bytes / GIB:.1f}"

    @property
    def layout(self) -> Layout:
        return self.job.layout

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        names = ("tp", "cp", "pp", "dp", "micro_batch", "virtual_stages", "schedule", "layer_split", "zero")
        of_layout = self.layout.__dataclass_fields__
        return {
            **{name: getattr(self.layout if name in of_layout else self.job, name) for name in names},
            "recompute": self.job.recompute,
            "step_seconds": self.cost.step_seconds,
            "mfu": self.cost.mfu,
            "memory_gib": self.memory_bytes / GIB,
            "least_gib": self.held.low_bytes / GIB,
            "most_gib": self.high_bytes / GIB,
            "outcome": self.outcome,
            "why": self.why,
        }


@dataclass(frozen=True)
class PlanQuestion:
    """What a search is for. job: a model, GPUs, a batch and a schedule. schedules: those to try."""

    job: Job
    how: Conditions
    judge: Framework | None
    schedules: tuple[str, ...]
    most_tp: int | None

    @property
    def gpus(self) -> int:
        return self.job.gpus or 1

    def timed(self, job: Job) -> Cost:
        """The cost of a layout's step. Raises LlamaparError."""
        split = job.layer_split or splits_of(self.judge)[0]
        how = replace(self.how, recompute=recompute_of(self.judge, job.recompute))
        return cost_of(job, how, split)

    def candidates(self) -> Iterator[Candidate]:
        """Every layout, for all schedules; without a pipeline schedules do not differ, so one is tried."""
        largest = self.gpus if self.most_tp is None else self.most_tp
        for name in self.schedules:
            for one in candidates(self.job.replace(schedule=name), self.how, self.gpus, largest, self.judge):
                if name == self.schedules[0] or one.pp > 1:
                    yield one


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

    def gpu_hours(self, tokens: float) -> float:
        """GPU-hours that `tokens` tokens take with the fastest layout."""
        return tokens / self.best.cost.tokens_per_second_per_gpu / 3600

    def money(self, tokens: float, price: float) -> float:
        """The cost of those GPU-hours, in the currency of `price`, which is for one GPU-hour."""
        return self.gpu_hours(tokens) * real("price", price, 0.0, MOST_PRICE)

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
        best, judge = self.best, self.asked.judge
        size = best.job.micro_batch if micro_batch is None else micro_batch
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
            one = Ranked(job, self.asked.timed(job), memory_of(job, judge))
        except LlamaparError as problem:
            return problem.what
        needs = f"{one.gib} of {self.gpu.hbm_bytes / GIB:.1f} GiB"
        if one.outcome == TOO_MUCH:
            return f"stage {one.held.worst.stage} needs {needs}"
        undecided = "" if one.outcome == FITS else f"; whether it fits is {one.outcome}: {needs}"
        return slower_term(one.cost, best.cost) + undecided

    @property
    def unsure(self) -> str:
        """How many of the shown layouts may not fit, in words; empty if all certainly fit."""
        open_ones = [one for one in self.layouts if one.outcome != FITS]
        facts = dict.fromkeys(fact for one in open_ones for fact in one.held.open_facts)
        told = f"{len(open_ones)} of {len(self.layouts)} may not fit until {' or '.join(facts)} is known"
        return f"; {told}" if open_ones else ""

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        several = any(one.job.schedule != self.asked.job.schedule for one in self.layouts)
        splits = any(one.job.layer_split for one in self.layouts)
        for place, one in enumerate(self.layouts, 1):
            lay, job = one.layout, one.job
            rows.append(
                [
                    place,
                    *(lay.tp, lay.cp, lay.pp, lay.dp, job.micro_batch, lay.virtual_stages),
                    *([job.schedule] if several else []),
                    *([job.layer_split or splits_of(self.asked.judge)[0]] if splits else []),
                    *(lay.zero, job.recompute),
                    f"{one.cost.step_seconds:.4g}",
                    f"{one.cost.mfu:.1%}",
                    *(one.gib, one.outcome),
                    one.why,
                ]
            )
        title = f"{self.model.name} on {self.gpus} {self.gpu.name}: {self.considered:,} layouts"
        head = ["", "tp", "cp", "pp", "dp", "micro-batch", "virtual", *["schedule"] * several]
        head += [*["layers"] * splits, "ZeRO", "recompute"]
        stopped = "" if self.complete else "; stopped, the best so far"
        foot = f"{self.seconds:.1f} s{stopped}{self.unsure}" if self.layouts else "none passes and fits"
        return title, [*head, "seconds", "MFU", "GiB", "fits?", "why"], rows, foot


def slower_term(one: Cost, best: Cost) -> str:
    """The term that slows one step most against another, with both numbers."""
    more = one.step_seconds / best.step_seconds - 1
    names = dict.fromkeys([*one.seconds, *best.seconds])
    lost = {name: one.seconds.get(name, 0.0) - best.seconds.get(name, 0.0) for name in names}
    worst = max(lost, key=lambda name: lost[name])
    told = f"{one.seconds.get(worst, 0.0):.3g} s of {worst} instead of {best.seconds.get(worst, 0.0):.3g}"
    lay = one.layout
    crosses = lay.tp * lay.stride("tp") > one.gpu.domain and worst == "exposed TP"
    place = f"tp={lay.tp} crosses the node: " if crosses else ""
    return f"{place}{told}; {abs(more):.1%} {'slower' if more >= 0 else 'faster'}"


@takes_settings(PlanSettings)
@checked_options
def plan(
    model: ModelLike,
    gpus: int,
    *,
    seq_len: int,
    global_batch: int,
    gpu: GpuLike = DEFAULT_GPU,
    schedule: str = "1f1b",
    precision: str = "bfloat16",
    kernels: str = "fused",
    flash: str = "fa3",
    overlap_tp: bool = False,
    cp_method: str = "all_gather",
    kv_replication: bool = False,
    profile: str | None = None,
    most_tp: int | None = None,
    all_schedules: bool = False,
    top: int = 10,
    framework: str | Framework | None = None,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Plan:
    """Layouts of some GPUs for a fixed batch, the fastest first: legal by `check`, timed by `cost`.

    A layout that certainly does not fit by `memory` is left out. One that `memory` leaves undecided stays and
    is marked; without a framework that is most of them, because it is unknown what the trainer keeps.

    model: as in `check`; the result of `read_settings` also gives GPUs, lengths and framework.
    gpus: how many; all are used. global_batch: sequences of a step, never changed. top: layouts to show.
        most_tp: the largest TP that is tried. all_schedules: try other schedules beside `schedule`.
        Other arguments: as in `cost`.
    progress: called with layouts judged, and how many pass. cancel: asked whether to stop with the best so
    far.

    It tries tp, cp, pp, dp, micro-batches of at most 8 sequences, virtual stages, ZeRO and recomputation;
    with a framework, only its ZeRO stages and layer splits.
    Raises LayoutError for bad input; LlamaparError for bad hardware.
    """
    found = hardware(gpu)
    for name, value in (("precision", precision), ("flash", flash), ("cp_method", cp_method)):
        OPTIONS[name].chosen(value)
    judge = None if framework is None else find_framework(framework)
    job = Job.of(
        model,
        Layout(),
        gpus=whole("gpus", gpus, 1, OPTIONS["gpus"].most),
        seq_len=seq_len,
        global_batch=global_batch,
        schedule=schedule,
        gpu=found,
        kv_replication=flag("kv_replication", kv_replication),
    )
    how = replace(
        Conditions.of(judge, found, "selective", profile),
        precision=precision,
        kernels=kernels,
        flash=flash,
        overlap_tp=flag("overlap_tp", overlap_tp),
        cp_method=cp_method,
    )
    largest = None if most_tp is None else whole("most_tp", most_tp)
    others = EVERY_SCHEDULE if flag("all_schedules", all_schedules) else ()
    schedules = (schedule, *(name for name in others if name != schedule))
    question = PlanQuestion(job, how, judge, schedules, largest)
    return search(question, whole("top", top), progress, cancel)


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
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Generator[None, None, Plan]:
    """The same, one layout at a time, for callers with other work in between."""
    started = time.perf_counter()
    every: list[Candidate] = []
    for candidate in asked.candidates():
        if cancel is not None and cancel():
            break
        every.append(candidate)
        yield
    # By estimated seconds, the first field. Judging stops after enough of the fastest, so the order has
    # to be right enough before the exact functions see it.
    every.sort()
    passing: list[Ranked] = []
    complete = cancel is None or not cancel()
    try:
        for judged, one in enumerate(_judged(every, asked), 1):
            passing += [] if one is None else [one]
            if progress is not None:
                progress(judged, len(passing))
            if len(passing) == max(JUDGED, top):
                break
            if cancel is not None and cancel():
                complete = False
                break
            yield
    except KeyboardInterrupt:
        complete = False
    passing.sort(key=lambda one: one.cost.step_seconds)
    shown = [
        replace(one, why=slower_term(one.cost, passing[0].cost) if place else "the fastest")
        for place, one in enumerate(passing[:top])
    ]
    return Plan(asked, tuple(shown), len(every), time.perf_counter() - started, complete)


def _judged(every: list[Candidate], asked: PlanQuestion) -> Iterator[Ranked | None]:
    """Each candidate judged by the full functions; None if it does not pass or does not fit."""
    how, judge = asked.how, asked.judge
    for candidate in every:
        one = candidate.job(asked.job)
        found = None
        if not codes(severities(one, judge), ERROR):
            with suppress(LlamaparError):  # a schedule that is not defined for it
                held = memory_of(one, judge)
                if held.within(how.gpu.hbm_bytes) != TOO_MUCH:
                    found = Ranked(one, asked.timed(one), held)
        yield found
