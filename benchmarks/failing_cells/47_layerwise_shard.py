"""Train a small model whose blocks are under fully_shard, with clipped gradients."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

VOCAB, DIM, BLOCKS = 256, 64, 3

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
blocks = [nn.Sequential(nn.Linear(DIM, DIM), nn.GELU()) for _ in range(BLOCKS)]
net = nn.Sequential(nn.Embedding(VOCAB, DIM), *blocks, nn.Linear(DIM, VOCAB))
for block in blocks:
    fully_shard(block, mesh=mesh)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, foreach=True)

for _ in range(3):
    tokens = torch.randint(VOCAB, (4, 33))
    loss = F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
