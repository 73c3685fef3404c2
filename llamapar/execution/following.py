"""Follows a program on the local ranks, line by line, with the numbers and the gradients of every tensor."""

from __future__ import annotations
import __future__

import ast
import inspect
import itertools
import linecache
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.placement import PARAMETERS
from llamapar.errors import LlamaparError
from llamapar.programs import breaking
from llamapar.records.tables import Plain
from llamapar.records.trace import CollectiveEvent
from llamapar.spmd import compat
from llamapar.spmd.gradients import reduce_gradients
from llamapar.spmd.setting import kind
from llamapar.spmd.zero import forward_of, group_axes, leaves_of

from .body import Cut, Task, as_shared, asked_shapes, call_function, dry_rank, inputs, placement, wants
from .engines import local
from .line_by_line import GATHER, NOWHERE, Assignment, Follower, Key, with_helpers
from .recorder import Recorder
from .ticking import few_threads

MOST_STEPS = 2000
"""Lines that are followed: a loop of more is broken off."""

_sources = itertools.count()


def edited(function: Callable[..., object], source: str) -> Callable[..., object]:
    """The function that a text defines, in a copy of the namespace of `function`'s module.

    Raises LlamaparError, with the line, for a text that is not one plain function (mesh, setting, …).
    """
    text = textwrap.dedent(source)
    name = f"<watched {next(_sources)}>"
    try:
        tree = ast.parse(text, name)
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None)
        what = f"line {line} cannot be read: {getattr(problem, 'msg', problem)}" if line else str(problem)
        raise LlamaparError(what, "the text has to be Python", field="source") from None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef) or tree.body[0].decorator_list:
        raise LlamaparError(
            "the text is not one function",
            "it defines the program: def name(mesh, setting, x, …), and nothing else",
            field="source",
        )
    flags = __future__.annotations.compiler_flag
    names = dict(function.__globals__)
    exec(compile(tree, name, "exec", flags=flags, dont_inherit=True), names)
    made: types.FunctionType = names[tree.body[0].name]
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    wants(made)
    return made


def source_of(function: Callable[..., object]) -> str:
    """The source text of a function, or "" without one."""
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def within_limit(lines: int) -> None:
    """Raise LlamaparError if a program has more lines than can be followed."""
    if lines >= MOST_STEPS:
        what = f"more than {MOST_STEPS} lines were followed"
        raise LlamaparError(what, "a loop goes on for long, or for ever", field="source")


def gathers(key: Key, moment: Assignment) -> bool:
    """Whether a name from a line of GATHER is a parameter's shard, or the parameter gathered from it."""
    return key.name in ("shard", "whole") and bool(moment.parameter) and kind(moment.parameter) in PARAMETERS


class Seen(NamedTuple):
    """A tensor that a line named: its rank and place, and the collectives of the line, by number."""

    key: Key
    value: Tensor
    moment: Assignment
    until: tuple[int, int]


class Untraced(Recorder):
    """A recorder that turns Python's tracing off inside its operations, because torch makes a million calls
    there.
    """

    def __torch_dispatch__(
        self, func: compat.OpOverload, types: object, args: compat.Arguments = (), kwargs: Plain | None = None
    ) -> object:
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            sys.settrace(trace)


@contextmanager
def ranks_of(task: Task, alone: bool) -> Iterator[tuple[DeviceMesh, Cut]]:
    """The ranks of a stage, in this process. alone: run a single rank, which is faster without
    LocalTensors.
    """
    with local.one_run, few_threads(asked_shapes(task).values()):
        if alone:
            local.close_ranks()
            with dry_rank(task) as (mesh, cut):
                yield mesh, cut
            return
        with closing(local.LocalRanks(task.setting.of_one_stage, task.setting.part)) as ranks, ranks:
            yield ranks.mesh, ranks.cut


@dataclass
class Followed:
    """The result of following a program: every tensor in order, its gradient, and the error that ended the
    run.

    gradients: index in `seen` → gradient, with the number of events before and after it was made. reduced:
    name → the same for a parameter's gradient after the sums over ranks, and what it was before them. calls:
    of functions, each with the number of events before and after it.
    """

    seen: list[Seen] = field(default_factory=list)
    calls: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    gradients: dict[int, tuple[Tensor, int, int]] = field(default_factory=dict)
    reduced: dict[str, tuple[Tensor, int, int, Tensor]] = field(default_factory=dict)
    events: Mapping[int, tuple[CollectiveEvent, ...]] = field(default_factory=dict)
    errors: Mapping[int, BaseException] = field(default_factory=dict)
    error_at: Key = NOWHERE
    error_read: Mapping[str, Tensor] = field(default_factory=dict)


