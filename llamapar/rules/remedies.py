"""What makes a job fit its GPU, found by trying: each remedy passes `check`, and fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

from llamapar.count.account import memory
from llamapar.count.saved import RECOMPUTE
from llamapar.count.terms import GIB, Memory
from llamapar.describe.hardware import GPUS
from llamapar.describe.job import Job
from llamapar.errors import LlamaparError
from llamapar.frameworks import Framework
from llamapar.records.tables import Plain

from .repairs import Changes
from .search import Fix, changed, search

MOST = 4
"""Remedies that are offered."""

_STAGES = 480
"""Pipeline stages that are counted in the search, some 30 ms of work, however deep the pipeline."""

_SETTINGS = ("recompute", "schedule", "gpu")
"""What `memory` takes and a Job does not hold."""


@dataclass(frozen=True, repr=False)
class Remedy(Fix):
    """What was changed, in words of `memory` and `Layout`, and the account that then fits."""

    memory: Memory

    @property
    def text(self) -> str:
        """ "recompute=full: 61.30 GiB"."""
        return f"{super().text}: {self.memory.worst.total_bytes / GIB:.2f} GiB"


def memory_of(job: Job, **options: object) -> Memory:
    """`memory` of a Job: its own facts, and options that it does not hold. Raises LayoutError."""
    many, batch = job.n_micro_batches, job.micro_batch or 1
    settings: Plain = {"padding": job.padding, "layer_split": job.layer_split, **options}
    return memory(
        job.model,
        job.layout,
        seq_len=job.seq_len or job.model.max_seq_len,
        micro_batch=batch,
        global_batch=many * batch * job.layout.dp if many else job.global_batch,
        kv_replication=job.kv_replication,
        **settings,
    )


def remedies(job: Job, judge: Framework | None = None, **options: object) -> Iterator[Remedy]:
    """At most MOST ways to make a job fit that does not, the least change first; none where nothing does.

    options: of `memory_of`; recompute, schedule and gpu are changed too. One thing is changed at a time,
    then two; what made it fit once is not changed again. A remedy brings no error and no warning that was
    not there.
    """
    enough: list[set[str]] = []
    stages = _STAGES
    for fix in search(job, _tries(job, options, enough), judge):
        stages -= fix.layout.pp
        if stages < 0:
            return
        settings = {name: value for name, value in fix.changes if name in _SETTINGS}
        with suppress(LlamaparError):
            account = memory_of(fix.job, **options | settings)
            if account.fits:
                enough.append({name for name, _ in fix.changes})
                yield Remedy(fix.job, fix.changes, account)
        if len(enough) == MOST:
            return


def _tries(job: Job, options: Changes, enough: list[set[str]]) -> Iterator[Fix]:
    """One thing changed, then two, but nothing beside what was `enough` by itself."""
    single = list(_single(job, options))
    for changes in (*single, *_pairs(single)):
        made = changed(job, {name: value for name, value in changes.items() if name not in _SETTINGS})
        if made is not None and not any(found <= changes.keys() for found in enough):
            yield Fix(made, tuple(changes.items()))


def _single(job: Job, options: Changes) -> Iterator[Changes]:
    """One thing changed, the cheapest first: what costs little time, then a layout, then another GPU."""
    lay, batch = job.layout, job.micro_batch or 1
    if lay.tp > 1 and not lay.sp:
        yield {"sequence_parallel": True}
    if options.get("schedule") == "gpipe":
        yield {"schedule": "1f1b"}
    if lay.dp_shard * lay.cp > 1:
        yield from ({"zero": stage} for stage in range(lay.zero + 1, 4))
    if batch > 1 and job.micro_batches is None:
        yield {"micro_batch": batch // 2}
    now = RECOMPUTE.index(options.get("recompute", "selective"))
    yield from ({"recompute": mode} for mode in RECOMPUTE[now + 1 :])
    for ways in (2, 4, 8):
        for axis in ("tp", "pp", "cp"):
            if lay.dp % ways == 0:
                yield {axis: getattr(lay, axis) * ways, "dp": lay.dp // ways}
    size = GPUS[str(options.get("gpu", "h100-80gb"))]
    yield from ({"gpu": gpu} for gpu, bytes_ in GPUS.items() if bytes_ > size)


def _pairs(single: list[Changes]) -> Iterator[Changes]:
    """Two things changed at once, no one of them twice."""
    for one, other in combinations(single, 2):
        if not one.keys() & other.keys():
            yield {**one, **other}
