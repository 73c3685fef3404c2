"""A gated feed-forward block on a batch of hidden states."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

MODEL = dict(dim=512, ffn_dim=1376, seq=64, batch=4)
LAYOUT = dict()


class FeedForward(nn.Module):
    def __init__(self, dim, ffn_dim):
        super().__init__()
        self.gate = nn.Linear(dim, ffn_dim, bias=False)
        self.up = nn.Linear(dim, ffn_dim, bias=False)
        self.down = nn.Linear(dim, ffn_dim, bias=False)

    def forward(self, x):
        hidden = F.silu(self.gate(x)) * self.up(x)
        return self.down(hidden)


def attempt(model, layout):
    block = FeedForward(model.dim, model.ffn_dim)
    x = torch.randn(model.batch, model.seq, model.dim)
    return x + block(x)


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
