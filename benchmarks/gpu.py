"""On one GPU, at the sizes of Llama 3: attention cut over CP ranks, ranks that share the card, torch's own.

    python benchmarks/gpu.py [--part attention|ranks|torch]
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
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the ranks import this file by its name
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention import SDPBackend, sdpa_kernel

import llamapar as lp
from llamapar.execution.engines import pool
from llamapar.execution.replies import RankAnswer, RankFailure
from llamapar.place.sequence_map import SequenceMap
from llamapar.programs.llama import block as our_block
from llamapar.programs.parts import rms_norm, rope, split_heads
from llamapar.spmd import compat, kernels
from llamapar.spmd.setting import Setting

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


# -- torch's own -----------------------------------------------------------------------------------


class TorchRefuses(RuntimeError):
    """What torch's own raised here; nothing of ours."""


def reason(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text[:200]}"


def torch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def torch_rank(given: Qkv, mesh: DeviceMesh, cp: int, rank: int, clock: Clock) -> tuple[float, float]:
    """Seconds, forward and backward, of one rank: torch's `context_parallel`, ours.

    K and V are repeated for their query heads, as torchtitan does for `context_parallel`; ours reads them
    as they are. Inside the context both take turns: what it replaces is not what ours calls.
    """
    from torch.distributed.tensor.experimental import context_parallel

    q, grad, k, v = (x.detach() for x in given)
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    own = [x.transpose(1, 2).clone(memory_format=torch.contiguous_format) for x in (q, grad, k, v)]
    attention, ours, _ = of_rank(given, cp, rank)
    both(attention, ours)  # what ours raises is no word of torch's
    whole = F.scaled_dot_product_attention
    try:
        with context_parallel(mesh, buffers=own, buffer_seq_dims=[2] * 4, no_restore_buffers=set(own)):
            for x in (own[0], *own[2:]):
                x.requires_grad_()
            theirs, our_time = clock.turns(
                [
                    lambda: both(torch_attention, (own[0], own[1], own[2], own[3])),
                    lambda: both(attention, ours),
                ]
            )
    except Exception as error:
        raise TorchRefuses(reason(error)) from error
    finally:
        F.scaled_dot_product_attention = whole  # an error leaves torch's in its place
    return theirs, our_time


def context_parallel_alone(device: str, small: bool) -> None:
    """Each rank's arithmetic in turn, over torch's fake process group: nothing is sent."""
    shapes, lengths, cps = SMALL if small else (HEADS, TOKENS[:2], (2, 4, 8))
    print("\ntorch's context_parallel and ours, forward and backward, sum over ranks, nothing sent (ms)")

    def rows() -> Iterable[Sequence[object]]:
        for name, heads in shapes.items():
            for tokens in lengths:
                for cp in [cp for cp in cps if cp > 1]:
                    given, clock = tensors(device, tokens, *heads), Clock(device)
                    whole = clock.turns([lambda: both(flash, given)])[0]  # noqa: B023
                    sums = [0.0, 0.0]
                    for rank in range(cp):
                        with compat.fake_world(cp, rank):
                            mesh = DeviceMesh(device, torch.arange(cp), mesh_dim_names=("cp",))
                            for i, took in enumerate(torch_rank(given, mesh, cp, rank, clock)):
                                sums[i] += took
                    theirs, ours = sums
                    yield (
                        *(f"{name}, {tokens}", cp, whole * 1e3, theirs * 1e3, ours * 1e3),
                        *(theirs / whole, ours / whole, ours / theirs),
                    )

    head = ["heads, tokens", "CP", "flash", "torch", "ours", "torch/flash", "ours/flash", "ours/torch"]
    try:
        print_rows(head, rows())
    except TorchRefuses as error:  # that is what this table tells then
        print(f"torch's context_parallel does not run here: {error}")


def context_parallel_rank(context: Any, tokens: int, heads: tuple[int, int]) -> tuple[float, float]:
    """On a rank of a pool: as `torch_rank`, with what is sent."""
    given = tensors(str(context.device), tokens, *heads)
    mesh = DeviceMesh(context.device.type, torch.arange(context.world), mesh_dim_names=("cp",))
    return torch_rank(given, mesh, context.world, context.rank, Clock(context.device.type))


class Attention(nn.Module):
    """Llama's attention as torchtitan writes it for `parallelize_module`: heads are counted by -1."""

    def __init__(self, model: lp.ModelConfig) -> None:
        super().__init__()
        self.model = model
        self.wq, self.wk, self.wv = (
            nn.Linear(model.dim, n, bias=False) for n in (model.q_dim, model.kv_dim, model.kv_dim)
        )
        self.wo = nn.Linear(model.q_dim, model.dim, bias=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = (split_heads(w(x), self.model.head_dim) for w in (self.wq, self.wk, self.wv))
        q, k = rope(q, positions, self.model), rope(k, positions, self.model)
        return self.wo(flash(q, k, v).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, model: lp.ModelConfig) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(model.dim, model.ffn_dim, bias=False) for _ in range(2))
        self.w2 = nn.Linear(model.ffn_dim, model.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, model: lp.ModelConfig) -> None:
        super().__init__()
        self.eps = model.norm_eps
        self.attention, self.feed_forward = Attention(model), FeedForward(model)
        self.attention_norm, self.ffn_norm = (nn.Parameter(torch.ones(model.dim)) for _ in range(2))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + self.attention(rms_norm(x, self.attention_norm, self.eps), positions)
        return x + self.feed_forward(rms_norm(x, self.ffn_norm, self.eps))


