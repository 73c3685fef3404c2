"""Ticks during torch work: a call at each operation of this thread, to stop it or to measure progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from llamapar.spmd import compat

from .body import Task, dry_rank, run_rank
from .pipeline_rank import run_pipeline
from .recorder import Recorder
from .replies import Cancelled


def ticker(cancelled: Callable[[], bool]) -> Callable[[], None]:
    """A tick that raises Cancelled once `cancelled` returns true."""

    def tick() -> None:
        if cancelled():
            raise Cancelled("the run was cancelled")

    return tick


def never() -> bool:
    """In place of a `cancel` that was not given."""
    return False


def after(seconds: float) -> Callable[[], bool]:
    """In place of a `cancel`: true once so many seconds have passed from now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def ranks_ticked(world: int) -> int:
    """Number of ranks for which the local engine runs the current operation: all, or one; 0 when it is
    done.
    """
    if not dist.is_initialized():
        return 0
    if compat.in_local_mode():
        return world
    return 1


SMALL = 2**21
"""Numbers of a run's largest tensor up to which one thread is the faster for it (measured)."""


@contextmanager
def few_threads(shapes: Iterable[Sequence[int]]) -> Iterator[None]:
    """One torch thread while tensors of these shapes are small, because a second one costs more than it
    helps.

    If other work shares the cores, it costs ten times as much (measured).
    """
    before = torch.get_num_threads()
    if max(map(math.prod, shapes), default=0) <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def operations(task: Task, tick: Callable[[], None] = lambda: None) -> int:
    """Approximate number of rank operations in a local run, counted on the meta device as rank 0.

    Raises the program's errors, and those of `tick`, which is called at each operation.
    """
    made = 0

    def count() -> None:
        nonlocal made
        made += 1
        tick()

    layout = task.setting.of_one_stage
    alone = replace(task, setting=replace(task.setting, layout=layout, schedule=None))
    with dry_rank(alone) as (mesh, own):

        def cut(name: str, make: Callable[[], Tensor]) -> Tensor:
            count()
            return own(name, make)

        if task.setting.schedule is None:
            run_rank(mesh, task, Recorder(tick=count), cut, "meta")
        else:
            recorders = [Recorder(tick=count) for _ in range(task.setting.layout.pp)]
            run_pipeline(mesh, task, recorders, cut, "meta")
    return layout.world * made
