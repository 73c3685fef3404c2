"""Grouped-query attention of one rank, with its slices of the projections."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

MODEL = dict(dim=1280, n_heads=20, n_kv_heads=10, head_dim=64, seq=32, batch=2)
LAYOUT = dict(tp=4)


class Attention(nn.Module):
    def __init__(self, model, tp, rank):
        super().__init__()
        self.head_dim = model.head_dim
        self.heads = model.n_heads // tp
        self.kv_heads = model.n_kv_heads // tp
        q_dim, kv_dim = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
        self.wq = nn.Parameter(torch.randn(q_dim, model.dim).chunk(tp)[rank])
        self.wk = nn.Parameter(torch.randn(kv_dim, model.dim).chunk(tp)[rank])
        self.wv = nn.Parameter(torch.randn(kv_dim, model.dim).chunk(tp)[rank])
        self.wo = nn.Parameter(torch.randn(model.dim, q_dim).chunk(tp, dim=1)[rank])

    def forward(self, x):
        b, s, _ = x.shape
        q = F.linear(x, self.wq).view(b, s, self.heads, self.head_dim)
        k = F.linear(x, self.wk)
        k = k.view(b, s, self.kv_heads, self.head_dim)
        v = F.linear(x, self.wv).view(b, s, self.kv_heads, self.head_dim)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(out.transpose(1, 2).flatten(2), self.wo)


def attempt(model, layout):
    attention = Attention(model, layout.tp, rank=0)
    return attention(torch.randn(model.batch, model.seq, model.dim))


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
