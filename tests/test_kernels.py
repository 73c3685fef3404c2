"""Context-parallel attention: the same numbers as the unsharded sequence, from exactly the causal pairs."""

import itertools
import queue
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import llamapar as lp
from llamapar.place.sequence_map import CHUNKINGS, SequenceMap
from llamapar.records.trace import causal_pairs
from llamapar.spmd import kernels
from llamapar.spmd.kernels import (
    Segment,
    at,
    attend,
    block_backward,
    block_forward,
    blocks,
    ring_attend,
    segments,
)

Chunks = list[tuple[range, ...]]
TOLERANCE = 1e-12  # of max|Δ| / max|reference|, float64

# -- the unsharded witness, and the two ways to cut ------------------------------------------------


def tensors(seq, h, h_kv, d=4, batch=2, **of):
    """q, k, v and a gradient for out."""
    made = torch.Generator().manual_seed(seq)
    of = {"dtype": torch.float64, "generator": made, **of}
    q, k, v, grad = (torch.randn(batch, seq, heads, d, **of) for heads in (h, h_kv, h_kv, h))
    return [*(x.requires_grad_() for x in (q, k, v)), grad]


def mask(seq, documents):
    """[seq, seq], True where a query sees a key."""
    lengths = torch.tensor(documents if documents is not None else [seq])
    owner = torch.arange(len(lengths)).repeat_interleave(lengths)
    return (owner[:, None] == owner) & torch.ones(seq, seq, dtype=torch.bool).tril()


