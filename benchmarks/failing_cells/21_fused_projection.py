"""Attention with one fused projection for queries, keys and values, columns cut over the ranks."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

MODEL = dict(dim=1024, n_heads=16, n_kv_heads=4, head_dim=64, seq=64, batch=2)
LAYOUT = dict(tp=4)


class FusedAttention(nn.Module):
    def __init__(self, model, tp, rank):
        super().__init__()
        self.head_dim = model.head_dim
        self.q_size = model.n_heads * model.head_dim
        self.kv_size = model.n_kv_heads * model.head_dim
        whole = [torch.randn(size, model.dim) for size in (self.q_size, self.kv_size, self.kv_size)]
        self.wqkv = nn.Parameter(torch.cat([weight.chunk(tp)[rank] for weight in whole]))
        self.wo = nn.Parameter(torch.randn(model.dim, self.q_size).chunk(tp, dim=1)[rank])

    def forward(self, x):
        qkv = F.linear(x, self.wqkv)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(out.transpose(1, 2).flatten(2), self.wo)


def attempt(model, layout):
    attention = FusedAttention(model, layout.tp, rank=0)
    return attention(torch.randn(model.batch, model.seq, model.dim))


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
