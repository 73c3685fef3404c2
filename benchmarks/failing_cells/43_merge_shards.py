"""Merge the shards of a tensor-parallel attention into one module for inference."""

from types import SimpleNamespace

import torch
from torch import nn

MODEL = dict(dim=512, n_heads=8, head_dim=64)
LAYOUT = dict(tp=4)


class Attention(nn.Module):
    def __init__(self, model, tp=1):
        super().__init__()
        width = model.n_heads * model.head_dim // tp
        self.wq = nn.Linear(model.dim, width, bias=False)
        self.wk = nn.Linear(model.dim, width, bias=False)
        self.wv = nn.Linear(model.dim, width, bias=False)
        self.wo = nn.Linear(width, model.dim, bias=False)


@torch.no_grad()
def merge(shards, target):
    for name, param in target.named_parameters():
        whole = torch.cat([shard[name] for shard in shards], dim=0)
        param.copy_(whole)
    return target


def attempt(model, layout):
    shards = [Attention(model, layout.tp).state_dict() for _ in range(layout.tp)]
    return merge(shards, Attention(model))


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
