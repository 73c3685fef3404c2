"""What cutting attention over CP ranks costs in compute: all ranks together against the unsharded kernel.

    .venv/bin/python benchmarks/context_parallel.py [--repeats 5] [--small]

Times are of CPU, by one thread, so that whatever else runs on the machine disturbs least. The ranks run one
after another; a repeat times the unsharded causal `scaled_dot_product_attention`, then every rank. "ratio"
is the median sum over ranks over the median of the unsharded one. "pairs" counts (query, key) pairs in the
calls of torch's kernels, over those of the causal mask. "busiest rank" is its pairs over the mean, for
head-tail and for contiguous chunks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from llamapar.place.sequence_map import SequenceMap
from llamapar.spmd.kernels import Segment, attend, segments

CASES = [(2, 8192), (4, 8192), (8, 16384)]
HEADS, KV_HEADS, HEAD_DIM = 2, 1, 128
ASKED = (1.15, 1.25)  # forward, forward and backward


class Pairs(TorchDispatchMode):
    """Counts the (query, key) pairs of one head in calls of the CPU's flash kernel."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            n, m = args[0].shape[2], args[1].shape[2]
            causal = len(args) > 4 and args[4]  # defaults are left out
            self.total += n * (n + 1) // 2 if causal else n * m
        return func(*args, **(kwargs or {}))


def rank(q: Tensor, k: Tensor, v: Tensor, cut: tuple[Segment, ...]) -> Tensor:
    return attend(q, k, v, lambda _: cut)


def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def forward(
    call: Callable[..., Tensor], q: Tensor, grad: Tensor, k: Tensor, v: Tensor, *rest: object
) -> None:
    with torch.no_grad():
        call(q, k, v, *rest)


def both(call: Callable[..., Tensor], q: Tensor, grad: Tensor, k: Tensor, v: Tensor, *rest: object) -> None:
    torch.autograd.grad(call(q, k, v, *rest), (q, k, v), grad)


def timed(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def measure(cp: int, seq: int, repeats: int) -> list[tuple[float, float]]:
    """(median of the unsharded, median of the sum over ranks) forward, then forward and backward."""
    torch.manual_seed(0)
    q, grad, k, v = (
        torch.randn(1, seq, h, HEAD_DIM, requires_grad=True) for h in (HEADS, HEADS, KV_HEADS, KV_HEADS)
    )
    ranks = []
    for held in SequenceMap(seq, cp).ranks:
        mine = [torch.cat([x[:, c.start : c.stop] for c in held.chunks], 1).detach() for x in (q, grad)]
        ranks.append((mine[0].requires_grad_(), mine[1], segments(held.chunks)))

    def times(step: Callable[..., None]) -> tuple[float, float]:
        def all_ranks() -> float:
            return sum(timed(partial(step, rank, q, grad, k, v, cut)) for q, grad, cut in ranks)

        step(rank, ranks[0][0], ranks[0][1], k, v, ranks[0][2])
        step(whole, q, grad, k, v)
        pairs = [(timed(lambda: step(whole, q, grad, k, v)), all_ranks()) for _ in range(repeats)]
        reference, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
        return reference, ours

    return [times(forward), times(both)]


def counted(cp: int, seq: int) -> float:
    """Pairs handed to the kernels by all ranks over the causal count."""
    every = SequenceMap(seq, cp)
    k = torch.empty(1, seq, 1, 8, device="meta")
    with Pairs() as pairs:
        for held in every.ranks:
            rank(torch.empty(1, held.tokens, 1, 8, device="meta"), k, k, segments(held.chunks))
    return pairs.total / every.pairs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="one short sequence")
    given = parser.parse_args()
    repeats = given.repeats
    torch.set_num_threads(1)
    print(
        f"{HEADS} query heads, {KV_HEADS} KV head, head_dim {HEAD_DIM}, float32; CPU time of one "
        f"thread, medians of {repeats} interleaved repeats"
    )
    print(f"{'':20}{'forward':^30}{'forward + backward':^30}{'pairs':>7}{'busiest rank / mean':>27}")
    columns = f"{'whole':>10}{'ranks':>10}{'ratio':>10}"
    print(f"{'CP':>4}{'sequence':>12}    {columns}{columns}{'/causal':>9}{'head-tail':>12}{'contiguous':>13}")
    for cp, seq in [(2, 512)] if given.small else CASES:
        cells = "".join(
            f"{reference:>8.3f} s{ours:>8.3f} s{ours / reference:>10.3f}"
            for reference, ours in measure(cp, seq, repeats)
        )
        balance = [SequenceMap(seq, cp, chunking).imbalance for chunking in ("head-tail", "contiguous")]
        print(f"{cp:>4}{seq:>12,}    {cells}{counted(cp, seq):>9.6f}{balance[0]:>12.3f}{balance[1]:>13.3f}")
    asks = "".join(f"{'asked, at most':>20}{most:>10.2f}" for most in ASKED)
    print(f"{'':20}{asks}{1:>9}{1:>12}{'':>13}")
    worst = SequenceMap(131072, 16, "contiguous").imbalance
    print(f"at CP = 16 contiguous chunks leave the busiest rank {worst:.2f} x the mean")


if __name__ == "__main__":
    main()