class LiveRun(NamedTuple):
    """A run whose ranks still exist; its tensors keep the graph for gradients."""

    task: Task
    mesh: DeviceMesh
    cut: Cut
    recorder: Recorder
    outputs: Mapping[str, Tensor]
    leaves: Mapping[str, Tensor]
    found: Followed


def follow(
    task: Task, tick: Callable[[], None], then: Callable[[LiveRun], None] | None = None, alone: bool = False
) -> Followed:
    """Run the task on the ranks of its layout. then: called while the ranks exist. alone: as in
    `ranks_of`.
    """
    setting = task.setting
    found = Followed()
    with ranks_of(task, alone) as (mesh, cut):
        recorder = Untraced(world=setting.of_one_stage.world, tick=tick)
        recorder.axes = group_axes(mesh, setting)

        def add(key: Key, value: Tensor, moment: Assignment) -> None:
            within_limit(len(found.seen))
            if key.function != GATHER.co_name or gathers(key, moment):
                found.seen.append(Seen(key, value, moment, recorder.length))

        follower = Follower(with_helpers(task.program.function), add, lambda: recorder.length, tick)
        found.calls = follower.calls
        function = partial(task.program.function, mesh, setting)
        try:
            with breaking.injected(task.fault), ExitStack() as stack:
                own = as_shared(mesh, setting, inputs(task, cut))
                stack.enter_context(recorder)
                stack.enter_context(forward_of(own))
                with follower:
                    outputs = call_function(function, own)
                if then is not None:
                    then(LiveRun(task, mesh, cut, recorder, outputs, leaves_of(own), found))
        except LlamaparError:
            raise
        except Exception as error:
            found.errors = local.errors_of([recorder], error)
            found.error_at = follower.ended_at(error)
            found.error_read = follower.read_at_end
    found.events = {rank: trace.events for rank, trace in recorder.traces.items()}
    return found


def backward(run: LiveRun) -> None:
    """Gradients of every tensor that has one, then of parameters after the sums over ranks."""
    task, mesh, cut, recorder, outputs, leaves, found = run
    setting = task.setting
    terms = []
    for name, y in outputs.items():
        row = placement(task.program, name)
        if not y.requires_grad:
            continue
        if row is None or row == "loss" or task.program.reference is None:
            terms.append(y.sum())  # The cut of a user's own output is unknown.
            continue

        def whole(row: str = row) -> Tensor:
            given = task.given.get("cotangent")
            if given is None:
                return setting.make("cotangent", setting.shape(row))
            return given

        terms.append((y * cut(row, whole).detach()).sum())
    if not terms:
        return
    at: dict[int, int] = {}
    kept: dict[int, int] = {}  # id of a tensor → where it has its name in the outermost function
    for i, seen in enumerate(found.seen):
        own = id(seen.value)
        if seen.value.requires_grad and not (
            own in kept and found.seen[kept[own]].moment.depth <= seen.moment.depth
        ):
            kept[own] = i
    for i in kept.values():
        found.seen[i].value.register_hook(partial(_note, at, i, recorder))
    total = torch.stack([term.reshape(()) for term in terms]).sum() / setting.global_batch
    begun = recorder.length[0]
    wanted = [found.seen[i].value for i in kept.values()]
    made = torch.autograd.grad(total, wanted, allow_unused=True)
    gradients = {i: g for i, g in zip(kept.values(), made, strict=True) if g is not None}
    for i in sorted(gradients, key=lambda i: (at.get(i, begun), -i)):
        found.gradients[i] = gradients[i], begun, at.get(i, begun)
        begun = max(begun, at.get(i, begun))
    recorder.phase = "gradients"
    for i, gradient in gradients.items():
        name = next((name for name, leaf in leaves.items() if leaf is found.seen[i].value), "")
        if name and kind(name) in PARAMETERS:
            since = recorder.length[0]
            scattered = setting.shards.cuts("parameters")
            [reduced] = reduce_gradients(mesh, setting, {name: gradient}, scattered).values()
            found.reduced[name] = reduced * setting.layout.dp, since, recorder.length[0], gradient


def _note(at: dict[int, int], i: int, recorder: Recorder, gradient: Tensor) -> None:
    """A hook that records the number of collectives at the moment a tensor's gradient is ready."""
    at.setdefault(i, recorder.length[0])
