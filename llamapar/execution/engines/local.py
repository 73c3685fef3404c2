"""The local engine: all ranks in this process, one after another at each operation, on LocalTensors."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from torch import Tensor

from llamapar.errors import LlamaparError
from llamapar.execution.answers import Cancelled
from llamapar.execution.body import RankReport, Task, makers, parameters, run_rank, wants
from llamapar.execution.recorder import Recorder
from llamapar.spmd import compat
from llamapar.spmd.compat import LocalMode, LocalTensor
from llamapar.spmd.setting import Setting

one_run = threading.RLock()
"""Held by whatever runs: the fake process group, and a fault, are the whole process's."""


class LocalRanks:
    """All ranks of a layout in this process, to step through a program line by line.

    `with ranks:` around each line or cell that computes; `mesh`, `setting` and `tensors` (name → LocalTensor
    of every rank's piece) are what a program is called with. `ranks.shapes(t)` and `ranks.values(t)` show a
    tensor rank by rank. There is one fake process group in a process: the next local run ends this one.
    """

    def __init__(self, setting: Setting, device: str = "cpu") -> None:
        global _open
        if compat.in_local_mode():
            raise LlamaparError(
                "a local run inside another one", "it would end the ranks that it runs on", field="engine"
            )
        end()
        size = setting.layout.world
        self.setting, self.device = setting, device
        self.tensors: dict[str, Any] = {}
        self._stack = ExitStack()
        self._stack.enter_context(compat.fake_world(size))
        self.mesh = compat.make_mesh(setting.layout, "cpu")
        self._mode = LocalMode(size)
        self._open = True
        _open = self

    def __enter__(self) -> LocalRanks:
        if not self._open:
            raise LlamaparError(
                "these local ranks are closed", "a later local run took their place", ["lp.step_through(...)"]
            )
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)

    def cut(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """A global tensor as a LocalTensor of the ranks' pieces, at which gradients end."""
        with self._mode.disable():
            whole = make().to(self.device)
            ranks = range(self.setting.layout.world)
            pieces = {r: self.setting.part(name, whole, compat.coord_of(self.mesh, r)) for r in ranks}
        return LocalTensor(pieces).requires_grad_(whole.is_floating_point())

    def values(self, t: Tensor) -> dict[int, Tensor]:
        """rank → its own tensor."""
        return {r: own.detach() for r, own in (compat.by_rank(t) or {}).items()}

    def shapes(self, t: Tensor) -> dict[int, tuple[int, ...]]:
        """rank → the shape of its own tensor."""
        return {r: tuple(own.shape) for r, own in self.values(t).items()}

    def close(self) -> None:
        global _open
        if self._open:
            self._open = False
            _open = None
            self._stack.close()


_open: LocalRanks | None = None


def end() -> None:
    """Close the ranks that are open: something else needs the process's one process group."""
    if _open is not None:
        _open.close()


def local(task: Task, device: str = "cpu") -> LocalRanks:
    """LocalRanks that hold the tensors that a task's program asks for."""
    with one_run:
        ranks = LocalRanks(task.setting, device)
    found = {name: ranks.cut(name, make) for name, make in makers(task).items()}
    ranks.tensors = found
    if "weights" in wants(task.program.function):
        ranks.tensors = found | {"weights": parameters(found)}
    return ranks


def run(task: Task, device: str = "cpu", tick: Callable[[], None] | None = None) -> list[RankReport]:
    """The task on all ranks of its layout. Errors are told by rank; a Cancelled of tick is raised."""
    size = task.setting.layout.world
    recorder = Recorder(world=size, tick=tick)
    reports = [RankReport(r) for r in range(size)]

    def cut(name: str, make: Callable[[], Tensor]) -> Tensor:
        if tick is not None:
            tick()
        return ranks.cut(name, make)

    with one_run, closing(LocalRanks(task.setting, device)) as ranks, ranks:
        try:
            outputs, gradients = run_rank(ranks.mesh, task, recorder, cut)
        except Cancelled:
            raise
        except Exception as error:
            where = compat.raising_rank(error)
            found = recorder.errors or (
                {where: error} if where is not None else dict.fromkeys(range(size), error)
            )
            text = "".join(traceback.format_exception(error))
            for rank, own in found.items():
                reports[rank].error, reports[rank].traceback = own, text
        else:
            for made, of in ((outputs, "outputs"), (gradients, "gradients")):
                for name, t in made.items():
                    for rank, piece in (compat.by_rank(t) or dict.fromkeys(range(size), t)).items():
                        getattr(reports[rank], of)[name] = piece.cpu()
    for rank, trace in recorder.traces.items():
        reports[rank].trace = trace
    return reports
