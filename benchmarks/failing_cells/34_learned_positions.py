"""Learned position embeddings in a job with tensor and context parallelism."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=192, max_seq=1024, batch=2)
LAYOUT = dict(tp=2, cp=4)


class Positions(nn.Module):
    def __init__(self, model):
        super().__init__()
        table = torch.randn(model.max_seq, model.dim)
        self.weight = nn.Parameter(table.tensor_split(dist.get_world_size())[dist.get_rank()])

    def forward(self, h):
        return h + self.weight


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.cp, layout.tp), mesh_dim_names=("cp", "tp"))
    cp_rank = mesh["cp"].get_local_rank()
    hidden = torch.randn(model.batch, model.max_seq, model.dim)
    hidden = hidden.tensor_split(layout.cp, dim=1)[cp_rank]
    return Positions(model)(hidden)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.cp * layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
