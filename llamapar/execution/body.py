"""What one rank does in a run, the same in every engine: cut the inputs, forward, backward, gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.layout import Layout
from llamapar.describe.placement import ACTIVATIONS, BESIDE, PARAMETERS
from llamapar.errors import Choice, LlamaparError
from llamapar.place.orders import Action
from llamapar.programs import FAULTS, Program, breaking
from llamapar.programs.corpus import corpus
from llamapar.records.trace import Trace
from llamapar.spmd import compat
from llamapar.spmd.gradients import reduce_gradients
from llamapar.spmd.microbatches import of_step
from llamapar.spmd.rank_mesh import RankMesh
from llamapar.spmd.setting import Setting, kind
from llamapar.spmd.update import STATES
from llamapar.spmd.zero import Gathered, forward_of, group_axes, leaves_of, zero_group

from .recorder import Recorder

Cut = Callable[[str, Callable[[], Tensor]], Tensor]
"""(name, maker of a global tensor) → this rank's piece of it, or a LocalTensor of all ranks' pieces."""


@dataclass(frozen=True)
class Results:
    """What came of a rank, by name: outputs and gradients; of training steps those of the first.

    first, state: what a rank holds after the first step and after the last, as a checkpoint has it: weights
    by name, "exp_avg.output.weight". curve: "losses" of the rank's own sequences, where it has the head, and
    "norms", [steps].
    """

    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    first: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    curve: dict[str, Tensor] = field(default_factory=dict)


NO_RESULTS = Results()


@dataclass(frozen=True)
class Task:
    """A program in a setting.

    fault: a name of `faults.FAULTS`. given: global tensors in place of random ones. backward: whether
    gradients are wanted.
    """

    program: Program
    setting: Setting
    fault: str | None = None
    given: Mapping[str, Tensor] = field(default_factory=dict)
    backward: bool = True

    @property
    def layout(self) -> Layout:
        return self.setting.layout

    def broken(self, fault: str) -> Task:
        """The same with a fault: some are a wrong setting, others a wrong line of the program."""
        return replace(self, fault=fault, setting=replace(self.setting, **FAULTS[fault].changes))

    def in_float64(self) -> Task:
        """The same in float64; given tensors keep their values."""
        given = {n: t.double() if t.is_floating_point() else t for n, t in self.given.items()}
        return replace(self, setting=replace(self.setting, dtype="float64"), given=given)


class Operation(NamedTuple):
    """An operation of a pipeline's schedule that was done: when it began and ended, in seconds of a clock."""

    action: Action
    start: float
    end: float


class Work(NamedTuple):
    """What a rank of a pipeline did: its operations in order, and its most micro-batches in flight."""

    operations: tuple[Operation, ...] = ()
    in_flight: int = 0


NO_PIPELINE = Work()


@dataclass(frozen=True, kw_only=True)
class RankReport(Results):
    """What came of a rank, its trace, and the error where one was raised.

    module: what a module of the user's held and made, a `ModuleOutcome`.
    """

    rank: int
    module: object = None
    trace: Trace | None = None
    error: BaseException | None = None
    traceback: str = ""
    at: float = 0.0  # when it raised, on a clock that all ranks share
    work: Work = NO_PIPELINE

    @classmethod
    def of(cls, rank: int, made: Results, trace: Trace, work: Work = NO_PIPELINE) -> RankReport:
        """The report of a rank that came to the end; of LocalTensors its own."""

        def own(of: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: compat.of_rank(t, rank).cpu() for name, t in of.items()}

        return cls(
            outputs=own(made.outputs),
            gradients=own(made.gradients),
            first=own(made.first),
            state=own(made.state),
            curve=own(made.curve),
            rank=trace.rank,
            trace=trace,
            work=work,
        )


def wants(function: Callable[..., object]) -> list[inspect.Parameter]:
    """The arguments of a program after mesh and setting."""
    try:
        arguments = list(inspect.signature(function).parameters.values())
    except ValueError:  # a builtin without a signature
        arguments = []
    names = [argument.name for argument in arguments]
    if names[:2] != ["mesh", "setting"]:
        raise LlamaparError(
            f"{getattr(function, '__name__', 'program')}({', '.join(names)}): the first arguments of a "
            "program are mesh and setting",
            "then come the tensors that it wants, by name",
            ["def program(mesh, setting, x, wq): ..."],
            "program",
        )
    return arguments[2:]


