"""The puzzles: what each rank has, what one process makes of it, and what usual mistakes make of it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import llamapar as lp
from puzzles import WORLD, Given, Made, Puzzle, numbers

RANKS = range(WORLD)
TOKENS, DIM, WIDE = 6, 8, 12
VOCAB = 22
"""Rows of a vocabulary that four ranks cannot share evenly: 6, 6, 6 and 4."""


def parts(t: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """A tensor cut evenly, one part a rank."""
    return t.chunk(WORLD, dim)


def alike(*made: Tensor) -> list[Made]:
    """The same on every rank."""
    return [made] * WORLD


def _all(given: list[Given], place: int, dim: int = 0) -> Tensor:
    """The ranks' parts of what stands at a place, put together."""
    return torch.cat([own[place] for own in given], dim)


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


# -- tensor parallelism ----------------------------------------------------------------------------


def _column_given() -> list[Given]:
    x, w, dy = numbers("x", TOKENS, DIM), numbers("w", WIDE, DIM), numbers("dy", TOKENS, WIDE)
    return [(x, w_own, dy_own) for w_own, dy_own in zip(parts(w), parts(dy, 1), strict=True)]


def _column_truth(given: list[Given]) -> list[Made]:
    x = given[0][0].clone().requires_grad_()
    y = F.linear(x, _all(given, 1))
    (dx,) = torch.autograd.grad(y, x, _all(given, 2, 1))
    return [(own, dx) for own in parts(y.detach(), 1)]


def _column_alone(given: list[Given]) -> list[Made]:
    return [(x @ w.mT, dy @ w) for x, w, dy in given]


def _column_summed(given: list[Given]) -> list[Made]:
    y = _sum([x @ w.mT for x, w, _ in given])
    return [(y, dx) for _, dx in _column_truth(given)]


def _row_given() -> list[Given]:
    x, w, dy = numbers("x of rows", TOKENS, WIDE), numbers("w of rows", DIM, WIDE), numbers("dy", TOKENS, DIM)
    return [(x_own, w_own, dy) for x_own, w_own in zip(parts(x, 1), parts(w, 1), strict=True)]


def _row_truth(given: list[Given]) -> list[Made]:
    x = _all(given, 0, 1).requires_grad_()
    y = F.linear(x, _all(given, 1, 1))
    (dx,) = torch.autograd.grad(y, x, given[0][2])
    return [(y.detach(), own) for own in parts(dx, 1)]


def _row_alone(given: list[Given]) -> list[Made]:
    return [(x @ w.mT, dy @ w) for x, w, dy in given]


def _row_twice(given: list[Given]) -> list[Made]:
    y = _sum([x @ w.mT for x, w, _ in given])
    return [(y, WORLD * dy @ w) for _, w, dy in given]


# -- the vocabulary --------------------------------------------------------------------------------


def _ranges() -> list[range]:
    return [range(first, min(first + 6, VOCAB)) for first in range(0, VOCAB, 6)]


def _lookup_given() -> list[Given]:
    table = numbers("table", VOCAB, DIM)
    tokens = torch.tensor([0, 21, 5, 6, 13, 18, 21, 11])
    return [(tokens, table[rows.start : rows.stop], rows.start) for rows in _ranges()]


def _lookup_truth(given: list[Given]) -> list[Made]:
    return alike(F.embedding(given[0][0], _all(given, 1)))


def _looked_up(given: list[Given]) -> list[Tensor]:
    """Each rank's own rows, others' replaced by its first."""
    found = []
    for tokens, table, first in given:
        here = (tokens >= first) & (tokens < first + len(table))
        found.append(table[torch.where(here, tokens - first, 0)])
    return found


def _lookup_unmasked(given: list[Given]) -> list[Made]:
    return alike(_sum(_looked_up(given)))


def _lookup_alone(given: list[Given]) -> list[Made]:
    made: list[Made] = []
    for (tokens, table, first), own in zip(given, _looked_up(given), strict=True):
        here = (tokens >= first) & (tokens < first + len(table))
        made.append((own * here[:, None],))
    return made


def _loss_given() -> list[Given]:
    logits = 9 * numbers("logits", 5, VOCAB)
    targets = torch.tensor([0, 21, 7, 12, 6])
    return [(logits[:, rows.start : rows.stop], targets, rows.start) for rows in _ranges()]


def _loss_truth(given: list[Given]) -> list[Made]:
    return alike(F.cross_entropy(_all(given, 0, 1), given[0][1], reduction="none"))


def _loss_of_own_columns(given: list[Given]) -> list[Made]:
    """The softmax of a rank's own columns, the targets' logits summed."""
    chosen = _all(given, 0, 1).gather(1, given[0][1][:, None])[:, 0]
    return [(logits.logsumexp(1) - chosen,) for logits, _, _ in given]


def _loss_own_maximum(given: list[Given]) -> list[Made]:
    """Each rank's own greatest logit taken off, and added again after the sum."""
    chosen = _all(given, 0, 1).gather(1, given[0][1][:, None])[:, 0]
    total = _sum([(logits - logits.amax(1, keepdim=True)).exp().sum(1) for logits, _, _ in given])
    return [(total.log() + logits.amax(1) - chosen,) for logits, _, _ in given]


