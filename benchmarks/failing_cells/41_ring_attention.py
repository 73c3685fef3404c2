"""Ring attention: a rank keeps its queries while keys and values travel around the ring."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(n_heads=4, head_dim=32, seq=1000, batch=1)
LAYOUT = dict(cp=16)


def ring_attention(q, k, v, chunk):
    rank, cp = dist.get_rank(), dist.get_world_size()
    out = torch.zeros(q.shape[0], q.shape[1], chunk, q.shape[3])
    total = torch.zeros(q.shape[0], q.shape[1], chunk, 1)
    for _ in range(cp):
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).exp()
        total = total + weights.sum(-1, keepdim=True)
        out = out + weights @ v
        for t in (k, v):
            sent = dist.isend(t.clone(), (rank + 1) % cp)
            dist.recv(t, (rank - 1) % cp)
            sent.wait()
    return out / total


def attempt(model, layout):
    chunk = model.seq // layout.cp
    whole = torch.randn(3, model.batch, model.n_heads, model.seq, model.head_dim)
    q, k, v = whole.tensor_split(layout.cp, dim=3)[dist.get_rank()].contiguous().unbind(0)
    return ring_attention(q, k, v, chunk)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.cp)
    attempt(SimpleNamespace(**MODEL), layout)
