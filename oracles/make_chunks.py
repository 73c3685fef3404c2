"""chunks.json: how torch cuts n rows into k shards that need not be equal.

    pip install torch==2.13.0
    python oracles/make_chunks.py

`Shard.local_shard_size_and_offset`, which DTensor uses, for every rank; the script stops if
torch.chunk does not cut the same sizes (it leaves the empty ones out). An empty shard has offset n.
"""

import random
from typing import Any

import torch
from torch.distributed.tensor import Shard

from fixture import write

PAIRS = [(5, 4), (4, 3), (10, 4), (1024, 3), (32, 5), (128256, 7), (8, 16), (8, 8), (1, 4), (7, 1)]


def case(n: int, k: int) -> dict[str, Any]:
    shards = [Shard.local_shard_size_and_offset(n, k, rank) for rank in range(k)]
    sizes = [int(size) for size, _ in shards]
    chunks = [len(chunk) for chunk in torch.arange(n).chunk(k)]
    if chunks != [size for size in sizes if size]:
        raise AssertionError(f"Shard and torch.chunk disagree on {n} rows, {k} shards")
    return {"n": n, "k": k, "sizes": sizes, "offsets": [int(offset) for _, offset in shards]}


if __name__ == "__main__":
    draw = random.Random(932)
    drawn = [(draw.randint(1, 300), draw.randint(1, 40)) for _ in range(24)]
    write(__file__, [case(n, k) for n, k in PAIRS + drawn], packages=("torch",))
