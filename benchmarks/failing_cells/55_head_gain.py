"""Scale every head of a distributed query weight by a learned gain."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=768, n_heads=12, head_dim=64)
LAYOUT = dict(tp=8)


def scaled(weight, gain, n_heads, head_dim):
    by_head = weight.unflatten(0, (n_heads, head_dim))
    return (by_head * gain[:, None, None]).flatten(0, 1)


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
    weight = distribute_tensor(torch.randn(model.n_heads * model.head_dim, model.dim), mesh, [Shard(0)])
    gain = distribute_tensor(torch.ones(model.n_heads), mesh, [Replicate()])
    return scaled(weight, gain, model.n_heads, model.head_dim)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
