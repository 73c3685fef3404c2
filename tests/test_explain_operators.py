"""Operators of torch and numpy that want two sizes to be one say so, of a rank's share and of the whole.

The texts are the installed libraries' own. What is asked: that the two sizes are read from the words, however
these run, and that the known degree is found between them.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn

import llamapar as lp
from explaining import frame

TP, SHARE = 4, 1024
WHOLE = TP * SHARE
zeros, ids = torch.zeros, torch.tensor
none = zeros(2, dtype=torch.long)

OPERATORS: dict[str, Callable[[int, int], object]] = {
    "add": lambda a, b: zeros(2, 3, a) + zeros(2, 3, b),
    "add on meta": lambda a, b: torch.empty(2, a, device="meta") + torch.empty(2, b, device="meta"),
    "mul_": lambda a, b: zeros(2, a).mul_(zeros(2, b)),
    "matmul": lambda a, b: zeros(6, a) @ zeros(b, 5),
    "matmul on meta": lambda a, b: torch.empty(6, a, device="meta") @ torch.empty(b, 5, device="meta"),
    "linear": lambda a, b: functional.linear(zeros(2, 3, a), zeros(7, b)),
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
    "layer_norm": lambda a, b: functional.layer_norm(zeros(2, a), (b,)),
    "rms_norm": lambda a, b: functional.rms_norm(zeros(2, a), (b,)),
    "attention": lambda a, b: functional.scaled_dot_product_attention(
        zeros(1, 2, 3, a), zeros(1, 2, 3, b), zeros(1, 2, 3, b)
    ),
    "cross_entropy": lambda a, b: functional.cross_entropy(zeros(a, 5), zeros(b, dtype=torch.long)),
    "cross_entropy, weights": lambda a, b: functional.cross_entropy(zeros(2, a), none, weight=zeros(b)),
    "gather": lambda a, b: zeros(3, a).gather(1, torch.full((3, 1), b - 1)),
    "scatter_": lambda a, b: zeros(3, a).scatter_(1, torch.full((3, 1), b - 1), zeros(3, 1)),
    "index": lambda a, b: zeros(a, 3)[ids([b - 1])],
    "index of an integer": lambda a, b: zeros(a, 3)[b - 1],
    "select": lambda a, b: zeros(a, 3).select(0, b - 1),
    "index_copy_": lambda a, b: zeros(3, b).index_copy_(0, ids([0]), zeros(1, a)),
    "index_add_": lambda a, b: zeros(3, b).index_add_(0, ids([0]), zeros(1, a)),
    "index_put_": lambda a, b: zeros(3, b).index_put_((ids([0, 1]),), zeros(2, a)),
    "embedding_bag": lambda a, b: functional.embedding_bag(ids([[b - 1]]), zeros(a, 3)),
    "a gradient": lambda a, b: setattr(nn.Parameter(zeros(b, 2)), "grad", zeros(a, 2)),
    "load_state_dict": lambda a, b: nn.Linear(3, b, bias=False).load_state_dict({"weight": zeros(a, 3)}),
    "lerp_": lambda a, b: zeros(2, a).lerp_(zeros(2, b), 0.1),
    "foreach": lambda a, b: torch._foreach_lerp_([zeros(2, a)], [zeros(2, b)], 0.1),
    "repeat_interleave": lambda a, b: zeros(a).repeat_interleave(torch.ones(b, dtype=torch.long)),
    "as_strided": lambda a, b: torch.as_strided(zeros(a), (b,), (1,)),
    "backward": lambda a, b: zeros(3, b, requires_grad=True).backward(zeros(3, a)),
    "vmap": lambda a, b: torch.vmap(lambda x, y: x + y)(zeros(a, 3), zeros(b, 3)),
    "bilinear": lambda a, b: functional.bilinear(zeros(2, a), zeros(2, a), zeros(3, b, b)[:, :, :1]),
    "cdist": lambda a, b: torch.cdist(zeros(3, a), zeros(4, b)),
    "numpy add": lambda a, b: np.zeros((2, a)) + np.zeros((2, b)),
    "numpy matmul": lambda a, b: np.zeros((2, a)) @ np.zeros((b, 3)),
    "numpy concatenate": lambda a, b: np.concatenate([np.zeros((2, a)), np.zeros((3, b))]),
    "numpy reshape": lambda a, b: np.zeros((2, a)).reshape(2, b),
    "numpy broadcast_to": lambda a, b: np.broadcast_to(np.zeros((1, a)), (2, b)),
    "numpy copyto": lambda a, b: np.copyto(np.zeros((2, b)), np.zeros((2, a))),
    "numpy dot": lambda a, b: np.dot(np.zeros(a), np.zeros(b)),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_a_share_that_meets_the_whole_is_read(operator: Callable[[int, int], object]) -> None:
    with pytest.raises((RuntimeError, ValueError, IndexError, AssertionError)) as raised:
        operator(SHARE, WHOLE)
    for known in ({"tp": TP}, {"tp": TP, "dim": WHOLE}):
        told = lp.explain(frame("y = g(x)", str(raised.value)), context=known)
        assert told.verdict == lp.diagnosis.SHARDING, f"{raised.value}\n{told}"
        assert told.best is not None
        assert told.best.equations, told
        assert told.best.level > lp.Level.WEAK, told
