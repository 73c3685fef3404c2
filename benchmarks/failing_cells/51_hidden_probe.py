"""A DTensor feed-forward block whose hidden activation is also needed whole, for a probe."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=256, ffn_dim=1024, probes=16, tokens=48)
LAYOUT = dict(tp=4)


def hidden_of(x, weight, mesh):
    spread = DTensor.from_local(x, mesh, [Replicate()])
    hidden = F.silu(F.linear(spread, weight))
    return hidden.redistribute(mesh, [Replicate()]).to_local()


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
    weight = distribute_tensor(torch.randn(model.ffn_dim, model.dim), mesh, [Shard(0)])
    probe = nn.Linear(model.ffn_dim, model.probes)
    hidden = hidden_of(torch.randn(model.tokens, model.dim), weight, mesh)
    whole = all_gather_tensor(hidden, gather_dim=-1, group=mesh.get_group())
    return probe(whole)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
