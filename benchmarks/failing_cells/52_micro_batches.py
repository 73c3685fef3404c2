"""Feed a pipeline micro-batch by micro-batch, twice as many as it has stages."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=64, seq=16, batch=180)
LAYOUT = dict(pp=4)


class Schedule:
    def __init__(self, stage, n_micro, batch, seq, dim):
        self.stage, self.n_micro = stage, n_micro
        self.sent = torch.empty(n_micro, batch // n_micro, seq, dim)

    @torch.no_grad()
    def forward(self, x):
        for i, micro in enumerate(x.chunk(self.n_micro)):
            self.sent[i].copy_(self.stage(micro))
            if dist.get_world_size() > 1:
                dist.send(self.sent[i], dst=1)
        return self.sent


def attempt(model, layout):
    stage = nn.Sequential(nn.Linear(model.dim, model.dim), nn.GELU(), nn.Linear(model.dim, model.dim))
    schedule = Schedule(stage, 2 * layout.pp, model.batch, model.seq, model.dim)
    return schedule.forward(torch.randn(model.batch, model.seq, model.dim))


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.pp)
    attempt(SimpleNamespace(**MODEL), layout)
