"""The runs behind `lp.watch`: a program followed line by line on all ranks, compared with one process.

A tape needs three runs: the program on the ranks; the same source on one process, with whole tensors; and,
for a program broken by a fault or an edit, the correct program on the same ranks, which shows how each tensor
should be placed. All runs are local, so the numbers of every rank are available.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.splits import Padding
from llamapar.errors import LlamaparError, one_of
from llamapar.programs import Program, ProgramLike
from llamapar.programs import program as find_program
from llamapar.programs.teaching import even_tokens, teaching_inputs, teaching_model
from llamapar.records.tables import Plain
from llamapar.records.trace import Tape, TapeStep
from llamapar.spmd import collectives, compat

from .body import Task, asked_shapes
from .engines import local
from .execute import prepare
from .following import Followed, LiveRun, Seen, backward, edited, follow
from .line_by_line import NOWHERE, Key
from .run_options import RunOptions
from .scheduling import pipeline_of
from .stage_tape import stage_lights, stages_tape
from .steps import Named, Steps, made_of, numbered, values_of

MOST_RANKS = 16
"""Ranks whose numbers are kept."""

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
    alone_in = Layout(
        sequence_parallel=layout.sequence_parallel, zero=layout.zero
    )  # ZeRO's own lines are on the tape as well.
    one = replace(task.setting, layout=alone_in)
    then = backward if task.backward else None
    alone = follow(replace(task, setting=one, fault=None), tick, then, alone=True)
    here = follow(task, tick, then)
    coords = {rank: layout.coord_of(rank) for rank in range(layout.world)}
    return _RunPairs(task, alone, here, Steps(task.setting, coords, right, exact)).tape()


def lights(task: Task, number: int, rank: int, at: int) -> dict[int, dict[int, list[int]]]:
    """The inputs of one number: step → rank → indexes of the numbers it depends on, in the flattened tensors
    that the line read.

    number: of a forward step. rank, at: the tensor's rank, and the index in the tensor. The indexes come from
    the line's gradient, with collectives whose gradient reaches every participating rank. Empty for a step of
    the backward, for integers and for an argument. A tensor from another stage ends at its arrival.
    """
    found: dict[int, dict[int, list[int]]] = {}

    def look(run: LiveRun) -> None:
        reader = _RunPairs(run.task, Followed(), run.found, Steps(run.task.setting, {}, None))
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
            if task.setting.schedule is not None:
                return stage_lights(task, number, rank, at)
            run = follow(task, lambda: None, look)
        finally:
            collectives.all_reduce, collectives.copy = right
    if run.errors and run.error_at is NOWHERE:
        raise next(iter(run.errors.values()))  # not the program's: what is asked here
    return found


class _RunPairs:
    """Combines two runs: the steps of the ranks, each beside the tensor of one process."""

    def __init__(self, task: Task, alone: Followed, here: Followed, steps: Steps) -> None:
        self.task = task
        self.alone = alone
        self.here = here
        self.steps = steps
        numbers = {i: seen for seen, i in numbered([_named(seen) for seen in alone.seen]).items()}
        self.number = {i: seen for seen, i in numbered([_named(seen) for seen in here.seen]).items()}
        self.whole = {numbers[i]: seen.value for i, seen in enumerate(alone.seen)}
        of_tensor = {id(alone.seen[i].value): g for i, (g, *_) in alone.gradients.items()}
        self.whole_gradients = {
            numbers[i]: of_tensor[id(seen.value)]  # A tensor can have several names.
            for i, seen in enumerate(alone.seen)
            if id(seen.value) in of_tensor
        }
        communicates = [before < after for (before, _), (after, _) in here.calls]
        self.shown = [
            i
            for i, seen in enumerate(here.seen)
            if not seen.moment.depth or (communicates[seen.moment.call] and seen.key.line)
        ]
        """Of the lines in helpers those of calls that communicate, without their arguments."""

    def tape(self) -> Tape:
        at = {i: n for n, i in enumerate(self.shown)}
        steps = []
        for i in self.shown:
            seen = self.here.seen[i]
            span = (seen.moment.since[0], seen.until[0])
            whole = self.whole.get(self.number[i])
            held = {"whole": whole, "reads": self.reads(seen, i), "depth": seen.moment.depth}
            steps.append(self._make("forward", seen.key, _shown_name(seen), seen.value, span, held))
        if self.here.errors:
            words = {rank: f"{type(error).__name__}: {error}" for rank, error in self.here.errors.items()}
            reads = self._read(self.here.error_read, 0, len(self.here.seen))  # 0: the program's own call
            steps.append(self.steps.error(self.here.error_at, words, reads=reads))
        gradients: dict[str, int] = {}
        made: dict[int, int] = {}  # a step → that of its gradient
        forward = len(steps)
        for i, (gradient, since, until) in self.here.gradients.items():
            if i not in at:
                continue
            seen = self.here.seen[i]
            name = f"{_shown_name(seen)}.grad"
            readers = [made[n] for n, step in enumerate(steps[:forward]) if at[i] in step.reads and n in made]
            gradients[name] = made[at[i]] = len(steps)
            reads = tuple(readers) or (at[i],)  # a gradient is made from those of what read the tensor
            whole = self.whole_gradients.get(self.number[i])
            held = {"whole": whole, "reads": reads, "depth": seen.moment.depth}
            span = since, until
            steps.append(self._make("backward", seen.key, name, gradient, span, held))
        for name, (gradient, since, until) in self.here.reduced.items():
            alone = self.alone.reduced.get(name)
            code = f"{name}.grad = reduce_gradients({name}.grad)"
            key = Key("reduce_gradients", 0, code, f"{name}.grad")
            reads = (gradients[key.name],) if key.name in gradients else ()
            held = {"whole": None if alone is None else alone[0], "reads": reads}
            steps.append(self._make("gradients", key, key.name, gradient, (since, until), held))
        return self.steps.tape(self.task, steps, self.task.program.function)

    def _make(
        self, phase: str, key: Key, name: str, value: Tensor, span: tuple[int, int], held: Plain
    ) -> TapeStep:
        """A step. Its collectives are those between two lengths of each rank's trace."""
        own = values_of(value, range(self.task.setting.layout.world))
        events = {rank: sent[slice(*span)] for rank, sent in self.here.events.items()}
        return self.steps.make(key, name, own, phase=phase, events=events, **held)

    def reads(self, seen: Seen, i: int) -> tuple[int, ...]:
        """The steps whose tensors a line read."""
        return self._read(seen.moment.read, seen.moment.call, i)

    def _read(self, read: Mapping[str, Tensor], call: int, i: int) -> tuple[int, ...]:
        """For each tensor, the last step before `i` that has it, in the same call if possible."""
        found = []
        for name, t in read.items():
            same = [n for n, k in enumerate(self.shown) if k < i and self.here.seen[k].value is t]
            others = [self.here.seen[self.shown[n]] for n in same]
            own = [
                n
                for n, other in zip(same, others, strict=True)
                if (other.key.name, other.moment.call) == (name, call)
            ]
            found += (own or same)[-1:]
        return tuple(dict.fromkeys(found))


def _shown_name(seen: Seen) -> str:
    """The name shown: "out" for a returned tensor, as in a run; the parameter's name for a tensor that ZeRO
    gathers.
    """
    return "out" if seen.key.name == "return" else seen.moment.parameter or seen.key.name


def _named(seen: Seen) -> Named:
    """Function and name of a tensor."""
    return seen.key.function, seen.key.name
