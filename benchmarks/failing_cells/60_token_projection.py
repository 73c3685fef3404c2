"""A linear map of distributed tokens by a distributed weight."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(in_dim=640, out_dim=1920, tokens=64)
LAYOUT = dict(tp=4)


def project(x, weight):
    return torch.matmul(x, weight)


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
    weight = torch.randn(model.out_dim, model.in_dim) * 0.02
    weight = distribute_tensor(weight, mesh, [Shard(0)])
    x = distribute_tensor(torch.randn(model.tokens, model.in_dim), mesh, [Replicate()])
    y = project(x, weight)
    return y.redistribute(mesh, [Replicate()])


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
