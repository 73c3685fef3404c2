"""The local engine: all ranks in one process, on LocalTensors; each operation runs rank by rank."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Self

from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.diagnosis.live_facts import keep_facts
from llamapar.errors import LlamaparError
from llamapar.execution.body import (
    NO_PIPELINE,
    NO_RESULTS,
    RankReport,
    Results,
    Task,
    Work,
    run_rank,
)
from llamapar.execution.pipeline_rank import run_pipeline
from llamapar.execution.recorder import Recorder
from llamapar.execution.replies import Cancelled, RankFailure
from llamapar.spmd import compat
from llamapar.spmd.compat import Coord, LocalTensor
from llamapar.spmd.local_mode import LocalMode
from llamapar.spmd.setting import Setting

one_run = threading.RLock()
"""Held by whatever runs: the fake process group, and a fault, are the whole process's."""


Part = Callable[[str, Tensor, Coord], Tensor]
"""(a tensor's name, the whole tensor, a rank's coord) → the rank's part."""


class LocalRanks:
    """All ranks of a layout of one stage in this process: `with ranks:` around their computation.

    Call a program with `mesh` and the tensors from `cut`. A process has only one fake process group, so the
    next local run ends this one. aliased: see `LocalMode`.
    """

    def __init__(self, layout: Layout, part: Part, device: str = "cpu", aliased: bool = False) -> None:
        global _open
        _require_no_other("it would end the ranks that it runs on")
        close_ranks()
        self.layout = layout
        self.part = part
        self.device = device
        self._stack = ExitStack()
        self._stack.enter_context(compat.fake_world(layout.world))
        self.mesh = compat.make_mesh(layout, "cpu")
        self._mode = LocalMode(layout.world)
        self._mode.aliased = aliased
        self._open = True
        _open = self

    def __enter__(self) -> Self:
        if not self._open:
            raise LlamaparError("these local ranks are closed", "a later local run took their place")
        _require_no_other("tensors would hold ranks twice, and some gradients come out twice as large")
        self._mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._mode.__exit__(*error)

    def cut(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """A global tensor as a LocalTensor of the ranks' parts, which is a leaf for gradients."""
        with self._mode.disable():
            whole = make().to(self.device)
            ranks = range(self.layout.world)
            parts = {r: self.part(name, whole, compat.coord_of(self.mesh, r)) for r in ranks}
        return LocalTensor(parts).requires_grad_(whole.is_floating_point())

    def close(self) -> None:
        global _open
        if self._open:
            self._open = False
            _open = None
            self._stack.close()


_open: LocalRanks | None = None


def _require_no_other(why: str) -> None:
    """Raise LlamaparError inside the `with` of local ranks."""
    if compat.in_local_mode():
        raise LlamaparError("a local run inside another one", why, field="engine")


def close_ranks() -> None:
    """Close the open ranks, because other code needs the process's only process group."""
    if _open is not None:
        _open.close()


def recorders(
    setting: Setting, tick: Callable[[], None] | None = None, made: type[Recorder] = Recorder
) -> list[Recorder]:
    """One recorder for the ranks of each PP rank, with their global ranks."""
    layout = setting.layout
    one = setting.of_one_stage
    found = []
    for pp_rank in range(layout.pp):
        coords = [one.coord_of(r)._replace(pp=pp_rank) for r in range(one.world)]
        places = {r: layout.rank_of(*coord) for r, coord in enumerate(coords)}
        found.append(made(world=one.world, tick=tick, places=places))
    return found


def errors_of(recorders: Sequence[Recorder], error: Exception) -> dict[int, Exception]:
    """Global rank → its own error, for a run that ended with one."""
    where = compat.raising_rank(error)
    acting = next((recorder for recorder in recorders if recorder.raised), recorders[0])
    found = acting.errors or dict.fromkeys(acting.ranks if where is None else [where], error)
    keep_facts(error, *found.values())
    return {acting.place(r): raised for r, raised in found.items()}


def run(task: Task, device: str = "cpu", tick: Callable[[], None] | None = None) -> list[RankReport]:
    """Run the task on all ranks of its layout. Errors are reported by rank; a Cancelled from tick is raised.

    The stages of a pipeline take turns on the ranks of one stage. Raises RankFailure if none can continue.
    """
    layout = task.setting.layout
    written = recorders(task.setting, tick)

    def cut(name: str, make: Callable[[], Tensor]) -> Tensor:
        if tick is not None:
            tick()
        return ranks.cut(name, make)

    made: list[tuple[Results, Work]] = [(NO_RESULTS, NO_PIPELINE)] * layout.pp
    errors: Mapping[int, BaseException] = {}
    text = ""
    with one_run, closing(LocalRanks(task.setting.of_one_stage, task.setting.part, device)) as ranks, ranks:
        try:
            if task.setting.schedule is None:
                made = [(run_rank(ranks.mesh, task, written[0], cut), NO_PIPELINE)]
            else:
                made = run_pipeline(ranks.mesh, task, written, cut)
        except (Cancelled, RankFailure):
            raise
        except Exception as error:
            errors = errors_of(written, error)
            text = "".join(traceback.format_exception(error))
    reports = [
        RankReport.of(r, results, trace, work)
        for recorder, (results, work) in zip(written, made, strict=True)
        for r, trace in recorder.traces.items()
    ]
    reports.sort(key=lambda report: report.rank)
    return [replace(r, error=errors[r.rank], traceback=text) if r.rank in errors else r for r in reports]
