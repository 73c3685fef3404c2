"""The shape tape: run a program on the meta device for one rank after another, and note each assignment.

Running shows how a tensor is cut: once uncut (its global shape), once with each axis alone (the dims that
this axis cuts), and once as laid out, on every rank. Nothing is allocated, so 405B runs at its true size. An
error is torch's own error.

In a program of the library, ranks that hold equal shapes make equal shapes, and so do the layers of a model:
one of these ranks runs, with one layer, and its notes count for all of them. A program of your own runs on
every rank with all layers, because it may ask which rank or layer it is in.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.diagnosis import Explanation
from llamapar.diagnosis.known import Known
from llamapar.diagnosis.of_ranks import explain_ranks
from llamapar.programs import PROGRAMS, llama
from llamapar.records.tables import Plain
from llamapar.records.trace import Place, Tape, TapeStep

from .body import Task, call_function, cut_at, dry_rank, inputs
from .engines import local
from .line_by_line import NOWHERE, Assignment, Follower, Key, of_programs

SHOWN_RANKS = 64
"""Most ranks on a tape; of more, those at the ends of each axis."""


@dataclass
class _Note:
    """The result of one rank's run: the shape after each assignment, and the error with its line."""

    shapes: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    error: BaseException | None = None
    error_at: Key = NOWHERE

    def add(self, key: Key, value: Tensor, moment: Assignment) -> None:
        self.shapes[key] = tuple(value.shape)


def _dry(task: Task, rank: int, layers: int = 1) -> _Note:
    """Run the program forward on the meta device as `rank`. layers: how often to note its only layer."""
    note = _Note()
    with dry_rank(task, rank) as (mesh, cut):
        own = inputs(task, cut, "meta")
        follower = Follower(of_programs(task.program.function), note.add)
        try:
            with follower:
                call_function(partial(task.program.function, mesh, task.setting), own)
        except Exception as error:
            note.error, note.error_at = error, follower.raised_at(error)
    note.shapes = _with_layers(note.shapes, layers)
    return note


def _with_layers(shapes: dict[Key, tuple[int, ...]], layers: int) -> dict[Key, tuple[int, ...]]:
    """The assignments of a model of one layer, turned into those of a model of `layers` layers.

    A layer goes from the first argument of its block to the line of the stage that names the block's result.
    A block that raised never comes to that line, and no layer follows it.
    """
    block = llama.block.__name__
    stage = llama.llama_stage.__name__
    functions = [key.function for key in shapes]
    steps = list(shapes.items())
    begin = functions.index(block) if block in functions else len(functions)
    end = begin
    if stage in functions[begin:]:
        end = functions.index(stage, begin) + 1
    # A layer makes each of its assignments once, so that its number is how often they were made before.
    each = [(key._replace(times=i), shape) for i in range(layers) for key, shape in steps[begin:end]]
    return dict([*steps[:begin], *each, *steps[end:]])


def _kind(task: Task, rank: int) -> Hashable:
    """A key that is equal for ranks on which a program of the library makes equal shapes.

    These ranks hold equal shapes. If CP ranks differ in their tokens, each is a kind of its own, because
    attention also needs the keys of the ranks before it.
    """
    setting = task.setting
    coord = task.setting.layout.coord_of(rank)
    own = inputs(task, cut_at(setting, coord._asdict()), "meta")
    even = len({part.tokens for part in setting.sequence.ranks}) == 1
    return tuple(t.shape for t in own.values()), 0 if even else coord.cp


def explain_failure(task: Task, errors: Mapping[int, BaseException | str]) -> Explanation:
    """The errors of a task's ranks explained, with everything the task says about model and layout.

    errors: rank → exception or traceback, the first that raised first.
    """
    setting = task.setting
    given: Plain = {"seq_len": setting.seq_len, "global_batch": setting.global_batch}
    if setting.kv_replication:
        given["n_kv_heads"] = max(setting.model.n_kv_heads, setting.layout.tp)
    return explain_ranks(errors, Known.of(setting.model, setting.layout, None, given))


def shape_tape(task: Task, why: str) -> Tape:
    """The shapes on each rank after each assignment of the program, up to a line that raises.

    why: the reason shown beside an error. Raises LlamaparError if the process already has a process group.
    """
    setting = task.setting
    layout = task.setting.layout
    ours = task.program.function in [program.function for program in PROGRAMS.values()]
    model = setting.model
    if ours:
        model = setting.model.replace(n_layers=1)
    layers = setting.model.n_layers // model.n_layers
    one = replace(task, setting=replace(setting, model=model))

    def under(other: Layout) -> _Note:
        return _dry(replace(one, setting=replace(one.setting, layout=other)), 0, layers)

    ranks = _ranks(layout)
    with local.one_run:
        local.close_ranks()
        uncut = under(Layout())
        alone = {  # with a single axis of more than one rank
            axis: under(Layout(**{axis: getattr(layout, axis)}, sequence_parallel=layout.sequence_parallel))
            for axis in ("tp", "cp", "dp")
            if layout.size(axis) > 1
        }
        kinds = {r: _kind(one, r) if ours else r for r in ranks}
        chosen = {kind: r for r, kind in kinds.items()}  # any rank of the kind
        found = {kind: _dry(one, r, layers) for kind, r in chosen.items()}
        notes = {r: found[kind] for r, kind in kinds.items()}

    def step(key: Key, local: Mapping[int, tuple[int, ...]]) -> TapeStep:
        whole = uncut.shapes.get(key)
        places = _pieces(whole, key, alone)
        return TapeStep(key.where, key.code, key.name, whole, local, places)

    steps = []
    for key in dict.fromkeys(k for note in notes.values() for k in note.shapes):
        steps.append(step(key, {r: note.shapes[key] for r, note in notes.items() if key in note.shapes}))
    failed: dict[Key, dict[int, BaseException]] = {}
    for r, note in notes.items():
        if note.error is not None:
            failed.setdefault(note.error_at, {})[r] = note.error
    for at, errors in failed.items():
        key = at._replace(name=at.code.partition(" = ")[0] if " = " in at.code else "")
        words = {r: f"{type(error).__name__}: {error}" for r, error in errors.items()}
        cause = explain_failure(task, errors).cause
        steps.append(replace(step(key, {}), error=words, why=why, cause=cause))
    return Tape(task.program.name, str(layout), tuple(steps), len(ranks), layout.world)


def _pieces(whole: tuple[int, ...] | None, key: Key, alone: dict[str, _Note]) -> dict[str, Place]:
    """The axes that cut the tensor when each acts alone, with the dim that each cuts."""
    found: dict[str, Place] = {}
    for axis, note in alone.items():
        own = note.shapes.get(key)
        if whole is not None and own is not None and len(own) == len(whole):
            dims = [dim for dim, (n, whole_n) in enumerate(zip(own, whole, strict=True)) if n < whole_n]
            if dims:
                found[axis] = Place("piece", dims[0])
    return found


def _ranks(layout: Layout) -> Sequence[int]:
    """All ranks, or for many ranks those at the ends of each axis."""
    if layout.world <= SHOWN_RANKS:
        return range(layout.world)
    ends = [sorted({0, 1, n - 1}) if n > 1 else [0] for n in (layout.tp, layout.cp, layout.dp)]
    return sorted({layout.rank_of(tp=t, cp=c, dp=d) for t in ends[0] for c in ends[1] for d in ends[2]})
