"""Next-token scores of a vocabulary-parallel head, with a logit bias per token."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(vocab_size=128256, dim=64, batch=4, make_vocab_size_divisible_by=64)
LAYOUT = dict(tp=8)


def padded_size(model, tp):
    multiple = model.make_vocab_size_divisible_by * tp
    return -(-model.vocab_size // multiple) * multiple


def next_scores(hidden, head, logit_bias, tp):
    local = F.linear(hidden, head)
    parts = [torch.empty_like(local) for _ in range(tp)]
    dist.all_gather(parts, local)
    logits = torch.cat(parts, dim=-1)
    return logits + logit_bias


def attempt(model, layout):
    rows = padded_size(model, layout.tp) // layout.tp
    head = torch.randn(rows, model.dim)
    hidden = torch.randn(model.batch, model.dim)
    logit_bias = torch.zeros(model.vocab_size)
    return next_scores(hidden, head, logit_bias, layout.tp).softmax(-1)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
