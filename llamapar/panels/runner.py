"""Runs in a thread of the kernel: one at a time, the latest wins, and each can be cancelled.

The thread reports progress and the result by a callback; the kernel's own thread never waits for it. The
first run imports torch.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from llamapar.errors import LlamaparError, install

from .background import CANCELLED, DONE, RUNNING, WRITING, Background
from .runs import Run, RunPlan, expected_duration

STEP = 0.1
"""Seconds between two reports of how far a run is."""


MEASURED = 100
"""Runs that are remembered."""


class Runner(Background[Run]):
    """Runs plans, one at a time, and remembers their durations."""

    def __init__(self, report: Callable[[Run], None]) -> None:
        super().__init__(report)
        self._measured: list[tuple[RunPlan, float]] = []
        # Engines that have run: the first run of each imports and rehearses, so its time does not count.
        self._warm: set[str] = set()

    def _expects(self, plan: RunPlan) -> str:
        return expected_duration(plan, self._measured)

    def offer(self, plan: RunPlan) -> None:
        """Show a plan without running it, and cancel the current run."""
        self._begin(Run(plan, expects=self._expects(plan)))

    def start(self, plan: RunPlan) -> None:
        """Run a plan in the background, and cancel the current run."""
        self._go(Run(plan, RUNNING, expects=self._expects(plan)), lambda stop: self._work(plan, stop), "run")

    def run(self, plan: RunPlan) -> Run:
        """Run a plan, or wait for it if it already runs, and return the result."""
        if not (self.now and self.now.plan == plan and self.now.state in (RUNNING, WRITING)):
            self.start(plan)
        try:
            self.wait()
        except KeyboardInterrupt:
            self.cancel()
            raise
        assert self.now is not None
        return self.now

    def _work(self, plan: RunPlan, stop: threading.Event) -> None:
        first = "" if "torch" in sys.modules else "importing torch"
        run = Run(plan, RUNNING, first, expects=self._expects(plan))
        self._put(stop, run)
        try:
            from llamapar.execution import replies

            try:
                self._do(run, stop)
            except replies.Cancelled:
                self._put(stop, replace(run, state=CANCELLED, phase=""))
        except ModuleNotFoundError as absent:
            raise _needs(absent.name) from None

    def _do(self, run: Run, stop: threading.Event) -> None:
        from llamapar.execution import replies
        from llamapar.execution.engines import local
        from llamapar.execution.execute import prepare
        from llamapar.execution.execute import run as execute
        from llamapar.execution.recorder import Recorder
        from llamapar.execution.run_options import RunOptions
        from llamapar.execution.ticking import operations, ranks_ticked

        asked = run.plan.arguments()
        world = run.plan.layout.world
        turns = world // run.plan.layout.pp  # ranks that the local engine does an operation for
        done, total, shown_at = 0, 0, time.monotonic()
        begun = time.monotonic()

        def cancelled() -> bool:
            nonlocal done, shown_at
            ticked = ranks_ticked(turns)
            done += ticked
            if run.result is None and (now := time.monotonic()) - shown_at > STEP:
                shown_at = now
                past = bool(total and done and not ticked)  # what is left is on one device
                phase = "comparing with the unsharded model" if past else run.phase
                fraction = min(done / total, 1.0) if total and not past else None
                self._put(stop, replace(run, phase=phase, fraction=fraction))
            return stop.is_set()

        def tick() -> None:
            if cancelled():
                raise replies.Cancelled("the run was cancelled")

        run = replace(run, phase="waiting for another run")
        while not local.one_run.acquire(timeout=STEP):
            tick()
        try:
            where = f"rank {asked['rank']} alone" if run.plan.engine == "dry" else f"{world} ranks"
            run = replace(run, phase=f"running on {where}")
            if run.plan.engine == "local" and not run.plan.quick:
                options = RunOptions(run.plan.layout, **run.plan.options, force=True)
                task = prepare(run.plan.program, run.plan.model, options)[0]
                total = _expected(lambda: operations(task, tick))
            done = 0
            begun = time.monotonic()
            result = execute(**asked, cancel=cancelled)
            run = replace(
                run, state=WRITING, phase="the result is there; writing its shape tape", result=result
            )
            self._put(stop, run)
            try:
                with Recorder(tick=tick):
                    tape = result.tape
                tick()  # a tape keeps what its programs raise, and so a cancel too
            except replies.Cancelled:
                whole = replace(result)  # without the part of a tape
                self._put(stop, replace(run, state=DONE, phase="its shape tape was cancelled", result=whole))
                return
        finally:
            local.one_run.release()
        self._remember(run.plan, time.monotonic() - begun)
        self._put(stop, replace(run, state=DONE, phase="", tape=tape, expects=self._expects(run.plan)))

    def _remember(self, plan: RunPlan, seconds: float) -> None:
        """Record the duration of a run, except the first of its engine."""
        if plan.engine in self._warm:
            self._measured = [*self._measured[1 - MEASURED :], (plan, seconds)]
        self._warm.add(plan.engine)


def _needs(name: str | None) -> LlamaparError:
    what = f"a run needs PyTorch and threads; {name} is not in this Python"
    why = "a page's Python has neither; all but this tab works without them"
    return LlamaparError(what, why, [install("run"), "make lab"])


def _expected(operations: Callable[[], int]) -> int:
    """The expected number of operations; 0 if counting raises, because the run then raises the same."""
    try:
        return operations()
    except Exception:
        return 0
