"""The second stage of a pipeline, its activations spread over the sequence, adds positions and normalises."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=96, seq=128, micro_batch=4, global_batch=32)
LAYOUT = dict(tp=2, pp=2)


class SecondStage(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(model.seq, model.dim))
        self.norm = nn.LayerNorm(model.dim)

    def forward(self, received):
        return self.norm(received + self.positions)


def attempt(model, layout):
    stage = SecondStage(model)
    outputs = []
    for _ in range(model.global_batch // model.micro_batch):
        received = torch.empty(model.micro_batch, model.seq // layout.tp, model.dim)
        dist.recv(received, src=dist.get_world_size() - 1)
        outputs.append(stage(received))
    return torch.cat(outputs)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp * layout.pp)
    attempt(SimpleNamespace(**MODEL), layout)