def parallelized(block: Block, mesh: DeviceMesh) -> Block:
    """The block over DTensor: one all-reduce behind each half, one at its entrance in the backward."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    def entrance(*layouts: Any) -> PrepareModuleInput:
        return PrepareModuleInput(input_layouts=layouts, desired_input_layouts=layouts)

    columns = [f"attention.w{x}" for x in "qkv"] + ["feed_forward.w1", "feed_forward.w3"]
    plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in ("attention.wo", "feed_forward.w2")}
    plan |= {"attention": entrance(Replicate(), None), "feed_forward": entrance(Replicate())}
    return parallelize_module(block, mesh, plan, src_data_rank=None)  # type: ignore[return-value]


def blocks_apart(device: str, name: str, tp: int, tokens: int, rank: int) -> tuple[float, float, float]:
    """Seconds, forward and backward, of a rank's block by DTensor and by ours, and how far apart they are.

    The process group is there already. The distance is max|Δ| / max|DTensor's| of the output.
    """
    model, kind = lp.model(name), torch.device(device).type
    layout = lp.Layout(tp=tp, sequence_parallel=False)
    setting = Setting(model, layout, seq_len=tokens, dtype="bfloat16")
    torch.manual_seed(0)
    with torch.device(device):
        whole = Block(model).to(torch.bfloat16)
        x, grad = torch.randn(2, 1, tokens, model.dim).to(torch.bfloat16)
        positions = torch.arange(tokens)
    x.requires_grad_()
    mesh = compat.make_mesh(layout, kind)
    coord = compat.coord_of(mesh, rank)
    weights = {
        n.rpartition(".")[2] if n.endswith("norm") else n.split(".")[-2]: p
        for n, p in whole.named_parameters()
    }
    pieces = {n: setting.part(n, p.detach(), coord).clone().requires_grad_() for n, p in weights.items()}

    def ours_step() -> Tensor:
        out = our_block(mesh, setting, x, positions, pieces)
        torch.autograd.grad(out, (x, *pieces.values()), grad)
        return out.detach()

    def their_step() -> Tensor:
        out = theirs(x, positions)
        torch.autograd.grad(out, (x, *theirs.parameters()), grad)
        return out.detach()

    b = ours_step()
    try:
        theirs = parallelized(whole, mesh["tp"])
        a = their_step()
    except Exception as error:
        raise TorchRefuses(reason(error)) from error
    apart = ((a - b).abs().max() / a.abs().max()).item()
    their_time, our_time = Clock(kind).turns([their_step, ours_step])
    return their_time, our_time, apart


def block_rank(context: Any, name: str, tokens: int) -> tuple[float, float, float]:
    """`blocks_apart` on a rank of a pool."""
    return blocks_apart(str(context.device), name, context.world, tokens, context.rank)


def tensor_parallel_alone(device: str, small: bool) -> None:
    names, tokens, tp = (("tiny",), 64, 2) if small else (BLOCKS, 8192, 8)
    print(f"\na block on one rank of TP={tp}, {tokens} tokens, forward and backward, nothing sent (ms)")

    def rows() -> Iterable[Sequence[object]]:
        for name in names:
            with compat.fake_world(tp):
                theirs, ours, _ = blocks_apart(device, name, tp, tokens, 0)
            yield name, theirs * 1e3, ours * 1e3, ours / theirs

    print_rows(["", "DTensor", "ours", "ours/DTensor"], rows())


def raise_first(answers: Sequence[RankAnswer]) -> None:
    """Raise what the first rank raised that raised anything."""
    for failed in sorted((a for a in answers if a.error), key=lambda a: a.at)[:1]:
        raise failed.error or AssertionError


def shared(device: str, small: bool) -> None:
    """Torch's own on real ranks that share this card over gloo, as far as it runs."""
    here = importlib.import_module(Path(__file__).stem)  # the ranks cannot import __main__
    name, tokens, tp = ("tiny", 64, 2) if small else ("llama3-8b", 2048, 4)
    try:
        with pool.Pool(tp, device=device) as ranks:
            answers = ranks.run(here.block_rank, name, tokens, timeout=300)
        raise_first(answers)
        theirs, ours, apart = (max(column) for column in zip(*(a.value for a in answers), strict=True))
        print(
            f"\na block of {name} on {tp} ranks that share it over gloo, {tokens} tokens: DTensor "
            f"{theirs * 1e3:.4g} ms, ours {ours * 1e3:.4g} ms, ratio {ours / theirs:.3g}, apart {apart:.1e}"
        )
    except (here.TorchRefuses, RankFailure) as error:
        print(f"\nDTensor's block on ranks that share it over gloo does not run here: {reason(error)}")
    heads, length = next(iter(SMALL[0].values())) if small else HEADS["8B whole"], 256 if small else 8192
    try:
        with pool.Pool(2, device=device) as ranks:
            answers = ranks.run(here.context_parallel_rank, length, heads, timeout=120)
        raise_first(answers)
        theirs, ours = (max(column) for column in zip(*(a.value for a in answers), strict=True))
        print(
            f"attention on 2 ranks that share it over gloo: context_parallel {theirs * 1e3:.4g} ms with what "
            f"it sends, ours {ours * 1e3:.4g} ms without the all-gather of K and V"
        )
    except (here.TorchRefuses, RankFailure) as error:
        print(f"context_parallel on ranks that share it over gloo does not run here: {reason(error)}")


def torchs_own(device: str, small: bool) -> None:
    context_parallel_alone(device, small)
    tensor_parallel_alone(device, small)
    shared(device, small)


PARTS = {"attention": attention, "ranks": ranks, "torch": torchs_own}


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
