"""Balance causal work: each context rank takes one chunk from the head and one from the tail."""

from types import SimpleNamespace

import torch

MODEL = dict(seq=4096, dim=64, batch=1)
LAYOUT = dict(cp=3)


def head_and_tail(x, cp, rank):
    chunks = x.chunk(2 * cp, dim=1)
    return torch.stack((chunks[rank], chunks[2 * cp - 1 - rank]), dim=1)


def attempt(model, layout):
    hidden = torch.randn(model.batch, model.seq, model.dim)
    positions = torch.arange(model.seq).expand(model.batch, -1)
    shares = []
    for rank in range(layout.cp):
        shares.append((head_and_tail(hidden, layout.cp, rank), head_and_tail(positions, layout.cp, rank)))
    return shares


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
