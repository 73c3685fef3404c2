"""Tensors of the ranks as steps of a tape: how each is placed, and what is wrong with it.

A step is compared with the whole tensor of one process, and with the same step of the correct program, if
there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from llamapar.describe.layout import Coord
from llamapar.records.tables import Plain
from llamapar.records.trace import CollectiveEvent, Tape, TapeStep
from llamapar.spmd import compat
from llamapar.spmd.setting import Setting

from .body import Task
from .following import source_of
from .line_by_line import Key
from .placing import NOT_PLACED, Placed, placement_of

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


def dim_size(setting: Setting, name: str) -> int:
    """Size of a named dim; the vocabulary counts without pad rows."""
    own = {"batch": setting.global_batch, "seq": setting.seq_len}
    if name in own:
        return own[name]
    return int(getattr(setting.model, name))


def values_of(value: Tensor, ranks: Sequence[int]) -> dict[int, Tensor]:
    """rank → its own tensor. ranks: the rank of each place that runs in this process, in order."""
    own = compat.by_rank(value)
    return {rank: value if own is None else own[r] for r, rank in enumerate(ranks)}


def made_of(value: Tensor, reads: Sequence[Tensor], rank: int, at: int) -> list[dict[int, list[int]]]:
    """The numbers of `reads` that one number depends on: for each tensor, rank → flattened indexes.

    rank, at: the number's rank, and its index in the rank's `value`. The gradient of `value` gives the
    answer; it is empty for integers and for tensors without a graph.
    """
    found: list[dict[int, list[int]]] = [{} for _ in reads]
    wanted = [n for n, t in enumerate(reads) if t.requires_grad]
    if not value.requires_grad or not wanted:
        return found
    one = {r: torch.zeros_like(t.detach()) for r, t in (compat.by_rank(value) or {}).items()}
    one[rank].view(-1)[at] = 1
    asked = compat.LocalTensor(one)
    made = torch.autograd.grad(value, [reads[n] for n in wanted], asked, allow_unused=True)
    for n, gradient in zip(wanted, made, strict=True):
        for r, own in (compat.by_rank(gradient) or {}).items() if gradient is not None else ():
            if len(cells := own.reshape(-1).nonzero()[:, 0].tolist()):
                found[n][r] = cells
    return found


Named = tuple[str, str]
"""Function and name of a tensor, by which tensors of two runs are compared. Lines differ between branches."""


class Steps:
    """Makes the steps of one tape in order; a fault begins at the first wrong step.

    setting: of the tensors, with their global_batch. right: the tape of the correct program. exact: compare
    its numbers too, not only its placements.
    """

    def __init__(
        self, setting: Setting, coords: Mapping[int, Coord], right: Tape | None, exact: bool = False
    ) -> None:
        self.setting = setting
        self.coords = coords
        self.exact = exact
        steps: Sequence[TapeStep] = ()
        if right is not None:
            steps = right.steps
        self.right = {named: steps[n] for named, n in numbered([*map(step_key, steps)]).items()}
        self.counted: Counter[Named] = Counter()
        self.broken = False

    def make(
        self,
        key: Key,
        name: str,
        values: Mapping[int, Tensor],
        whole: Tensor | None,
        *,
        phase: str,
        reads: tuple[int, ...] = (),
        events: Mapping[int, Sequence[CollectiveEvent]],
        depth: int = 0,
    ) -> TapeStep:
        """The step of a tensor. values: rank → its own. whole: one process's, or a LocalTensor of it."""
        own = {rank: t.detach() for rank, t in values.items()}
        one = None if whole is None else compat.first_of(whole).detach()
        found = NOT_PLACED
        if one is not None and all(t.dim() == one.dim() for t in own.values()):
            found = placement_of(one, own, self.setting, self.coords)
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
            events={rank: tuple(sent) for rank, sent in events.items() if sent},
            depth=depth,
            phase=phase,
            whole=one,
            agrees=found.agrees,
        )
        why = self._wrong(step, found)
        if why:
            return replace(step, why=why, fault=self._fault())
        return step

    def error(
        self, key: Key, error: Mapping[int, str], why: str = "", reads: tuple[int, ...] = ()
    ) -> TapeStep:
        """The step of a line that raised. error: rank → the error in words."""
        name = ""
        if " = " in key.code:
            name = key.code.partition(" = ")[0]
        how: Plain = {"reads": reads, "error": error, "why": why, "fault": self._fault()}
        return TapeStep(key.where, key.code, name, None, {}, **how)

    def tape(self, task: Task, steps: Sequence[TapeStep], function: Callable[..., object]) -> Tape:
        """The tape of a task. function: the function whose lines are the steps."""
        layout = task.setting.layout
        return Tape(
            task.program.name,
            str(layout),
            tuple(steps),
            layout.world,
            layout.world,
            source_of(function),
            {rank: coord._asdict() for rank, coord in self.coords.items()},
            {name: dim_size(self.setting, name) for name in DIMS},
        )

    def _fault(self) -> str:
        first = not self.broken
        self.broken = True
        if first:
            return "begins"
        return "spreads"

    def _wrong(self, step: TapeStep, found: Placed) -> str:
        """The difference from the correct program's tensor at this step; "" for none."""
        named = step_key(step)
        before = self.right.get((*named, self.counted[named]))
        self.counted[named] += 1
        if before is None:
            return ""
        for axis, place in before.places.items():
            own = step.places.get(axis)
            if own is not None and own.kind != "own" and own != place and found.agrees:
                return f"a {own.kind} over {axis.upper()} where it should be a {place.kind}"
        if not before.at or any(place.kind == "own" for place in before.places.values()):
            if _differ(step.values, before.values):
                return "other numbers than it should have"
            return ""
        # In the correct program, too, a tensor can have its tokens in another order than one process's.
        if not found.agrees and _differ(step.values, before.values):
            return "other numbers than one process has"
        if step.at != before.at:
            rank = next(rank for rank, at in step.at.items() if at != before.at.get(rank))
            if step.places == before.places and not any(
                place.dim is not None for place in step.places.values()
            ):
                return "in another order than it should be"
            return f"another piece than it should be, on rank {rank} first"
        if self.exact and _differ(step.values, before.values):
            return "other numbers than it should have"
        return ""


