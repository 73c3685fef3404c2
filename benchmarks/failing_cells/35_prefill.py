"""Prefill the key-value cache of a tensor-parallel rank with a prompt."""

from types import SimpleNamespace

import torch
from torch import nn

MODEL = dict(dim=256, n_kv_heads=8, head_dim=32, prompt=160, max_seq=128, batch=2)
LAYOUT = dict(tp=4)


class KVCache(nn.Module):
    def __init__(self, batch, max_seq, kv_heads, head_dim):
        super().__init__()
        self.register_buffer("k", torch.zeros(batch, max_seq, kv_heads, head_dim))

    def update(self, start, k):
        self.k[:, start : start + k.shape[1]] = k
        return self.k[:, : start + k.shape[1]]


def attempt(model, layout):
    kv_heads = model.n_kv_heads // layout.tp
    wk = nn.Linear(model.dim, kv_heads * model.head_dim, bias=False)
    cache = KVCache(model.batch, model.max_seq, kv_heads, model.head_dim)
    prompt = torch.randn(model.batch, model.prompt, model.dim)
    k = wk(prompt).view(model.batch, model.prompt, kv_heads, model.head_dim)
    return cache.update(0, k)


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
