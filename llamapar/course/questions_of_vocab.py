"""What the notebook on the vocabulary asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import llamapar as lp

from .boxes import Item, choices_of
from .veils import covered, framed

_MODEL = "llama3.1-70b"
_TP = 8
_EXACT: dict[str, Any] = {"seq_len": 16, "dtype": "float64", "device": "cpu", "backward": False}
_HIGH = "too high"
_LOW = "too low"
_RIGHT = "right"


@cache
def _narrow() -> lp.ModelConfig:
    """The whole vocabulary, with few columns."""
    return lp.model(_MODEL).replace(dim=16, n_heads=8, head_dim=2)


def _owner() -> Item:
    record = lp.vocab(_MODEL, {"tp": _TP})
    owner = record.owner(100_000)
    view = lp.view(record)

    def place(rank: float) -> tuple[str, float, float]:
        return "rows", rank / _TP, (rank + 1) / _TP

    return Item(
        "128,256 rows, 8 ranks: who owns token 100,000?",
        owner,
        hints=(
            "Each rank has 128,256 / 8 = 16,032 rows, in order.",
            "100,000 / 16,032 is a little more than 6. Ranks and rows count from 0.",
        ),
        slips=((7, "Ranks count from 0: with 6 of them before it, it is rank 6."),),
        why="Rank 6 has rows 96,192 to 112,223.",
        shows=view,
        veiled=covered(view, lambda lane, x: x > 1 / _TP, "128,256 rows over 8 ranks."),
        marked=framed(view, owner, place, "rank {:g}".format),
    )


def _height() -> Item:
    record = lp.vocab(_MODEL, {"tp": _TP}, padding="colossalai")
    return Item(
        "A multiple of 512: how high is the table of 70B?",
        record.padded,
        unit="rows",
        hints=(
            "128,256 is 250 · 512 and 256 more.",
            "The table is rounded up, to 251 · 512.",
        ),
        slips=(
            (128_256, "That is the vocabulary, and 128,256 / 512 is not a whole number."),
            (128_000, "That is rounded down: some tokens would have no row."),
            (256, "Those are the rows that are added."),
            (16_064, "That is what one rank holds of it."),
        ),
        why="251 · 512 = 128,512, so 256 rows are added.",
        shows=lp.view(record),
    )


def _depends() -> Item:
    rules = ("none", "vllm", "32*tp", "colossalai", "megatron-lm")
    tps = (1, 2, 4, 8, 16, 32, 64)
    heights = {rule: {lp.vocab(_MODEL, {"tp": tp}, padding=rule).padded for tp in tps} for rule in rules}
    depends = [rule for rule in rules if len(heights[rule]) > 1]
    return Item(
        "Under how many of these five rules does the height depend on TP?",
        len(depends),
        choices=tuple((n, str(n), "") for n in range(len(rules) + 1)),
        hints=(
            "The height can depend on TP only if the multiple does.",
            "vLLM rounds up to a multiple of 64, ColossalAI of 64 · TP, Megatron-LM of 128 · TP.",
        ),
        why="It does under 32*tp, colossalai and megatron-lm.",
    )


def _floor() -> Item:
    rows = lp.model(_MODEL).vocab_size
    return Item(
        "TP 7: on which rank does token // rows put the last token, 128255?",
        (rows - 1) // (rows // 7),
        hints=(
            "Rounded down, each of the 7 ranks has 18,322 rows.",
            "7 · 18,322 = 128,254. Is 128,255 below that?",
        ),
        slips=((6, "That is where it ought to be. Divide: 128,255 / 18,322."),),
        why="7 · 18,322 = 128,254, and 128,255 is not below that. Ranks end at 6.",
    )


def _widest() -> Item:
    run = lp.run("loss", _narrow(), {"tp": _TP}, padding="colossalai", **_EXACT)
    return Item(
        "What is the widest dim of any tensor on any of the 8 ranks?",
        max(max(shape, default=0) for trace in run.traces.values() for shape in trace.shapes),
        unit="columns",
        hints=(
            "A rank has the scores of its own rows of the output head. Does it need the others' scores?",
            "The padded table has 128,512 rows, and a rank holds an eighth of them.",
        ),
        slips=(
            (128_256, "That is a whole row of logits, and no rank gathers one."),
            (128_512, "That is a whole row of logits with its pads, and no rank gathers one."),
            (16_032, "The pad rows count as well: the padding is ColossalAI's."),
        ),
        why="It is a rank's own share of the logits, pad rows included.",
    )


def _pads_in_softmax() -> Item:
    pads: dict[str, Any] = {"padding": "megatron-lm", **_EXACT}
    honest = lp.run("loss", _narrow(), {"tp": _TP}, **pads)
    joined = lp.run("loss", _narrow(), {"tp": _TP}, fault="pad_in_softmax", **pads)
    extra = (joined.outputs[0]["loss"] - honest.outputs[0]["loss"]).mean().item()
    truth = _RIGHT
    if abs(extra) > honest.tolerance:
        truth = _HIGH if extra > 0 else _LOW
    return Item(
        "Pads left in: is the loss too high, too low, or right?",
        truth,
        choices=choices_of(_HIGH, _LOW, _RIGHT),
        hints=(
            "The softmax divides by a sum over all rows. What does one more row do to that sum?",
            "The right token's probability is its exponential divided by the sum, and the loss is minus its "
            "logarithm.",
        ),
        slips=(
            (_LOW, "A larger sum makes the right token less likely."),
            (_RIGHT, "A pad row of zeros has the logit 0, and the exponential of 0 is 1."),
        ),
        why="Each pad row adds to the sum, so the right token looks less likely than it is.",
    )


def _thirty_two() -> Item:
    rows = lp.model(_MODEL).vocab_size
    return Item(
        "The same setting at TP 32: how many pad rows?",
        lp.Padding(32, per_tp=True).padded(rows, 32) - rows,
        unit="rows",
        hints=(
            "At TP 32 the multiple is 32 · 32 = 1,024.",
            "128,256 / 1,024 is 125.25, and the table is rounded up.",
        ),
        slips=(
            (0, "At TP 32 the multiple is 1,024, and 128,256 is not one."),
            (1024, "That is the multiple; only what is missing to the next one is added."),
        ),
        why="1,024 - 256 rows are missing to the next multiple of 1,024.",
    )


def _pad_rows_by_rank() -> Item:
    record = lp.vocab(_MODEL, {"tp": 64}, padding="megatron-lm")
    return Item(
        "Llama 3 in Megatron-LM at TP 64: how many pad rows does each of ranks 60, 61, 62 and 63 hold?",
        [record.rank(rank).pads for rank in range(60, 64)],
        unit="pad rows",
        hints=(
            "The table has a multiple of 128 · 64 rows, 131,072. Each rank holds 2,048.",
            "128,256 = 62 · 2,048 + 1,280: that many ranks are full of tokens.",
        ),
        slips=(
            ([0, 0, 0, 2816], "The last rank has no more than 2,048 rows."),
            ([704, 704, 704, 704], "Pad rows stand at the end of the table, and are not shared out."),
            ([0, 0, 1280, 2048], "Those 1,280 rows of rank 62 have tokens."),
        ),
        why="Rank 62 has 1,280 tokens, and rank 63 has none at all.",
        shows=lp.view(record),
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "128,256 rows, 8 ranks: who owns token 100,000?": _owner,
    "A multiple of 512: how high is the table of 70B?": _height,
    "Under how many of these five rules does the height depend on TP?": _depends,
    "TP 7: on which rank does token // rows put the last token, 128255?": _floor,
    "What is the widest dim of any tensor on any of the 8 ranks?": _widest,
    "Pads left in: is the loss too high, too low, or right?": _pads_in_softmax,
    "The same setting at TP 32: how many pad rows?": _thirty_two,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {"pad rows by rank": _pad_rows_by_rank}
"""By the name of the exercise."""
