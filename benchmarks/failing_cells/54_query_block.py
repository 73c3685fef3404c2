"""Norm and query projection with sequence parallelism, written with parallelize_module."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=512, n_heads=16, head_dim=32, seq=64, batch=2)
LAYOUT = dict(tp=4)


class QueryBlock(nn.Module):
    def __init__(self, model, heads):
        super().__init__()
        self.heads, self.head_dim = heads, model.head_dim
        self.norm = nn.RMSNorm(model.dim)
        self.wq = nn.Linear(model.dim, model.n_heads * model.head_dim, bias=False)

    def forward(self, h):
        b, s, _ = h.shape
        q = self.wq(self.norm(h))
        return q.view(b, s, self.heads, self.head_dim).transpose(1, 2)


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
    block = QueryBlock(model, model.n_heads // layout.tp)
    parallelize_module(block, mesh, {"norm": SequenceParallel(), "wq": ColwiseParallel()})
    return block(torch.randn(model.batch, model.seq, model.dim))


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
