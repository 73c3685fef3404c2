"""`lp.compare`: a module that a user brings is made whole, cut by a plan, run on every rank, and compared.

The whole module runs first, in this process: its state is copied into every rank's module, and its output
gives the targets of the default loss. Where something differs, both run once more in float64 with every
submodule followed, and the first submodule that differs is named. What is left out: pipelines, and torchrun.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor, nn

from llamapar import interrupts
from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import CompareKeywords
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.diagnosis import Explanation
from llamapar.errors import Choice, LlamaparError, flag, one_of, real
from llamapar.records.trace import Tape, Trace
from llamapar.spmd import compat
from llamapar.spmd.setting import DTYPES

from .body import RankReport
from .capacity import choose_device, memory_available
from .engines import local, processes
from .engines.rank import Context
from .module_difference import module_difference
from .module_reading import (
    FIT,
    Culprit,
    first_difference,
    gap,
    largest,
)
from .module_rows import judged
from .module_run import CUT_OUTPUT, ModuleOutcome, run_module_rank
from .module_tape import on_local_ranks
from .module_task import Inputs, ModuleTask, Plan, require_possible, sequences, with_inputs
from .recorder import Recorder
from .result import Result, remembered
from .rows import GRADIENT
from .ticking import few_threads, never, ticker
from .two_runs import parted

LOCAL_LACKS = (
    *("LocalInt", "SymInt", "SymNode", "LocalTensor", "resize_", "src_rank", "_local_tensor"),
    "its data is not allocated",  # DistributedDataParallel, of a LocalTensor
)
"""What an error says if torch's mode for all ranks in one process lacks an operation."""


@checked_options
def compare(
    make: Callable[[], nn.Module] | Result | Tape,
    plan: Plan | Result | Tape,
    layout: LayoutLike | None = None,
    *,
    inputs: Inputs | None = None,
    loss: Callable[..., Tensor] | None = None,
    eval_mode: bool = False,
    cancel: Callable[[], bool] | None = None,
    **options: Unpack[CompareKeywords],
) -> Result:
    """Run a module of your own whole and cut by `plan`, and compare output, loss and every gradient.

    make: a function without arguments that returns the whole `nn.Module`. plan: a dict for torch's
        `parallelize_module`, "auto" for a transformers model's own plan, or a function (module, mesh) that
        cuts the module and may return another one. DistributedDataParallel, torch.compile and
        checkpoint_wrapper are seen through.
    inputs: keyword tensors, a tuple, or a function that makes them; by default tokens. loss: a function of
        the output, or of (output, inputs); by default cross-entropy, or for an output that is no logits its
        sum times random numbers. eval_mode: call `module.eval()` first.
    dtype="float32": or "float64", "bfloat16". seq_len, global_batch: of the tokens; by default small numbers
        that divide. seed=0: of weights, tokens and random numbers. backward=True: also compare gradients.
    engine, device, timeout, cancel: as in `run`; torchrun and dry run no modules.

    Of two results of one program or of modules, or of two tapes: the second beside the first, with the first
    line where they part.

    Raises LlamaparError for what cannot work with a module, and RankFailure and Cancelled as `run` does. The
    result's `errors` has what ranks raise.
    """
    if isinstance(make, Result | Tape) or isinstance(plan, Result | Tape):
        return parted(make, plan)
    own = Layout.of(layout)
    engine = options["engine"]
    device = options["device"]
    require_possible(make, plan, loss, engine, device, own)
    task = ModuleTask(
        make,
        plan,
        own,
        dtype=one_of("dtype", options["dtype"], DTYPES),
        seed=options["seed"],
        loss=loss,
        eval_mode=flag("eval_mode", eval_mode),
        backward=options["backward"],
    )
    task, notes = with_inputs(task, inputs, options["seq_len"], options["global_batch"])
    real("timeout", options["timeout"], 0.1, 1e6)
    cancelled = cancel or never
    return remembered(_run(task, notes, engine, device, options["timeout"], cancelled))


def _run(
    task: ModuleTask,
    notes: tuple[str, ...],
    engine: str,
    device: str,
    timeout: float,
    cancelled: Callable[[], bool],
) -> Result:
    """Run a task on an engine. notes: about the task."""
    world = task.layout.world
    with local.one_run, interrupts.deferred() as check, torch.random.fork_rng(devices=[]):

        def given_up() -> bool:
            check()  # A Ctrl-C that was deferred is raised here.
            return cancelled()

        tick = ticker(given_up)
        usual = DTYPES[task.dtype]
        used, backend, why = choose_device("cpu" if engine == "local" else device, engine, world)

        def ranks(of: ModuleTask) -> list[RankReport]:
            if engine == "local":
                return _reports_here(of, used, tick)
            answers = processes.rank_answers(run_module_here, of, world, used, backend, timeout, given_up)
            return processes.reports(answers)

        def alone(of: ModuleTask) -> ModuleOutcome:
            with Recorder(tick=tick):
                return run_module_rank(of, None)[0]

        one = alone(task)
        state = {name: t for name, t in (one.here | one.buffers).items() if name not in one.tied}
        task = replace(task, state=state, targets=one.targets)
        # A rank holds all weights before its plan cuts them; then pieces, gradients and copies of both.
        needed = 4 * world * sum(t.numel() * t.element_size() for t in state.values())
        if needed > (available := memory_available()):
            raise LlamaparError(
                f"{world} ranks would take up to {needed:,} bytes; {available:,} are free",
                "every rank makes the whole module before the plan cuts it",
                ["fewer layers"],
                "world",
            )
        with few_threads(t.shape for t in state.values()):
            reports = tuple(ranks(task))
            notes = (*notes, *one.notes, why)
            found = Result(one.name, task, engine, used, reports, notes, tolerance=usual, repair=_repaired)
            if _outcomes(reports):
                return _compared(found, task, one, ranks, alone)
            return found


