"""A feed-forward block parallelised with DTensor: one weight by columns, the other by rows."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=512, ffn_dim=2048, seq=32, batch=2)
LAYOUT = dict(tp=2)


class FeedForward(nn.Module):
    def __init__(self, model, mesh):
        super().__init__()
        w1 = torch.randn(model.ffn_dim, model.dim) * 0.02
        w2 = torch.randn(model.ffn_dim, model.dim) * 0.02
        self.w1 = nn.Parameter(distribute_tensor(w1, mesh, [Shard(0)]))
        self.w2 = nn.Parameter(distribute_tensor(w2, mesh, [Shard(0)]))

    def forward(self, x):
        hidden = F.gelu(F.linear(x, self.w1.to_local()))
        return F.linear(hidden, self.w2.to_local())


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
    block = FeedForward(model, mesh)
    y = block(torch.randn(model.batch, model.seq, model.dim))
    dist.all_reduce(y.detach(), group=mesh.get_group())
    return y


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
