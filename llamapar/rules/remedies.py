"""What makes a job fit its GPU, found by trying: each remedy passes `check`, and so fits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice

from llamapar.count.saved import RECOMPUTE
from llamapar.describe.hardware import GPUS
from llamapar.describe.job import Job
from llamapar.frameworks import Framework
from llamapar.place.orders import ALL_FORWARD_FIRST

from . import capacity
from .repairs import Changes
from .search import Fix, changed, search

MOST = 4
"""Remedies that are offered."""


def remedies(job: Job, judge: Framework | None = None) -> Iterator[Fix]:
    """At most MOST ways to make a job fit its GPU, the least change first; none where nothing does.

    One thing is changed at a time, then two; what made it fit once is not changed again. A remedy brings no
    error and no warning that was not there.
    """
    if job.gpu is None:
        return
    enough: list[set[str]] = []
    for fix in islice(search(job, _tries(job, enough), judge, capacity.OPEN), MOST):
        enough.append({name for name, _ in fix.changes})
        yield fix


def _tries(job: Job, enough: list[set[str]]) -> Iterator[Fix]:
    """One thing changed, then two, but nothing beside what was `enough` by itself."""
    single = list(_single(job))
    for changes in (*single, *_pairs(single)):
        made = changed(job, changes)
        if made is not None and not any(found <= changes.keys() for found in enough):
            yield Fix(made, tuple(changes.items()))


def _single(job: Job) -> Iterator[Changes]:
    """One thing changed, the cheapest first: what costs little time, then a layout, then another GPU."""
    lay, batch = job.layout, job.micro_batch or 1
    if lay.tp > 1 and not lay.sp:
        yield {"sequence_parallel": True}
    if job.schedule in ALL_FORWARD_FIRST:
        yield {"schedule": "1f1b"}
    if lay.dp_shard * lay.cp > 1:
        yield from ({"zero": stage} for stage in range(lay.zero + 1, 4))
    if batch > 1 and job.micro_batches is None:
        yield {"micro_batch": batch // 2}
    now = RECOMPUTE.index(job.recompute)
    yield from ({"recompute": mode} for mode in RECOMPUTE[now + 1 :])
    for ways in (2, 4, 8):
        for axis in ("tp", "pp", "cp"):
            if lay.dp % ways == 0:
                yield {axis: getattr(lay, axis) * ways, "dp": lay.dp // ways}
    size = GPUS[job.gpu] if job.gpu else 0
    yield from ({"gpu": gpu} for gpu, bytes_ in GPUS.items() if bytes_ > size)


def _pairs(single: list[Changes]) -> Iterator[Changes]:
    """Two things changed at once, no one of them twice."""
    for one, other in combinations(single, 2):
        if not one.keys() & other.keys():
            yield {**one, **other}
