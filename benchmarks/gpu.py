"""On one GPU, at the sizes of Llama 3: attention cut over CP ranks, and ranks that share the card.

    python benchmarks/gpu.py [--part attention|ranks]
    python benchmarks/gpu.py --device cpu --small      the same code at toy sizes, for its tests

Needs torch and numpy alone. Times are of CUDA events, medians of repeats in which everything that is
compared takes turns. Ranks run one after another and their times are added; "flash" is torch's unsharded
causal flash kernel on the same tensors in the same run, the reference of every ratio beside it. TFLOP/s
count 4 x head_dim operations for each causal pair of a head forward and 10 x head_dim backward; "of matmul"
is their share of the rate that this card reaches in a bfloat16 matmul. "error" is the worst max|Δ| / max|ref|
of the output and of dq, dk, dv, in bfloat16.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the ranks import this file by its name
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import llamapar as lp
from llamapar.execution.engines import pool
from llamapar.place.sequence_map import SequenceMap
from llamapar.spmd import kernels

HEADS = {  # name → (query heads, KV heads), head_dim 128
    "8B whole": (32, 8),
    "8B, a rank of TP=8": (4, 1),
    "70B whole": (64, 8),
    "70B, a rank of TP=8": (8, 1),
}
TOKENS = (8192, 32768, 131072)
CPS = (1, 2, 4, 8, 16)
HEAD_DIM = 128
SMALL = {"toy": (4, 2)}, (256,), (1, 2, 4)
BLOCKS = ("llama3-8b", "llama3-70b")
RANKS = lp.Layout(tp=4, cp=2)
Qkv = tuple[Tensor, Tensor, Tensor, Tensor]
"""q, the gradient of the output, k, v: [1, tokens, heads, head_dim]."""


class Clock:
    """Times calls on a device, in seconds."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def __call__(self, call: Callable[[], object]) -> float:
        if not self.cuda:
            started = time.perf_counter()
            call()
            return time.perf_counter() - started
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def turns(self, calls: Sequence[Callable[[], object]], count: int = 5) -> list[float]:
        """Medians of `count` turns of all calls, after one that warms up."""
        for call in calls:
            call()
        turns = [[self(call) for call in calls] for _ in range(count)]
        return [statistics.median(column) for column in zip(*turns, strict=True)]


def print_rows(head: Sequence[str], rows: Iterable[Sequence[object]], first: int = 24) -> None:
    """A table whose rows are printed as they are made; times in ms, ratios and rates as they come."""
    print("".join(f"{h:<{first}}" if not i else f"{h:>14}" for i, h in enumerate(head)))
    for row in rows:
        cells = [f"{c:.4g}" if isinstance(c, float) else str(c) for c in row]
        print("".join(f"{c:<{first}}" if not i else f"{c:>14}" for i, c in enumerate(cells)), flush=True)


def matmul_rate(device: str, small: bool) -> float:
    """Operations a second of a square bfloat16 matmul."""
    n = 256 if small else 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / Clock(device).turns([lambda: a @ b])[0]


# -- attention over CP -----------------------------------------------------------------------------


def tensors(device: str, tokens: int, heads: int, kv_heads: int) -> Qkv:
    torch.manual_seed(0)
    q, grad, k, v = (
        torch.randn(1, tokens, h, HEAD_DIM, device=device, dtype=torch.bfloat16)
        for h in (heads, heads, kv_heads, kv_heads)
    )
    return q.requires_grad_(), grad, k.requires_grad_(), v.requires_grad_()


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def of_rank(given: Qkv, cp: int, rank: int) -> tuple[Callable[..., Tensor], Qkv, list[range]]:
    """(attention, tensors, chunks) of one CP rank: its queries, and everybody's keys."""
    q, grad, k, v = given
    chunks = list(SequenceMap(q.shape[1], cp).rank(rank).chunks)
    cut = kernels.segments(chunks)
    own = [torch.cat([x[:, c.start : c.stop] for c in chunks], 1).detach() for x in (q, grad)]
    mine = own[0].requires_grad_(), own[1], k, v
    return lambda q, k, v: kernels.attend(q, k, v, lambda _: cut), mine, chunks


def forward(attention: Callable[..., Tensor], given: Qkv) -> None:
    with torch.no_grad():
        attention(given[0], *given[2:])


def both(attention: Callable[..., Tensor], given: Qkv) -> tuple[Tensor, ...]:
    """The output, and the gradients of q, k, v."""
    q, grad, k, v = given
    out = attention(q, k, v)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), grad))


def error_over(cp: int, given: Qkv) -> float:
    """The worst max|Δ| / max|ref| of all ranks' outputs and gradients together."""
    out, dq, dk, dv = both(flash, given)
    sums, worst = [torch.zeros_like(x, dtype=torch.float32) for x in (dk, dv)], 0.0

    def apart(found: Tensor, want: Tensor, scale: Tensor) -> float:
        return ((found.float() - want.float()).abs().max() / scale.abs().max()).item()

    for rank in range(cp):
        attention, own, chunks = of_rank(given, cp, rank)
        made = both(attention, own)
        for found, want in zip(made[:2], (out, dq), strict=True):
            rows = torch.cat([want[:, c.start : c.stop] for c in chunks], 1)
            worst = max(worst, apart(found, rows, want))
        for total, part in zip(sums, made[2:], strict=True):
            total += part
    return max(worst, *(apart(total, want, want) for total, want in zip(sums, (dk, dv), strict=True)))


