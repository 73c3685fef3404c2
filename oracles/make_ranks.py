"""ranks.json: the process groups of each axis, by Megatron-core and by torch's DeviceMesh.

    pip install torch==2.13.0 megatron-core==0.16.1 (--no-deps will do, with packaging and pyyaml)
    python oracles/make_ranks.py

Both are asked for the same layouts in three rank orders, written fastest first:
"tp-cp-pp-dp" (the Llama 3 paper, fairscale, picotron; Megatron's tp-cp-ep-pp-dp),
"tp-cp-dp-pp" (torchtitan; Megatron's default tp-cp-ep-dp-pp) and "cp-tp-pp-dp" (ColossalAI's
default, whose sp is our cp). The script stops if the two ever disagree, so each case has two
witnesses. Every group is ascending and the groups are sorted by their first rank; `sha256` is of
json.dumps(groups, separators=(",", ":")); `all` is there up to 64 ranks.
"""

import hashlib
import json
import warnings
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from fixture import write

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.parallel_state import RankGenerator

AXES = ("tp", "cp", "pp", "dp")
ORDERS = ("tp-cp-pp-dp", "tp-cp-dp-pp", "cp-tp-pp-dp")
LAYOUTS = [  # tp, cp, pp, dp
    (2, 2, 2, 2),
    (8, 16, 16, 8),  # the paper's long-context row, 16,384 ranks
    (8, 1, 16, 128),  # and its 8K row
    (3, 1, 2, 5),
    (1, 1, 1, 1),
    (1, 1, 1, 8),
    (8, 1, 1, 1),
    (1, 4, 1, 2),
    (2, 1, 4, 3),
    (4, 2, 2, 1),
    (8, 1, 4, 2),
    (3, 2, 5, 2),
    (2, 3, 4, 5),
]
Groups = dict[str, list[list[int]]]


def canonical(groups: list[list[int]]) -> list[list[int]]:
    return sorted(sorted(group) for group in groups)


def by_megatron(sizes: dict[str, int], order: str) -> Groups:
    names = order.split("-")
    megatron = "-".join([*names[:2], "ep", *names[2:]])
    ranks = RankGenerator(**sizes, ep=1, order=megatron)
    return {axis: canonical(ranks.get_ranks(axis)) for axis in (*AXES, "dp-cp", "tp-pp")}


def by_torch(sizes: dict[str, int], order: str, world: int) -> Groups:
    names = tuple(reversed(order.split("-")))  # a mesh lists its axes slowest first
    me = world // 2
    dist.init_process_group("fake", store=FakeStore(), rank=me, world_size=world)
    try:
        mesh = init_device_mesh("cpu", tuple(sizes[n] for n in names), mesh_dim_names=names)
        groups = {}
        for axis in (*AXES, "dp-cp", "tp-pp"):
            wanted = tuple(n for n in names if n in axis.split("-"))
            part = mesh[wanted]._flatten() if len(wanted) > 1 else mesh[axis]
            groups[axis] = canonical(part._layout[0].global_ranks(world))
            mine = sorted(dist.get_process_group_ranks(part.get_group()))
            if mine not in groups[axis]:
                raise AssertionError(f"{axis}: the layout has no group {mine}")
        return groups
    finally:
        dist.destroy_process_group()


def case(degrees: tuple[int, ...], order: str) -> dict[str, Any]:
    sizes = dict(zip(AXES, degrees, strict=True))
    world = degrees[0] * degrees[1] * degrees[2] * degrees[3]
    groups = by_megatron(sizes, order)
    if groups != by_torch(sizes, order, world):
        raise AssertionError(f"Megatron and torch disagree on {sizes}, {order}")
    record: dict[str, Any] = {"layout": sizes, "order": order, "world": world, "groups": {}}
    for axis, ranks in groups.items():
        digest = hashlib.sha256(json.dumps(ranks, separators=(",", ":")).encode()).hexdigest()
        entry = {"count": len(ranks), "first": ranks[0], "last": ranks[-1], "sha256": digest}
        record["groups"][axis] = {**entry, "all": ranks} if world <= 64 else entry
    return record


if __name__ == "__main__":
    cases = [case(degrees, order) for degrees in LAYOUTS for order in ORDERS]
    write(__file__, cases, packages=("megatron-core", "torch"))
