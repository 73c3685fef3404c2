"""Numerics or bug? A reference that adds in the layout's own order must have the same bits.

The idea comes from Scaling Llama 3 Training with Efficient Parallelism Strategies (ISCA 2025, section 6.2). A
parallel run differs from one process by rounding or by a bug, and the numbers alone do not say which. One
process that adds in the layout's order rounds in the same places, so any remaining difference is a bug.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.describe.arguments import checked_options
from llamapar.describe.layout import Layout
from llamapar.errors import Choice, LlamaparError
from llamapar.records.tables import Record
from llamapar.spmd import compat, microbatches, update
from llamapar.spmd.setting import TIED, Setting
from llamapar.spmd.update import STATES

from .body import Task, inputs, leaf, uncut
from .engines import local as local_engine
from .run_result import RunResult
from .stepping import begun

HOLDS = (
    "pp and dp change no sum but that of micro-batches and of dp ways, whose order is a matter of a table: "
    "the one process adds in that order"
)
NOT_TP = (
    "tp cuts a matmul's sum into as many summands as ranks, and a kernel for half a matrix blocks its own "
    "sum otherwise than one for the whole: no order of additions outside of the kernel makes up for that"
)
NOT_CP = (
    "cp merges a chunk's attention to itself and to its prefix by log-sum-exp, where one process has a "
    "single pass of the kernel over all keys"
)
BY_TURNS = (
    "instead the local engine is the one process: it computes each rank's own pieces in turn and adds in the "
    "order of ranks, and processes must have its bits; two summands have no order, more than two gloo adds "
    "around a ring, from another rank for each piece"
)


@dataclass(frozen=True, repr=False)
class Bitwise(Record):
    """The tensors of a step that differ in bits from one process that adds in the layout's order.

    different: name → number of differing elements, for gradients, updated weights and AdamW's state.
    emulated: the form of the one process. why: what the comparison can show, and what it cannot.
    """

    title: str
    emulated: str
    different: Mapping[str, int]
    why: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not any(self.different.values())

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        groups: dict[str, list[int]] = {}
        for name, count in self.different.items():
            groups.setdefault(name.partition(" ")[0], []).append(count)
        rows: list[list[object]] = [
            [what, len(counts), sum(not count for count in counts), sum(counts)]
            for what, counts in groups.items()
        ]
        verdict = "the same bits" if self.ok else "NOT the same bits"
        head = ["what", "tensors", "bit for bit", "elements that differ"]
        return f"{self.title}: {verdict} as {self.emulated}", head, rows, "\n".join(self.why)


@checked_options
def bitwise(result: RunResult) -> Bitwise:
    """Compare the first step of a "step" run bit for bit with one process that adds in the run's order.

    Raises LlamaparError for a run without a step, and if only several processes could decide anything.
    """
    setting, training = result.task.setting, result.task.setting.training
    if training is None:
        what = f"{result.task.program.name} takes no step"
        raise LlamaparError(what, "there is nothing to hold it against", [Choice.of(program="step")])
    layout = setting.layout
    title = f"{setting.dtype}, {layout}, {result.engine}"
    task = replace(result.task, setting=replace(setting, training=replace(training, steps=1)), fault=None)
    why = _reasons(layout)
    if layout.tp * layout.cp == 1:
        emulated = "one process that adds in the layout's order"
        expected = _pieces(result, _in_order(task))
    else:
        emulated = "all ranks by turns in one process"
        if result.engine == "local":
            what = f"{layout} in the local engine is itself what would be held against it"
            raise LlamaparError(what, " ".join(why), [Choice.of(engine="processes")], "engine")
        by_turns = local_engine.run(task)
        expected = {r.rank: (r.gradients, r.first) for r in by_turns}
    different = Counter[str]()
    for report in result.reports:
        for what, own, right in zip(
            ("gradient", "state"), (report.gradients, report.first), expected[report.rank], strict=True
        ):
            for name, t in own.items():
                different[f"{what} {name}"] += int((t != right[name]).sum())
    return Bitwise(title, emulated, different, why)


def _reasons(layout: Layout) -> tuple[str, ...]:
    """What a bitwise comparison of a layout can show, and what it cannot."""
    if layout.tp * layout.cp == 1:
        return (HOLDS,)
    return (*(NOT_TP,) * (layout.tp > 1), *(NOT_CP,) * (layout.cp > 1), BY_TURNS)


Pieces = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
"""A rank's gradients, and what it keeps of weights and AdamW's state."""


def _pieces(result: RunResult, whole: Pieces) -> dict[int, Pieces]:
    """rank → its expected pieces of global gradients and state."""
    setting = result.task.setting
    gradients, state = whole
    found: dict[int, Pieces] = {}
    for report in result.reports:
        coord = setting.layout.coord_of(report.rank)._asdict()
        own = {n: setting.gradient(n, setting.part(n, gradients[n], coord), coord) for n in report.gradients}
        kept = {}
        for name in report.first:
            shared = "optimizer state" if name.startswith(STATES) else "parameters"
            kept[name] = setting.held(name, state[name], coord, shared)
        found[report.rank] = own, kept
    return found


# -- one process that adds in the layout's order ---------------------------------------------------


def _in_order(task: Task) -> Pieces:
    """Gradients and state of the whole model after a step.

    Each micro-batch of each dp way runs alone through the stages' programs on one rank. The gradients are
    added in the order of the schedule's backwards, then over the dp ways. If every micro-batch's gradients
    become shards at once, they are first added over the dp ways that share them.
    """
    setting, training = task.setting, task.setting.training
    assert training is not None
    given = inputs(task, uncut)
    weights = {
        stage.stage: {name: leaf(given[name]) for name in setting.parameters_on(stage)}
        for stage in setting.stages.stages
    }
    alone = replace(setting, layout=Layout(), schedule=None, training=None)
    assert setting.schedule is not None
    numbers = dict.fromkeys(number for kind, _, number in setting.schedule.ranks[0] if kind in "BW")
    rounds = [[number] for number in numbers] if setting.reduces_each else [[*numbers]]
    ways: list[list[Sums]] = []
    with local_engine.one_run:
        local_engine.close_ranks()
        with compat.fake_world(1):
            mesh = compat.make_mesh(Layout(), "cpu")
            for way in range(setting.layout.dp):
                ways.append(_one_way(mesh, task, alone, given, weights, way, rounds))
    by_rank = [_sum_of_ways(setting, ways, pp_rank) for pp_rank in range(setting.layout.pp)]
    squares = [_squares(setting, own, pp_rank) for pp_rank, own in enumerate(by_rank)]
    norm = update.over_stages(squares, 0).sqrt()
    factor = update.clip_factor(norm, norm, training)
    gradients = {name: g for own in by_rank for name, g in own.items()}
    kept: dict[str, Tensor] = {}
    for name, gradient in gradients.items():
        before = begun(given, name, given[name], setting)
        after = update.adamw(before, gradient * factor, training, training.done + 1)
        kept[name] = after.master.to(setting.torch_dtype)
        kept |= {f"{kind}.{name}": getattr(after, kind) for kind in STATES}
    return gradients, kept


Sums = dict[tuple[int, str], Tensor]
"""(stage, parameter) → a dp way's sum over micro-batches."""