def unsharded(q, k, v, grad, documents):
    """out, dq, dk, dv by torch's own plain attention with a boolean mask."""
    with sdpa_kernel(SDPBackend.MATH):
        seen = mask(q.shape[1], documents)
        views = (x.transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(*views, attn_mask=seen, enable_gqa=True).transpose(1, 2)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


def take(x, chunks):
    return torch.cat([x[:, chunk.start : chunk.stop] for chunk in chunks], 1)


def join(parts, every):
    """The ranks' tokens back in the order of the sequence."""
    positions = torch.tensor([p for chunks in every for chunk in chunks for p in chunk], dtype=torch.int64)
    return torch.cat(list(parts), 1)[:, positions.argsort()]


def chunks_of(seq, cp, chunking="head-tail"):
    return [held.chunks for held in SequenceMap(seq, cp, chunking).ranks]


def gathered(q, k, v, grad, every, documents):
    """out, dq, dk, dv of `attend`, rank after rank."""
    outs = [attend(take(q, own), k, v, lambda coord, own=own: segments(own, documents)) for own in every]
    out = join(outs, every)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


def around(q, k, v, grad, every, documents):
    """out, dq, dk, dv of `ring_attend`, a thread for each rank."""
    cp = len(every)
    boxes = [queue.Queue() for _ in range(cp)]

    def one(r):
        def exchange(x):
            boxes[(r + 1) % cp].put(x)
            return boxes[r].get(timeout=60)

        mine = [take(x, every[r]).detach().requires_grad_() for x in (q, k, v)]
        out = ring_attend(*mine, every, exchange, each=at(cp=r), documents=documents)
        return [out.detach(), *torch.autograd.grad(out, mine, take(grad, every[r]))]

    with ThreadPoolExecutor(cp) as pool:
        return [join(parts, every) for parts in zip(*pool.map(one, range(cp)), strict=True)]


WAYS = {"gathered": gathered, "ring": around}


def error(made, wanted):
    """Largest max|Δ| / max|reference| of out, dq, dk, dv; of max|Δ| where the reference is nothing."""
    assert [x.shape for x in made] == [x.shape for x in wanted]
    errors = [0.0]
    for x, y in zip(made, wanted, strict=True):
        if y.numel():
            scale = float(y.abs().max())  # one token alone has dq = 0
            errors.append(float((x - y).abs().max()) / (scale if scale > 1e-14 else 1.0))
    return max(errors)


class Calls(TorchDispatchMode):
    """Counts the (query, key) pairs of kernel calls; knows the largest tensor that any call made."""

    def __init__(self):
        super().__init__()
        self.forward = self.backward = self.largest = 0

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        if func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            self.forward += self.pairs(*args[:2], len(args) > 4 and args[4])  # defaults are left out
        elif func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default:
            self.backward += self.pairs(*args[1:3], args[7])
        made = func(*args, **(kwargs or {}))
        self.largest = max([self.largest, *(x.numel() for x in tree_leaves(made) if isinstance(x, Tensor))])
        return made

    @staticmethod
    def pairs(q, k, causal):
        n, m = q.shape[2], k.shape[2]
        assert n == m or not causal
        return n * (n + 1) // 2 if causal else n * m


# -- segments and blocks ---------------------------------------------------------------------------


@st.composite
def cuts(draw, longest=40):
    """Sequence length, chunks of each rank, documents or None."""
    seq = draw(st.integers(1, longest))
    every = chunks_of(seq, draw(st.integers(1, 5)), draw(st.sampled_from(CHUNKINGS)))
    if draw(st.booleans()):
        return seq, every, None
    ends = sorted({*draw(st.lists(st.integers(1, seq), max_size=6)), seq})
    return seq, every, tuple(b - a for a, b in zip([0, *ends], ends, strict=False))


def test_segments_of_head_tail_chunks_and_of_documents():
    assert segments([range(2, 4), range(12, 14)]) == (Segment(2, 4), Segment(12, 14))
    assert segments([range(8)], [3, 4, 5]) == (Segment(0, 3, 0), Segment(3, 7, 3), Segment(7, 8, 7))
    assert segments([range(4, 6), range(6, 8)]) == (Segment(4, 8),)  # neighbours are one block
    assert segments([range(0), range(5, 5)]) == ()
    assert [s.pairs for s in segments([range(2, 4), range(12, 14)])] == [3 + 4, 13 + 14]


def test_a_document_begins_at_its_first_token(monkeypatch):
    made = []

    def segment(start, stop, first):
        made.append(right(start, stop, first))
        assert len(made) <= 2, "a segment that does not end where the next one begins: it would never end"
        return made[-1]

    right = kernels.Segment
    monkeypatch.setattr(kernels, "Segment", segment)
    assert kernels.segments([range(8)], (3, 5)) == (right(0, 3, 0), right(3, 8, 3))


@given(cuts())
def test_blocks_hold_every_seen_pair_once(cut):
    seq, every, documents = cut
    seen = mask(seq, documents)
    for steps in (1, len(every)):  # the whole sequence's keys at once; around the ring
        count = torch.zeros(seq, seq, dtype=torch.int64)
        for r, own in enumerate(every):
            mine = segments(own, documents)
            assert sum(map(len, mine)) == sum(map(len, own))
            rows = torch.tensor([p for chunk in own for p in chunk], dtype=torch.int64)
            for step in range(steps):
                held = [range(seq)] if steps == 1 else every[(r - step) % steps]
                columns = torch.tensor([p for chunk in held for p in chunk], dtype=torch.int64)
                for queries, keys, causal in blocks(mine, held):
                    square = torch.ones(len(rows[queries]), len(columns[keys]), dtype=torch.int64)
                    count[rows[queries, None], columns[keys]] += square.tril() if causal else square
        assert torch.equal(count, seen.long())
    assert sum(s.pairs for own in every for s in segments(own, documents)) == int(seen.sum())


Q, K, V, _ = tensors(8, 4, 2)
REFUSED = {
    "documents of 7 tokens in all, and a chunk that ends at 8\n  why  ": lambda: segments(
        [range(4, 8)], [3, 4]
    ),
    "document length=0: document length must be a whole number": lambda: segments([range(4, 8)], [8, 0]),
    "8 queries for positions of 4 tokens\n  why  each token has one": lambda: attend(
        Q, K, V, lambda _: segments([range(4, 8)])
    ),
    "8 keys for positions of 12 tokens\n": lambda: attend(Q, K, V, lambda _: segments([range(4, 12)])),
    "4 query heads, 3 KV heads\n  why  each KV head serves the same": lambda: attend(
        Q, *tensors(8, 4, 3)[1:3], lambda _: segments([range(8)])
    ),
    "8 keys for positions of 4 tokens\n": lambda: ring_attend(
        Q[:, :4], K, V, chunks_of(8, 2), lambda x: x, each=at(cp=0)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused(message):
    with pytest.raises(lp.LayoutError, match=f"^{message}"):
        REFUSED[message]()


# -- equal to the unsharded sequence ---------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("documents", [None, (1, 30, 7, 64, 26)], ids=["one", "documents"])
@pytest.mark.parametrize("chunking", CHUNKINGS)
@pytest.mark.parametrize(("h", "h_kv"), [(2, 2), (8, 2), (8, 1)])
@pytest.mark.parametrize("cp", [1, 2, 4, 8])
def test_equals_unsharded(cp, h, h_kv, chunking, documents, way):
    given = tensors(128, h, h_kv)
    made = WAYS[way](*given, chunks_of(128, cp, chunking), documents)
    assert error(made, unsharded(*given, documents)) <= TOLERANCE


@pytest.mark.parametrize("way", WAYS)
@given(
    cut=cuts(), group=st.integers(1, 4), h_kv=st.integers(1, 2), d=st.integers(1, 9), batch=st.integers(0, 2)
)
def test_equals_unsharded_at_any_size(way, cut, group, h_kv, d, batch):
    seq, every, documents = cut
    if way == "ring" and len({sum(map(len, own)) for own in every}) > 1:
        every = [own for own in every if any(own)]  # ranks of unequal shares, none of them empty
    given = tensors(seq, group * h_kv, h_kv, d, batch)
    made = WAYS[way](*given, every, documents)
    assert error(made, unsharded(*given, documents)) <= TOLERANCE


@pytest.mark.parametrize("way", WAYS)
def test_strided_inputs_and_gradients(way):
    q, k, v, _ = tensors(32, 4, 2)
    every = chunks_of(32, 2)

    def odd(x):
        """The same values, in memory the other way round."""
        return x.detach().permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0).requires_grad_()

    ones = torch.ones((), dtype=q.dtype).expand(q.shape)  # as out.sum() hands back
    made = WAYS[way](odd(q), odd(k), odd(v), ones, every, None)
    assert error(made, unsharded(q, k, v, ones, None)) <= TOLERANCE


def test_a_gradient_for_some():
    q, k, v, grad = tensors(16, 2, 2)
    out = attend(q.detach(), k, v.detach(), lambda _: segments([range(16)]))
    views = (x.transpose(1, 2) for x in (q, k, v))
    wanted = F.scaled_dot_product_attention(*views, is_causal=True).transpose(1, 2)
    made = [out.detach(), *torch.autograd.grad(out, k, grad)]
    assert error(made, [wanted.detach(), *torch.autograd.grad(wanted, k, grad)]) <= TOLERANCE


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 8e-3)])
def test_lower_precision_is_merged_in_float32(dtype, tolerance, way):
    exact = [x.detach().to(dtype).double().requires_grad_() for x in tensors(256, 4, 2, 16)]
    given = [x.detach().to(dtype).requires_grad_() for x in exact]
    wanted = unsharded(*exact, None)
    made = WAYS[way](*given, chunks_of(256, 8), None)
    assert {x.dtype for x in made} == {dtype}
    assert error([x.double() for x in made], wanted) <= tolerance


