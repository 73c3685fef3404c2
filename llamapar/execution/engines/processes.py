"""What a real rank does with a task: a process of the pool, or one that torchrun started."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.layout import Layout
from llamapar.execution.answers import RankAnswer
from llamapar.execution.body import RankReport, Task, cut_at, run_rank
from llamapar.execution.recorder import Recorder
from llamapar.spmd import compat

PRELOAD = ("llamapar.execution.engines.processes",)
"""What the pool's server imports before it forks ranks."""

_meshes: dict[tuple[Layout, str], DeviceMesh] = {}


def run_here(context: Any, task: Task) -> RankReport:
    """The task on this rank. context: rank, device, and note(text, group), which says where the rank is."""
    layout = task.setting.layout
    key = layout, context.device.type
    if key not in _meshes:
        _meshes[key] = compat.make_mesh(layout, context.device.type)
    mesh = _meshes[key]
    coord = compat.coord_of(mesh, context.rank)
    recorder = Recorder(context.rank, note=context.note)
    outputs, gradients = run_rank(mesh, task, recorder, cut_at(task.setting, coord, str(context.device)))
    return RankReport(
        context.rank,
        {name: t.cpu() for name, t in outputs.items()},
        {name: t.cpu() for name, t in gradients.items()},
        recorder.traces[context.rank],
    )


def reports(answers: Iterable[RankAnswer]) -> list[RankReport]:
    """What ranks that ran `run_here` answered: their reports, or one of the error."""
    return [
        a.value if a.error is None else RankReport(a.rank, error=a.error, traceback=a.traceback, at=a.at)
        for a in answers
    ]


def forget_meshes() -> None:
    """After the process group of the meshes ended."""
    _meshes.clear()
