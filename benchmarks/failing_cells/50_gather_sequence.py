"""Normalise tokens on each rank's part of the sequence, then gather the sequence."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=256, seq=128, batch=2)
LAYOUT = dict(tp=4)


class GatherSequence(nn.Module):
    def forward(self, x):
        b, s, d = x.shape
        whole = all_gather_tensor(x, gather_dim=1, group=dist.group.WORLD)
        return whole.view(b, s * dist.get_world_size(), d)


def attempt(model, layout):
    local = model.seq // layout.tp
    hidden = torch.randn(model.batch, local, model.dim)
    tokens = nn.RMSNorm(model.dim)(hidden.flatten(0, 1))
    return GatherSequence()(tokens)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
