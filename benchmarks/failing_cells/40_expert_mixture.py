"""A dense mixture of experts: every expert runs, the router weighs their outputs."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

MODEL = dict(dim=128, ffn_dim=256, n_experts=4, tokens=60)
LAYOUT = dict()


class Mixture(nn.Module):
    def __init__(self, dim, ffn_dim, n_experts):
        super().__init__()
        self.router = nn.Linear(dim, n_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, ffn_dim), nn.GELU(), nn.Linear(ffn_dim, dim))
            for _ in range(n_experts)
        )

    def forward(self, x):
        weights = F.softmax(self.router(x), dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + expert(x) * weights[:, i]
        return out


def attempt(model, layout):
    mixture = Mixture(model.dim, model.ffn_dim, model.n_experts)
    return mixture(torch.randn(model.tokens, model.dim))


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