def _repaired(result: Result, found: Explanation) -> Explanation:
    from .repairing import repaired_module  # which a comparison that is equal never needs

    return repaired_module(result, found)


# -- engines ---------------------------------------------------------------------------------------


def run_module_here(context: Context, task: ModuleTask) -> RankReport:
    """Run the task on this rank of the pool."""
    mesh = processes.mesh_of(task.layout, context.device.type)
    recorder = Recorder(context.rank, note=context.note)
    coord = compat.coord_of(mesh, context.rank)

    def share(t: Tensor) -> Tensor:
        return sequences(task, "", t, coord).to(context.device)

    found = run_module_rank(task, mesh, share, recorder, str(context.device))[context.rank]
    return _report(context.rank, found, recorder.traces[context.rank])


def _report(
    rank: int,
    outcome: ModuleOutcome | None,
    trace: Trace,
    error: BaseException | None = None,
    traceback: str = "",
) -> RankReport:
    """The report of a rank that ran a module, or that raised."""
    report = RankReport(rank=rank, module=outcome, trace=trace, error=error, traceback=traceback)
    if outcome is None:
        return report
    several = len(outcome.outputs) > 1
    outputs = {f"out.{i}" if several else "out": t for i, t in enumerate(outcome.outputs)}
    return replace(report, outputs=outputs, gradients=outcome.gradient)


def _reports_here(task: ModuleTask, device: str, tick: Callable[[], None]) -> list[RankReport]:
    """Run the task on all ranks as LocalTensors. Raises LlamaparError for what only real ranks can do."""
    recorder = Recorder(world=task.layout.world, tick=tick)
    found = dict[int, ModuleOutcome]()
    errors = dict[int, Exception]()
    text = ""
    try:
        found = on_local_ranks(task, recorder, device)
    except Exception as error:
        if isinstance(error, LlamaparError) and error.field != CUT_OUTPUT:
            raise
        lacks = isinstance(error, NotImplementedError) or any(word in str(error) for word in LOCAL_LACKS)
        if lacks:  # Real ranks would not raise it.
            what = f"engine='local' cannot run this: {type(error).__name__}: {error}".splitlines()[0]
            why = "torch's mode for all ranks in one process lacks it"
            raise LlamaparError(what, why, [Choice.of(engine="processes")], "engine") from error
        errors = local.errors_of([recorder], error)
        text = "".join(traceback.format_exception(error))
    return [
        _report(r, found.get(r), trace, error=errors.get(r), traceback=text)
        for r, trace in recorder.traces.items()
    ]


# -- comparing -------------------------------------------------------------------------------------


def _outcomes(reports: Sequence[RankReport]) -> dict[int, ModuleOutcome]:
    """rank → its outcome; {} if a rank raised."""
    made = {report.rank: report.module for report in reports if isinstance(report.module, ModuleOutcome)}
    if len(made) == len(reports):
        return made
    return {}


def _compared(
    result: Result,
    task: ModuleTask,
    one: ModuleOutcome,
    ranks: Callable[[ModuleTask], list[RankReport]],
    alone: Callable[[ModuleTask], ModuleOutcome],
) -> Result:
    """The result with its rows and, where something differs, the first submodule that does."""
    outcomes = _outcomes(result.reports)
    exact_task = task.in_float64()
    found = judged(result, task, one, outcomes)
    if found.ok or one.drew:
        return found
    exact = alone(exact_task)
    if task.dtype != "float64":
        # A module in this dtype is off from itself in float64; cut, it rounds as often, in other places.
        gradients = ((one.gradient[name], t) for name, t in exact.gradient.items())
        pairs = [*zip(one.outputs, exact.outputs, strict=True), *gradients]
        off = max((gap(a, b) / largest(b) for a, b in pairs), default=0.0)
        note = f"one process in {task.dtype} is off by {off:.0e} of itself in float64: so may a plan be"
        found = replace(result, tolerance=max(result.tolerance, 2 * off), notes=(*result.notes, note))
        found = judged(found, task, one, outcomes)
        if found.ok:
            return found
    in_float64 = _outcomes(ranks(exact_task))
    note = "in float64 the ranks raise, so no submodule is named"
    if in_float64:
        calls = {rank: outcome.calls for rank, outcome in in_float64.items()}
        again = judged(replace(found, tolerance=FIT), task, exact, in_float64)
        culprit = first_difference(calls, exact.calls, task.layout)
        wrong = next((row for row in again.rows if row.kind == GRADIENT and not row.ok), None)
        if culprit is None and wrong is not None:
            words = f"outputs and their gradients are right, the gradient of {wrong.name} is not: "
            culprit = Culprit(wrong.name.rpartition(".")[0], words + (wrong.how or wrong.placement))
        if not again.ok and found.module is not None:
            how = module_difference(task, again.rows, exact, in_float64, culprit)
            return replace(found, module=replace(found.module, culprit=culprit, difference=how))
        note = f"in float64 nothing differs: {task.dtype} rounds that much here"
    return replace(found, notes=(*found.notes, note))
