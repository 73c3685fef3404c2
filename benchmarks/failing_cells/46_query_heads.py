"""Query heads of one rank for a model whose head size is given apart from its width."""

from types import SimpleNamespace

import torch
from torch import nn

MODEL = dict(dim=1280, n_heads=8, head_dim=128, seq=32, batch=2)
LAYOUT = dict(tp=2)


class QueryHeads(nn.Module):
    def __init__(self, model, tp):
        super().__init__()
        self.heads = model.n_heads // tp
        self.size = model.dim // model.n_heads
        self.weight = nn.Parameter(torch.randn(model.n_heads * model.head_dim // tp, model.dim) * 0.02)

    def forward(self, x):
        q = nn.functional.linear(x, self.weight)
        q = q.unflatten(-1, (self.heads, self.size))
        return q.transpose(1, 2)


def attempt(model, layout):
    heads = QueryHeads(model, layout.tp)
    return heads(torch.randn(model.batch, model.seq, model.dim))


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
