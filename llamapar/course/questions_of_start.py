"""What the first notebook asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; nothing is typed in.
"""

from __future__ import annotations

from collections.abc import Callable

import llamapar as lp
from llamapar.figures import View

from .boxes import Item
from .veils import spans_framed, veiled

_BIG = "llama3.1-405b"
_PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)
_LONG = 131072
_STEP = 16 * 2**20
"""Tokens of a step of the paper's long sequences."""

_KEY_LANE, _KEYS_AND_NUMBERS = (0.55, 1.45), (0.55, 1.9)
"""Where the KV heads stand in the picture of heads, without and with the numbers under them."""


def _rows_of_wk() -> Item:
    record = lp.heads(_BIG, tp=16)
    view, model = lp.view(record), record.model
    own, rows, head = len(record.rank(0).kv_rows), model.kv_dim, model.head_dim
    wide = model.n_heads / rows  # of a row of wk, in a picture that is as wide as the query heads

    def with_guess(guess: float) -> View:
        span = (0, min(guess, rows) * wide) if guess > 0 else None
        return spans_framed(view, _KEY_LANE, span, (0, own * wide), f"{guess:g}", f"{own}")

    return Item(
        "At TP 16, how many of the 1,024 rows of wk does a rank get?",
        own,
        unit="rows",
        hints=(
            f"TP deals {rows:,} rows out to {record.tp} ranks, the same number to each.",
            f"At TP 8 a rank gets a KV head, {head} rows. At TP {record.tp} there are twice as many ranks.",
        ),
        slips=(
            (head, f"That is a whole KV head. There are {model.n_kv_heads}, and now {record.tp} ranks."),
            (2 * head, "More ranks make each rank's part smaller."),
            (rows, "That is the whole matrix."),
        ),
        why=f"{rows:,} / {record.tp} = {own}, and a head has {head}.",
        shows=view,
        veiled=veiled(view, (0, model.n_heads), _KEYS_AND_NUMBERS),
        marked=with_guess,
    )


def _printed_row() -> Item:
    printed = _PAPER.replace(dp=4)
    return Item(
        "How many of the 16,384 GPUs does the printed row use?",
        printed.world,
        unit="GPUs",
        hints=(
            "A layout has TP · CP · PP · DP ranks, and a rank is a GPU.",
            f"8 · 16 · 16 = {printed.world // printed.dp:,}, times DP {printed.dp}.",
        ),
        slips=(
            (_PAPER.world, f"That is DP {_PAPER.dp}. The row says DP {printed.dp}."),
            (printed.world // printed.dp, f"That is one DP group; there are {printed.dp}."),
        ),
        why=f"8 · 16 · 16 · {printed.dp}, {printed.world / _PAPER.world:.0%} of them.",
    )


def _agree() -> Item:
    layout = lp.Layout(tp=16)
    accepts = {name: lp.check("llama3-8b", layout, framework=name).ok for name in ("torchtitan", "vllm")}
    said = [f"{name} {'accepts' if ok else 'refuses'} it" for name, ok in accepts.items()]
    return Item(
        "Do torchtitan and vLLM agree about TP 16?",
        accepts["torchtitan"] == accepts["vllm"],
        hints=(
            "Half a head computes nothing. Can a framework avoid the half?",
            "A server that never trains may store a KV head on two ranks.",
        ),
        why=f"{said[0]}, {said[1]}: it stores each KV head on two ranks.",
    )


def _heads_of_a_gpu() -> Item:
    record, at = lp.heads(_BIG, _PAPER), _PAPER.coord_of(12345)
    own, all_heads = len(record.rank(at.tp).q_heads), record.model.n_heads
    return Item(
        "How many of the 128 query heads does rank 12,345 hold?",
        own,
        unit="heads",
        hints=(
            "One axis of the four deals out heads.",
            f"TP cuts the matrices inside a layer, and TP is {_PAPER.tp}.",
        ),
        slips=(
            (all_heads, "Each layer is cut over its TP ranks."),
            (
                all_heads // _PAPER.cp,
                "That divides by 16. CP cuts the text and PP the layers, not the heads.",
            ),
            (1, "That is the number of its KV heads, and each serves several query heads."),
        ),
        why=f"{all_heads} / {_PAPER.tp} = {own}; CP, PP and DP do not cut heads.",
        shows=lp.view(record),
    )


def _ten_for_four() -> Item:
    heads, tp = 10, 4
    model = lp.model("llama3-8b").replace(name="yours", n_heads=40, n_kv_heads=heads, head_dim=128)
    found = [one.code for one in lp.check(model, lp.Layout(tp=tp, dp=2), gpus=8).findings]
    return Item(
        "10 KV heads for 4 ranks: does it run?",
        "LP104" not in found,
        hints=(
            "Each rank must get the same whole number of KV heads.",
            f"{heads} / {tp} = {heads / tp:g}.",
        ),
        why=f"{heads} / {tp} = {heads / tp:g}, so two heads would have to be cut in half.",
    )


def _short_row() -> Item:
    gpus, layout = 8192, lp.Layout(tp=8, pp=16)
    return Item(
        "The paper's row for short sequences: 8,192 GPUs, TP 8, CP 1, PP 16. Which DP?",
        gpus // layout.world,
        hints=(
            "The four axes multiply to the number of GPUs.",
            f"8 · 1 · 16 = {layout.world}. How often do {gpus:,} GPUs hold that?",
        ),
        slips=(
            (gpus // (layout.world * 16), "You divided by CP 16; for short sequences CP is 1."),
            (layout.world, "That is TP · CP · PP, the ranks of one DP group."),
        ),
        why=f"DP is what the other axes leave: {gpus:,} / {layout.world}.",
    )


def _half_the_gpus() -> Item:
    layout = _PAPER.replace(dp=_PAPER.dp // 2)
    each = _STEP // _LONG // layout.dp
    return Item(
        f"{layout.world:,} GPUs with TP 8, CP 16, PP 16 and the long sequences. A step must still read "
        f"{_STEP:,} tokens. Which DP, and how many sequences for each DP group?",
        [layout.dp, each],
        unit="DP, sequences",
        hints=(
            f"8 · 16 · 16 = {layout.world // layout.dp:,} GPUs hold one DP group.",
            f"{_STEP:,} tokens are {_STEP // _LONG} sequences of {_LONG:,}; the DP groups share them.",
        ),
        slips=(
            ([_PAPER.dp, each // 2], f"That takes {_PAPER.world:,} GPUs."),
            ([layout.dp, each // 2], "Half as many groups with as many sequences each read half the tokens."),
            ([each, layout.dp], "The other way round: DP first."),
        ),
        why="Half as many groups, each with twice the sequences.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "At TP 16, how many of the 1,024 rows of wk does a rank get?": _rows_of_wk,
    "How many of the 16,384 GPUs does the printed row use?": _printed_row,
    "Do torchtitan and vLLM agree about TP 16?": _agree,
    "How many of the 128 query heads does rank 12,345 hold?": _heads_of_a_gpu,
    "10 KV heads for 4 ranks: does it run?": _ten_for_four,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "DP of the short row": _short_row,
    "half the GPUs": _half_the_gpus,
}
"""By the name of the exercise."""
