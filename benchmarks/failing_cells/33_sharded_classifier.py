"""Apply fully_shard to a classifier, its weights cut along the columns."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(in_dim=784, hidden_dim=300, classes=10)
LAYOUT = dict(dp=8)


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.dp,), mesh_dim_names=("dp",))
    net = nn.Sequential(
        nn.Linear(model.in_dim, model.hidden_dim, bias=False),
        nn.ReLU(),
        nn.Linear(model.hidden_dim, model.classes, bias=False),
    )
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh, shard_placement_fn=lambda param: Shard(1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    optimizer.zero_grad()
    return net


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.dp)
    attempt(SimpleNamespace(**MODEL), layout)
