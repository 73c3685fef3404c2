"""Load a low-rank adapter into the column-parallel projection of one rank."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

DIM, OUT_DIM, TP = 512, 2048, 4


class ColumnParallelLoRA(nn.Module):
    def __init__(self, rank_of_adapter):
        super().__init__()
        self.base = nn.Linear(DIM, OUT_DIM // TP, bias=False)
        self.lora_a = nn.Linear(DIM, rank_of_adapter, bias=False)
        self.lora_b = nn.Linear(rank_of_adapter, OUT_DIM // TP, bias=False)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=TP)
with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    torch.save(ColumnParallelLoRA(rank_of_adapter=32).state_dict(), file.name)
    layer = ColumnParallelLoRA(rank_of_adapter=128)
    adapter = {name: w for name, w in torch.load(file.name).items() if "lora" in name}
    layer.load_state_dict(adapter, strict=False)
print(layer(torch.randn(1, DIM)).shape)
