"""One step of generation: a rank appends a token's key and value to its cache."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(n_heads=16, n_kv_heads=8, head_dim=64, past=48, batch=2)
LAYOUT = dict(tp=2)


class Cache:
    def __init__(self, batch, kv_heads, past, head_dim):
        self.k = torch.randn(batch, kv_heads, past, head_dim)
        self.v = torch.randn(batch, kv_heads, past, head_dim)

    def append(self, k, v):
        self.k = torch.cat((self.k, k), dim=1)
        self.v = torch.cat((self.v, v), dim=1)
        return self.k, self.v


def attempt(model, layout):
    tp = dist.get_world_size()
    heads, kv_heads = model.n_heads // tp, model.n_kv_heads // tp
    cache = Cache(model.batch, kv_heads, model.past, model.head_dim)
    q = torch.randn(model.batch, heads, 1, model.head_dim)
    k = torch.randn(model.batch, kv_heads, 1, model.head_dim)
    v = torch.randn(model.batch, kv_heads, 1, model.head_dim)
    k, v = cache.append(k, v)
    out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    dist.all_reduce(out)
    return out


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