def asked_shapes(task: Task) -> dict[str, tuple[int, ...]]:
    """Name → global shape of every tensor that the program asks for."""
    setting = task.setting
    found: dict[str, tuple[int, ...]] = {}
    for argument in wants(task.program.function):
        name = argument.name
        if argument.kind is argument.VAR_KEYWORD:
            beside = [key for weight in BESIDE if weight in found for key in BESIDE[weight]]
            found |= {key: setting.shape(key) for key in beside if key in setting.layer()}
        elif name in ("weights", "layer"):
            found |= setting.weights() if name == "weights" else setting.layer()
        else:
            found[name] = setting.shape(name)
    for step in range(1, setting.training.steps if setting.training is not None else 0):
        found |= {of_step(name, step): setting.shape(name) for name in ("tokens", "targets")}
    return found


def state_shapes(task: Task) -> dict[str, tuple[int, ...]]:
    """The same of what a training step may begin with besides: AdamW's state, "exp_avg.output.weight"."""
    if task.setting.training is None:
        return {}
    weights = task.setting.weights().items()
    return {f"{kind}.{name}": shape for kind in STATES for name, shape in weights}


def inputs(
    task: Task, cut: Cut, device: str = "cpu", wanted: Container[str] | None = None
) -> dict[str, Tensor]:
    """Name → piece of all that the program asks for; of the whole model for "weights".

    wanted: the names to make, where not all.
    """
    setting = task.setting

    def whole(name: str, shape: tuple[int, ...]) -> Tensor:
        if name in task.given:
            return task.given[name].to(device)
        if task.program.trains and kind(name) == "tokens":
            return corpus(setting, name, device)
        return setting.make(name, shape, device)

    of_state = {name: shape for name, shape in state_shapes(task).items() if name in task.given}
    return {
        name: cut(name, partial(whole, name, shape))
        for name, shape in (asked_shapes(task) | of_state).items()
        if wanted is None or name in wanted
    }


def arguments(
    function: Callable[..., object], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor | Mapping[str, Tensor]]:
    """The tensors by the names of the function's arguments."""
    found: dict[str, Tensor | Mapping[str, Tensor]] = {}
    for name, argument in inspect.signature(function).parameters.items():
        if argument.kind is argument.VAR_KEYWORD:
            found |= {n: tensors[n] for names in BESIDE.values() for n in names if n in tensors}
        elif name == "layer":
            found[name] = _only(tensors, [n for n in tensors if kind(n) in PARAMETERS])
        else:
            found[name] = parameters(tensors) if name == "weights" else tensors[name]
    return found


