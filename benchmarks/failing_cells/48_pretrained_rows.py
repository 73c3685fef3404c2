"""Give a column-parallel layer its rows of a pretrained weight."""

from types import SimpleNamespace

import torch
from torch import nn

MODEL = dict(dim=256, ffn_dim=1024, batch=4)
LAYOUT = dict(tp=4)


class ColumnParallel(nn.Module):
    def __init__(self, pretrained, tp, rank):
        super().__init__()
        rows = pretrained.shape[0] // tp
        self.weight = nn.Parameter(torch.empty(rows, pretrained.shape[1]))
        self.weight.copy_(pretrained[rank * rows : (rank + 1) * rows])

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


def attempt(model, layout):
    pretrained = torch.randn(model.ffn_dim, model.dim)
    layer = ColumnParallel(pretrained, layout.tp, rank=0)
    return layer(torch.randn(model.batch, model.dim))


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
