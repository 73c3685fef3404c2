"""Remedies that make a job fit its GPU, found by trying: each passes `check`, and fits as far as is known."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice, product

from llamapar.count.saved import RECOMPUTE
from llamapar.describe.hardware import OFFERED
from llamapar.describe.job import Job
from llamapar.frameworks import Framework, recompute_of
from llamapar.place.orders import ALL_FORWARD_FIRST

from . import memory_rule
from .fix_search import Fix, changed_job, passing_fixes
from .nearby import layouts
from .repairs import Changes

MOST = 4
"""The most remedies offered."""


def remedies(job: Job, judge: Framework | None = None) -> Iterator[Fix]:
    """At most MOST ways to make a job fit its GPU, the smallest change first; none if nothing does.

    One thing is changed at a time, then two, then the whole layout. A change that was enough by itself is not
    combined with others. If nothing certainly fits, a job that certainly does not fit gets remedies that may
    fit, first those whose shown estimate fits. Another GPU is offered only if no layout of the present ones
    was found. A remedy brings no new warning.
    """
    found = memory_rule.finding_of(job, judge)
    if job.gpu is None or found is None:
        return
    # Filled while the search runs: _tries is lazy, so each remedy found prunes the combinations after it.
    enough: list[set[str]] = []
    # Three standards, strictest first: surely fits; the shown estimate fits; it may fit. The next is
    # asked only if nothing met the one before.
    sure, shown, perhaps = (memory_rule.OPEN, False), (found[0], False), (found[0], True)
    # A job that is itself undecided is not helped by another undecided one.
    asked = [sure] if found[0] == memory_rule.OPEN else [sure, shown, perhaps]
    for (ends, undecided), tries in (*product(asked, (_settings, _elsewhere)), (sure, _bought)):
        for fix in islice(passing_fixes(job, tries(job, judge, enough), judge, ends, undecided), MOST):
            enough.append({name for name, _ in fix.changes})
            yield fix
        if enough:
            return


def _tries(job: Job, single: list[Changes], enough: list[set[str]]) -> Iterator[Fix]:
    """One change, then two, but none combined with what was `enough` by itself."""
    for changes in (*single, *_pairs(single)):
        made = changed_job(job, changes)
        # The test is inside the loop, so it sees what was found while the loop ran.
        if made is not None and not any(found <= changes.keys() for found in enough):
            yield Fix(made, tuple(changes.items()))


def _settings(job: Job, judge: Framework | None, enough: list[set[str]]) -> Iterator[Fix]:
    yield from _tries(job, list(_single(job, judge)), enough)


def _bought(job: Job, judge: Framework | None, enough: list[set[str]]) -> Iterator[Fix]:
    """Larger GPUs, alone and with one other change."""
    larger: list[Changes] = [{"gpu": gpu} for gpu in OFFERED if job.gpu and gpu.hbm_bytes > job.gpu.hbm_bytes]
    yield from _tries(job, [*larger, *_single(job, judge)], enough)


def _elsewhere(job: Job, judge: Framework | None, enough: list[set[str]]) -> Iterator[Fix]:
    """Other layouts of the same GPUs, the nearest first: as they are, or with settings that keep least."""
    stages, splits = (judge.zero, judge.layer_splits) if judge else (range(4), ())
    # ZeRO is only raised: a lower stage holds more.
    zeros = [job.layout.zero, *(stage for stage in stages if stage > job.layout.zero)]
    least: Changes = {"recompute": RECOMPUTE[-1], "micro_batch": 1 if job.micro_batch else None}
    for layout in layouts(job, job.gpus or job.layout.world):
        for zero, split, changes in product(zeros, (job.layer_split, *splits), ({}, least)):
            made = changed_job(job.replace(layout=layout), {"zero": zero, "layer_split": split, **changes})
            if made is not None:
                yield Fix.between(job, made)


def _single(job: Job, judge: Framework | None) -> Iterator[Changes]:
    """One change, the cheapest first: those that cost little time, then layouts."""
    lay, batch = job.layout, job.micro_batch or 1
    if lay.tp > 1 and not lay.sp:
        yield {"sequence_parallel": True}
    if job.schedule in ALL_FORWARD_FIRST:
        yield {"schedule": "1f1b"}
    # ZeRO shares over these ranks; with one of them there is nothing to share.
    if lay.dp_shard * lay.cp > 1:
        stages = judge.zero if judge else range(4)
        yield from ({"zero": stage} for stage in stages if stage > lay.zero)
    # A given number of micro-batches fixes the micro-batch's size, so it may not be halved.
    if batch > 1 and job.micro_batches is None:
        yield {"micro_batch": batch // 2}
    # Modes are ordered by what they recompute; a mode that keeps more cannot help.
    now = RECOMPUTE.index(recompute_of(judge, job.recompute))
    yield from ({"recompute": mode} for mode in RECOMPUTE[now + 1 :])
    # Ranks are taken from DP, so that the GPUs stay as many as they are.
    for ways in (2, 4, 8):
        for axis in ("tp", "pp", "cp"):
            if lay.dp % ways == 0:
                yield {axis: getattr(lay, axis) * ways, "dp": lay.dp // ways}


def _pairs(single: list[Changes]) -> Iterator[Changes]:
    """Two changes at once, of different fields."""
    for one, other in combinations(single, 2):
        if not one.keys() & other.keys():
            yield {**one, **other}
