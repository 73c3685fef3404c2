"""Give each tensor-parallel rank its heads and shape the queries for attention."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=2048, n_heads=32, seq=16, batch=2)
LAYOUT = dict(tp=8)


class Queries(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        tp = dist.get_world_size()
        self.head_dim = dim // n_heads
        self.local_heads = n_heads / tp
        self.proj = nn.Linear(dim, dim // tp, bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        q = self.proj(x)
        return q.view(b, s, self.local_heads, self.head_dim).transpose(1, 2)


def attempt(model, layout):
    queries = Queries(model.dim, model.n_heads)
    return queries(torch.randn(model.batch, model.seq, model.dim))


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
