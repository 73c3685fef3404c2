"""Resume a tensor-parallel run: every rank loads its file of the last checkpoint."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

DIM, FFN_DIM = 256, 1024


class FeedForward(nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.w1 = nn.Linear(DIM, FFN_DIM // tp, bias=False)
        self.w2 = nn.Linear(FFN_DIM // tp, DIM, bias=False)


def save_run(folder, tp):
    for rank in range(tp):
        torch.save(FeedForward(tp).state_dict(), folder / f"model_rank{rank:02d}.pt")


with tempfile.TemporaryDirectory() as folder:
    save_run(Path(folder), tp=8)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    model = FeedForward(tp=dist.get_world_size())
    state = torch.load(Path(folder) / f"model_rank{dist.get_rank():02d}.pt")
    model.load_state_dict(state)
    print(sum(p.numel() for p in model.parameters()))
