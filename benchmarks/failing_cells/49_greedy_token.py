"""Choose the next token greedily from logits that are spread over the ranks."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(vocab_size=8192, dim=128, seq=20, batch=3)
LAYOUT = dict(tp=8)


def gather_columns(local, tp):
    parts = [torch.empty_like(local) for _ in range(tp)]
    dist.all_gather(parts, local)
    return torch.cat(parts, dim=-1)


def attempt(model, layout):
    head = nn.Linear(model.dim, model.vocab_size // layout.tp, bias=False)
    hidden = torch.randn(model.batch, model.seq, model.dim)
    logits = gather_columns(head(hidden[:, -1]).detach(), layout.tp)
    return logits.argmax(dim=2)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
