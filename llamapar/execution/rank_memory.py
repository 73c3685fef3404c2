"""What one rank keeps in a dry run, operation by operation and beside `lp.memory`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.count.account import memory
from llamapar.count.keeping import Kept, compare_kept
from llamapar.count.saved import KERNELS
from llamapar.describe.layout import AXES, Coord, Layout
from llamapar.place.orders import ORDERS
from llamapar.place.stage_map import Stage
from llamapar.programs import Program
from llamapar.programs.llama import llama_stage
from llamapar.records.curve import MemoryCurve
from llamapar.records.tables import Plain, Record, Table, unit_of
from llamapar.records.trace import Tape
from llamapar.spmd.setting import Setting

from . import tape as tapes
from .body import Task, unpiped

_TERMS = {
    "activations: logits and loss": "logits and loss",
    "messages": "pipeline buffers",
    "stage's input and output": "pipeline buffers",
}
"""Holder → the term of `lp.memory` that counts it, where the names differ."""

_WHY = {
    "inputs": "tokens and positions, which the account leaves out",
    "gradients": "the account's are all there; these as far as the backward has come, beside their sums",
    "parameters": "fully_shard's shards are in float32, and the master weights; these are in the dtype",
    "master weights": "these programs share whole rows, and keep the ones that they update by themselves",
    "optimizer states": "these programs share whole rows",
    "pipeline buffers": "these programs keep a stage's input and output of each micro-batch in flight",
    "backward workspace": "the account's is of the worst layer, this of the moment of the peak",
}
"""Term → why the two may differ."""

_GONE = "part of a backward is done at the peak, and what it kept is gone"

_NO_TENSOR = {"allocator (assumed)": "no tensor", "CUDA context (assumed)": "no tensor"}
_BESIDE = {
    False: {"optimizer states": "no optimizer runs", "master weights": "no optimizer runs", **_NO_TENSOR},
    True: _NO_TENSOR,
}
"""Whether an optimizer runs → terms that the run does not have, told below the sum → why."""


@dataclass(frozen=True, repr=False)
class RankMemory:
    """The place and the memory of the one rank that a dry run has, beside `lp.memory`.

    curve: its memory over its operations. stopped: whether it raised, or check
    refuses the layout for the reason `why`.
    """

    task: Task
    rank: int
    curve: MemoryCurve
    stopped: bool = False
    why: str = ""

    @property
    def layout(self) -> Layout:
        return self.task.layout

    @property
    def coord(self) -> Coord:
        """The coord of the rank: (tp, cp, pp, dp)."""
        return self.layout.coord_of(self.rank)

    @property
    def peers(self) -> dict[str, range]:
        """The rank's group on each axis, including the rank."""
        return {axis: self.layout.group(axis, self.rank) for axis in AXES}  # type: ignore[misc]

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes alive at once."""
        return self.curve.peak_bytes

    @property
    def stages(self) -> list[Stage]:
        """The stages that the rank runs; one stage with all layers without a pipeline."""
        setting = self.task.setting
        if setting.schedule is not None:
            return setting.stages_on(self.coord.pp)
        return [Stage(0, 0, range(setting.model.n_layers), embedding=True, head=True)]

    # -- beside the account ----------------------------------------------------------------------

    @cached_property
    def kept(self) -> Kept | None:
        """The bytes that autograd keeps for a layer, beside `lp.memory`'s figure.

        None for a rank without a layer, and for a layout that check refuses.
        """
        setting = self.task.setting
        spans = self.curve.spans
        layers = len(self.stages[0].layers) if self.stages else 0
        if self.task.program.stage is None:
            layers = int(self.task.program.name == "block")
        first = next((span for span in spans if span.name.startswith(("F ", "forward"))), None)
        if first is None or not layers or not self.task.backward or self.stopped:
            return None
        found = {
            name.partition(": ")[2]: size // layers
            for name, size in first.profile.after.items()
            if name.startswith("activations: ")
        }
        return compare_kept(
            setting,
            found,
            micro_batch=setting.micro_batch,
            dtype=setting.dtype,
            cp_method=setting.cp_method,
        )

    @cached_property
    def account(self) -> Table | None:
        """The peak, term by term, beside `lp.memory` with unfused and with fused kernels, without
        recomputation.

        None for a part of a model, for a layout that check refuses, and for a custom schedule.
        """
        setting = self.task.setting
        schedule = self.task.setting.schedule
        unknown = schedule is not None and schedule.name not in ORDERS
        if self.task.program.stage is None or unknown or self.stopped:
            return None
        columns = [self._terms()]
        beside = _BESIDE[setting.training is not None]
        for kernels in KERNELS:
            counted = memory(
                setting.model,
                setting.layout,
                seq_len=setting.seq_len,
                micro_batch=setting.micro_batch,
                global_batch=setting.global_batch,
                recompute="none",
                schedule=schedule.name if schedule else "1f1b",
                dtype=setting.dtype,
                grad_dtype=str(setting.sum_dtype).removeprefix("torch."),
                kernels=kernels,
                kv_replication=setting.kv_replication,
                padding=setting.padding,
                cp_method=setting.cp_method,
            )
            columns.append({term.name: term.bytes for term in counted.stages[self.coord.pp].terms})
        unit, size_of = unit_of(self.peak_bytes)
        rows: list[list[object]] = []
        last: list[list[object]] = []
        for name in dict.fromkeys(name for column in columns for name in column):
            sizes = [column.get(name, 0) for column in columns]
            why = "" if sizes[0] == sizes[1] else (_WHY | beside).get(name, _GONE)
            (last if name in beside else rows).append(
                [name, *(f"{size / size_of:.2f}" for size in sizes), why]
            )
        sums = [sum(n for name, n in column.items() if name not in beside) for column in columns]
        rows += [["in all", *(f"{n / size_of:.2f}" for n in sums), ""], *last]
        title = f"the peak of rank {self.rank}, {self.curve.peak}, beside lp.memory, {unit}"
        return Table(title, ["term", "at the peak", "eager", "fused", "why they differ"], rows)

    def _terms(self) -> dict[str, int]:
        """Term of `lp.memory` → bytes alive at the peak."""
        found: Counter[str] = Counter()
        for holder, size in self.curve.alive.items():
            name = "backward workspace" if holder.startswith("workspace: ") else holder
            found[_TERMS.get(name, name)] += size
        return dict(found)

    @property
    def details(self) -> tuple[Record, ...]:
        """Memory over the rank's operations, and both reconciliations if available."""
        return tuple(record for record in (self.curve, self.kept, self.account) if record is not None)

    # -- shapes ----------------------------------------------------------------------------------

    @cached_property
    def tape(self) -> Tape:
        """Shapes after each assignment in the rank's first stage, for one of its layers."""
        task = unpiped(self.task)
        one = task.setting.layout
        at = one.rank_of(**(self.coord._asdict() | {"pp": 0}))
        if self.task.program.stage is not None and self.stages:
            task = _of_stage(task, self.stages[0])
        made = tapes.shape_tape(task, self.why, {at: self.rank})
        steps = tuple(step for step in made.steps if not step.where.startswith(f"{_first_stage}:"))
        return replace(
            made,
            program=self.task.program.name,
            layout=str(self.layout),
            steps=steps,
            world=self.layout.world,
        )

    # -- showing ---------------------------------------------------------------------------------

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        setting = self.task.setting
        groups = {a: {"first": g[0], "step": g.step, "ranks": len(g)} for a, g in self.peers.items()}
        return {
            "rank": self.rank,
            "coord": self.coord._asdict(),
            "peers": groups,
            "stages": [
                {"stage": s.stage, "layers": len(s.layers), "embedding": s.embedding, "head": s.head}
                for s in self.stages
            ],
            "dtype": setting.dtype,
            "micro_batches": setting.micro_batches,
            "operations": [
                {"name": s.name, "before": s.before, "most": s.most, "after": s.after}
                for s in self.curve.spans
            ],
            "peak_bytes": self.peak_bytes,
            "peak_at": self.curve.peak,
            "peak": self.curve.alive,
            "kept": self.kept.as_dict() if self.kept else None,
        }

    def sentences(self) -> Iterator[str]:
        """Its place, its stages and its peak, a sentence each."""
        place = " ".join(f"{axis}={i}" for axis, i in self.coord._asdict().items())
        groups = ", ".join(f"{axis} {_listed(group)}" for axis, group in self.peers.items() if len(group) > 1)
        yield f"rank {self.rank} is {place}; its groups: {groups or 'itself'}"
        if self.task.setting.schedule is not None:
            yield f"{'; '.join(map(_stage, self.stages))}: {len(self.curve.spans)} operations"
        yield self.curve.sentence
        if self.kept is not None:
            yield self.kept.sentence


def _stage(stage: Stage) -> str:
    ends = [name for name, there in (("embedding", stage.embedding), ("head", stage.head)) if there]
    return ", ".join([f"stage {stage.stage}: {len(stage.layers)} layers", *ends])


def _listed(group: range) -> str:
    """A group in words: "0, 1, … 7"."""
    if len(group) <= 4:
        return ", ".join(map(str, group))
    return f"{group[0]}, {group[1]}, … {group[-1]}"


_first_stage = "first_stage"


def _of_stage(task: Task, stage: Stage) -> Task:
    """The task as one pipeline stage with one of its layers; its input is what the previous stage would
    send.
    """
    own = Stage(0, 0, range(min(1, len(stage.layers))), stage.embedding, stage.head)
    setting = replace(task.setting, model=task.setting.model.replace(n_layers=1))

    def first_stage(
        mesh: DeviceMesh,
        setting: Setting,
        tokens: Tensor,
        x: Tensor,
        positions: Tensor,
        weights: Mapping[str, Tensor],
    ) -> Tensor | dict[str, Tensor]:
        return llama_stage(mesh, setting, own, tokens if own.embedding else x, positions, tokens, weights)

    return Task(Program(first_stage), setting, task.fault, backward=task.backward)
