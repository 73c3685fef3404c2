"""Row-parallel output projection of one rank, fed by a half-precision activation."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

DIM, FFN_DIM, TP = 1024, 2816, 2


class RowParallelLinear(nn.Module):
    def __init__(self, in_features, out_features, tp):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features // tp))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        partial = F.linear(x, self.weight)
        dist.all_reduce(partial.detach())
        return partial


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=TP)
gate_up = nn.Linear(DIM, 2 * FFN_DIM // TP, bias=False, dtype=torch.bfloat16)
down = RowParallelLinear(FFN_DIM, DIM, TP)
x = torch.randn(2, 32, DIM, dtype=torch.bfloat16)
gate, up = gate_up(x).chunk(2, dim=-1)
x = x + down(F.silu(gate) * up)
print(x.shape, x.dtype)
