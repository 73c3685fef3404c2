"""sweep.jsonl.gz: what real code does with random layouts, for `lp.check` to be held against.

    python3.11 -m venv SWEEP
    SWEEP/bin/pip install torch==2.13.0 transformers==5.23.0 fairscale==0.4.13 spmd_types==0.2.3 \\
        triton einops tyro docstring_parser typeguard shtab tiktoken psutil grain datasets tensorboard \\
        torchdata==0.11.0
    git clone facebookresearch/fairscale, meta-llama/llama-models, pytorch/torchtitan and
        NVIDIA/Megatron-LM (commits in fixture.py), each with its files checked out
    SWEEP/bin/python oracles/make_sweep.py --fairscale PATH --llama-models PATH \\
        --torchtitan PATH --megatron PATH --seed 2026

The fixture has what seed 2026 made, and what 2027 made in 15 minutes of torchtitan, of transformers and of
Megatron-core.

One line a layout: [tool, what was asked, outcome]. The outcome is null where the layout ran as asked,
the first line of the message where the code refused it, and {"did": …} where it ran something else.
Each is run as the first and as the last rank of torch's fake process group; DTensor, and torchtitan
where the vocabulary does not divide, on real ranks over gloo, up to 8.
"""

import argparse
import contextlib
import gzip
import io
import json
import logging
import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from fixture import FIXTURES
from sweep_tools import TOOLS, Asked, Tool

MANY = {"dtensor": 500, "torchtitan": 1000}
"""Layouts of a tool, where not 2,000: real ranks and whole steps are slow."""
WAIT = timedelta(seconds=20)
TRIES = 3
LOST = ("Connection closed by peer", "Connection reset", "Timed out", "timed out")
"""Words of a rank that only lost another."""

Outcome = str | dict[str, str] | None


# -- layouts ---------------------------------------------------------------------------------------


