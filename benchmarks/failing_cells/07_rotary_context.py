"""Rotary embedding of the queries that each context-parallel rank holds."""

from types import SimpleNamespace

import torch

MODEL = dict(n_heads=8, head_dim=64, seq=512, batch=2, theta=500000)
LAYOUT = dict(cp=4)


def rotary_tables(seq, head_dim, theta):
    inverse = theta ** -(torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(seq).float(), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat((-right, left), dim=-1)
    return x * cos + turned * sin


def attempt(model, layout):
    cos, sin = rotary_tables(model.seq, model.head_dim, model.theta)
    tokens = torch.randn(model.batch, model.seq, model.n_heads, model.head_dim)
    parts = tokens.tensor_split(layout.cp, dim=1)
    return [rotate(part.transpose(1, 2), cos, sin) for part in parts]


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
