"""Errors raised by code that is run: for other reasons than sharding, or of a rank's share and the whole.

Wrong dtype, device, file or key, off by one, shapes that user code got wrong, too large a batch. Sizes are
drawn from those of language models, so that one is often a whole multiple of another. Operators of torch and
numpy that want two sizes to be one fail with sizes that differ by a little, and with a share and its whole.
"""

import json
import operator
import pickle
import random
import traceback

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import llamapar as lp
from explaining import frame
from llamapar.diagnosis import Level

WIDTHS = (
    64, 96, 128, 256, 320, 384, 512, 640, 768, 1000, 1024, 1152, 1280, 1408, 1536, 2048, 2560, 3072, 3584,
    4096, 5120, 6144, 8192, 11008, 14336,
)  # fmt: skip
LENGTHS = (7, 16, 33, 50, 77, 100, 128, 197, 256, 257, 512, 577, 1000, 1024, 2048)
META = "meta"
zeros, ids = torch.zeros, torch.tensor
none = zeros(2, dtype=torch.long)


def empty(*shape):
    return torch.empty(shape, device=META)


class Draw:
    """Random sizes: widths a, b and c, a length n and one near it, batches of x and of y sequences."""

    def __init__(self, draw):
        self.a, self.b, self.c = draw.sample(WIDTHS, 3)
        self.n = draw.choice(LENGTHS)
        self.near = self.n + draw.choice((-1, 1, 2, 3))
        self.x = draw.choice((1, 2, 3, 4, 8, 16, 24, 32))
        self.y = self.x + 40
        self.choice, self.below = draw.choice, draw.randrange


def raises(d):
    raise ValueError(f"{d.n * 8 + 1} images cannot be shown in {d.choice((2, 4, 8))} rows")


def other_weights(d):
    a, b, c, e = random.Random(d.n).sample((3, 5, 7, 11, 13), 4)
    model, other = (
        nn.ModuleDict({"fc": nn.Linear(i, j), "out": nn.Linear(j, k)}) for i, j, k in ((a, b, c), (e, c, a))
    )
    return model.load_state_dict(other.state_dict())


def other_optimizer(d):
    one, two = (torch.optim.AdamW([zeros(1) for _ in range(n)]) for n in (d.x, 50))
    return one.load_state_dict(two.state_dict())


def in_place(d):
    x = torch.ones(d.x, requires_grad=True)
    x += 1
    return x


NARROW = (torch.bfloat16, torch.float16, torch.float64, torch.int64)
LAYER = "model.layers.{}.mlp.gate_proj.weight"
FILES = ("pytorch_model.bin", "consolidated.00.pth", "model-00001-of-00030.safetensors")
NO_WEIGHTS = (b"", b"version https://git-lfs.github.com/spec/v1", b"\x80\x04K")
NO_JSON = ('{"hidden_size": 4096,', '{"n_heads" 32}', "")
FIELDS = ("num_attention_heads", "vocab_size", "rope_theta")

