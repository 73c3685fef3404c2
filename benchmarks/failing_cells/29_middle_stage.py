"""Run the middle stage of a pipeline on the hidden states that its neighbour sent."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(n_layers=16, dim=128, seq=32, micro_batch=2)
LAYOUT = dict(pp=4)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.mix = nn.Linear(dim, dim)

    def forward(self, h):
        return h + self.mix(self.norm(h))


class Stage(nn.Module):
    def __init__(self, model, pp):
        super().__init__()
        self.layers = nn.ModuleList(Block(model.dim) for _ in range(model.n_layers // pp))

    def forward(self, h):
        return self.layers(h)


def attempt(model, layout):
    stage = Stage(model, layout.pp)
    received = torch.empty(model.micro_batch, model.seq, model.dim)
    dist.recv(received, src=dist.get_world_size() - 1)
    return stage(received)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.pp)
    attempt(SimpleNamespace(**MODEL), layout)
