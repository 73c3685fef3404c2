"""Runs that fail for other reasons: every error is raised by code that was run, and none is sharding's fault.

Wrong dtype, device, file or key, off by one, shapes that user code got wrong, too large a batch. Sizes are
drawn from those of language models, so that one is often a whole multiple of another.
"""

from __future__ import annotations

import json
import operator
import pickle
import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import llamapar as lp

WIDTHS = (
    64, 96, 128, 256, 320, 384, 512, 640, 768, 1000, 1024, 1152, 1280, 1408, 1536, 2048, 2560, 3072, 3584,
    4096, 5120, 6144, 8192, 11008, 14336,
)  # fmt: skip
LENGTHS = (7, 16, 33, 50, 77, 100, 128, 197, 256, 257, 512, 577, 1000, 1024, 2048)
META = "meta"
zeros = torch.zeros


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, device=META)


class Draw:
    """Random sizes: widths a, b and c, a length n and one near it, batches of x and of y sequences."""

    def __init__(self, draw: random.Random):
        self.a, self.b, self.c = draw.sample(WIDTHS, 3)
        self.n = draw.choice(LENGTHS)
        self.near = self.n + draw.choice((-1, 1, 2, 3))
        self.x = draw.choice((1, 2, 3, 4, 8, 16, 24, 32))
        self.y = self.x + 40
        self.choice, self.below = draw.choice, draw.randrange


def raises(d: Draw) -> Any:
    raise ValueError(f"{d.n * 8 + 1} images cannot be shown in {d.choice((2, 4, 8))} rows")


def other_weights(d: Draw) -> Any:
    a, b, c, e = random.Random(d.n).sample((3, 5, 7, 11, 13), 4)
    model, other = (
        nn.ModuleDict({"fc": nn.Linear(i, j), "out": nn.Linear(j, k)}) for i, j, k in ((a, b, c), (e, c, a))
    )
    return model.load_state_dict(other.state_dict())


def other_optimizer(d: Draw) -> Any:
    one, two = (torch.optim.AdamW([zeros(1) for _ in range(n)]) for n in (d.x, 50))
    return one.load_state_dict(two.state_dict())


def in_place(d: Draw) -> Any:
    x = torch.ones(d.x, requires_grad=True)
    x += 1
    return x


NARROW = (torch.bfloat16, torch.float16, torch.float64, torch.int64)
LAYER = "model.layers.{}.mlp.gate_proj.weight"
FILES = ("pytorch_model.bin", "consolidated.00.pth", "model-00001-of-00030.safetensors")
NO_WEIGHTS = (b"", b"version https://git-lfs.github.com/spec/v1", b"\x80\x04K")
NO_JSON = ('{"hidden_size": 4096,', '{"n_heads" 32}', "")
FIELDS = ("num_attention_heads", "vocab_size", "rope_theta")

