"""Rotate the queries of a DTensor-parallel projection by precomputed tables."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=512, n_heads=8, head_dim=64, seq=64, batch=2)
LAYOUT = dict(tp=4)


def tables(seq, head_dim):
    angles = torch.outer(torch.arange(seq).float(), 10000.0 ** -torch.linspace(0, 1, head_dim // 2))
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(q, cos, sin):
    left, right = q.chunk(2, dim=-1)
    return q * cos + torch.cat((-right, left), dim=-1) * sin


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
    wq = nn.Linear(model.dim, model.n_heads * model.head_dim, bias=False)
    wq = parallelize_module(wq, mesh, ColwiseParallel(use_local_output=False))
    x = torch.randn(model.batch, model.seq, model.dim)
    q = wq(x).view(model.batch, model.seq, model.n_heads, model.head_dim).transpose(1, 2)
    cos, sin = tables(model.seq, model.head_dim)
    return rotate(q, cos, sin)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
