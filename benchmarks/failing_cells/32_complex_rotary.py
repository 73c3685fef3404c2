"""Rotary embedding by complex numbers for the tokens of one context-parallel rank."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(n_heads=8, head_dim=128, seq=256, batch=1)
LAYOUT = dict(cp=2)


def precompute_freqs_cis(head_dim, seq):
    freqs = 10000.0 ** -(torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(seq).float(), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rotary(x, freqs_cis):
    pairs = x.float().reshape(*x.shape[:-1], 2, -1)
    rotated = torch.view_as_complex(pairs) * freqs_cis[None, :, None, :]
    return torch.view_as_real(rotated).flatten(-2).type_as(x)


def attempt(model, layout):
    rank, local = dist.get_rank(), model.seq // layout.cp
    freqs_cis = precompute_freqs_cis(model.head_dim, model.seq)[rank * local : (rank + 1) * local]
    q = torch.randn(model.batch, local, model.n_heads, model.head_dim)
    return apply_rotary(q, freqs_cis)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.cp)
    attempt(SimpleNamespace(**MODEL), layout)
