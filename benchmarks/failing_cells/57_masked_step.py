"""A data-parallel step that leaves padding tokens out of the loss."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(vocab_size=300, dim=64, seq=48, local_batch=4)
LAYOUT = dict(dp=8)


def masked_loss(logits, labels, keep):
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return losses * keep / keep.sum()


def attempt(model, layout):
    net = nn.Sequential(nn.Embedding(model.vocab_size, model.dim), nn.Linear(model.dim, model.vocab_size))
    tokens = torch.randint(model.vocab_size, (model.local_batch, model.seq + 1))
    keep = torch.ones(model.local_batch, model.seq)
    loss = masked_loss(net(tokens[:, :-1]), tokens[:, 1:], keep)
    loss.backward()
    for param in net.parameters():
        dist.all_reduce(param.grad, group=dist.group.WORLD)
    return loss.detach() / layout.dp


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.dp)
    attempt(SimpleNamespace(**MODEL), layout)
