"""On a CUDA device: the attention kernels, and every program in every engine, against the CPU.

These tests need torch, numpy and pytest alone, so that they run where nothing else is installed:

    python -m pytest --noconftest -m gpu tests/test_gpu.py
"""

from itertools import accumulate

import pytest
import torch

import llamapar as lp
from llamapar.execution.engines import pool
from llamapar.place.sequence_map import SequenceMap
from llamapar.spmd import kernels

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # the backward's thread, once
]

TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2}
"""Largest max|Δ| / max|reference| of the kernels; the reference is float64 on the CPU from the same inputs.
A bfloat16 has 8 bits: rounding the output alone costs 2**-9, and the kernels round P and dS as well."""

KERNELS = {"float64": "plain", "float32": "efficient", "bfloat16": "flash"}
LAYOUT = lp.Layout(tp=4, cp=2)
SEQ = 192


@pytest.fixture(scope="module", autouse=True)
def _no_ranks_left():
    yield
    pool.close_pool()


# -- kernels ---------------------------------------------------------------------------------------


def dense(q, k, v, documents):
    """Causal attention written out: q [b, s, h, d], every score in memory, a token in its own document."""
    positions = torch.arange(q.shape[1])
    ends = torch.tensor(list(accumulate(documents or (q.shape[1],))))
    own = torch.bucketize(positions, ends, right=True)
    seen = (positions[:, None] >= positions) & (own[:, None] == own)
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


def apart(found, want):
    assert found.shape == want.shape
    assert torch.isfinite(found).all()
    return ((found.cpu().double() - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("documents", [None, (50, 1, 77, 64)], ids=["one document", "four documents"])
@pytest.mark.parametrize("head_dim", [64, 128, 20])
@pytest.mark.parametrize("dtype", KERNELS)
def test_ranks_of_cp_together_are_the_dense_formula(dtype, head_dim, documents):
    seed, kind = torch.Generator().manual_seed(0), getattr(torch, dtype)
    q, grad, k, v = (
        torch.randn(2, SEQ, heads, head_dim, generator=seed, dtype=torch.float64).to(kind)
        for heads in (6, 6, 2, 2)
    )
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    out = dense(*exact, documents)
    want = [out.detach(), *torch.autograd.grad(out, exact, grad.double())]
    k, v = (x.cuda().requires_grad_() for x in (k, v))
    assert kernels._kernel(k) == KERNELS[dtype]
    for cp in (1, 2, 4):
        dk, dv = (torch.zeros(x.shape, dtype=torch.float64) for x in (k, v))
        for rank in SequenceMap(SEQ, cp).ranks:
            rows = [token for chunk in rank.chunks for token in chunk]
            mine, segments = q[:, rows].cuda().requires_grad_(), kernels.segments(rank.chunks, documents)
            made = kernels.attend(mine, k, v, lambda _, cut=segments: cut)
            assert made.dtype == kind
            assert made.device.type == "cuda"
            dq, *both = torch.autograd.grad(made, (mine, k, v), grad[:, rows].cuda())
            assert apart(made.detach(), want[0][:, rows]) <= TOLERANCES[dtype]
            assert apart(dq, want[1][:, rows]) <= TOLERANCES[dtype]
            for total, part in zip((dk, dv), both, strict=True):
                total += part.cpu()
        assert apart(dk, want[2]) <= TOLERANCES[dtype]
        assert apart(dv, want[3]) <= TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_are_never_in_memory(dtype):
    tokens, heads = 16384, 8
    q, k, v = (
        torch.randn(1, tokens, h, 64, device="cuda", dtype=getattr(torch, dtype)).requires_grad_()
        for h in (heads, 2, 2)
    )
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = kernels.attend(q, k, v, lambda _: kernels.segments([range(tokens)]))
    out.sum().backward()
    scores = heads * tokens**2 * q.element_size()
    assert torch.cuda.max_memory_allocated() - before < scores / 8


# -- programs --------------------------------------------------------------------------------------


def sentence(engine, world):
    """What a run on this machine's GPUs says about its device."""
    gpus = f"{GPUS} GPU{'s' * (GPUS > 1)}"
    if engine == "local":
        return f"device cuda: {gpus}, all ranks take turns on the first"
    if world <= GPUS:
        return f"device cuda over nccl: {gpus}, one for each of {world} ranks"
    return f"device cuda over gloo: {world} ranks share {gpus}"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("engine", ["local", "processes"])
@pytest.mark.parametrize("program", lp.programs.PROGRAMS)
def test_every_program_on_8_ranks_equals_the_cpu(program, engine, dtype):
    result = lp.run(program, "tiny", LAYOUT, engine=engine, dtype=dtype)
    assert not result.errors
    assert result.ok, result
    assert (result.device, result.ranks) == ("cuda", 8)
    assert result.notes[-1] == sentence(engine, 8)


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (lp.Layout(tp=2, cp=4), dict(cp_method="ring")),
        (lp.Layout(tp=2, cp=2, dp=2, sequence_parallel=False), {}),
        (lp.Layout(tp=8), dict(kv_replication=True)),
        (lp.Layout(tp=2, cp=2), dict(documents=(10, 54), chunking="contiguous")),
    ],
    ids=["ring", "without sequence parallelism", "replicated KV heads", "documents"],
)
@pytest.mark.parametrize("engine", ["local", "processes"])
def test_other_ways_to_cut_a_block(engine, layout, options):
    result = lp.run("block", "tiny", layout, engine=engine, device="cuda", **options)
    assert result.ok, result


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_fault_is_seen(engine):
    result = lp.run("attention", "tiny", LAYOUT, engine=engine, fault="no_context_grad_sum", device="cuda")
    assert not result.ok
    assert not result.errors


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_both_devices_send_the_same(engine):
    on_gpu, on_cpu = (
        lp.run("block", "tiny", LAYOUT, engine=engine, device=device) for device in ("cuda", "cpu")
    )
    assert {r: t.events for r, t in on_gpu.traces.items()} == {r: t.events for r, t in on_cpu.traces.items()}


def test_nccl_with_a_gpu_for_each_rank():
    if GPUS < 2:
        pytest.skip(f"NCCL needs a GPU for each of 2 ranks; {GPUS} here")
    for program in lp.programs.PROGRAMS:
        result = lp.run(program, "tiny", lp.Layout(tp=2), engine="processes")
        assert result.ok, result
        assert result.notes[-1] == sentence("processes", 2)
