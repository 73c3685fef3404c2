"""Deal the layers of a decoder out to the pipeline stages."""

from types import SimpleNamespace

import torch
from torch import nn

MODEL = dict(n_layers=30, dim=64, ffn_dim=192, seq=16, batch=2)
LAYOUT = dict(pp=4)


def block(dim, ffn_dim):
    return nn.Sequential(nn.RMSNorm(dim), nn.Linear(dim, ffn_dim), nn.SiLU(), nn.Linear(ffn_dim, dim))


def stages_of(layers, pp):
    per_stage = len(layers) // pp
    stages = [layers[i * per_stage : (i + 1) * per_stage] for i in range(pp)]
    count = sum(len(stage) for stage in stages)
    assert count == len(layers), f"stages hold {count} layers, model has {len(layers)}"
    return stages


def attempt(model, layout):
    layers = nn.ModuleList(block(model.dim, model.ffn_dim) for _ in range(model.n_layers))
    h = torch.randn(model.batch, model.seq, model.dim)
    for stage in stages_of(layers, layout.pp):
        for layer in stage:
            h = h + layer(h)
    return h


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
