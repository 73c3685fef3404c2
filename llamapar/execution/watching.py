"""`lp.watch`'s runs: a program followed line by line on all ranks, and compared with one process.

Three runs make a tape: the program on the ranks; the same source on one process, whose tensors are the whole
ones; and, where the program is broken by a fault or an edit, the program as it should be on the same ranks,
which says how each tensor ought to be held. All are local: numbers of every rank are at hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.layout import Coord, Layout, LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.splits import Padding
from llamapar.errors import LlamaparError, one_of
from llamapar.programs import ProgramLike
from llamapar.programs import program as find_program
from llamapar.programs.teaching import teaching_inputs, teaching_model, tokens_of
from llamapar.records.tables import Plain
from llamapar.records.trace import Tape, TapeStep
from llamapar.spmd import collectives, compat
from llamapar.spmd.setting import Setting

from .body import Task, wants
from .engines import local
from .execute import prepare
from .following import Followed, Run, Seen, backward, edited, follow, source_of
from .lines import NOWHERE, Key
from .placing import NOT_PLACED, Placed, placed

MOST_RANKS = 16
"""Ranks whose numbers are kept."""

DATA = ("teaching", "random")
"""What a watched program computes with."""

VOCAB_PADDING = Padding(8, per_tp=True)
"""Of the vocabulary that is watched: the last rank has pad rows, as in frameworks."""


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
    """What is watched: a program of ours or of a person's own, small enough to be drawn.

    model: whose KV heads are kept, see `teaching_model`. data: "teaching" or "random". source: the program's
    text as edited, "" for its own. options: as `lp.run` takes them.
    """
    one_of("data", data, DATA)
    chosen, laid = find_program(program), Layout.of(layout)
    small = teaching_model(None if model is None else find_model(model), laid)
    shape = {"seq_len": tokens_of(laid), "global_batch": laid.dp, "padding": VOCAB_PADDING}
    task, _, _ = prepare(
        chosen, small, laid, **{**shape, "dtype": "float64", "force": True, "fault": fault, **(options or {})}
    )
    if data == DATA[0]:
        drawn = teaching_inputs(task.program.name, task.setting)
        wanted = {*wants(task.program.function), "cotangent"}
        task = replace(
            task, given={name: t for name, t in drawn.items() if name in wanted} | dict(task.given)
        )
    if source:
        task = replace(task, program=replace(task.program, function=edited(task.program.function, source)))
    return task


def watched(task: Task, right: Tape | None = None, tick: Callable[[], None] = lambda: None) -> Tape:
    """The tape of a task with the numbers of every rank; steps that differ from one process are marked.

    right: the tape of the same program as it should be, on the same ranks; without one nothing is marked, for
    numbers of a rank's own are no fault. tick: raises to stop. Raises LlamaparError for a layout of more
    than MOST_RANKS ranks.
    """
    layout = task.setting.layout
    if layout.world > MOST_RANKS:
        raise LlamaparError(
            f"{layout.world} ranks, and at most {MOST_RANKS} are watched", "", ["smaller degrees"], "tp"
        )
    one = replace(task.setting, layout=Layout(sequence_parallel=layout.sequence_parallel))
    then = backward if task.backward else None
    alone = follow(replace(task, setting=one, fault=None), tick, then)
    here = follow(task, tick, then)
    return _Reader(task, alone, here, right).tape()


def _sum_back(x: Tensor, mesh: DeviceMesh, axis: str) -> Tensor:
    """An all-reduce whose gradient says on which ranks its summands were made."""
    return collectives.exchange(x, compat.all_reduce, compat.all_reduce, mesh, axis)


def lights(task: Task, number: int, rank: int, at: int) -> dict[int, dict[int, list[int]]]:
    """What made a number: step → rank → indexes of the numbers that it depends on, in the tensors that the
    line read, flattened.

    number: of a step of the forward. rank, at: whose tensor, and the index in it. The line's gradient says
    it, with collectives whose gradient goes to every rank that took part. Empty for a step of the backward,
    for whole numbers, and for an argument.
    """
    found: dict[int, dict[int, list[int]]] = {}

    def look(run: Run) -> None:
        reader = _Reader(run.task, Followed(), run.found, None)
        seen = run.found.seen[reader.shown[number]]
        reads = reader.reads(seen, reader.shown[number])
        tensors = [run.found.seen[reader.shown[n]].value for n in reads]
        wanted = [(n, t) for n, t in zip(reads, tensors, strict=True) if t.requires_grad]
        if not seen.value.requires_grad or not wanted:
            return
        pieces = compat.by_rank(seen.value) or {}
        one = {r: torch.zeros_like(t.detach()) for r, t in pieces.items()}
        one[rank].view(-1)[at] = 1
        asked = compat.LocalTensor(one)
        made = torch.autograd.grad(seen.value, [t for _, t in wanted], asked, allow_unused=True)
        for (n, _), gradient in zip(wanted, made, strict=True):
            for r, own in (compat.by_rank(gradient) or {}).items() if gradient is not None else ():
                if len(cells := own.reshape(-1).nonzero()[:, 0].tolist()):
                    found.setdefault(n, {})[r] = cells

    right = collectives.all_reduce, collectives.copy
    with local.one_run:  # the collectives are the whole process's
        try:
            if task.fault is None:
                collectives.all_reduce = _sum_back
                collectives.copy = lambda x, mesh, axis: x
            run = follow(task, lambda: None, look)
        finally:
            collectives.all_reduce, collectives.copy = right
    if run.errors and run.error_at is NOWHERE:
        raise next(iter(run.errors.values()))  # not the program's: what is asked here
    return found


class _Reader:
    """Puts what two runs left together: the steps of the ranks, each beside one process's tensor."""

    def __init__(self, task: Task, alone: Followed, here: Followed, right: Tape | None) -> None:
        self.task, self.alone, self.here = task, alone, here
        layout = task.setting.layout
        self.coords: dict[int, Coord] = {rank: layout.coord_of(rank) for rank in range(layout.world)}
        numbers = {i: seen for seen, i in _numbered([_named(seen) for seen in alone.seen]).items()}
        self.number = {i: seen for seen, i in _numbered([_named(seen) for seen in here.seen]).items()}
        self.whole = {numbers[i]: seen.value for i, seen in enumerate(alone.seen)}
        of_tensor = {id(alone.seen[i].value): g for i, (g, *_) in alone.gradients.items()}
        self.whole_gradients = {
            numbers[i]: of_tensor[id(seen.value)]  # a tensor may have more names than one
            for i, seen in enumerate(alone.seen)
            if id(seen.value) in of_tensor
        }
        steps = right.steps if right is not None else ()
        self.right = {named: steps[n] for named, n in _numbered([*map(_key, steps)]).items()}
        self.counted: Counter[tuple[str, str]] = Counter()
        self.broken = False
        communicates = [before < after for (before, _), (after, _) in here.calls]
        self.shown = [
            i
            for i, seen in enumerate(here.seen)
            if not seen.moment.call or (communicates[seen.moment.call] and seen.key.line)
        ]
        """Of the lines in helpers those of calls that communicate, without their arguments."""

    def tape(self) -> Tape:
        at = {i: n for n, i in enumerate(self.shown)}
        steps = [self._forward(self.here.seen[i], i) for i in self.shown]
        if self.here.errors:
            steps.append(self._error())
        gradients: dict[str, int] = {}
        made: dict[int, int] = {}  # a step → that of its gradient
        forward = len(steps)
        for i, (gradient, since, until) in self.here.gradients.items():
            if i not in at:
                continue
            seen = self.here.seen[i]
            name = f"{_shown_name(seen.key)}.grad"
            readers = [made[n] for n, step in enumerate(steps[:forward]) if at[i] in step.reads and n in made]
            gradients[name] = made[at[i]] = len(steps)
            whole, depth, span = self.whole_gradients.get(self.number[i]), seen.moment.depth, (since, until)
            reads = tuple(readers) or (at[i],)  # a gradient is made from those of what read the tensor
            steps.append(self._step(seen.key, name, gradient, whole, "backward", reads, span, depth))
        for name, (gradient, since, until) in self.here.reduced.items():
            alone = self.alone.reduced.get(name)
            code = f"{name}.grad = reduce_gradients({name}.grad)"
            key = Key("reduce_gradients", 0, code, f"{name}.grad")
            reads = (gradients[key.name],) if key.name in gradients else ()
            whole = None if alone is None else alone[0]
            steps.append(self._step(key, key.name, gradient, whole, "gradients", reads, (since, until), 0))
        task, world = self.task, self.task.setting.layout.world
        return Tape(
            task.program.name,
            str(task.setting.layout),
            tuple(steps),
            world,
            world,
            source_of(task.program.function),
            {rank: coord._asdict() for rank, coord in self.coords.items()},
            {name: size(task.setting, name) for name in DIMS},
        )

    def _forward(self, seen: Seen, i: int) -> TapeStep:
        """The step of a tensor that got its name."""
        span = seen.moment.since[0], seen.until[0]
        whole, name, reads = self.whole.get(self.number[i]), _shown_name(seen.key), self.reads(seen, i)
        return self._step(seen.key, name, seen.value, whole, "forward", reads, span, seen.moment.depth)

    def reads(self, seen: Seen, i: int) -> tuple[int, ...]:
        """The steps whose tensors a line read: each the last before it, of the same call if there is one."""
        found = []
        for name, t in seen.moment.read.items():
            same = [n for n, k in enumerate(self.shown) if k < i and self.here.seen[k].value is t]
            others = [self.here.seen[self.shown[n]] for n in same]
            own = [
                n
                for n, other in zip(same, others, strict=True)
                if (other.key.name, other.moment.call) == (name, seen.moment.call)
            ]
            found += (own or same)[-1:]
        return tuple(dict.fromkeys(found))

    def _step(
        self,
        key: Key,
        name: str,
        value: Tensor,
        whole: Tensor | None,
        phase: str,
        reads: tuple[int, ...],
        span: tuple[int, int],
        depth: int,
    ) -> TapeStep:
        own = {
            rank: t.detach()
            for rank, t in (compat.by_rank(value) or dict.fromkeys(self.coords, value)).items()
        }
        one = None if whole is None else compat.first_of(whole).detach()
        found = NOT_PLACED
        if one is not None and all(t.dim() == one.dim() for t in own.values()):
            found = placed(one, own, self.task.setting, self.coords)
        step = TapeStep(
            key.where,
            key.code,
            name,
            None if one is None else tuple(one.shape),
            {rank: tuple(t.shape) for rank, t in own.items()},
            found.places,
            values=own,
            at=found.at,
            reads=reads,
            events={
                rank: sent for rank, all_sent in self.here.events.items() if (sent := all_sent[slice(*span)])
            },
            depth=depth,
            phase=phase,
        )
        why = self._wrong(step, found)
        first, self.broken = not self.broken, self.broken or bool(why)
        fault = "begins" if first else "spreads"
        return replace(step, why=why, fault=fault) if why else step

    def _wrong(self, step: TapeStep, found: Placed) -> str:
        """In what the tensor differs from what the program as it should be has there; "" for nothing."""
        named = _key(step)
        before = self.right.get((*named, self.counted[named]))
        self.counted[named] += 1
        if before is None:
            return ""
        for axis, place in before.places.items():
            own = step.places.get(axis)
            if own is not None and own.kind != "own" and own != place and found.agrees:
                return f"a {own.kind} over {axis.upper()} where it should be a {place.kind}"
        if not before.places or any(place.kind == "own" for place in before.places.values()):
            return "other numbers than it should have" if _differ(step.values, before.values) else ""
        if not found.agrees:
            return "other numbers than one process has"
        if step.at != before.at:
            rank = next(rank for rank, at in step.at.items() if at != before.at.get(rank))
            return f"another piece than it should be, on rank {rank} first"
        return ""

    def _error(self) -> TapeStep:
        key = self.here.error_at
        name = key.code.partition(" = ")[0] if " = " in key.code else ""
        words = {rank: f"{type(error).__name__}: {error}" for rank, error in self.here.errors.items()}
        first = "spreads" if self.broken else "begins"
        return TapeStep(key.where, key.code, name, None, {}, error=words, fault=first)