def _one_way(
    mesh: DeviceMesh,
    task: Task,
    alone: Setting,
    given: Mapping[str, Tensor],
    weights: Mapping[int, Mapping[str, Tensor]],
    way: int,
    rounds: list[list[int]],
) -> list[Sums]:
    """The gradients of each round of a dp way's micro-batches, added in the order of their backwards."""
    setting, program = task.setting, task.program.stage
    assert program is not None
    assert setting.schedule is not None
    mine = setting.sequences(setting.global_batch, way)
    tokens, targets = (given[name][mine.start : mine.stop] for name in ("tokens", "targets"))
    leaves = {(number, name): w for number, own in weights.items() for name, w in own.items()}
    made = []
    for number in range(setting.micro_batches):
        out: Tensor | dict[str, Tensor] = microbatches.tokens_of(tokens, setting, number)
        right = microbatches.targets_of(targets, setting, number)
        for stage in setting.stages.stages:
            assert isinstance(out, Tensor)
            out = program(mesh, alone, stage, out, given["positions"], right, weights[stage.stage])
        assert not isinstance(out, Tensor)
        loss = microbatches.objective(out["loss"], setting)
        made.append(dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)))
    return [_sum_of_round(setting, made, numbers) for numbers in rounds]


def _sum_of_round(setting: Setting, made: list[Sums], numbers: list[int]) -> Sums:
    assert setting.schedule is not None
    sums: Sums = {}
    for row in setting.schedule.ranks:
        for kind, stage, number in row:
            for key in made[number] if kind in "BW" and number in numbers else ():
                if key[0] == stage:
                    sums[key] = microbatches.added(sums.get(key), made[number][key], setting, number)
    ends = [key for key in sums if key[1] == TIED and setting.model.tied and not setting.reduces_each]
    total = reduce(add, (sums[key] for key in ends)) if ends else None
    return sums | {key: total for key in ends if total is not None}


def _sum_of_ways(setting: Setting, ways: list[list[Sums]], pp_rank: int) -> dict[str, Tensor]:
    """A PP rank's gradients in its own order: the mean over dp ways, with those that share shards first."""
    assert setting.schedule is not None
    shared = setting.layout.dp_shard if setting.shards.cuts("gradients") else len(ways)
    found: dict[str, Tensor] = {}
    for stage, name in ways[0][0]:
        if setting.schedule.rank_of(stage) != pp_rank:
            continue
        groups = []
        for at in range(0, len(ways), shared):
            rounds = zip(*ways[at : at + shared], strict=True)
            groups.append(reduce(add, (reduce(add, (own[stage, name] for own in each)) for each in rounds)))
        own = reduce(add, groups)
        found[name] = found[name] + own if setting.reduces_each and name in found else own
    return {name: g / setting.layout.dp for name, g in found.items()}


def _squares(setting: Setting, gradients: Mapping[str, Tensor], pp_rank: int) -> Tensor:
    """A PP rank's part of the squared norm: each rank's shards, added in rank order."""
    start = torch.zeros(1, dtype=setting.sum_dtype)
    if not setting.shards.cuts("gradients"):
        return update.squares(setting, gradients, pp_rank, start)
    parts = []
    for way in range(setting.layout.dp_shard):
        coord = {"tp": 0, "cp": 0, "pp": pp_rank, "dp": way}
        own = {name: setting.shard(g, coord) for name, g in gradients.items()}
        parts.append(update.squares(setting, own, pp_rank, start))
    return reduce(add, parts)
