"""The runs behind `lp.watch`: a program followed line by line on all ranks, compared with one process.

A tape needs three runs: the program on the ranks; the same source on one process, with whole tensors; and,
for a program broken by a fault or an edit, the correct program on the same ranks, which shows how each tensor
should be placed. All runs are local, so the numbers of every rank are available.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.splits import Padding
from llamapar.errors import LlamaparError, one_of
from llamapar.programs import Program, ProgramLike
from llamapar.programs import program as find_program
from llamapar.programs.teaching import even_tokens, teaching_inputs, teaching_model
from llamapar.records.tables import Plain
from llamapar.records.trace import Tape
from llamapar.spmd import collectives, compat

from .body import Task, asked_shapes
from .engines import local
from .execute import prepare
from .following import Followed, LiveRun, edited, follow
from .line_by_line import NOWHERE
from .run_options import RunOptions
from .run_pairs import MOST_RANKS, RunPairs, run_pairs
from .scheduling import pipeline_of
from .stage_tape import stages_tape
from .steps import Steps, made_of

DATA = ("teaching", "random")
"""What a watched program computes with."""

VOCAB_PADDING = Padding(8, per_tp=True)
"""Of the vocabulary that is watched: the last rank has pad rows, as in frameworks."""


def followed(program: Program) -> Callable[..., object]:
    """The function whose lines are on the tape: the program's, or its stage's for a whole model."""
    return program.stage or program.function


def watch_task(
    program: ProgramLike,
    model: ModelLike | None = None,
    layout: LayoutLike | None = None,
    *,
    data: str = DATA[0],
    fault: str | None = None,
    source: str = "",
    options: Plain | None = None,
) -> Task:
    """The task to watch: one of our programs or your own, at a size that can be drawn.

    model: supplies the KV heads, see `teaching_model`. data: "teaching" or "random". source: the edited text
    of the program, "" for its own. options: as in `lp.run`.
    """
    one_of("data", data, DATA)
    chosen = find_program(program)
    laid = Layout.of(layout)
    given = dict(options or {})
    layers = 0
    shape = {"seq_len": even_tokens(laid), "padding": VOCAB_PADDING}
    if chosen.stage is None:
        shape["global_batch"] = laid.dp
    else:  # Give each stage a layer; the head may count as one.
        given.setdefault("micro_batches", laid.pp)
        asked = (given.get(name) for name in ("micro_batches", "nc", "global_batch"))
        layers = pipeline_of(chosen, laid, given.get("schedule", "1f1b"), *asked, each=1).layout.stages
    small = teaching_model(None if model is None else find_model(model), laid, layers)
    fixed = {"dtype": "float64", "force": True, "fault": fault}
    task, _, _ = prepare(chosen, small, RunOptions(laid, **{**shape, **fixed, **given}), each=1)
    if data == DATA[0]:
        drawn = teaching_inputs(task.program.name, task.setting)
        wanted = {*asked_shapes(task), "cotangent"}
        task = replace(
            task, given={name: t for name, t in drawn.items() if name in wanted} | dict(task.given)
        )
    if source:
        changes: Plain = {"function" if chosen.stage is None else "stage": edited(followed(chosen), source)}
        task = replace(task, program=replace(task.program, **changes))
    return task


def watched(
    task: Task,
    right: Tape | None = None,
    tick: Callable[[], None] = lambda: None,
    exact: bool = False,
) -> Tape:
    """The tape of a task with the numbers of every rank; steps that differ from one process are marked.

    right: the tape of the correct program on the same ranks. Without it nothing is marked, because different
    numbers on a rank need not be a fault. tick: can raise to stop. exact: also mark numbers that differ from
    those of `right` but equal one process's. Raises LlamaparError for a layout of more than MOST_RANKS ranks.
    """
    layout = task.setting.layout
    if layout.world > MOST_RANKS:
        raise LlamaparError(
            f"{layout.world} ranks, and at most {MOST_RANKS} are watched", "", ["smaller degrees"], "tp"
        )
    if task.setting.schedule is not None:
        return stages_tape(task, right, tick)
    return run_pairs(task, right, tick, exact).tape()


def lights(task: Task, number: int, rank: int, at: int) -> dict[int, dict[int, list[int]]]:
    """The inputs of one number: step → rank → indexes of the numbers it depends on, in the flattened tensors
    that the line read.

    number: of a forward step. rank, at: the tensor's rank, and the index in the tensor. The indexes come from
    the line's gradient, with collectives whose gradient reaches every participating rank. Empty for a step of
    the backward, for integers, for an argument, and for every step of a pipeline.
    """
    found: dict[int, dict[int, list[int]]] = {}
    if task.setting.schedule is not None:
        return found

    def look(run: LiveRun) -> None:
        reader = RunPairs(run.task, Followed(), run.found, Steps(run.task.setting, {}, None))
        seen = run.found.seen[reader.shown[number]]
        reads = reader.reads(seen, reader.shown[number])
        tensors = [run.found.seen[reader.shown[n]].value for n in reads]
        cells = zip(reads, made_of(seen.value, tensors, rank, at), strict=True)
        found.update({n: by_rank for n, by_rank in cells if by_rank})

    right = collectives.all_reduce, collectives.copy
    with local.one_run:  # The patch replaces the collectives of the whole process.
        try:
            if task.fault is None:
                # An all-reduce whose gradient shows on which ranks its summands were made.
                collectives.all_reduce = lambda x, mesh, axis: collectives.exchange(
                    x, compat.all_reduce, compat.all_reduce, mesh, axis
                )
                collectives.copy = lambda x, mesh, axis: x
            run = follow(task, lambda: None, look)
        finally:
            collectives.all_reduce, collectives.copy = right
    if run.errors and run.error_at is NOWHERE:
        raise next(iter(run.errors.values()))  # not the program's: what is asked here
    return found
