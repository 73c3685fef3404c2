"""`run`: execute a program in a layout, and compare it with the unsharded model.

`check` judges the layout first. Then an engine runs the program on every rank, forward and backward, and each
rank's outputs and gradients are compared with its piece of the reference's.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Unpack

from torch import Tensor, nn

from llamapar import interrupts
from llamapar.describe.arguments import checked_options
from llamapar.describe.job import Job
from llamapar.describe.keywords import RunKeywords, TapeKeywords
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.options import Values
from llamapar.describe.splits import NO_PADDING
from llamapar.errors import Choice, LayoutError, LlamaparError, ModelError, flag, one_of, real, shown, whole
from llamapar.frameworks import padding_rule
from llamapar.place.sequence_map import CHUNKINGS
from llamapar.place.sequence_map import lengths as document_lengths
from llamapar.programs import FAULTS, PROGRAMS, Program, ProgramLike
from llamapar.programs import program as find_program
from llamapar.records.trace import Tape
from llamapar.rules.report import Report, check_job
from llamapar.spmd.setting import DTYPES, Setting, kind
from llamapar.spmd.training import Training

from . import tape as tapes
from .against_reference import compared
from .body import RankReport, Task, asked_shapes, state_shapes, unpiped
from .capacity import choose_device, require_room
from .engines import dry, processes, torchrun
from .engines import local as local_engine
from .rank_memory import RankMemory
from .result import NO_NUMBERS, NOT_RANK_0, Result, remembered
from .run_options import RunOptions
from .scheduling import pipeline_of
from .ticking import few_threads, never, ticker
from .unsharded import unsharded


def prepare(
    program: ProgramLike, model: ModelLike, options: RunOptions, each: int = 2
) -> tuple[Task, tuple[str, ...], Report]:
    """The task, the notes about it, and check's report. Arguments and errors as in `run`.

    each: sequences of a micro-batch, if the options do not say it. What is compared has two, for one hides a
    program that takes the batch for the sequence; what is counted or drawn has one.
    """
    one_of("dtype", options.dtype, DTYPES)
    one_of("chunking", options.chunking, CHUNKINGS)
    if options.fault is not None:
        one_of("fault", options.fault, FAULTS)
    chosen = find_program(program, options.reference, options.out)
    config = find_model(model)
    if config.lacks:
        raise ModelError(
            f"lp.run does not compute {config.name}: {config.family} has {config.lacks}",
            config.unjudged or "its tensors are counted, cut and checked all the same",
            field="model",
        )

    # A program that is cut into stages runs with the schedule's own layout; any other one on the ranks of a
    # single stage.
    wanted = options.schedule, options.micro_batches, options.nc, options.global_batch
    staged = pipeline_of(chosen, options.layout, *wanted, each=each)
    layout = options.layout if staged.schedule is None else staged.layout
    if chosen == PROGRAMS["meta_attention"] and (config.qkv_bias or config.o_bias or config.qk_norm):
        raise LlamaparError(
            f"{config.name} has biases or QK norms, which {chosen.name} leaves out",
            "Meta's code is of a model without them",
            [Choice.of(program="attention")],
            "model",
        )
    padding = NO_PADDING if options.padding is None else padding_rule(options.padding)

    # By default the shortest sequence from 64 tokens on that CP's chunks and TP's rows divide.
    unit = 2 * layout.cp * layout.sp_ways * (2 if layout.tp % 2 and layout.cp > 1 else 1)
    seq_len = -(-64 // unit) * unit if options.seq_len is None else whole("seq_len", options.seq_len)

    job = Job.of(
        config,
        layout,
        seq_len=seq_len,
        micro_batch=1,
        global_batch=staged.global_batch,
        kv_replication=flag("kv_replication", options.kv_replication),
        padding=padding,
        cp_method=options.cp_method,
    )
    report = check_job(job)
    if not flag("force", options.force) and not report.ok:
        raise report.refusal()

    setting = Setting(
        config,
        staged.layout,
        padding=padding,
        kv_replication=options.kv_replication,
        chunking=options.chunking,
        seq_len=seq_len,
        global_batch=staged.global_batch,
        dtype=options.dtype,
        seed=whole("seed", options.seed, 0),
        cp_method=job.cp_method or "all_gather",
        documents=document_lengths(options.documents, seq_len),
        pads_in_softmax=flag("pads_in_softmax", options.pads_in_softmax),
        schedule=staged.schedule,
        reshard_after_forward=flag("reshard_after_forward", options.reshard_after_forward),
        training=_training(chosen, options.steps, options.steps_done) if options.backward else None,
    )
    task = Task(chosen, setting, backward=flag("backward", options.backward))
    if options.fault is not None:
        task = task.broken(options.fault)
    # Refuse an unknown argument now, before any rank starts.
    task = replace(task, given=_inputs(options.inputs, task))
    return task, (*staged.notes, *(f"forced past {f.code}: {f.message}" for f in report.errors)), report


def _training(program: Program, steps: int, done: int) -> Training | None:
    """The number of steps of a program that trains. Raises LlamaparError for a program that has none."""
    whole("steps", steps), whole("steps_done", done, 0)
    if program.trains:
        return Training(steps=steps, done=done)
    if (steps, done) != (1, 0):
        what = f"{program.name} updates no weights"
        raise LlamaparError(what, "steps are of training", [Choice.of(program="step")], "steps")
    return None


def _inputs(given: object, task: Task) -> dict[str, Tensor]:
    """The given global tensors in the dtype of the run. Raises LlamaparError if the program cannot take
    one.
    """
    setting = task.setting
    of_state = state_shapes(task)
    wanted = asked_shapes(task) | of_state
    if given is not None and not isinstance(given, Mapping):
        raise LlamaparError(
            f"inputs={shown(given)}: a dict of global tensors by name is needed", field="inputs"
        )
    found = {}
    for name, tensor in (given or {}).items():
        one_of("inputs", name, wanted, LlamaparError)
        what = f"inputs[{name!r}]"
        if not isinstance(tensor, Tensor):
            raise LlamaparError(f"{what} is {type(tensor).__name__}: a tensor is needed", field="inputs")
        if tuple(tensor.shape) != wanted[name]:
            raise LlamaparError(
                f"{what} has shape {list(tensor.shape)}, and {list(wanted[name])} is needed",
                "inputs are whole: each rank is given its piece of them",
                field="inputs",
            )
        counts = kind(name) in ("tokens", "positions")
        rows = setting.model.vocab_size
        if counts == (tensor.is_floating_point() or tensor.is_complex()):
            need = "floating point is"
            if counts:
                need = "whole numbers are"
            raise LlamaparError(f"{what} is {tensor.dtype}, and {need} needed", field="inputs")
        if kind(name) == "tokens" and tensor.numel() and not 0 <= tensor.min() <= tensor.max() < rows:
            span = f"{int(tensor.min())} to {int(tensor.max())}"
            raise LlamaparError(f"{what} holds tokens {span}, and vocab_size={rows}", field="inputs")
        dtype = setting.torch_dtype
        if name in of_state:
            dtype = setting.sum_dtype
        found[name] = tensor.detach().to(tensor.dtype if counts else dtype)
    return found


@checked_options
def run(
    program: ProgramLike,
    model: ModelLike,
    layout: LayoutLike | None = None,
    *,
    cancel: Callable[[], bool] | None = None,
    **options: Unpack[RunKeywords],
) -> Result:
    """Run `program` on every rank of `layout`, and compare with the reference.

    program: "attention", "embedding", "loss", "mlp", "block", "llama", "step", or a function
        (mesh, setting, …tensors by name…) of your own.
    engine: "local" (all ranks in this process), "processes" (one process a rank), "torchrun", or "dry":
        `rank` alone, of up to 2²⁰, on the meta device: the result has its `memory` and no numbers.
    device: "auto", "cpu" or "cuda". cancel: a function that stops the run once it returns true.
    timeout: the run fails if no rank enters or leaves a collective or ends for this many seconds.

    Under torchrun every rank calls this. Rank 0 gets the full result, the others the same without tensors.

    Options, with their defaults:
    dtype="float32": or "float64", "bfloat16". seq_len, global_batch: tokens and sequences in all; by default
        small numbers that divide, with two sequences in a micro-batch, in a dry run with one. seed=0: of the
        random tensors; inputs: global tensors to use instead.
    force=False: True runs a layout that `check` refuses, to show torch's own error.
    kv_replication=False, padding=None: as in `check`. chunking="head-tail" or "contiguous": how CP cuts the
        sequence. cp_method: how CP ranks share attention, "all_gather", "ring", "ulysses" or "ulysses:N", in
        which N ranks trade heads. documents: lengths, for a document mask.
    pads_in_softmax=False: True is Megatron-LM's loss. fault: a name of `lp.programs.FAULTS`, to break the
        program on purpose.
    schedule="1f1b", micro_batches=None, nc=None: of the pipeline; schedule is a name or a table, see
        `lp.schedule`. "step" always runs as a pipeline, "llama" if pp > 1 or micro_batches is given. Every
        other program is part of a stage, and runs on the ranks of one stage.
    reshard_after_forward=True: the backward of ZeRO 3 gathers parameters again; False keeps them.
    steps=1, steps_done=0: of "step": the number of AdamW's updates, and of the updates before them. inputs
        may then hold AdamW's state, "exp_avg.output.weight"; the default tokens are a small text's.
    reference: (setting, …), to compare your own program with; out="residual": the row of the placement
        table for a returned tensor. backward=True: also compare gradients.

    Raises LayoutError with the report for a layout that check refuses; LlamaparError for bad input or a run
    that does not fit the machine; RankFailure if a rank is killed, never arrives or never ends; Cancelled.
    The result's `errors` has what ranks raise.
    """
    given = Values(options)
    engine, device, rank = given.pop("engine"), given.pop("device"), given.pop("rank")
    timeout = given.pop("timeout")
    real("timeout", timeout, 0.1, 1e6)
    cancelled = cancel or never
    _require_program(program)
    each = 2
    if engine == "dry":
        each = 1
    task, notes, report = prepare(program, model, RunOptions(Layout.of(layout), **given), each)
    if engine == "dry":
        return remembered(_dry(task, rank, device, ticker(cancelled), notes, _reason(report)))
    if whole("rank", rank, 0):
        what = f"rank={rank} with engine={engine!r}"
        reason = "it runs all ranks; dry runs one of them alone"
        raise LlamaparError(what, reason, [Choice.of(engine="dry")], "rank")
    here = task.setting.layout.world
    if engine == "torchrun":
        here = int(os.environ.get("LOCAL_WORLD_SIZE", torchrun.launched() or 1))
    used, backend, why = choose_device(device, engine, here)
    require_room(task, engine)

    def result(reports: list[RankReport], given_up: Callable[[], bool] = cancelled) -> Result:
        told = (*notes, why)
        made = Result(task.program.name, task, engine, used, tuple(reports), told, why=_reason(report))
        if made.errors or task.program.reference is None:
            return made
        tick = ticker(given_up)
        return compared(made, unsharded(task, tick), tick)

    if engine == "torchrun":
        return remembered(torchrun.run(task, used, backend, timeout, result, _without_tensors))
    with local_engine.one_run, few_threads(asked_shapes(task).values()), interrupts.deferred() as check:

        def given_up() -> bool:
            check()  # A Ctrl-C that was deferred is raised here.
            return cancelled()

        if engine == "processes":
            made = result(processes.run(task, used, backend, timeout, given_up), given_up)
        else:
            made = result(local_engine.run(task, used, ticker(given_up)), given_up)
        return remembered(made)


def _require_program(program: object) -> None:
    """Raise LlamaparError for a module, or a function that makes one, in place of a program."""
    makes = isinstance(program, nn.Module)
    if callable(program) and not isinstance(program, Program):
        try:
            makes = makes or not inspect.signature(program).parameters
        except ValueError:  # a builtin without a signature
            makes = False
    if makes:
        raise LlamaparError(
            f"program={shown(program)} makes a module, and lp.run takes programs",
            "a module is compared with itself whole",
            ["lp.compare(make, plan, layout)"],
            "program",
        )


def _dry(
    task: Task, rank: int, device: str, tick: Callable[[], None], notes: tuple[str, ...], why: str
) -> Result:
    """Run one rank alone. Raises LayoutError for a rank outside the world."""
    world = task.setting.layout.world
    if whole("rank", rank, 0) >= world:
        what = f"rank={rank} for {world} ranks"
        raise LayoutError(what, f"ranks are 0 to {world - 1}", [Choice.of(rank=world - 1)], "rank")
    if device != "auto":
        what = f"device={device!r} with engine='dry'"
        raise LlamaparError(what, "tensors are of the meta device", [Choice.of(device="auto")], "device")
    training = task.setting.training
    if training is not None and training.steps > 1:
        task = replace(task, setting=replace(task.setting, training=replace(training, steps=1)))
        notes = (*notes, f"one of {training.steps} steps was run: the others are alike")
    if (own := task.setting.dtype) != "bfloat16":
        notes = (
            *notes,
            f"activations are in {own}: lp.memory counts bfloat16's, so does dtype='bfloat16' here",
        )
    with local_engine.one_run, interrupts.deferred() as check:

        def both() -> None:
            check()
            tick()

        report, curve = dry.run(task, rank, both)
    memory = RankMemory(task, rank, curve)
    return Result(
        task.program.name,
        task,
        "dry",
        "meta",
        (report,),
        notes,
        why=why,
        memory=memory,
        no_tensors=NO_NUMBERS,
    )


def _without_tensors(result: Result) -> Result:
    reports = (replace(r, outputs={}, gradients={}, first={}, state={}) for r in result.reports)
    return replace(result, reports=tuple(reports), no_tensors=NOT_RANK_0)


@checked_options
def tape(
    program: ProgramLike, model: ModelLike, layout: LayoutLike | None = None, **options: Unpack[TapeKeywords]
) -> Tape:
    """The shape tape of `program` at its true size, from the meta device: nothing is allocated.

    Arguments as in `run`. A layout that check refuses is taped up to the line that raises.
    """
    task, _, report = prepare(
        program, model, RunOptions(Layout.of(layout), force=True, **Values(options)), each=1
    )
    return tapes.shape_tape(unpiped(task), _reason(report))


def _reason(report: Report) -> str:
    """Why check refuses the layout, in one line; empty for a legal layout."""
    if report.errors:
        return f"{report.errors[0].message}: {report.errors[0].why}"
    return ""