def one(rng: random.Random) -> Asked:
    """A layout that works, of which some fields are then changed at random."""

    def usually(right: Any, *others: Any) -> Any:
        return right if rng.random() < 0.8 else rng.choice(others)

    tp = rng.choice((1, 2, 2, 3, 4, 4, 6, 8, 8, 12, 16))
    cp, pp, dp = rng.choice((1, 1, 1, 2, 3, 4)), rng.choice((1, 1, 1, 2, 3, 4)), rng.choice((1, 1, 2, 3))
    stages = rng.choice((1, 1, 2)) if pp > 1 else 1
    heads = usually(tp * rng.choice((1, 2, 4)), 4, 8, 12, 16, 20, 32)
    whole = [n for n in range(1, heads + 1) if heads % n == 0]
    groups = usually(rng.choice([n for n in whole if n % tp == 0] or whole), *whole)
    head_dim = rng.choice((4, 8, 16))
    model = {
        "dim": heads * head_dim,
        "n_layers": usually(pp * stages * rng.choice((1, 2)), 1, 2, 3, 4, 5, 6, 7, 8),
        "n_heads": heads,
        "n_kv_heads": groups,
        "head_dim": head_dim,
        "ffn_dim": usually(tp * rng.choice((8, 12)), 96, 172, 100, 64),
        "vocab_size": usually(tp * 16, 256, 257, 1000, 384),
        "max_seq_len": usually(4096, 64),
        "tied": rng.random() < 0.1,
    }
    world = tp * cp * pp * dp
    asked = {
        "model": model,
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "dp": dp,
        "virtual_stages": stages,
        "sequence_parallel": rng.choice((None, None, True, False)),
        "gpus": usually(world, max(1, world // 2), world + 1, 2 * world, 4, 6, 8),
        "seq_len": usually(tp * 2 * cp * rng.choice((1, 2)), 24, 30, 32, 48, 50, 100),
        "micro_batch": rng.choice((1, 1, 2, 3, 4)),
    }
    if pp > 1:
        asked["micro_batches"] = usually(pp * rng.choice((1, 2, 4)), 1, 2, 3, 2 * pp + 1)
    return asked


def within(tool: str, asked: Asked) -> bool:
    """Whether the tool's function runs all of it, and the machine has the ranks."""
    tp, cp, pp, dp = (asked[axis] for axis in ("tp", "cp", "pp", "dp"))
    if tool == "dtensor":
        return cp == pp == 1 and tp * dp <= 8 and asked["gpus"] <= 8
    if tool == "transformers":  # over stages it has no forward here, and no cp at all
        return cp == 1 and (pp == 1 or dp > 1) and not asked["model"]["tied"]
    if tool == "megatron-core":  # it has no forward here over CP or stages, and no schedule
        model = asked["model"]
        qkv = (model["n_heads"] + 2 * model["n_kv_heads"]) * model["head_dim"]
        whole = asked["seq_len"] % (tp * 2 * cp) == 0 and model["ffn_dim"] % tp == 0 and qkv % tp == 0
        return (whole or cp * pp == 1) and asked.get("micro_batches", 0) % pp == 0
    if tool == "megatron-arguments":  # they know layers of a virtual stage, not how many of those a rank has
        each, stages = asked["model"]["n_layers"] // pp, asked["virtual_stages"]
        return stages == 1 or each % stages == 0 or each > stages
    if tool == "torchtitan" and asked["model"]["vocab_size"] % tp:  # the loss speaks, on real ranks
        return cp * pp == 1 and asked["gpus"] <= 8
    return asked["gpus"] <= 512


def layouts(tool: str, seed: int) -> Iterator[Asked]:
    """As many random layouts as the tool gets."""
    rng, many = random.Random(f"{tool} {seed}"), MANY.get(tool, 2000)
    while many:
        asked = one(rng)
        if within(tool, asked):
            many -= 1
            yield asked


# -- runs ------------------------------------------------------------------------------------------


def said(tool: Tool, asked: Asked) -> Outcome:
    """What one rank does."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            did = tool(asked)
    except Exception as error:
        return str(error).split("\n")[0] or type(error).__name__
    return {"did": did} if did else None


def fake(tool: Tool, asked: Asked, rank: int) -> Outcome:
    """What one rank of a fake group does."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=asked["gpus"])
    try:
        return said(tool, asked)
    finally:
        dist.destroy_process_group()


def real(tool: Tool, asked: Asked) -> Outcome:
    """What real ranks do: the lowest rank's failure but a lost peer, which a busy machine may leave alone."""
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as folder:

            def rank_of(rank: int, place: str) -> Outcome:
                store = dist.FileStore(place, asked["gpus"])
                dist.init_process_group(
                    "gloo", store=store, rank=rank, world_size=asked["gpus"], timeout=WAIT
                )
                return said(tool, asked)

            ranks = range(asked["gpus"])
            found = apart([lambda rank=rank: rank_of(rank, f"{folder}/store") for rank in ranks])
        failed = [outcome for outcome in found if outcome is not None]
        first = [outcome for outcome in failed if not any(word in str(outcome) for word in LOST)]
        if first or not failed:
            return next(iter(first), None)
    return LOST[0]


def apart(calls: list[Callable[[], Outcome]]) -> list[Outcome]:
    """Each call in a process of its own, all at once."""
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in calls]

    def child(call: Callable[[], Outcome], pipe: Any) -> None:
        pipe.send(call())
        pipe.close()
        os._exit(0)

    running = [
        fork.Process(target=child, args=(call, send)) for call, (_, send) in zip(calls, pipes, strict=True)
    ]
    found: list[Outcome] = []
    for process, (_, send) in zip(running, pipes, strict=True):
        process.start()
        send.close()
    for process, (receive, _) in zip(running, pipes, strict=True):
        try:
            found.append(receive.recv())
        except EOFError:  # the group could not even be made
            found.append(LOST[0])
        process.join()
    return found


def run(name: str, tool: Tool, asked: Asked) -> Outcome:
    """One layout, on the ranks that its tool needs."""
    gpus, model = asked["gpus"], asked["model"]
    if name == "dtensor" or (name == "torchtitan" and model["vocab_size"] % asked["tp"]):
        return real(tool, asked)
    ranks = dict.fromkeys((0, gpus - 1))
    if name in ("transformers", "torchtitan"):  # they remember groups that are gone
        found = apart([lambda rank=rank: fake(tool, asked, rank) for rank in ranks])
    else:
        found = [fake(tool, asked, rank) for rank in ranks]
    return next((outcome for outcome in found if outcome is not None), None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for place in ("fairscale", "llama-models", "torchtitan", "megatron"):
        parser.add_argument(f"--{place}", type=Path, required=True, metavar="PATH", help="clone")
    parser.add_argument("--only", choices=TOOLS, action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FIXTURES / "sweep.jsonl.gz")
    parser.add_argument("--many", type=int, help="layouts of each tool")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of each tool, at most")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    if args.many:
        MANY = dict.fromkeys(TOOLS, args.many)
    seen = set()
    with args.out.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        for name in args.only or TOOLS:
            tool, end = TOOLS[name](args), time.monotonic() + 60 * args.minutes
            for asked in layouts(name, args.seed):
                if time.monotonic() > end:
                    break
                if (line := json.dumps([name, asked])) not in seen:
                    seen.add(line)
                    outcome = run(name, tool, asked)
                    if outcome != LOST[0]:
                        packed.write(f"{json.dumps([name, asked, outcome])}\n".encode())
                        packed.flush()
            print(f"{name}: {len(seen)}", file=sys.stderr, flush=True)
