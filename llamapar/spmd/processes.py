"""What a real rank does with a task: a process of the pool, or one that torchrun started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.layout import Layout

from . import compat
from .body import RankReport, Task, leaf, run_rank
from .record import Recorder

PRELOAD = ("llamapar.spmd.processes",)
"""What the pool's server imports before it forks ranks."""

_meshes: dict[tuple[Layout, str], DeviceMesh] = {}


def run_here(context: Any, task: Task) -> RankReport:
    """The task on this rank. context: rank, device, and note(text, group), which says where the rank is."""
    layout, device = task.setting.layout, str(context.device)
    key = layout, context.device.type
    if key not in _meshes:
        _meshes[key] = compat.make_mesh(layout, context.device.type)
    mesh = _meshes[key]
    coord = compat.coord_of(mesh, context.rank)
    recorder = Recorder(context.rank, note=context.note)

    def cut(name: str, make: Callable[[], Tensor]) -> Tensor:
        return leaf(task.setting.part(name, make(), coord).to(device))

    outputs, gradients = run_rank(mesh, task, recorder, cut)
    return RankReport(
        context.rank,
        {name: t.cpu() for name, t in outputs.items()},
        {name: t.cpu() for name, t in gradients.items()},
        recorder.traces[context.rank],
    )


def forget_meshes() -> None:
    """After the process group of the meshes ended."""
    _meshes.clear()