FORMS = {
    "linear": lambda d: nn.Linear(d.a, d.c, device=META)(empty(d.x, d.n, d.b)),
    "matmul": lambda d: empty(d.n, d.a) @ empty(d.b, d.c),
    "wrong dtype": lambda d: torch.ones(2, 8).to(d.choice(NARROW)) @ torch.ones(8, d.a % 7 + 1),
    "long index": lambda d: F.embedding(zeros(2, d.x), zeros(8, 4)),
    "wrong device": lambda d: empty(d.x, 8) + torch.ones(d.y, 8),
    "no cuda": lambda d: torch.empty(d.x, device=f"cuda:{d.below(8)}"),
    "token past the vocabulary": lambda d: F.embedding(torch.tensor([0, d.a]), zeros(d.a, 2)),
    "index past the end": lambda d: zeros(2, d.n)[:, d.n],
    "list past the end": lambda d: list(range(d.n))[d.n],
    "view of a rest": lambda d: empty(d.n * d.x + 1).view(-1, d.choice((2, 3, 7, 28 * 28)) * d.n * d.x + 3),
    "flatten of an image": lambda d: nn.Linear(16 * d.c, 10, device=META)(empty(d.x, 16 * d.c // 4)),
    "image in patches": lambda d: empty(d.x, 3, 97, 97).unflatten(2, (-1, d.choice((14, 16)))),
    "channels": lambda d: nn.Conv2d(3, 8, 3, device=META)(empty(d.x, d.choice((1, 4)), 32, 32)),
    "groups": lambda d: nn.GroupNorm(32, d.choice((48, 80, 100)), device=META),
    "heads of a width": lambda d: nn.MultiheadAttention(d.a + 1, d.choice((8, 12, 16)), device=META),
    "collated": lambda d: torch.utils.data.default_collate([zeros(d.n), zeros(d.near)]),
    "split sizes": lambda d: empty(d.n, 2).split([d.n // 2, d.near - d.n // 2]),
    "gathered": lambda d: torch.gather(zeros(4, 4), 1, zeros(4, 4)),
    "missing keys": lambda d: nn.Linear(4, 4).load_state_dict({LAYER.format(d.below(80)): zeros(1)}),
    "weights of another model": other_weights,
    "optimizer of another model": other_optimizer,
    "no file": lambda d: torch.load(f"/nowhere/llama-{d.below(99)}b/{d.choice(FILES)}"),
    "no weights in it": lambda d: pickle.loads(d.choice(NO_WEIGHTS)),
    "broken JSON": lambda d: json.loads(d.choice(NO_JSON)),
    "missing field": lambda d: {"hidden_size": d.a}[d.choice(FIELDS)],
    "wrong argument": lambda d: nn.Linear(2, 2)(zeros(2), **{d.choice(("attention_mask", "input_ids")): 1}),
    "no such attribute": lambda d: getattr(nn.Linear(2, 2), d.choice(("q_proj", "tp_size", "device_mesh"))),
    "no model": lambda d: d.choice((operator.attrgetter("shape"), len, iter))(None),
    "batch too large": lambda d: zeros(d.x * 2**20, d.a, 2**20),
    "no batches": lambda d: 1000 // (d.x // 40),
    "mean of nothing": lambda d: sum([]) / float(len([]) * d.x),
    "a check of its own": raises,
    "no gradient": lambda d: zeros(d.x).sum().backward(),
    "changed in place": in_place,
    "table of lists": lambda d: torch.tensor([[0] * d.n, [0]]),
    "bad text": lambda d: bytes([d.below(128, 192)]).decode(),
    "bad number": lambda d: int(d.choice(("4k", "1e3", "auto", ""))),
    "too deep": lambda d: (lambda f: f(f))(lambda f: f(f)),
}


OPERATORS = {
    "add": lambda a, b: zeros(2, 3, a) + zeros(2, 3, b),
    "add on meta": lambda a, b: torch.empty(2, a, device="meta") + torch.empty(2, b, device="meta"),
    "mul_": lambda a, b: zeros(2, a).mul_(zeros(2, b)),
    "matmul": lambda a, b: zeros(6, a) @ zeros(b, 5),
    "matmul on meta": lambda a, b: torch.empty(6, a, device="meta") @ torch.empty(b, 5, device="meta"),
    "linear": lambda a, b: F.linear(zeros(2, 3, a), zeros(7, b)),
    "bmm": lambda a, b: torch.bmm(zeros(2, 3, a), zeros(2, b, 4)),
    "baddbmm": lambda a, b: torch.baddbmm(zeros(2, 3, 4), zeros(2, 3, a), zeros(2, b, 4)),
    "addbmm": lambda a, b: torch.addbmm(zeros(3, 4), zeros(2, 3, a), zeros(2, b, 4)),
    "addmm": lambda a, b: torch.addmm(zeros(7), zeros(3, a), zeros(b, 7)),
    "einsum": lambda a, b: torch.einsum("bsd,de->bse", zeros(2, 3, a), zeros(b, 5)),
    "tensordot": lambda a, b: torch.tensordot(zeros(3, a), zeros(b, 2), dims=1),
    "mv": lambda a, b: zeros(3, a) @ zeros(b),
    "dot": lambda a, b: torch.dot(zeros(a), zeros(b)),
    "cat": lambda a, b: torch.cat([zeros(2, a), zeros(3, b)]),
    "stack": lambda a, b: torch.stack([zeros(2, a), zeros(2, b)]),
    "where": lambda a, b: torch.where(zeros(2, a) > 0, zeros(2, b), zeros(2, b)),
    "masked_fill": lambda a, b: zeros(2, b).masked_fill(zeros(2, a) > 0, 0.0),
    "mask as an index": lambda a, b: zeros(2, b)[zeros(2, a) > 0],
    "copy_": lambda a, b: zeros(2, b).copy_(zeros(2, a)),
    "expand": lambda a, b: zeros(1, a).expand(2, b),
    "view": lambda a, b: zeros(2, 3, a).view(2, 3, b),
    "view of one dim": lambda a, b: zeros(a).view(b),
    "unflatten": lambda a, b: zeros(2, a).unflatten(1, (b // 16, 16)),
    "split": lambda a, b: zeros(2, a).split([b // 2, b // 2], dim=1),
    "layer_norm": lambda a, b: F.layer_norm(zeros(2, a), (b,)),
    "rms_norm": lambda a, b: F.rms_norm(zeros(2, a), (b,)),
    "attention": lambda a, b: F.scaled_dot_product_attention(
        zeros(1, 2, 3, a), zeros(1, 2, 3, b), zeros(1, 2, 3, b)
    ),
    "cross_entropy": lambda a, b: F.cross_entropy(zeros(a, 5), zeros(b, dtype=torch.long)),
    "cross_entropy, weights": lambda a, b: F.cross_entropy(zeros(2, a), none, weight=zeros(b)),
    "gather": lambda a, b: zeros(3, a).gather(1, torch.full((3, 1), b - 1)),
    "scatter_": lambda a, b: zeros(3, a).scatter_(1, torch.full((3, 1), b - 1), zeros(3, 1)),
    "index": lambda a, b: zeros(a, 3)[ids([b - 1])],
    "index of an integer": lambda a, b: zeros(a, 3)[b - 1],
    "select": lambda a, b: zeros(a, 3).select(0, b - 1),
    "index_copy_": lambda a, b: zeros(3, b).index_copy_(0, ids([0]), zeros(1, a)),
    "index_add_": lambda a, b: zeros(3, b).index_add_(0, ids([0]), zeros(1, a)),
    "index_put_": lambda a, b: zeros(3, b).index_put_((ids([0, 1]),), zeros(2, a)),
    "embedding_bag": lambda a, b: F.embedding_bag(ids([[b - 1]]), zeros(a, 3)),
    "a gradient": lambda a, b: setattr(nn.Parameter(zeros(b, 2)), "grad", zeros(a, 2)),
    "load_state_dict": lambda a, b: nn.Linear(3, b, bias=False).load_state_dict({"weight": zeros(a, 3)}),
    "lerp_": lambda a, b: zeros(2, a).lerp_(zeros(2, b), 0.1),
    "foreach": lambda a, b: torch._foreach_lerp_([zeros(2, a)], [zeros(2, b)], 0.1),
    "repeat_interleave": lambda a, b: zeros(a).repeat_interleave(torch.ones(b, dtype=torch.long)),
    "as_strided": lambda a, b: torch.as_strided(zeros(a), (b,), (1,)),
    "backward": lambda a, b: zeros(3, b, requires_grad=True).backward(zeros(3, a)),
    "vmap": lambda a, b: torch.vmap(lambda x, y: x + y)(zeros(a, 3), zeros(b, 3)),
    "bilinear": lambda a, b: F.bilinear(zeros(2, a), zeros(2, a), zeros(3, b, b)[:, :, :1]),
    "cdist": lambda a, b: torch.cdist(zeros(3, a), zeros(4, b)),
    "numpy add": lambda a, b: np.zeros((2, a)) + np.zeros((2, b)),
    "numpy matmul": lambda a, b: np.zeros((2, a)) @ np.zeros((b, 3)),
    "numpy concatenate": lambda a, b: np.concatenate([np.zeros((2, a)), np.zeros((3, b))]),
    "numpy reshape": lambda a, b: np.zeros((2, a)).reshape(2, b),
    "numpy broadcast_to": lambda a, b: np.broadcast_to(np.zeros((1, a)), (2, b)),
    "numpy copyto": lambda a, b: np.copyto(np.zeros((2, b)), np.zeros((2, a))),
    "numpy dot": lambda a, b: np.dot(np.zeros(a), np.zeros(b)),
}

INDEXED = (
    "unflatten",
    "split",
    "gather",
    "scatter_",
    "index",
    "index of an integer",
    "select",
    "embedding_bag",
)
"""Operators that only want one size below the other, or of which one is divided."""

FORMS |= {
    name: lambda d, of=of: of(d.n, d.near)  # type: ignore[misc]
    for name, of in OPERATORS.items()
    if name not in (*INDEXED, "as_strided", "bilinear")
}


def failures(n):
    """`n` errors, of every form in turn, half of them with the layout of a job that they befell."""
    draw = random.Random(0)
    for i in range(n):
        name = list(FORMS)[i % len(FORMS)]
        context = {}
        if (i + i // len(FORMS)) % 2:
            context = {"model": draw.choice(list(lp.PRESETS)), "layout": {"tp": draw.choice((1, 2, 4))}}
            context["seq"] = 1024 * draw.choice((1, 2, 8))
            assert lp.check(context["model"], context["layout"], seq_len=context["seq"]).ok
        try:
            FORMS[name](Draw(draw))
        except (Exception, RecursionError) as error:
            yield name, error, context
        else:
            raise AssertionError(f"{name} ran through")


def test_each_form_fails_in_a_way_of_its_own():
    told = {name: f"{type(error).__name__}: {error}" for name, error, _ in failures(len(FORMS))}
    assert len(told) == len(FORMS) >= 50
    assert len({"".join(c for c in text if not c.isdigit()) for text in told.values()}) >= 45


def test_other_failures_are_not_blamed_on_sharding(counts):
    """By the exception and by its whole traceback, with and without the layout of the job."""
    n = counts(120, 250, 500)
    blamed = {"exception": [], "traceback": []}
    for name, error, context in failures(n):
        text = "".join(traceback.format_exception(error))
        for how, what in (("exception", error), ("traceback", text)):
            if lp.explain(what, context=context).verdict == "sharding":
                blamed[how].append(f"{name}: {str(error)[:150]} {context}")
    for rows in blamed.values():
        assert len(rows) <= 0.02 * n, rows


TP, SHARE = 4, 1024
WHOLE = TP * SHARE


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_a_share_that_meets_the_whole_is_read(operator):
    """The two sizes are read from the library's own words, and the known degree is found between them."""
    with pytest.raises((RuntimeError, ValueError, IndexError, AssertionError)) as raised:
        operator(SHARE, WHOLE)
    for known in ({"tp": TP}, {"tp": TP, "dim": WHOLE}):
        told = lp.explain(frame("y = g(x)", str(raised.value)), context=known)
        assert told.verdict == lp.diagnosis.SHARDING, f"{raised.value}\n{told}"
        assert told.best is not None
        assert told.best.equations, told
        assert told.best.level > Level.WEAK, told
