"""Puzzles of tensor parallelism and the vocabulary: what each rank has, and what usual mistakes give."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .puzzle_forms import (
    WORLD,
    Given,
    Made,
    Puzzle,
    alike,
    numbers,
    parts,
    summed,
    together,
    with_gradients,
)

TOKENS = 6
DIM = 8
WIDE = 12
VOCAB = 22
"""Rows of a vocabulary that four ranks cannot share evenly: 6, 6, 6 and 4."""


# -- attention -------------------------------------------------------------------------------------

HEAD_DIM = 4
QUERY_HEADS = 2 * WORLD
COPIES = 2
"""Of each KV head, where there are half as many as ranks."""


def attended_in_groups(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    """Causal attention of grouped queries. x: [batch, tokens, dim]; wq, wk, wv: rows of heads, dim."""
    q, k, v = ((x @ w.mT).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for w in (wq, wk, wv))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2) @ wo.mT


def _attention_given(copies: int = 1) -> list[Given]:
    """Each rank's weights: with `copies`, so many neighbours have the same KV head."""
    x = numbers("tokens", 2, TOKENS, DIM)
    wq = parts(numbers("wq", QUERY_HEADS * HEAD_DIM, DIM))
    wo = parts(numbers("wo", DIM, QUERY_HEADS * HEAD_DIM), 1)
    wk = numbers("wk", WORLD * HEAD_DIM, DIM).split(HEAD_DIM)
    wv = numbers("wv", WORLD * HEAD_DIM, DIM).split(HEAD_DIM)
    return [
        (x, wq[r], wk[r // copies], wv[r // copies], wo[r], *([copies] if copies > 1 else []))
        for r in range(WORLD)
    ]


def _attention_truth(given: list[Given]) -> list[Made]:
    copies = given[0][5] if len(given[0]) > 5 else 1
    x = given[0][0].clone()
    wq = together(given, 1)
    wk = together(given[::copies], 2)
    wv = together(given[::copies], 3)
    wo = together(given, 4, 1)
    whole = [t.requires_grad_() for t in (x, wq, wk, wv, wo)]
    out, dx, dq, dk, dv, do = with_gradients(attended_in_groups(*whole), whole)
    kv = [(k, v) for k, v in zip(dk.split(HEAD_DIM), dv.split(HEAD_DIM), strict=True) for _ in range(copies)]
    own = zip(parts(dq), kv, parts(do, 1), strict=True)
    return [(out, dx, q, k, v, o) for q, (k, v), o in own]


def _attention_alone(given: list[Given]) -> list[Made]:
    """Nobody speaks, neither forward nor backward."""
    made: list[Made] = []
    for own in given:
        tensors = [t.clone().requires_grad_() for t in own[:5]]
        made.append(with_gradients(attended_in_groups(*tensors), tensors))
    return made


_OF_ATTENTION = ("out", "dx", "dwq", "dwk", "dwv", "dwo")
_CUTS = {"dwq": 0, "dwk": 0, "dwv": 0, "dwo": 1}

# -- the vocabulary --------------------------------------------------------------------------------


def _ranges() -> list[range]:
    return [range(first, min(first + 6, VOCAB)) for first in range(0, VOCAB, 6)]


def _lookup_given() -> list[Given]:
    table = numbers("table", VOCAB, DIM)
    tokens = torch.tensor([0, 21, 5, 6, 13, 18, 11])
    return [(tokens, table[rows.start : rows.stop], rows.start) for rows in _ranges()]


def _lookup_truth(given: list[Given]) -> list[Made]:
    table = together(given, 1).requires_grad_()
    out, gradient = with_gradients(F.embedding(given[0][0], table), [table])
    return [(out, own) for own in gradient.split([len(own) for _, own, _ in given])]


def _looked_up(given: list[Given]) -> list[Tensor]:
    """Each rank's own rows, others' replaced by its first."""
    found = []
    for tokens, table, first in given:
        here = (tokens >= first) & (tokens < first + len(table))
        found.append(table[torch.where(here, tokens - first, 0)])
    return found


def _lookup_unmasked(given: list[Given]) -> list[Made]:
    return alike(summed(_looked_up(given)))


def _lookup_alone(given: list[Given]) -> list[Made]:
    made: list[Made] = []
    for (tokens, table, first), own in zip(given, _looked_up(given), strict=True):
        here = (tokens >= first) & (tokens < first + len(table))
        made.append((own * here[:, None],))
    return made


def _lookup_clamped(given: list[Given]) -> list[Made]:
    """The nearest row that a rank has, in place of nothing, for a token of another rank."""
    return alike(summed([table[(tokens - first).clamp(0, len(table) - 1)] for tokens, table, first in given]))


def _loss_given() -> list[Given]:
    logits = 9 * numbers("logits", 5, VOCAB)
    logits[2] += 800  # whose exponential is infinite, so that it needs the maximum
    targets = torch.tensor([0, 21, 7, 12, 6])
    return [(logits[:, rows.start : rows.stop], targets, rows.start) for rows in _ranges()]


def _loss_truth(given: list[Given]) -> list[Made]:
    logits = together(given, 0, 1).requires_grad_()
    out, gradient = with_gradients(F.cross_entropy(logits, given[0][1], reduction="none"), [logits])
    return [(out, own) for own in gradient.split([own.shape[1] for own, _, _ in given], 1)]


def _loss_of_own_columns(given: list[Given]) -> list[Made]:
    """The softmax of a rank's own columns, the targets' logits summed."""
    chosen = together(given, 0, 1).gather(1, given[0][1][:, None])[:, 0]
    return [(logits.logsumexp(1) - chosen,) for logits, _, _ in given]


def _loss_own_maximum(given: list[Given]) -> list[Made]:
    """Each rank's own greatest logit taken off, and added again after the sum."""
    chosen = together(given, 0, 1).gather(1, given[0][1][:, None])[:, 0]
    total = summed([(logits - logits.amax(1, keepdim=True)).exp().sum(1) for logits, _, _ in given])
    return [(total.log() + logits.amax(1) - chosen,) for logits, _, _ in given]


COUNTS = (3, 3, 2, 2)


def _unpad_given() -> list[Given]:
    rows = numbers("rows", sum(COUNTS), 2).split(COUNTS)
    padded = [torch.cat([own, torch.zeros(max(COUNTS) - len(own), 2, dtype=own.dtype)]) for own in rows]
    return [(own, COUNTS) for own in padded]


def _unpad_truth(given: list[Given]) -> list[Made]:
    return alike(torch.cat([own[:count] for (own, counts), count in zip(given, COUNTS, strict=True)]))


def _unpad_end(given: list[Given]) -> list[Made]:
    return alike(together(given, 0)[: sum(COUNTS)])


OF_TENSORS = {
    "attention over TP": Puzzle(
        _attention_given,
        _attention_truth,
        _OF_ATTENTION,
        ("all_reduce", "all_gather"),
        {"not summed": _attention_alone},
        backward=True,
        cuts=_CUTS,
    ),
    "attention with copied KV heads": Puzzle(
        partial(_attention_given, COPIES),
        _attention_truth,
        _OF_ATTENTION,
        ("all_reduce", "all_gather"),
        {"not summed": _attention_alone},
        backward=True,
        cuts=_CUTS,
    ),
    "vocabulary-parallel lookup": Puzzle(
        _lookup_given,
        _lookup_truth,
        ("x", "dtable"),
        ("all_reduce",),
        {
            "not masked": _lookup_unmasked,
            "not summed": _lookup_alone,
            "clamped": _lookup_clamped,
        },
        backward=True,
        cuts={"dtable": 0},
    ),
    "vocabulary-parallel loss": Puzzle(
        _loss_given,
        _loss_truth,
        ("loss", "dlogits"),
        ("all_reduce",),
        {
            "own columns": _loss_of_own_columns,
            "own maximum": _loss_own_maximum,
        },
        backward=True,
        cuts={"dlogits": 1},
    ),
    "un-pad after a gather": Puzzle(
        _unpad_given,
        _unpad_truth,
        ("rows",),
        ("all_gather",),
        {"pads at the end": _unpad_end},
    ),
}
