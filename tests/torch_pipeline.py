"""The same work by torch.distributed.pipelining: a second witness of schedules, sends and gradient sums.

Its stages are modules around this project's stage of Llama; who runs what when, what is sent and how
gradients add up is torch's own.
"""

from __future__ import annotations

import time
from dataclasses import replace

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules

from llamapar.execution.body import Task, cut_at, inputs
from llamapar.execution.engines import processes
from llamapar.execution.engines.rank import Context
from llamapar.execution.pipeline_rank import tensor_names
from llamapar.place.stage_map import Stage as Placed
from llamapar.programs import llama, parts, vocab
from llamapar.spmd import compat
from llamapar.spmd.gradients import reduce_gradients
from llamapar.spmd.setting import Setting

SCHEDULES = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved-1f1b": schedules.ScheduleInterleaved1F1B,
    "looped-bfs": schedules.ScheduleLoopedBFS,
    "interleaved-zero-bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}
"""What each schedule is called there; Llama 3's flexible one is not."""


class Stage(nn.Module):
    """A stage of Llama as torch's pipelining takes it: one tensor in, one out, logits on the last."""

    def __init__(self, mesh: DeviceMesh, setting: Setting, stage: Placed, given: dict[str, Tensor]) -> None:
        super().__init__()
        self.mesh, self.setting, self.stage = mesh, setting, stage
        self.names = setting.parameters_on(stage)
        self.held = nn.ParameterList(nn.Parameter(given[name].detach()) for name in self.names)
        self.positions = given["positions"]

    def forward(self, x: Tensor) -> Tensor:
        weights = dict(zip(self.names, self.held, strict=True))
        headless = replace(self.stage, head=False)
        made = llama.llama_stage(self.mesh, self.setting, headless, x, self.positions, None, weights)
        assert isinstance(made, Tensor)
        x = made
        if not self.stage.head:
            return x
        normed = parts.rms_norm(x, weights["norm.weight"], self.setting.model.norm_eps)
        return parts.column_input(normed, self.mesh, self.setting) @ weights["output.weight"].mT


def by_torch(context: Context, task: Task, repeats: int = 1) -> tuple[dict[str, Tensor], list[float]]:
    """On one rank: name → gradient of the last of `repeats` steps, and the seconds that each took."""
    setting = task.setting
    table, stages = setting.schedule, setting.layout.stages
    assert table is not None
    mesh = processes.mesh_of(setting.layout, context.device.type)
    coord = compat.coord_of(mesh, context.rank)
    given = inputs(task, cut_at(setting, coord), wanted=tensor_names(setting, coord["pp"]))

    modules = [Stage(mesh, setting, stage, given) for stage in setting.stages_on(coord["pp"])]
    held = [
        PipelineStage(module, module.stage.stage, stages, context.device, group=mesh.get_group("pp"))
        for module in modules
    ]

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return vocab.cross_entropy(logits, targets, mesh, setting).mean()

    made = SCHEDULES[table.name]
    several = issubclass(made, schedules.PipelineScheduleMulti)
    schedule = made(held if several else held[0], setting.micro_batches, loss_fn=loss)
    arguments = [given["tokens"]] if modules[0].stage.embedding else []
    target = {"target": given["targets"]} if any(m.stage.head for m in modules) else {}
    times = []
    for _ in range(repeats):
        for module in modules:
            module.zero_grad()
        started = time.perf_counter()
        schedule.step(*arguments, **target)
        found = {n: p.grad for m in modules for n, p in zip(m.names, m.held, strict=True)}
        found = reduce_gradients(mesh, setting, found)
        times.append(time.perf_counter() - started)
    return {name: gradient.detach() for name, gradient in found.items()}, times
