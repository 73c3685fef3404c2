"""The puzzles: what each rank has, what one process makes of it, and what usual mistakes make of it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
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


def _keys_given() -> list[Given]:
    """q, k, v and positions of the tokens that a rank has, in head-tail pieces."""
    whole = [numbers(name, SEQ, DIM) for name in ("q", "k", "v")]
    cut = lp.sequence(lp.Layout(cp=WORLD), SEQ)
    held = [torch.tensor([p for chunk in own.chunks for p in chunk]) for own in cut.ranks]
    return [(*(t[positions] for t in whole), positions) for positions in held]


def _keys_with(mask: Callable[[Tensor], Tensor]) -> Callable[[list[Given]], list[Made]]:
    """Attention of one process to the whole text; mask: of queries and keys, made of each token's rank."""

    def made(given: list[Given]) -> list[Made]:
        whole = [numbers(name, SEQ, DIM).clone().requires_grad_() for name in ("q", "k", "v")]
        q, k, v = (t[None] for t in whole)
        order = together(given, 3)
        owner = torch.arange(SEQ)[order.argsort()] * WORLD // SEQ
        out = F.scaled_dot_product_attention(q, k, v, mask(owner)[None])[0]
        out[order].backward(torch.cat([numbers("gradient", SEQ // WORLD, DIM)] * WORLD))
        tensors = [out.detach(), *(t.grad for t in whole if t.grad is not None)]
        return [tuple(t[own[3]] for t in tensors) for own in given]

    return made


def _before(owner: Tensor) -> Tensor:
    """Each token reads itself and those before it."""
    return torch.ones(SEQ, SEQ).tril().bool()


_keys_truth = _keys_with(_before)


# -- data parallelism ------------------------------------------------------------------------------


def _reduce_given() -> list[Given]:
    return [(own,) for own in parts(numbers("to sum", WORLD * 3, 2))]


def _reduce_truth(given: list[Given]) -> list[Made]:
    return alike(summed([own for (own,) in given]))


def _reduce_on_rank_0(given: list[Given]) -> list[Made]:
    return [_reduce_truth(given)[0], *given[1:]]


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


def _stage_given() -> list[Given]:
    """x of the first rank and dy of the last; zeros stand for what is to come."""
    x = numbers("into the pipeline", 3, DIM)
    dy = numbers("out of the pipeline", 3, DIM)
    w = parts(numbers("of stages", WORLD * DIM, DIM))
    return [(x if r == 0 else 0 * x, w[r], dy if r == WORLD - 1 else 0 * dy) for r in RANKS]


def _stages(given: list[Given]) -> tuple[list[Tensor], list[Tensor]]:
    """What each stage gives, and its weight, of a backward that has run."""
    h = given[0][0]
    outs = []
    weights = [w.clone().requires_grad_() for _, w, _ in given]
    for w in weights:
        h = (h @ w.mT).tanh()
        outs.append(h)
    h.backward(given[-1][2])
    return outs, weights


def _stage_truth(given: list[Given]) -> list[Made]:
    outs, weights = _stages(given)
    return [(h.detach(), w.grad) for h, w in zip(outs, weights, strict=True) if w.grad is not None]


def _stage_alone(given: list[Given]) -> list[Made]:
    """Nothing is received: each stage has zeros, forward and backward."""
    made: list[Made] = []
    for x, w, dy in given:
        y = (x @ w.mT).tanh()
        made.append((y, (dy * (1 - y.square())).mT @ x))
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
        "attention to gathered keys": Puzzle(
            _keys_given,
            _keys_truth,
            ("out", "dq", "dk", "dv"),
            ("all_gather", "reduce_scatter", "all_reduce"),
            {
                "no mask": _keys_with(lambda owner: torch.ones(SEQ, SEQ).bool()),
                "own keys": _keys_with(lambda owner: _before(owner) & (owner[:, None] == owner)),
            },
            backward=True,
            axis="cp",
            cuts=dict.fromkeys(("out", "dq", "dk", "dv"), 0),
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
        "a stage of a pipeline": Puzzle(
            _stage_given,
            _stage_truth,
            ("y", "dw"),
            ("send", "recv"),
            {"nothing received": _stage_alone},
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
