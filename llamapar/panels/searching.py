"""The search of the Plan tab: its question, its progress and its results, beside the current layout."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llamapar.count.account import micro_batches_of
from llamapar.count.terms import GIB
from llamapar.describe.hardware import DEFAULT_GPU, hardware
from llamapar.describe.options import Values
from llamapar.errors import LlamaparError
from llamapar.figures import View
from llamapar.figures.plan import Mark, picture
from llamapar.records.tables import Plain, plural
from llamapar.rules.memory_rule import load_of
from llamapar.rules.report import Report
from llamapar.timing.plan import Plan, plan, searching

from .answers import judge_name, sequence_of, step_cost, with_batch
from .background import CANCELLED, DONE, RUNNING, Background
from .controls import DEFAULTS, OWN
from .runs import card, figure_of

SHOWN = 120
"""Most layouts drawn: the fastest of those that pass and may fit."""

STEP = 0.15
"""Seconds between two reports of how far a search is."""


def question_of(report: Report) -> Values:
    """The arguments of `lp.plan` that ask for the job's layout, whatever it is. Raises LlamaparError."""
    job = with_batch(report.job)
    job.model.require_judged("a plan")
    return {
        "model": job.model,
        "gpus": job.gpus or job.layout.world,
        "seq_len": sequence_of(job),
        "global_batch": job.global_batch or micro_batches_of(job) * job.layout.dp,
        "gpu": job.gpu or hardware(DEFAULT_GPU),
        "schedule": job.schedule,
        "cp_method": job.cp_method,
        "kv_replication": job.kv_replication,
        "framework": judge_name(report),
    }


def title_of(question: Values) -> str:
    """One line: the subject of the search."""
    return (
        "layouts of {gpus:,} {gpu} for {model.name}: {global_batch:,} sequences of {seq_len:,} a step"
    ).format_map(question)


@dataclass(frozen=True)
class Search:
    """A question with the progress of its search."""

    question: Values
    state: str = RUNNING
    judged: int = 0
    passing: int = 0
    plan: Plan | None = None
    problem: LlamaparError | None = None


class Searcher(Background[Search]):
    """Searches in a thread; the latest question wins."""

    def start(self, question: Values) -> None:
        self._go(Search(question), lambda stop: self._work(question, stop), "search")

    def _work(self, question: Values, stop: threading.Event) -> Iterator[None]:
        now, shown_at = Search(question), time.monotonic()

        def progress(judged: int, passing: int) -> None:
            nonlocal now, shown_at
            time.sleep(0)  # Let the panel's own thread run first.
            if time.monotonic() - shown_at > STEP:
                shown_at = time.monotonic()
                now = replace(now, judged=judged, passing=passing)
                self._put(stop, now)

        # The search was stopped before its first layout.
        asked = plan(**question, cancel=lambda: True).asked
        found = yield from searching(asked, SHOWN, progress, stop.is_set)
        state = DONE if found.complete else CANCELLED
        self._put(stop, replace(now, state=state, plan=found))


def mark(name: str, report: Report | None) -> Mark | None:
    """The current layout as a point; None if it has no time or no memory."""
    if report is None or (held := load_of(report.job, report.judge)) is None:
        return None
    try:
        cost = step_cost(report.job, report.judge)
    except LlamaparError:
        return None
    needs = held.memory.worst.total_bytes
    legal = "" if report.ok else "; not legal, or does not fit"
    what = f"{cost.step_seconds:.3g} s, MFU {cost.mfu:.1%}, {needs / GIB:.1f} GiB"
    return Mark(name, needs, cost.step_seconds, f"{report.job.layout}<br>{what}{legal}")


def results_picture(now: Search, marks: list[Mark]) -> View | None:
    """The picture of the results; None before the end."""
    return View(*picture(now.plan, marks)) if now.plan else None


def search_as_dict(now: Search, marks: list[Mark]) -> Plain:
    """Plain values for the browser."""
    drawn = results_picture(now, marks)
    far = (
        f"{now.judged:,} layouts judged, {now.passing:,} of them pass and may fit"
        if now.judged
        else "estimating every layout"
    )
    if now.plan:
        far = f"{plural(now.plan.considered, 'layout')} considered in {now.plan.seconds:.1f} s"
    return {
        "state": now.state,
        "title": title_of(now.question),
        "far": far,
        "fraction": now.passing / SHOWN if now.judged else None,
        "problem": card(now.problem, DEFAULTS),
        **figure_of(drawn),
    }


def values_of_layout(found: Plan, place: int) -> Values:
    """The control values for a layout of a search."""
    one = found.layouts[place]
    lay = one.layout
    job = one.job
    settings: Values = {
        name: getattr(lay, name) for name in ("tp", "cp", "pp", "dp", "virtual_stages", "zero")
    }
    return settings | {
        "dp_replicate": 1,
        **{name: getattr(job, name) for name in ("micro_batch", "global_batch", "recompute", "schedule")},
        "gpus": found.gpus,
        "micro_batches": None,
        "batch_per_dp": None,
        "layer_split": job.layer_split or OWN,
    }
