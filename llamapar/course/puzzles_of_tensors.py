"""Puzzles of tensor parallelism and the vocabulary: what each rank has, and what usual mistakes give."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .puzzle_forms import WORLD, Given, Made, Puzzle, alike, numbers, parts, summed, together

TOKENS = 6
DIM = 8
WIDE = 12
VOCAB = 22
"""Rows of a vocabulary that four ranks cannot share evenly: 6, 6, 6 and 4."""


# -- tensor parallelism ----------------------------------------------------------------------------


def _column_given() -> list[Given]:
    x = numbers("x", TOKENS, DIM)
    w = numbers("w", WIDE, DIM)
    dy = numbers("dy", TOKENS, WIDE)
    return [(x, w_own, dy_own) for w_own, dy_own in zip(parts(w), parts(dy, 1), strict=True)]


def _column_truth(given: list[Given]) -> list[Made]:
    x = given[0][0].clone().requires_grad_()
    y = F.linear(x, together(given, 1))
    (dx,) = torch.autograd.grad(y, x, together(given, 2, 1))
    return [(own, dx) for own in parts(y.detach(), 1)]


def _column_alone(given: list[Given]) -> list[Made]:
    return [(x @ w.mT, dy @ w) for x, w, dy in given]


def _column_summed(given: list[Given]) -> list[Made]:
    y = summed([x @ w.mT for x, w, _ in given])
    return [(y, dx) for _, dx in _column_truth(given)]


def _row_given() -> list[Given]:
    x = numbers("x of rows", TOKENS, WIDE)
    w = numbers("w of rows", DIM, WIDE)
    dy = numbers("dy", TOKENS, DIM)
    return [(x_own, w_own, dy) for x_own, w_own in zip(parts(x, 1), parts(w, 1), strict=True)]


def _row_truth(given: list[Given]) -> list[Made]:
    x = together(given, 0, 1).requires_grad_()
    y = F.linear(x, together(given, 1, 1))
    (dx,) = torch.autograd.grad(y, x, given[0][2])
    return [(y.detach(), own) for own in parts(dx, 1)]


def _row_alone(given: list[Given]) -> list[Made]:
    return [(x @ w.mT, dy @ w) for x, w, dy in given]


def _row_twice(given: list[Given]) -> list[Made]:
    y = summed([x @ w.mT for x, w, _ in given])
    return [(y, WORLD * dy @ w) for _, w, dy in given]


# -- the vocabulary --------------------------------------------------------------------------------


def _ranges() -> list[range]:
    return [range(first, min(first + 6, VOCAB)) for first in range(0, VOCAB, 6)]


def _lookup_given() -> list[Given]:
    table = numbers("table", VOCAB, DIM)
    tokens = torch.tensor([0, 21, 5, 6, 13, 18, 21, 11])
    return [(tokens, table[rows.start : rows.stop], rows.start) for rows in _ranges()]


def _lookup_truth(given: list[Given]) -> list[Made]:
    return alike(F.embedding(given[0][0], together(given, 1)))


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
    return alike(F.cross_entropy(together(given, 0, 1), given[0][1], reduction="none"))


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


def _unpad_last(given: list[Given]) -> list[Made]:
    """The last ten rows, as if the pads came first."""
    return alike(together(given, 0)[-sum(COUNTS) :])


OF_TENSORS = {
    "column-parallel linear": Puzzle(
        _column_given,
        _column_truth,
        ("y", "dx"),
        ("all_reduce",),
        {"not summed": _column_alone, "y summed": _column_summed},
    ),
    "row-parallel linear": Puzzle(
        _row_given,
        _row_truth,
        ("y", "dx"),
        ("all_reduce",),
        {"not summed": _row_alone, "dx summed": _row_twice},
    ),
    "vocabulary-parallel lookup": Puzzle(
        _lookup_given,
        _lookup_truth,
        ("x",),
        ("all_reduce",),
        {"not masked": _lookup_unmasked, "not summed": _lookup_alone, "clamped": _lookup_clamped},
    ),
    "vocabulary-parallel loss": Puzzle(
        _loss_given,
        _loss_truth,
        ("loss",),
        ("all_reduce",),
        {"own columns": _loss_of_own_columns, "own maximum": _loss_own_maximum},
    ),
    "un-pad after a gather": Puzzle(
        _unpad_given,
        _unpad_truth,
        ("rows",),
        ("all_gather",),
        {"pads at the end": _unpad_end, "pads at the beginning": _unpad_last},
    ),
}
