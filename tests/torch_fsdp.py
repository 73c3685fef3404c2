"""The same work by torch's fully_shard: a second witness of what ZeRO 3 gathers, cuts and sums.

Its modules are around this project's parts of Llama; how parameters are cut, gathered and gathered again,
and how gradients are reduced, is torch's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from llamapar.execution.body import Task, cut_at, inputs
from llamapar.execution.engines import processes
from llamapar.execution.engines.rank import Context
from llamapar.programs import llama, parts, vocab
from llamapar.spmd import compat
from llamapar.spmd.setting import Setting
from llamapar.spmd.zero import zero_group


class Held(nn.Module):
    """Parameters by the names of a program's arguments, or by their own."""

    def __init__(self, mesh: DeviceMesh, setting: Setting, given: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.mesh, self.setting, self.names = mesh, setting, list(given)
        self.held = nn.ParameterList(nn.Parameter(t.detach()) for t in given.values())

    @property
    def weights(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.held, strict=True))


class Layer(Held):
    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return llama.block(self.mesh, self.setting, x, positions, self.weights)


class Whole(Held):
    """The ends of the model, around its layers."""

    def __init__(self, mesh: DeviceMesh, setting: Setting, given: Mapping[str, Tensor]) -> None:
        ends = {name: t for name, t in given.items() if name in setting.weights() and "layers." not in name}
        super().__init__(mesh, setting, ends)
        layers = range(setting.model.n_layers)
        self.layers = nn.ModuleList(
            Layer(mesh, setting, llama.layer_weights(given, layer)) for layer in layers
        )

    def forward(self, tokens: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        mesh, setting, ends = self.mesh, self.setting, self.weights
        x = vocab.embedding(mesh, setting, tokens, ends["tok_embeddings.weight"])
        for layer in self.layers:
            x = layer(x, positions)
        x = parts.rms_norm(x, ends["norm.weight"], setting.model.norm_eps)
        return vocab.loss(mesh, setting, x, ends["output.weight"], targets)["loss"]

    def gradients(self) -> dict[str, Tensor]:
        """Full name → the rank's shard of the gradient."""
        weights: Mapping[str, Any] = self.weights  # whose gradients are DTensors
        found = {name: p.grad.to_local() for name, p in weights.items()}
        names = [name for name in self.setting.weights() if name.startswith("layers.")]
        layers: Iterable[Any] = self.layers
        held = [p for layer in layers for p in layer.held]
        return found | {name: p.grad.to_local() for name, p in zip(names, held, strict=True)}


def by_torch(context: Context, task: Task) -> tuple[dict[str, Tensor], float]:
    """Gradients by name and the seconds that forward and backward took, with parameters cut beforehand."""
    setting = task.setting
    layout, device = setting.layout, context.device
    mesh = processes.mesh_of(layout, device.type)
    given = inputs(task, cut_at(setting, compat.coord_of(mesh, context.rank), str(device)))
    group = zero_group(mesh, setting)
    lane = group.sharing[0][group.sharing[1]]
    if group.replicas is not None:
        lane = group.sharing[0]["replicas", "shards"]
    model = Whole(mesh, setting, given)
    for module in (*model.layers, model):
        fully_shard(module, mesh=lane, reshard_after_forward=setting.reshard_after_forward)
    start = time.perf_counter()
    loss = model(given["tokens"], given["positions"], given["targets"])
    (loss.sum() / (setting.global_batch // layout.dp)).backward()
    taken = time.perf_counter() - start
    return {name: g.detach() * layout.cp for name, g in model.gradients().items()}, taken
