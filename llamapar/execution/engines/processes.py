"""The engine with one process for each rank, and the work of a real rank, also under torchrun."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.layout import Layout
from llamapar.execution.body import NO_PIPELINE, RankReport, Task, cut_at, run_rank
from llamapar.execution.pipeline_rank import run_pipeline
from llamapar.execution.recorder import Recorder
from llamapar.execution.replies import RankAnswer, rank_names
from llamapar.records.trace import grouped
from llamapar.spmd import compat

from . import pool
from .carrier import Lanes, run_stages
from .rank import Context

PRELOAD = ("llamapar.execution.engines.processes", "llamapar.execution.module_run")
"""What the pool's server imports before it forks ranks."""


@functools.cache
def mesh_of(layout: Layout, device: str) -> DeviceMesh:
    """The mesh of a layout, cached until its process group ends."""
    return compat.make_mesh(layout, device)


@functools.cache
def lanes_of(layout: Layout, device: str) -> Lanes:
    """The meshes on which the ranks of a pipeline meet, cached like `mesh_of`; without a pipeline one mesh,
    twice.
    """
    if layout.pp == 1:
        return Lanes(mesh_of(layout, device), mesh_of(layout, device))
    return Lanes(mesh_of(layout, device), compat.make_mesh(layout, device))


def run_here(context: Context, task: Task) -> RankReport:
    """Run the task on this rank."""
    setting = task.setting
    device = context.device.type
    mesh = mesh_of(setting.layout, device)
    own = cut_at(setting, compat.coord_of(mesh, context.rank), str(context.device))
    recorder = Recorder(context.rank, note=context.note)

    def cut(name: str, make: Callable[[], Tensor]) -> Tensor:
        context.moved()  # The tensors can be large and numerous.
        return own(name, make)

    if setting.layout.pp > 1:
        made, work = run_stages(lanes_of(setting.layout, device), task, recorder, cut, context)
    elif setting.schedule is not None:
        ((made, work),) = run_pipeline(mesh, task, [recorder], cut)
    else:
        made = run_rank(mesh, task, recorder, cut)
        work = NO_PIPELINE
    return RankReport.of(context.rank, made, recorder.traces[context.rank], work)


def run(
    task: Task, device: str, backend: str, timeout: float, cancel: Callable[[], bool]
) -> list[RankReport]:
    """Run the task on the ranks of the kept pool."""
    world = task.setting.layout.world
    return reports(rank_answers(run_here, task, world, device, backend, timeout, cancel))


def rank_answers(
    function: Callable[..., object],
    task: object,
    world: int,
    device: str,
    backend: str,
    timeout: float,
    cancel: Callable[[], bool],
) -> list[RankAnswer]:
    """Call function(context, task) on the ranks of the kept pool, and print their output here, rank by rank.

    Their stderr goes to stderr here, once for ranks that wrote the same text.
    """
    ranks = pool.pool(world, device=device, backend=backend, preload=PRELOAD)
    found = ranks.run(function, task, timeout=timeout, cancel=cancel)
    for answer in found:
        for line in answer.output.splitlines():
            print(f"rank {answer.rank}: {line}")
    for text, of in grouped({answer.rank: answer.stderr for answer in found}):
        for line in text.splitlines():
            print(f"{rank_names(of)}: {line}", file=sys.stderr)
    return found


def reports(answers: Iterable[RankAnswer]) -> list[RankReport]:
    """The reports of ranks that ran `run_here`, including reports of an error."""
    return [
        a.value if a.error is None else RankReport(rank=a.rank, error=a.error, traceback=a.traceback, at=a.at)
        for a in answers
    ]
