"""Mask the scores of a context-parallel rank's queries against all keys."""

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

HEADS, HEAD_DIM, SEQ, CP = 4, 32, 128, 4


def bias_of(rank, local, seq):
    rows = torch.arange(rank * local, (rank + 1) * local)
    visible = rows[:, None] >= torch.arange(seq)[None, :]
    return (1 - visible) * torch.finfo(torch.float32).min


dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=CP)
q, k = torch.randn(2, HEADS, SEQ // CP, HEAD_DIM), torch.randn(2, HEADS, SEQ // CP, HEAD_DIM)
parts = [torch.empty_like(k) for _ in range(CP)]
dist.all_gather(parts, k)
scores = q @ torch.cat(parts, dim=2).transpose(-2, -1) * HEAD_DIM**-0.5
scores = scores + bias_of(dist.get_rank(), SEQ // CP, SEQ)
print(scores.softmax(-1).shape)
