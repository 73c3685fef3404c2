"""The engine of real ranks: what each process of the pool, or of torchrun, does with a task."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.errors import LayoutError
from llamapar.layout import Layout

from . import compat
from .body import RankReport, Task, leaf, run_rank
from .record import Recorder

PRELOAD = ("llamapar.spmd.processes",)
"""What the pool's server imports before it forks ranks."""

_meshes: dict[tuple[Layout, str], DeviceMesh] = {}


def run_here(context: Any, task: Task) -> RankReport:
    """The task on this rank. context: rank, device, and note(text), which says where the rank is."""
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


# -- torchrun ----------------------------------------------------------------------------------


class _Launched:
    """This process as torchrun started it."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.device = dist.get_rank(), device

    def note(self, text: str) -> None:
        pass


def launched() -> int | None:
    """How many ranks torchrun (or whatever sets its environment) started; None when not under it."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else None


def run_launched(task: Task, device: str, backend: str) -> list[RankReport] | None:
    """The task on the ranks that torchrun started: all reports on rank 0, None on the others."""
    world = task.setting.layout.world
    if world != launched():
        raise LayoutError(
            f"the layout has {world} ranks, torchrun started {launched()}",
            "every rank is one process",
            [f"torchrun --nproc-per-node {world}"],
            "world",
        )
    here = torch.device(device)
    if here.type == "cuda":
        here = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(here)
    dist.init_process_group(backend)
    try:
        try:
            report = run_here(_Launched(here), task)
        except Exception as error:
            report = RankReport(dist.get_rank(), error=error, traceback=traceback.format_exc())
        return _gathered(report)
    finally:
        _meshes.clear()
        dist.destroy_process_group()


def _gathered(report: RankReport) -> list[RankReport] | None:
    """All ranks' reports on rank 0, by way of the store, which works whatever the ranks' state is."""
    import pickle

    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    store.set(f"llamapar/{rank}", pickle.dumps(report))  # type: ignore[arg-type]
    if rank:
        store.get("llamapar/read")  # until rank 0 has them all
        return None
    reports: Sequence[RankReport] = [pickle.loads(store.get(f"llamapar/{r}")) for r in range(world)]
    store.set("llamapar/read", "yes")
    return list(reports)
