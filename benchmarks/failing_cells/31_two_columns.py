"""Two column-parallel layers in a row; the ranks gather the activation in between."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(in_dim=384, hidden_dim=1536, out_dim=768, tokens=96)
LAYOUT = dict(tp=8)


class ColumnLinear(nn.Module):
    def __init__(self, in_features, out_features, tp):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_features // tp, in_features) * 0.02)

    def forward(self, x):
        return F.linear(x, self.weight)


def attempt(model, layout):
    first = ColumnLinear(model.in_dim, model.hidden_dim, layout.tp)
    second = ColumnLinear(model.hidden_dim, model.out_dim, layout.tp)
    x = torch.randn(model.tokens, model.in_dim)
    hidden = all_gather_tensor(F.relu(first(x)), gather_dim=0, group=dist.group.WORLD)
    return second(hidden)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
