"""What the notebook on the vocabulary asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; nothing is typed in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import llamapar as lp
from llamapar.figures import View

from .boxes import Item
from .veils import Frame, framed, veiled

_MODEL = "llama3.1-70b"
_TP = 8
_TOKEN = 100_000
_EXACT: dict[str, Any] = {"seq_len": 16, "dtype": "float64", "device": "cpu", "backward": False}
_HIGH, _LOW, _RIGHT = "too high", "too low", "right"


@cache
def _narrow() -> lp.ModelConfig:
    """The whole vocabulary, with few columns."""
    return lp.model(_MODEL).replace(dim=16, n_heads=8, head_dim=2)


def _owner() -> Item:
    record = lp.vocab(_MODEL, {"tp": _TP})
    rows, each = record.model.vocab_size, len(record.rank(0).rows)
    owner = record.owner(_TOKEN)
    own = record.rank(owner).rows
    view = lp.view(record)

    def frame(rank: int, says: str, guess: bool) -> Frame:
        held = record.rank(rank).rows
        return Frame((held.start, held.stop), (rank - 0.45, rank + 0.45), says, guess)

    def with_guess(guess: float) -> View:
        frames = [frame(owner, f"it is rank {owner}", guess=False)]
        if guess in range(_TP):
            frames.append(frame(int(guess), f"you said rank {guess:g}", guess=True))
        return framed(view, frames, f"You said rank {guess:g}; it is rank {owner}.")

    return Item(
        "128,256 rows, 8 ranks: who owns token 100,000?",
        owner,
        hints=(
            f"Each rank has {rows:,} / {_TP} = {each:,} rows, in order.",
            f"{_TOKEN:,} / {each:,} is a little more than {_TOKEN // each}. Ranks and rows count from 0.",
        ),
        slips=((owner + 1, f"Ranks count from 0: with {owner} of them before it, it is rank {owner}."),),
        why=f"Rank {owner} has rows {own.start:,} to {own.stop - 1:,}.",
        shows=view,
        veiled=veiled(view, (each, rows), (0.5, _TP - 0.5)),
        marked=with_guess,
    )


def _height() -> Item:
    record = lp.vocab(_MODEL, {"tp": _TP}, padding="colossalai")
    rows, unit = record.model.vocab_size, 64 * _TP
    return Item(
        "A multiple of 512: how high is the table of 70B?",
        record.padded,
        unit="rows",
        hints=(
            f"{rows:,} is {rows // unit} · {unit} and {rows % unit} more.",
            f"The table is rounded up, to {rows // unit + 1} · {unit}.",
        ),
        slips=(
            (rows, f"That is the vocabulary, and {rows:,} / {unit} is not a whole number."),
            (rows // unit * unit, "That is rounded down: some tokens would have no row."),
            (record.pad_rows, "Those are the rows that are added."),
            (len(record.rank(0).rows), "That is what one rank holds of it."),
        ),
        why=f"{rows // unit + 1} · {unit} = {record.padded:,}, so {record.pad_rows} rows are added.",
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
        why=f"It does under {', '.join(depends[:-1])} and {depends[-1]}.",
    )


def _floor() -> Item:
    rows, tp = lp.model(_MODEL).vocab_size, 7
    each, last = rows // tp, rows - 1
    true = lp.vocab(_MODEL, {"tp": tp}).owner(last)
    return Item(
        "TP 7: on which rank does token // rows put the last token, 128255?",
        last // each,
        hints=(
            f"Rounded down, each of the {tp} ranks has {each:,} rows.",
            f"{tp} · {each:,} = {tp * each:,}. Is {last:,} below that?",
        ),
        slips=((true, f"That is where it ought to be. Divide: {last:,} / {each:,}."),),
        why=f"{tp} · {each:,} = {tp * each:,}, and {last:,} is not below that. Ranks end at {tp - 1}.",
    )


def _widest() -> Item:
    run = lp.run("loss", _narrow(), {"tp": _TP}, padding="colossalai", **_EXACT)
    padded = lp.vocab(_MODEL, {"tp": _TP}, padding="colossalai")
    rows = padded.model.vocab_size
    return Item(
        "What is the widest dim of any tensor on any of the 8 ranks?",
        max(max(shape, default=0) for trace in run.traces.values() for shape in trace.shapes),
        unit="columns",
        hints=(
            "A rank has the scores of its own rows of the output head. Does it need the others' scores?",
            f"The padded table has {padded.padded:,} rows, and a rank holds an eighth of them.",
        ),
        slips=(
            (rows, "That is a whole row of logits, and no rank gathers one."),
            (padded.padded, "That is a whole row of logits with its pads, and no rank gathers one."),
            (rows // _TP, "The pad rows count as well: the padding is ColossalAI's."),
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
        choices=tuple((word, word, "") for word in (_HIGH, _LOW, _RIGHT)),
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
    rows, tp = lp.model(_MODEL).vocab_size, 32
    padding = lp.Padding(32, per_tp=True)
    unit = padding.unit(tp)
    return Item(
        "The same setting at TP 32: how many pad rows?",
        padding.padded(rows, tp) - rows,
        unit="rows",
        hints=(
            f"At TP {tp} the multiple is 32 · {tp} = {unit:,}.",
            f"{rows:,} / {unit:,} is {rows / unit:g}, and the table is rounded up.",
        ),
        slips=(
            (0, f"At TP {tp} the multiple is {unit:,}, and {rows:,} is not one."),
            (unit, "That is the multiple; only what is missing to the next one is added."),
        ),
        why=f"{unit:,} - {rows % unit} rows are missing to the next multiple of {unit:,}.",
    )


def _pad_rows_by_rank() -> Item:
    tp = 64
    record = lp.vocab(_MODEL, {"tp": tp}, padding="megatron-lm")
    last = [record.rank(rank) for rank in range(tp - 4, tp)]
    each = len(record.rank(0).rows)
    rows = record.model.vocab_size
    return Item(
        "Llama 3 in Megatron-LM at TP 64: how many pad rows does each of ranks 60, 61, 62 and 63 hold?",
        [share.pads for share in last],
        unit="pad rows",
        hints=(
            f"The table has a multiple of 128 · {tp} rows, {record.padded:,}. Each rank holds {each:,}.",
            f"{rows:,} = {rows // each} · {each:,} + {rows % each:,}: that many ranks are full of tokens.",
        ),
        slips=(
            ([0, 0, 0, record.pad_rows], f"The last rank has no more than {each:,} rows."),
            ([record.pad_rows // 4] * 4, "Pad rows stand at the end of the table, and are not shared out."),
            ([0, 0, rows % each, each], f"Those {rows % each:,} rows of rank 62 have tokens."),
        ),
        why=f"Rank 62 has {rows % each:,} tokens, and rank 63 has none at all.",
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
