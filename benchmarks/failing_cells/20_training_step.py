"""One training step of a data-parallel rank: forward, loss, averaged gradients."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(vocab_size=512, dim=64, seq=128, global_batch=64)
LAYOUT = dict(dp=4)


def attempt(model, layout):
    net = nn.Sequential(nn.Embedding(model.vocab_size, model.dim), nn.Linear(model.dim, model.vocab_size))
    local_batch = model.global_batch // layout.dp
    tokens = torch.randint(model.vocab_size, (local_batch, model.seq))
    logits = net(tokens)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens.flatten())
    loss.backward()
    for param in net.parameters():
        dist.all_reduce(param.grad)
        param.grad /= layout.dp
    return loss


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.dp)
    attempt(SimpleNamespace(**MODEL), layout)