COUNTS = (3, 3, 2, 2)


def _unpad_given() -> list[Given]:
    rows = numbers("rows", sum(COUNTS), 2).split(COUNTS)
    padded = [torch.cat([own, torch.zeros(max(COUNTS) - len(own), 2, dtype=own.dtype)]) for own in rows]
    return [(own, COUNTS) for own in padded]


def _unpad_truth(given: list[Given]) -> list[Made]:
    return alike(torch.cat([own[:count] for (own, counts), count in zip(given, COUNTS, strict=True)]))


def _unpad_end(given: list[Given]) -> list[Made]:
    return alike(_all(given, 0)[: sum(COUNTS)])


def _unpad_last(given: list[Given]) -> list[Made]:
    """The last ten rows, as if the pads came first."""
    return alike(_all(given, 0)[-sum(COUNTS) :])


# -- context parallelism ---------------------------------------------------------------------------

SEQ = 32


def _chunks_given() -> list[Given]:
    return [(SEQ,)] * WORLD


def _chunks_truth(_: list[Given]) -> list[Made]:
    cut = lp.sequence(lp.Layout(cp=WORLD), SEQ)
    return [(torch.tensor([p for chunk in own.chunks for p in chunk]),) for own in cut.ranks]


def _chunks_straight(_: list[Given]) -> list[Made]:
    return [(own,) for own in parts(torch.arange(SEQ))]


def _chunks_next(_: list[Given]) -> list[Made]:
    """The second piece as many steps from the middle as the first from the beginning."""
    eight = torch.arange(SEQ).chunk(2 * WORLD)
    return [(torch.cat([eight[r], eight[r + WORLD]]),) for r in RANKS]


