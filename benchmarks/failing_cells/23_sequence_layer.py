"""A decoder layer of one tensor-parallel rank with its activations spread over the sequence."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import reduce_scatter_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(dim=512, ffn_dim=1536, seq=128, batch=2)
LAYOUT = dict(tp=4)


class Layer(nn.Module):
    def __init__(self, model, tp):
        super().__init__()
        self.norm = nn.RMSNorm(model.dim)
        self.up = nn.Linear(model.dim, model.ffn_dim // tp, bias=False)
        self.down = nn.Linear(model.ffn_dim // tp, model.dim, bias=False)

    def forward(self, h):
        partial = self.down(F.silu(self.up(self.norm(h))))
        out = reduce_scatter_tensor(partial, "sum", scatter_dim=1, group=dist.group.WORLD)
        return h + out


def attempt(model, layout):
    embedded = torch.randn(model.batch, model.seq, model.dim)
    layer = Layer(model, layout.tp)
    return layer(embedded)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