def pairs_over_causal(tokens: int, cp: int) -> float:
    """(query, key) pairs that the kernels are handed by all ranks, over those of the causal mask."""
    count = 0
    for rank in SequenceMap(tokens, cp).ranks:
        for queries, keys, causal in kernels.blocks(kernels.segments(rank.chunks), [range(tokens)]):
            n, m = queries.stop - queries.start, keys.stop - keys.start
            count += n * (n + 1) // 2 if causal else n * m
    return count / (tokens * (tokens + 1) // 2)


def attention_rows(
    device: str, name: str, heads: tuple[int, int], tokens: int, cps: Sequence[int], rate: float
) -> Iterable[Sequence[object]]:
    """The unsharded kernel, then each CP: forward, forward and backward."""
    clock, given = Clock(device), tensors(device, tokens, *heads)
    errors = [error_over(cp, given) for cp in cps]

    def rank_times(step: Callable[..., object], cp: int) -> float:
        total = 0.0
        for rank in range(cp):
            attention, own, _ = of_rank(given, cp, rank)
            total += clock(lambda: step(attention, own))  # noqa: B023
        return total

    columns, operations = [], 4 * HEAD_DIM * heads[0] * tokens * (tokens + 1) / 2
    for step, work in ((forward, operations), (both, 3.5 * operations)):
        for cp in cps:
            rank_times(step, cp)
        step(flash, given)
        turns: list[list[float]] = []
        while len(turns) < 3 or (len(turns) < 9 and sum(map(sum, turns)) < 2.0):
            turns.append([clock(lambda: step(flash, given)), *(rank_times(step, cp) for cp in cps)])  # noqa: B023
        medians = [statistics.median(column) for column in zip(*turns, strict=True)]
        columns.append([(t * 1e3, t / medians[0], work / t / 1e12, work / t / rate) for t in medians])
    label = f"{name}, {tokens // 1024}k" if tokens >= 1024 else f"{name}, {tokens}"
    for i, kernel in enumerate(("flash", *cps)):
        rest = (pairs_over_causal(tokens, cps[i - 1]), errors[i - 1]) if i else ("", "")
        yield (label, kernel, *columns[0][i], *columns[1][i], *rest)


def attention(device: str, small: bool) -> None:
    shapes, lengths, cps = SMALL if small else (HEADS, TOKENS, CPS)
    rate = matmul_rate(device, small)
    print(f"attention over CP; a bfloat16 matmul reaches {rate / 1e12:.4g} TFLOP/s here")
    head = ["heads, tokens", "CP", *("ms", "/ flash", "TFLOP/s", "of matmul") * 2, "pairs", "error"]
    print(f"{'':38}{'forward':^56}{'forward and backward':^56}")
    print_rows(head, ())
    for name, heads in shapes.items():
        for tokens in lengths:
            try:
                print_rows((), attention_rows(device, name, heads, tokens, cps, rate))
            except torch.OutOfMemoryError:
                print(f"{name}, {tokens // 1024}k: skipped: more than this card's memory")
            if device == "cuda":
                torch.cuda.empty_cache()


# -- ranks that share the card ---------------------------------------------------------------------


def ranks(device: str, small: bool) -> None:
    """Every program on 8 ranks of `processes`, and of `local`, compared with the unsharded model."""
    print("\nlp.run on 8 ranks, tp=4 cp=2, tiny model, forward and backward, warm")

    def rows() -> Iterable[Sequence[object]]:
        for dtype in ("float32", "bfloat16"):
            for program in ("block",) if small else lp.programs.PROGRAMS:
                took, results = [], []
                for engine in ("processes", "local"):
                    for _ in range(2):
                        started = time.perf_counter()
                        result = lp.run(program, "tiny", RANKS, engine=engine, device=device, dtype=dtype)
                        seconds = time.perf_counter() - started
                    took.append(seconds)
                    results.append(result)
                error = max(
                    [x for r in results for x in (r.max_error, r.max_grad_error) if x is not None], default=""
                )
                verdict = "ok" if all(r.ok for r in results) else "NOT OK"
                yield program, dtype, *(t * 1e3 for t in took), took[0] / took[1], error, verdict
                for r in results:
                    if not r.ok:
                        print(r)

    print_rows(["program", "dtype", "processes ms", "local ms", "ratio", "error", ""], rows())
    for engine in ("processes", "local"):
        print(lp.run("mlp", "tiny", RANKS, engine=engine, device=device).notes[-1])
    pool.close_pool()


PARTS = {"attention": attention, "ranks": ranks}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, help="one of the tables alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="toy sizes")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return
    device = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    print(f"{device}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    for part in [given.part] if given.part else PARTS:
        PARTS[part](given.device, given.small)


if __name__ == "__main__":
    main()