def ends_alike(tape: Tape, right: Tape) -> bool:
    """Whether two runs of a program end with equal numbers: the last tensor, and the gradients of its
    inputs.
    """
    found = _ends(tape)
    wanted = _ends(right)
    return all(named in found and not _differ(found[named], own) for named, own in wanted.items())


def _ends(tape: Tape) -> dict[Named, Mapping[int, Tensor]]:
    """The values of the last tensor of the forward and, by name, of the last gradients."""
    own = [step for step in tape.steps if not step.depth and step.values]
    ends = {(step.phase, step.name): step.values for step in own if step.phase == "gradients"}
    ends |= {(s.phase, s.name): s.values for s in own if s.phase == "backward" and s.code == "argument"}
    forward = [step.values for step in own if step.phase == "forward"]
    return ends | ({("forward", ""): forward[-1]} if forward else {})


def _differ(values: Mapping[int, Tensor], others: Mapping[int, Tensor]) -> bool:
    """Whether any rank's numbers differ from those of another tape."""
    return values.keys() != others.keys() or any(
        t.shape != others[rank].shape or not torch.allclose(t.double(), others[rank].double())
        for rank, t in values.items()
    )


def step_key(step: TapeStep) -> Named:
    """Function and name of a step, with its phase."""
    return f"{step.where.partition(':')[0]} {step.phase}", step.name


def numbered(keys: Sequence[Named]) -> dict[tuple[str, str, int], int]:
    """(function, name, occurrence) → index. Line numbers do not count, because branches and edits change
    them.
    """
    counted: Counter[Named] = Counter()
    found = {}
    for i, key in enumerate(keys):
        found[(*key, counted[key])] = i
        counted[key] += 1
    return found
