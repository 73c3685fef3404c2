"""Repeat the keys of a rank's KV heads so that every query head finds its own."""

from types import SimpleNamespace

import torch

MODEL = dict(n_heads=64, n_kv_heads=16, head_dim=64, seq=24, batch=2)
LAYOUT = dict(tp=4)


def repeat_keys(k, heads):
    return k.expand(-1, heads, -1, -1)


def attempt(model, layout):
    heads, kv_heads = model.n_heads // layout.tp, model.n_kv_heads // layout.tp
    q = torch.randn(model.batch, heads, model.seq, model.head_dim)
    k = torch.randn(model.batch, kv_heads, model.seq, model.head_dim)
    scores = q @ repeat_keys(k, heads).transpose(-2, -1)
    return scores.softmax(-1)


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
