"""What the first notebook asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable

import llamapar as lp

from .boxes import Item
from .veils import covered, framed

_BIG = "llama3.1-405b"
_PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)


def _rows_of_wk() -> Item:
    record = lp.heads(_BIG, tp=16)
    view = lp.view(record)
    model = record.model
    own = len(record.rank(0).kv_rows)

    def place(rows: float) -> tuple[str, float, float]:
        return "kv", 0, rows / model.kv_dim

    return Item(
        "At TP 16, how many of the 1,024 rows of wk does a rank get?",
        own,
        unit="rows",
        hints=(
            "TP deals 1,024 rows out to 16 ranks, the same number to each.",
            "At TP 8 a rank gets a KV head, 128 rows. At TP 16 there are twice as many ranks.",
        ),
        slips=(
            (128, "That is a whole KV head. There are 8, and now 16 ranks."),
            (256, "More ranks make each rank's part smaller."),
            (1024, "That is the whole matrix."),
        ),
        why="1,024 / 16 = 64, and a head has 128.",
        shows=view,
        veiled=covered(view, lambda lane, x: lane in ("kv", "link"), "The query heads of 16 ranks."),
        marked=framed(view, own, place, "{:g}".format),
    )


def _printed_row() -> Item:
    return Item(
        "How many of the 16,384 GPUs does the printed row use?",
        _PAPER.replace(dp=4).world,
        unit="GPUs",
        hints=(
            "A layout has TP · CP · PP · DP ranks, and a rank is a GPU.",
            "8 · 16 · 16 = 2,048, times DP 4.",
        ),
        slips=(
            (16_384, "That is DP 8. The row says DP 4."),
            (2048, "That is one DP group; there are 4."),
        ),
        why="8 · 16 · 16 · 4, 50% of them.",
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
    record = lp.heads(_BIG, _PAPER)
    own = len(record.rank(_PAPER.coord_of(12345).tp).q_heads)
    return Item(
        "How many of the 128 query heads does rank 12,345 hold?",
        own,
        unit="heads",
        hints=(
            "One axis of the four deals out heads.",
            "TP cuts the matrices inside a layer, and TP is 8.",
        ),
        slips=(
            (128, "Each layer is cut over its TP ranks."),
            (
                8,
                "That divides by 16. CP cuts the text and PP the layers, not the heads.",
            ),
            (1, "That is the number of its KV heads, and each serves several query heads."),
        ),
        why="128 / 8 = 16; CP, PP and DP do not cut heads.",
        shows=lp.view(record),
    )


def _ten_for_four() -> Item:
    model = lp.model("llama3-8b").replace(name="yours", n_heads=40, n_kv_heads=10, head_dim=128)
    found = [one.code for one in lp.check(model, lp.Layout(tp=4, dp=2), gpus=8).findings]
    return Item(
        "10 KV heads for 4 ranks: does it run?",
        "LP104" not in found,
        hints=(
            "Each rank must get the same whole number of KV heads.",
            "10 / 4 = 2.5.",
        ),
        why="10 / 4 = 2.5, so two heads would have to be cut in half.",
    )


def _short_row() -> Item:
    return Item(
        "The paper's row for short sequences: 8,192 GPUs, TP 8, CP 1, PP 16. Which DP?",
        8192 // lp.Layout(tp=8, pp=16).world,
        hints=(
            "The four axes multiply to the number of GPUs.",
            "8 · 1 · 16 = 128. How often do 8,192 GPUs hold that?",
        ),
        slips=(
            (4, "You divided by CP 16; for short sequences CP is 1."),
            (128, "That is TP · CP · PP, the ranks of one DP group."),
        ),
        why="DP is what the other axes leave: 8,192 / 128.",
    )


def _half_the_gpus() -> Item:
    dp = 8192 // _PAPER.replace(dp=1).world
    return Item(
        "8,192 GPUs with TP 8, CP 16, PP 16 and the long sequences. A step must still read 16,777,216 "
        "tokens. Which DP, and how many sequences for each DP group?",
        [dp, 2**24 // 131_072 // dp],
        unit="DP, sequences",
        hints=(
            "8 · 16 · 16 = 2,048 GPUs hold one DP group.",
            "16,777,216 tokens are 128 sequences of 131,072; the DP groups share them.",
        ),
        slips=(
            ([8, 16], "That takes 16,384 GPUs."),
            ([4, 16], "Half as many groups with as many sequences each read half the tokens."),
            ([32, 4], "The other way round: DP first."),
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