DIMS = (
    "batch",
    "seq",
    "dim",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "q_dim",
    "kv_dim",
    "ffn_dim",
    "vocab_size",
)
"""Names of dims, of tensors that are watched."""


def size(setting: Setting, name: str) -> int:
    """How large a named dim is; of the vocabulary without pad rows."""
    own = {"batch": setting.global_batch, "seq": setting.seq_len}
    return own[name] if name in own else int(getattr(setting.model, name))


def _differ(values: Mapping[int, Tensor], others: Mapping[int, Tensor]) -> bool:
    """Whether any rank's numbers are not those of another tape."""
    return values.keys() != others.keys() or any(
        t.shape != others[rank].shape or not torch.allclose(t.double(), others[rank].double())
        for rank, t in values.items()
    )


def _shown_name(key: Key) -> str:
    """A returned tensor is called "out", as a run calls it."""
    return "out" if key.name == "return" else key.name


def _key(step: TapeStep) -> tuple[str, str]:
    """Function and name of a step, the phase with it."""
    return f"{step.where.partition(':')[0]} {step.phase}", step.name


def _named(seen: Seen) -> tuple[str, str]:
    """Function and name of a tensor."""
    return seen.key.function, seen.key.name


def _numbered(keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str, int], int]:
    """(function, name, how many'th) → index. Lines do not count: they differ between branches and edits."""
    counted: Counter[tuple[str, str]] = Counter()
    found = {}
    for i, key in enumerate(keys):
        found[(*key, counted[key])] = i
        counted[key] += 1
    return found
