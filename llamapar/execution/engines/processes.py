"""The engine of one process a rank, and what a real rank does with a task, under torchrun too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.layout import Layout
from llamapar.execution.answers import RankAnswer
from llamapar.execution.body import RankReport, Task, cut_at, run_rank
from llamapar.execution.recorder import Recorder
from llamapar.spmd import compat

from . import pool
from .rank import Context

PRELOAD = ("llamapar.execution.engines.processes",)
"""What the pool's server imports before it forks ranks."""


@functools.cache
def mesh_of(layout: Layout, device: str) -> DeviceMesh:
    """The mesh of a layout, made once; to be forgotten when its process group ends."""
    return compat.make_mesh(layout, device)


def run_here(context: Context, task: Task) -> RankReport:
    """The task on this rank."""
    mesh = mesh_of(task.setting.layout, context.device.type)
    coord = compat.coord_of(mesh, context.rank)
    recorder = Recorder(context.rank, note=context.note)
    own = cut_at(task.setting, coord, str(context.device))

    def cut(name: str, make: Callable[[], Tensor]) -> Tensor:
        context.moved()  # tensors may be large and many
        return own(name, make)

    made = run_rank(mesh, task, recorder, cut)
    return RankReport.of(context.rank, made, recorder.traces[context.rank])


def run(
    task: Task, device: str, backend: str, timeout: float, cancel: Callable[[], bool]
) -> list[RankReport]:
    """The task on the ranks of the kept pool; what they print is printed here, rank by rank."""
    ranks = pool.pool(task.setting.layout.world, device=device, backend=backend, preload=PRELOAD)
    found = ranks.run(run_here, task, timeout=timeout, cancel=cancel)
    for answer in found:
        for line in answer.output.splitlines():
            print(f"rank {answer.rank}: {line}")
    return reports(found)


def reports(answers: Iterable[RankAnswer]) -> list[RankReport]:
    """What ranks that ran `run_here` answered: their reports, or one of the error."""
    return [
        a.value if a.error is None else RankReport(a.rank, error=a.error, traceback=a.traceback, at=a.at)
        for a in answers
    ]
