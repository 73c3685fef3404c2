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

from .puzzle_forms import RANKS, WORLD, Given, Made, Puzzle, alike, numbers, parts, summed, together
from .puzzles_of_tensors import DIM, OF_TENSORS, WIDE

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


def _unbalanced(made: Sequence[Made]) -> str:
    """What is wrong with the positions of all ranks; any order is right in which all have the same work."""
    positions = torch.cat([own.flatten() for (own,) in made])
    if sorted(positions.tolist()) != list(range(SEQ)):
        return "a position is on no rank, or on two"
    pairs = [int((own + 1).sum()) for (own,) in made]  # the token at position p reads p + 1 keys
    return "" if len({*pairs}) == 1 else f"the ranks make {', '.join(map(str, pairs))} pairs"


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

# -- data parallelism ------------------------------------------------------------------------------


def _reduce_given() -> list[Given]:
    return [(own,) for own in parts(numbers("to sum", WORLD * 3, 2))]


def _reduce_truth(given: list[Given]) -> list[Made]:
    return alike(summed([own for (own,) in given]))


def _reduce_on_rank_0(given: list[Given]) -> list[Made]:
    return [(_reduce_truth(given)[0][0] if rank == 0 else given[rank][0],) for rank in RANKS]


def _reduce_neighbours(given: list[Given]) -> list[Made]:
    return [(given[rank][0] + given[rank - 1][0],) for rank in RANKS]


def _zero_given() -> list[Given]:
    shards = parts(numbers("weight", WIDE, DIM))
    x = parts(numbers("batch", WORLD * 2, DIM))
    dy = parts(numbers("of the loss", WORLD * 2, WIDE))
    return list(zip(shards, x, dy, strict=True))


def _zero_truth(given: list[Given]) -> list[Made]:
    w = together(given, 0).requires_grad_()
    y = F.linear(together(given, 1), w)
    (dw,) = torch.autograd.grad(y, w, together(given, 2) / WORLD)
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
    return alike(summed([t.square().sum() for own, _ in given for t in own.values()]).sqrt())


def _norm_own(given: list[Given]) -> list[Made]:
    return [(torch.nn.utils.get_total_norm(own.values()),) for own, _ in given]


def _norm_of_norms(given: list[Given]) -> list[Made]:
    return alike(summed([torch.nn.utils.get_total_norm(own.values()) for own, _ in given]))


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
            warm = first(rank)
            row = list[tuple[str, int]]()
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
    return replace(puzzle, hints=tuple(text["hints"]), of_slips=text["slips"], when=text.get("when", {}))


_TEXTS = tomllib.loads(Path(__file__).with_name("puzzles.toml").read_text(encoding="utf-8"))

PUZZLES = {
    name: _read(name, puzzle)
    for name, puzzle in {
        **OF_TENSORS,
        "head-tail chunks": Puzzle(
            _chunks_given,
            _chunks_truth,
            ("positions",),
            (),
            {"in order": _chunks_straight, "not turned round": _chunks_next},
            judge=_unbalanced,
            axis="cp",
            right="each position is on one rank, and all ranks have the same work",
        ),
        "a ring step": Puzzle(
            _ring_given,
            _ring_truth,
            ("k", "v", "out", "lse"),
            ("send", "recv"),
            {"added": _ring_added, "mean": _ring_mean},
            axis="cp",
            cuts={"out": 0, "lse": 0},
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
            axis="dp",
            cuts={"y": 0, "gradient": 0},
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
            axis="pp",
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
