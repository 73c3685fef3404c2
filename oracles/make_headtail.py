"""headtail.json: which positions a CP rank holds, and how much causal attention that gives it.

    pip install torch==2.13.0
    python oracles/make_headtail.py

"positions": torch's own `_HeadTailLoadBalancer`, its index cut into cp equal parts (or the error it
raises), with the balancer that the public `context_parallel` would pick by default (null: none, it
falls back to contiguous shards without a word). "work": for each rank the number of (query, key)
pairs under a causal mask, counted from rows of a real torch.tril mask made block by block, for the
head-tail positions and for torch.chunk's contiguous ones.
"""

from typing import Any

import torch
from torch.distributed.tensor.experimental._context_parallel._load_balancer import (
    _create_default_load_balancer,
    _HeadTailLoadBalancer,
)

from fixture import outcome, write

POSITIONS = [(2, 1), (4, 2), (8, 2), (8, 4), (16, 4), (16, 8), (18, 3), (32, 8), (60, 5), (64, 8)]
REFUSED = [(20, 8), (10, 4), (9, 2), (7, 1), (64, 6)]
WORK = [(16, 4), (24, 3), (64, 8), (8192, 2), (8192, 4), (8192, 8), (8192, 16)]


def head_tail(seq: int, cp: int) -> list[list[int]]:
    index = _HeadTailLoadBalancer(seq, cp, "cpu")._generate_indices()
    return index.flatten().view(cp, seq // cp).tolist()


def row_sums(seq: int, block: int = 512) -> torch.Tensor:
    """Keys each query sees: seq x seq causal mask, `block` of its rows in memory at a time."""
    blocks = range(0, seq, block)
    masks = (torch.ones(min(block, seq - r), seq, dtype=torch.bool).tril(r) for r in blocks)
    return torch.cat([mask.sum(dim=1) for mask in masks])


def work(seq: int, cp: int) -> dict[str, Any]:
    keys = row_sums(seq)
    contiguous = torch.arange(seq).chunk(cp)
    balanced = [int(keys[positions].sum()) for positions in head_tail(seq, cp)]
    return {"head_tail": balanced, "contiguous": [int(keys[p].sum()) for p in contiguous]}


if __name__ == "__main__":
    cases = []
    for seq, cp in POSITIONS + REFUSED:
        default = _create_default_load_balancer(seq, cp, "cpu")
        name = type(default).__name__ if default else None
        held = outcome("positions", head_tail, seq, cp)
        cases.append({"seq": seq, "cp": cp, "default_balancer": name, **held})
    cases += [{"seq": seq, "cp": cp, "work": work(seq, cp)} for seq, cp in WORK]
    write(__file__, cases, packages=("torch",))
