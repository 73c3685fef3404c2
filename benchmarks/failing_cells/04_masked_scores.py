"""Attention scores of the heads of one tensor-parallel rank, with a padding mask."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=768, n_heads=12, head_dim=64, seq=40, batch=5)
LAYOUT = dict(tp=4)


def scores_of(q, k, pad_mask):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    causal = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
    allowed = causal & pad_mask[:, None, :]
    return scores.masked_fill(~allowed, float("-inf")).softmax(-1)


def attempt(model, layout):
    heads = model.n_heads // layout.tp
    rank = dist.get_rank()
    rows = slice(rank * heads * model.head_dim, (rank + 1) * heads * model.head_dim)
    wq = torch.randn(model.n_heads * model.head_dim, model.dim)[rows]
    wk = torch.randn(model.n_heads * model.head_dim, model.dim)[rows]
    x = torch.randn(model.batch, model.seq, model.dim)
    pad_mask = torch.ones(model.batch, model.seq, dtype=torch.bool)
    q = (x @ wq.T).unflatten(-1, (heads, model.head_dim)).transpose(1, 2)
    k = (x @ wk.T).unflatten(-1, (heads, model.head_dim)).transpose(1, 2)
    return scores_of(q, k, pad_mask)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
