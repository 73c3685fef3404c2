"""Attention projections of a small Llama, parallelised over a mesh."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=1024, n_heads=32, n_kv_heads=8, head_dim=32, seq=64, batch=1)
LAYOUT = dict(tp=16)


class Attention(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.head_dim = model.head_dim
        self.wq = nn.Linear(model.dim, model.n_heads * model.head_dim, bias=False)
        self.wk = nn.Linear(model.dim, model.n_kv_heads * model.head_dim, bias=False)
        self.wv = nn.Linear(model.dim, model.n_kv_heads * model.head_dim, bias=False)
        self.wo = nn.Linear(model.n_heads * model.head_dim, model.dim, bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(b, s, -1, self.head_dim).transpose(1, 2)
        xk = xk.view(b, s, -1, self.head_dim).transpose(1, 2)
        xv = xv.view(b, s, -1, self.head_dim).transpose(1, 2)
        out = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).flatten(2))


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
    plan = {name: ColwiseParallel() for name in ("wq", "wk", "wv")} | {"wo": RowwiseParallel()}
    attention = parallelize_module(Attention(model), mesh, plan)
    return attention(torch.randn(model.batch, model.seq, model.dim))


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