FORMS: dict[str, Callable[[Draw], Any]] = {
    "linear": lambda d: nn.Linear(d.a, d.c, device=META)(empty(d.x, d.n, d.b)),
    "matmul": lambda d: empty(d.n, d.a) @ empty(d.b, d.c),
    "batched matmul": lambda d: torch.bmm(empty(d.x, d.n, d.a), empty(d.y, d.b, d.near)),
    "wrong dtype": lambda d: torch.ones(2, 8).to(d.choice(NARROW)) @ torch.ones(8, d.a % 7 + 1),
    "long index": lambda d: F.embedding(zeros(2, d.x), zeros(8, 4)),
    "wrong device": lambda d: empty(d.x, 8) + torch.ones(d.y, 8),
    "no cuda": lambda d: torch.empty(d.x, device=f"cuda:{d.below(8)}"),
    "token past the vocabulary": lambda d: F.embedding(torch.tensor([0, d.a]), zeros(d.a, 2)),
    "index past the end": lambda d: zeros(2, d.n)[:, d.n],
    "list past the end": lambda d: list(range(d.n))[d.n],
    "off by one": lambda d: empty(d.x, d.n) + empty(1, d.near),
    "targets off by one": lambda d: F.cross_entropy(zeros(d.n, 8), zeros(d.near, dtype=torch.int64)),
    "view of another length": lambda d: empty(d.x, d.n, 12 * 64).view(d.x, d.near, 12, 64),
    "view of a rest": lambda d: empty(d.n * d.x + 1).view(-1, d.choice((2, 3, 7, 28 * 28)) * d.n * d.x + 3),
    "flatten of an image": lambda d: nn.Linear(16 * d.c, 10, device=META)(empty(d.x, 16 * d.c // 4)),
    "image in patches": lambda d: empty(d.x, 3, 97, 97).unflatten(2, (-1, d.choice((14, 16)))),
    "channels": lambda d: nn.Conv2d(3, 8, 3, device=META)(empty(d.x, d.choice((1, 4)), 32, 32)),
    "groups": lambda d: nn.GroupNorm(32, d.choice((48, 80, 100)), device=META),
    "normalised": lambda d: F.layer_norm(empty(d.x, d.b), (d.a,)),
    "heads of a width": lambda d: nn.MultiheadAttention(d.a + 1, d.choice((8, 12, 16)), device=META),
    "mask of another length": lambda d: F.scaled_dot_product_attention(
        *[empty(d.x, 8, d.n, 64)] * 3, empty(d.n, d.near)
    ),
    "keys of another head size": lambda d: F.scaled_dot_product_attention(
        empty(d.x, 8, d.n, 64), *[empty(d.x, 8, d.n, 80)] * 2
    ),
    "joined": lambda d: torch.cat([empty(d.x, d.n, 64), empty(d.y, d.near, 64)], 1),
    "collated": lambda d: torch.utils.data.default_collate([zeros(d.n), zeros(d.near)]),
    "split sizes": lambda d: empty(d.n, 2).split([d.n // 2, d.near - d.n // 2]),
    "expanded": lambda d: empty(d.n + 1, 4).expand(d.near + 1, 4),
    "summed by name": lambda d: torch.einsum("bsd,de->bse", empty(d.x, d.n, d.a), empty(d.b, 8)),
    "gathered": lambda d: torch.gather(zeros(4, 4), 1, zeros(4, 4)),
    "copied": lambda d: zeros(d.n).copy_(zeros(d.near)),
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
    "arrays": lambda d: np.zeros((2, d.n)) + np.zeros((2, d.near)),
    "array product": lambda d: np.zeros((2, d.n)) @ np.zeros((d.near, 2)),
    "array reshaped": lambda d: np.zeros(d.n * 3).reshape(d.near, 3),
    "table of lists": lambda d: torch.tensor([[0] * d.n, [0]]),
    "bad text": lambda d: bytes([d.below(128, 192)]).decode(),
    "bad number": lambda d: int(d.choice(("4k", "1e3", "auto", ""))),
    "too deep": lambda d: (lambda f: f(f))(lambda f: f(f)),
    "two images": lambda d: torch.where(empty(d.y, d.n) > 0, empty(1, d.near), empty(1, 1)),
}


def failures(n: int) -> Iterator[tuple[str, BaseException, dict[str, Any]]]:
    """`n` errors, of every form in turn, half of them with the layout of a job that they befell."""
    draw = random.Random(0)
    for i in range(n):
        name = list(FORMS)[i % len(FORMS)]
        context: dict[str, Any] = {}
        if i // len(FORMS) % 2:
            context = {"model": draw.choice(list(lp.PRESETS)), "layout": {"tp": draw.choice((1, 2, 4))}}
            context["seq"] = 1024 * draw.choice((1, 2, 8))
            assert lp.check(context["model"], context["layout"], seq_len=context["seq"]).ok
        try:
            FORMS[name](Draw(draw))
        except (Exception, RecursionError) as error:
            yield name, error, context
        else:
            raise AssertionError(f"{name} ran through")


def test_each_form_fails_in_a_way_of_its_own() -> None:
    told = {name: f"{type(error).__name__}: {error}" for name, error, _ in failures(len(FORMS))}
    assert len(told) == len(FORMS) >= 50
    assert len({"".join(c for c in text if not c.isdigit()) for text in told.values()}) >= 45


def test_other_failures_are_not_blamed_on_sharding(soak: bool) -> None:
    """By the exception and by its whole traceback, with and without the layout of the job."""
    n = 500 if soak else 120
    blamed: dict[str, list[str]] = {"exception": [], "traceback": []}
    for name, error, context in failures(n):
        text = "".join(traceback.format_exception(error))
        for how, what in (("exception", error), ("traceback", text)):
            if lp.explain(what, context=context).verdict == "sharding":
                blamed[how].append(f"{name}: {str(error)[:150]} {context}")
    for rows in blamed.values():
        assert len(rows) <= 0.02 * n, rows
