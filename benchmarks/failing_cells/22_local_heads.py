"""Split a rank's fused query-key-value projection and attend with its heads."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=1024, n_heads=64, n_kv_heads=32, head_dim=16, seq=32, batch=1)
LAYOUT = dict(tp=8)


class Heads(nn.Module):
    def __init__(self, model, tp):
        super().__init__()
        self.n_local = model.n_heads // tp
        self.n_local_kv = model.n_kv_heads // tp
        self.head_dim = model.head_dim
        self.qkv = nn.Linear(model.dim, (self.n_local + 2 * self.n_local_kv) * self.head_dim, bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        width = self.n_local * self.head_dim
        q, k, v = self.qkv(x).split([width, width, width], dim=-1)
        q = q.view(b, s, self.n_local, self.head_dim).transpose(1, 2)
        k = k.view(b, s, self.n_local_kv, self.head_dim).transpose(1, 2)
        v = v.view(b, s, self.n_local_kv, self.head_dim).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def attempt(model, layout):
    heads = Heads(model, dist.get_world_size())
    out = heads(torch.randn(model.batch, model.seq, model.dim))
    return out.transpose(1, 2).flatten(2)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
