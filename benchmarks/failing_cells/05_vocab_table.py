"""A token embedding whose rows are spread over the tensor-parallel ranks."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(vocab_size=50257, dim=96, seq=128, batch=2)
LAYOUT = dict(tp=8)


class VocabParallelEmbedding(nn.Module):
    def __init__(self, vocab_size, dim):
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        assert vocab_size % world == 0, f"{vocab_size} is not divisible by {world}"
        self.rows = vocab_size // world
        self.start = rank * self.rows
        self.weight = nn.Parameter(torch.randn(self.rows, dim))

    def forward(self, tokens):
        local = tokens - self.start
        outside = (local < 0) | (local >= self.rows)
        out = F.embedding(local.masked_fill(outside, 0), self.weight)
        out = out.masked_fill(outside[..., None], 0.0)
        dist.all_reduce(out.detach())
        return out


def attempt(model, layout):
    embedding = VocabParallelEmbedding(model.vocab_size, model.dim)
    tokens = torch.randint(model.vocab_size, (model.batch, model.seq))
    return embedding(tokens)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