# -- no wasted work --------------------------------------------------------------------------------


@pytest.mark.parametrize("documents", [None, (100, 3, 700, 221)], ids=["one", "documents"])
@pytest.mark.parametrize("cp", [1, 2, 4, 8])
def test_kernels_get_exactly_the_causal_pairs(cp, documents):
    seq = 1024
    q, k, v, grad = tensors(seq, 2, 1)
    every = chunks_of(seq, cp)
    counts = []
    for own in every:
        with Calls() as calls:
            out = attend(take(q, own), k, v, lambda _, own=own: segments(own, documents))
            torch.autograd.grad(out, (q, k, v), take(grad, own))
        assert calls.forward == calls.backward == sum(s.pairs for s in segments(own, documents))
        counts.append(calls.forward)
    assert sum(counts) == sum(causal_pairs(range(n)) for n in documents or (seq,))
    if documents is None:
        assert set(counts) == {causal_pairs(range(seq)) // cp}  # head-tail: the same for every rank


def test_pairs_are_counted_whatever_keys_are_there():
    ranges = [range(a, b) for a in range(6) for b in range(a, 6)]
    for queries, keys in itertools.product(ranges, ranges):
        seen = sum(key <= query for query in queries for key in keys)
        assert causal_pairs(queries, keys) == seen, (queries, keys)


def test_the_ring_does_the_same_pairs():
    every = chunks_of(64, 4)
    held = [take(x, every[0]) for x in tensors(64, 2, 1)]
    for r in range(4):
        with Calls() as calls:  # shapes alone count here: every rank's chunks are of one size
            out = ring_attend(*held[:3], every, lambda x: x, each=at(cp=r))
            torch.autograd.grad(out, held[:3], held[3])
        assert calls.forward == calls.backward == causal_pairs(range(64)) // 4


def test_nothing_of_two_sequence_lengths_is_made():
    seq, cp = 4096, 4
    q, k, v, grad = tensors(seq, 2, 1, batch=1, dtype=torch.float32)
    own = chunks_of(seq, cp)[1]
    mine = take(q, own).detach().requires_grad_()
    with Calls() as calls:
        out = attend(mine, k, v, lambda _: segments(own))
        torch.autograd.grad(out, (mine, k, v), take(grad, own))
    assert calls.largest == k.numel() == seq * 4  # far less than (seq / cp) x seq


def test_405b_sizes_on_the_meta_device():
    seq, cp, h, d = 131072, 16, 128 // 8, 128  # Llama 3 405B at tp=8 cp=16: one KV head a rank
    every = chunks_of(seq, cp)
    for r in (0, 15):
        q = torch.empty(1, seq // cp, h, d, dtype=torch.bfloat16, device="meta", requires_grad=True)
        k, v = (
            torch.empty(1, seq, 1, d, dtype=torch.bfloat16, device="meta", requires_grad=True) for _ in "kv"
        )
        with Calls() as calls:
            out = attend(q, k, v, lambda _, r=r: segments(every[r]))
            out.backward(torch.empty_like(out))
        assert calls.forward == calls.backward == causal_pairs(range(seq)) // cp
        assert (out.shape, q.grad.shape, k.grad.shape, v.grad.shape) == (q.shape, q.shape, k.shape, v.shape)
        assert {x.dtype for x in (out, q.grad, k.grad, v.grad)} == {torch.bfloat16}
    mine = [x[:, : seq // cp].detach().requires_grad_() for x in (q, k, v)]
    ring_attend(*mine, every, lambda x: x, each=at(cp=3)).backward(torch.empty_like(mine[0]))
    assert [x.grad.shape for x in mine] == [x.shape for x in mine]


# -- the kernels of other devices ------------------------------------------------------------------


def one_block(d, causal, **of):
    """out, lse, dq, dk, dv of a block of 4 query heads and 2 KV heads, by whatever kernel is chosen."""
    q, k, v, grad = (x.detach().to(**of).transpose(1, 2) for x in tensors(37, 4, 2, d))
    out, lse = block_forward(q, k, v, causal, 0.4)
    assert (out.shape, lse.shape) == (q.shape, q.shape[:3])
    return [out, lse, *block_backward(grad, q, k, v, out, lse, causal, 0.4)]


class StandIn:
    """The CUDA ops by the CPU's kernel: insists on what they need, pads and returns as they do."""

    cpu = torch.ops.aten

    def forward(self, q, k, v, causal, scale):
        assert q.shape[-1] % 8 == 0
        return self.cpu._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)

    def backward(self, *args, scale):
        return self.cpu._scaled_dot_product_flash_attention_for_cpu_backward(*args, scale=scale)

    def _scaled_dot_product_flash_attention(self, q, k, v, p, causal, *, scale):
        assert p == 0.0
        unset = [None, None, q.shape[2], k.shape[2], None, None, None]
        return (*self.forward(q, k, v, causal, scale), *unset)

    def _scaled_dot_product_flash_attention_backward(self, *args, scale):
        grad, q, k, v, out, lse, no_q, no_k, n, m, p, causal, seed, offset = args
        assert (no_q, no_k, n, m, p) == (None, None, q.shape[2], k.shape[2], 0.0)
        assert (seed.dtype, offset.dtype) == (torch.int64, torch.int64)
        assert lse.is_contiguous()
        assert {x.shape[-1] % 8 for x in (grad, q, k, v, out)} == {0}
        return self.backward(grad, q, k, v, out, lse, p, causal, scale=scale)

    def _scaled_dot_product_efficient_attention(self, q, k, v, bias, want, p, causal, *, scale):
        assert (bias, want, p, q.shape[1]) == (None, True, 0.0, k.shape[1])
        out, lse = self.forward(q, k, v, causal, scale)
        return out, F.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf), None, None

    def _scaled_dot_product_efficient_attention_backward(self, *args, scale):
        grad, q, k, v, bias, out, lse, _, _, p, wanted, causal = args
        assert (bias, p, wanted) == (None, 0.0, (True, True, True, False))
        assert lse.is_contiguous()
        assert lse.shape[-1] % 32 == 0
        assert out.transpose(1, 2).is_contiguous()
        assert {x.shape[1] for x in (grad, q, k, v, out)} == {q.shape[1]}
        lse = lse[..., : q.shape[2]]
        return (*self.backward(grad, q, k, v, out, lse, p, causal, scale=scale), None)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [7, 16])
@pytest.mark.parametrize("kernel", ["flash", "efficient", "plain"])
def test_other_kernels_give_the_same(kernel, d, causal, monkeypatch):
    wanted = one_block(d, causal)
    monkeypatch.setattr(kernels, "_kernel", lambda q: kernel)
    monkeypatch.setattr(kernels, "_aten", StandIn())
    assert error(one_block(d, causal), wanted) <= TOLERANCE


@pytest.mark.parametrize("d", [7, 16])
@pytest.mark.parametrize(
    ("kernel", "dtype"), [("flash", torch.bfloat16), ("efficient", torch.float32), ("plain", torch.float64)]
)
def test_cuda_calls_fit_their_schemas(kernel, dtype, d, monkeypatch):
    monkeypatch.setattr(kernels, "_kernel", lambda q: kernel)
    out, lse, dq, dk, dv = one_block(d, True, device="meta", dtype=dtype)
    assert (out.shape, dq.shape, dk.shape, dv.shape) == ((2, 4, 37, d),) * 2 + ((2, 2, 37, d),) * 2
    assert lse.dtype == torch.promote_types(dtype, torch.float32)


def test_the_kernel_follows_device_dtype_and_generation(monkeypatch):
    def chosen(device, dtype, d=128, generation=(9, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)
        q = types.SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(1, 1, 1, d))
        return kernels._kernel(q)

    assert chosen("cpu", torch.float64) == chosen("meta", torch.bfloat16) == "cpu"
    assert chosen("cuda", torch.bfloat16) == chosen("cuda", torch.float16) == "flash"
    assert chosen("cuda", torch.float32) == chosen("cuda", torch.float16, generation=(7, 5)) == "efficient"
    assert chosen("cuda", torch.bfloat16, 320) == "efficient"
    assert chosen("cuda", torch.float64) == chosen("mps", torch.float32) == "plain"
