"""A column-parallel projection followed by a norm over the model dimension."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(in_dim=256, dim=1024, seq=64, batch=2)
LAYOUT = dict(tp=4)


class Adapter(nn.Module):
    def __init__(self, in_dim, dim):
        super().__init__()
        self.proj = nn.Linear(in_dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, features):
        return self.norm(torch.relu(self.proj(features)))


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
    adapter = parallelize_module(Adapter(model.in_dim, model.dim), mesh, {"proj": ColwiseParallel()})
    return adapter(torch.randn(model.batch, model.seq, model.in_dim))


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