def call_function(function: Callable[..., object], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the function makes of the tensors that it asks for; a returned tensor is named "out"."""
    made = function(**arguments(function, tensors))
    if isinstance(made, Tensor):
        return {"out": made}
    if isinstance(made, Mapping) and all(isinstance(t, Tensor) for t in made.values()):
        return dict(made)
    what = f"the program returned {type(made).__name__}"
    raise LlamaparError(what, "a tensor or a dict of tensors is needed", field="program")


def parameters(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What a program gets for "weights": the tensors with the full names of the model's parameters."""
    return _only(
        tensors, [n for n in tensors if n.endswith((".weight", ".bias")) and not n.startswith(STATES)]
    )


def _only(tensors: Mapping[str, Tensor], names: list[str]) -> Mapping[str, Tensor]:
    if isinstance(tensors, Gathered):
        return tensors.only(names)
    return {name: tensors[name] for name in names}


def placement(program: Program, name: str) -> str | None:
    """The row of the placement table for an output; None where the table has none."""
    row = name
    if name == "out":
        row = program.out
    if row in ACTIVATIONS:
        return row
    return None


def differentiated(
    task: Task, outputs: Mapping[str, Tensor], given: Mapping[str, Tensor], sequences: int, cut: Cut
) -> dict[str, Tensor]:
    """Gradients of the objective by the name of the input, of those that it depends on.

    The objective is the mean over sequences of sum(output · a fixed random tensor); a "loss" counts as it is.
    sequences: of the rank (or of all, for the reference).
    """
    terms: list[Tensor] = []
    for name, y in outputs.items():
        row = placement(task.program, name)
        if not y.requires_grad:
            continue
        if row is not None and row != "loss":
            shape = task.setting.shape(row)
            device = "cpu"
            if y.is_meta:
                device = "meta"
            dy = cut(row, partial(task.setting.make, "cotangent", shape, device)).detach()
            if y.shape != dy.shape:
                raise LlamaparError(
                    f"output {name!r} is {list(y.shape)}, and a rank's piece of {row} {list(dy.shape)}",
                    "that is what the placement table says of it",
                    [Choice.of("of another row", out=row), 'a dict, {"a name of your own": tensor}'],
                    "out",
                )
            y = y * dy
        terms.append(y.sum())
    if not terms:
        raise LlamaparError("no output of the program depends on a parameter", field="program")
    total = reduce(add, terms) / sequences
    leaves = {name: t for name, t in given.items() if t.requires_grad}
    made = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {n: g for n, g in zip(leaves, made, strict=True) if g is not None}


def unpiped(task: Task) -> Task:
    """The task as one micro-batch through all stages, on the ranks of one stage."""
    setting = task.setting
    if setting.schedule is None:
        return task
    each = setting.micro_batch * setting.layout.dp
    given = {n: t[:each] if kind(n) in ACTIVATIONS else t for n, t in task.given.items()}
    alone = replace(setting, layout=setting.of_one_stage, global_batch=each, schedule=None, training=None)
    return replace(task, setting=alone, given=given)


def computed(
    task: Task,
    function: Callable[..., object],
    given: Mapping[str, Tensor],
    sequences: int,
    cut: Cut,
    span: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Results:
    """What the function makes of the tensors given, and their gradients where those are wanted.

    span: entered with "forward" and with "backward" while each is done.
    """
    with span("forward"), forward_of(given):
        outputs = call_function(function, given)
    found: dict[str, Tensor] = {}
    if task.backward:
        with span("backward"):
            found = differentiated(task, outputs, leaves_of(given), sequences, cut)
    return Results({name: t.detach() for name, t in outputs.items()}, found)


def run_rank(mesh: DeviceMesh, task: Task, recorder: Recorder, cut: Cut, device: str = "cpu") -> Results:
    """What this rank makes (or, as LocalTensors, what all of them make)."""
    setting = task.setting
    program = partial(task.program.function, mesh, setting)
    with breaking.injected(task.fault), groups_kept():
        recorder.axes = group_axes(mesh, setting)
        own = as_shared(mesh, setting, inputs(task, cut, device))
        with recorder:
            made = computed(task, program, own, setting.global_batch // setting.layout.dp, cut)
            recorder.phase = "gradients"
            reduced = reduce_gradients(mesh, setting, made.gradients, scattered=isinstance(own, Gathered))
            return Results(made.outputs, reduced)


def as_shared(
    mesh: DeviceMesh, setting: Setting, own: Mapping[str, Tensor], late: bool = False
) -> Mapping[str, Tensor]:
    """A rank's tensors, of parameters under ZeRO 3 its shards, which are gathered when they are used."""
    if not setting.shards.cuts("parameters"):
        return own
    group = zero_group(mesh, setting)
    shards = {name: leaf(group.own(t)) if kind(name) in PARAMETERS else t for name, t in own.items()}
    return Gathered(group, shards, late)


@contextmanager
def groups_kept() -> Iterator[None]:
    """Says of an error that it came after the program had destroyed a process group."""
    before = compat.process_groups()
    try:
        yield
    except Exception as error:
        if before <= compat.process_groups():
            raise
        what = "the program destroyed a process group of its ranks, and then went on"
        raise LlamaparError(
            what, f"{type(error).__name__}: {error}", ["leave the groups to llamapar"]
        ) from error


def cut_at(setting: Setting, coord: compat.Coord, device: str | None = None) -> Cut:
    """The cut of one rank: its own piece, moved to `device` where one is named."""

    def cut(name: str, make: Callable[[], Tensor]) -> Tensor:
        own = setting.part(name, make(), coord)
        return leaf(own if device is None else own.to(device))

    return cut


@contextmanager
def dry_rank(task: Task, rank: int = 0) -> Iterator[tuple[DeviceMesh, Cut]]:
    """One rank of the task's layout with nobody to talk to: its mesh and its cut."""
    layout = task.setting.layout
    with compat.fake_world(layout.world, rank):
        mesh = RankMesh.of(layout, rank)
        yield mesh, cut_at(task.setting, compat.coord_of(mesh, rank))


def leaf(t: Tensor) -> Tensor:
    """A tensor of its own that gradients end at, where it can have one."""
    return t.detach().requires_grad_(t.is_floating_point())


def uncut(name: str, make: Callable[[], Tensor]) -> Tensor:
    """The cut of one process: the whole tensor."""
    return leaf(make())


def reference(task: Task) -> Results:
    """What the unsharded model makes: global tensors."""
    assert task.program.reference is not None
    function = partial(task.program.reference, task.setting)
    return computed(task, function, inputs(task, uncut), task.setting.global_batch, uncut)


def piece(task: Task, name: str, whole: Tensor, coord: dict[str, int]) -> Tensor:
    """The piece of a global output or gradient that a rank should have."""
    return task.setting.part(placement(task.program, name) or name, whole, coord)
