"""Self-attention with its heads spread over a tensor-parallel group."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=1024, n_heads=64, head_dim=16, seq=48, batch=2)
LAYOUT = dict(tp=4)


class HeadParallelAttention(nn.Module):
    def __init__(self, model, tp):
        super().__init__()
        self.heads, self.head_dim = model.n_heads // tp, model.head_dim
        self.qkv = nn.Linear(model.dim, 3 * self.heads * self.head_dim, bias=False)
        self.out = nn.Linear(self.heads * self.head_dim, model.dim, bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, self.head_dim).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
        mixed = (scores.softmax(-1) @ v).permute(0, 2, 1, 3)
        y = self.out(mixed.view(b, s, self.heads * self.head_dim))
        dist.all_reduce(y.detach())
        return y


def attempt(model, layout):
    attention = HeadParallelAttention(model, layout.tp)
    x = torch.randn(model.batch, model.seq, model.dim)
    return F.rms_norm(x + attention(x), (model.dim,))


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
