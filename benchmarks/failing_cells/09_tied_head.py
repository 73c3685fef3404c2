"""A language model under fully_shard whose logits reuse the embedding."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

VOCAB, DIM, HEADS, LAYERS = 2048, 256, 4, 2


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, HEADS, batch_first=True) for _ in range(LAYERS)
        )

    def forward(self, tokens):
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        return h


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
body = Body()
for module in (body.embed, *body.layers):
    fully_shard(module, mesh=mesh)
fully_shard(body, mesh=mesh)

hidden = body(torch.randint(VOCAB, (2, 32)))
logits = F.linear(hidden, body.embed.weight)
print(logits.shape)