def _attended(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of q to some keys, and the logarithm of its softmax's sum: [tokens, dim], [tokens]."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def _ring_given() -> list[Given]:
    q, k, v = (3 * numbers(name, WORLD * 3, DIM) for name in ("q", "k", "v"))
    own = zip(parts(q), parts(k), parts(v), strict=True)
    return [(a, b, c, *_attended(a, b, c)) for a, b, c in own]


def _ring_truth(given: list[Given]) -> list[Made]:
    made: list[Made] = []
    for rank in RANKS:
        before = given[rank - 1]
        k, v = (torch.cat([given[rank][place], before[place]]) for place in (1, 2))
        made.append((before[1], before[2], *_attended(given[rank][0], k, v)))
    return made


def _ring_with(
    merge: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Callable[[list[Given]], list[Made]]:
    def made(given: list[Given]) -> list[Made]:
        found: list[Made] = []
        for rank in RANKS:
            q, _, _, out, lse = given[rank]
            k, v = given[rank - 1][1:3]
            found.append((k, v, *merge(out, lse, *_attended(q, k, v))))
        return found

    return made


_ring_added = _ring_with(lambda out, lse, new, of_new: (out + new, torch.logaddexp(lse, of_new)))
_ring_mean = _ring_with(lambda out, lse, new, of_new: ((out + new) / 2, torch.logaddexp(lse, of_new)))

COPIES = 2


def _kv_given() -> list[Given]:
    return [(own, COPIES) for own in parts(numbers("gradients", WORLD * 2, DIM))]


def _kv_truth(given: list[Given]) -> list[Made]:
    return [(given[r // COPIES * COPIES][0] + given[r // COPIES * COPIES + 1][0],) for r in RANKS]


def _kv_own(given: list[Given]) -> list[Made]:
    return [(own,) for own, _ in given]


def _kv_everything(given: list[Given]) -> list[Made]:
    return alike(_sum([own for own, _ in given]))


def _kv_tiled(given: list[Given]) -> list[Made]:
    return [(given[r % COPIES][0] + given[r % COPIES + COPIES][0],) for r in RANKS]


# -- data parallelism ------------------------------------------------------------------------------


def _reduce_given() -> list[Given]:
    return [(own,) for own in parts(numbers("to sum", WORLD * 3, 2))]


def _reduce_truth(given: list[Given]) -> list[Made]:
    return alike(_sum([own for (own,) in given]))


def _reduce_on_rank_0(given: list[Given]) -> list[Made]:
    return [(_reduce_truth(given)[0][0] if rank == 0 else given[rank][0],) for rank in RANKS]


def _reduce_neighbours(given: list[Given]) -> list[Made]:
    return [(given[rank][0] + given[rank - 1][0],) for rank in RANKS]


def _zero_given() -> list[Given]:
    shards = parts(numbers("weight", WIDE, DIM))
    x, dy = parts(numbers("batch", WORLD * 2, DIM)), parts(numbers("of the loss", WORLD * 2, WIDE))
    return list(zip(shards, x, dy, strict=True))


def _zero_truth(given: list[Given]) -> list[Made]:
    w = _all(given, 0).requires_grad_()
    y = F.linear(_all(given, 1), w)
    (dw,) = torch.autograd.grad(y, w, _all(given, 2) / WORLD)
    return list(zip(parts(y.detach()), parts(dw), strict=True))


def _zero_summed(given: list[Given]) -> list[Made]:
    return [(y, WORLD * own) for y, own in _zero_truth(given)]


def _zero_own(given: list[Given]) -> list[Made]:
    right = _zero_truth(given)
    return [(right[r][0], parts(given[r][2].mT @ given[r][1])[r]) for r in RANKS]


def _norm_given() -> list[Given]:
    cut = parts(numbers("cut", WORLD * 2, DIM))
    return [({"wq": own, "w1": 2 * own, "norm": numbers("copied", DIM)}, {"wq", "w1"}) for own in cut]


def _norm_truth(given: list[Given]) -> list[Made]:
    whole = [torch.cat([own[name] for own, _ in given]) for name in ("wq", "w1")]
    return alike(torch.nn.utils.get_total_norm([*whole, given[0][0]["norm"]]))


def _norm_copies(given: list[Given]) -> list[Made]:
    return alike(_sum([t.square().sum() for own, _ in given for t in own.values()]).sqrt())


def _norm_own(given: list[Given]) -> list[Made]:
    return [(torch.nn.utils.get_total_norm(own.values()),) for own, _ in given]


def _norm_of_norms(given: list[Given]) -> list[Made]:
    return alike(_sum([torch.nn.utils.get_total_norm(own.values()) for own, _ in given]))


# -- a pipeline ------------------------------------------------------------------------------------

MANY = 6
KINDS = ("F", "B")


def _table_given() -> list[Given]:
    return [(MANY,)] * WORLD


def _coded(rows: Sequence[Sequence[tuple[str, int]]]) -> list[Made]:
    return [(torch.tensor([[KINDS.index(kind), number] for kind, number in row]),) for row in rows]


def _table_truth(_: list[Given]) -> list[Made]:
    table = lp.schedule("1f1b", pp=WORLD, micro_batches=MANY).check()
    return _coded([[(action.kind, action.micro_batch) for action in row] for row in table.ranks])


def _with_warm_up(first: Callable[[int], int]) -> Callable[[list[Given]], list[Made]]:
    def made(_: list[Given]) -> list[Made]:
        rows = []
        for rank in RANKS:
            warm, row = first(rank), list[tuple[str, int]]()
            row += [("F", n) for n in range(warm)]
            for n in range(warm, MANY):
                row += [("F", n), ("B", n - warm)]
            rows.append(row + [("B", n) for n in range(MANY - warm, MANY)])
        return _coded(rows)

    return made


def _read(name: str, puzzle: Puzzle) -> Puzzle:
    """The puzzle with its hints."""
    text = _TEXTS[name]
    assert puzzle.slips.keys() == text["slips"].keys()
    return replace(puzzle, hints=tuple(text["hints"]), of_slips=text["slips"])


_TEXTS = tomllib.loads(Path(__file__).with_name("puzzles.toml").read_text(encoding="utf-8"))

PUZZLES = {
    name: _read(name, puzzle)
    for name, puzzle in {
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
            {"not masked": _lookup_unmasked, "not summed": _lookup_alone},
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
        "head-tail chunks": Puzzle(
            _chunks_given,
            _chunks_truth,
            ("positions",),
            (),
            {"in order": _chunks_straight, "not turned round": _chunks_next},
        ),
        "a ring step": Puzzle(
            _ring_given,
            _ring_truth,
            ("k", "v", "out", "lse"),
            ("shift",),
            {"added": _ring_added, "mean": _ring_mean},
        ),
        "KV gradient over copies": Puzzle(
            _kv_given,
            _kv_truth,
            ("gradient",),
            ("all_gather",),
            {"not summed": _kv_own, "all summed": _kv_everything, "tiled": _kv_tiled},
        ),
        "all-reduce from sends": Puzzle(
            _reduce_given,
            _reduce_truth,
            ("total",),
            ("send", "recv"),
            {"on rank 0": _reduce_on_rank_0, "two ranks": _reduce_neighbours},
        ),
        "ZeRO-3 gather": Puzzle(
            _zero_given,
            _zero_truth,
            ("y", "gradient"),
            ("all_gather", "reduce_scatter"),
            {"sum": _zero_summed, "own tokens": _zero_own},
        ),
        "a 1F1B table": Puzzle(
            _table_given,
            _table_truth,
            ("row",),
            (),
            {
                "all forward": _with_warm_up(lambda rank: MANY),
                "turned round": _with_warm_up(lambda rank: rank),
                "one too many": _with_warm_up(lambda rank: WORLD - rank),
            },
        ),
        "the global norm": Puzzle(
            _norm_given,
            _norm_truth,
            ("norm",),
            ("all_reduce",),
            {"copies counted": _norm_copies, "own norm": _norm_own, "norms added": _norm_of_norms},
        ),
    }.items()
}
"""Name → puzzle."""
