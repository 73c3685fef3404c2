"""What the notebook on context parallelism asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llamapar as lp

from .boxes import Item, choices_of
from .veils import without_work

_EXACT: dict[str, Any] = {"seq_len": 512, "dtype": "float64", "device": "cpu", "backward": False}
_MORE = "more"
_LESS = "less"
_SAME = "as much"


def _in_order() -> Item:
    record = lp.sequence({"cp": 2}, 8, chunking="contiguous")
    return Item(
        "8 tokens in order: how many pairs does rank 1 make?",
        record.rank(1).pairs,
        unit="pairs",
        hints=(
            "Rank 1 has tokens 5 to 8 of the text. Each looks back at all before it, also on rank 0.",
            "The fifth token makes 5 pairs, and each later token one more.",
        ),
        slips=(
            (10, "That is rank 0. The tokens of rank 1 look back at those of rank 0, too."),
            (36, "Those are the pairs of both ranks."),
            (16, "Those are the pairs with tokens of rank 0; its own tokens make pairs as well."),
        ),
        why="5 + 6 + 7 + 8 = 26.",
        shows=lp.view(record),
        veiled=without_work(lp.view(record)),
    )


def _head_tail() -> Item:
    record = lp.sequence({"cp": 2}, 8)
    return Item(
        "8 tokens in head-tail pieces: pairs of rank 0?",
        record.rank(0).pairs,
        unit="pairs",
        hints=(
            "Rank 0 has the tokens 1, 2, 7 and 8 of the text.",
            "The first token makes 1 pair, the second 2, the seventh 7.",
        ),
        slips=(
            (10, "That is the first four tokens, in order."),
            (26, "That is the last four tokens."),
            (3, "Those are the pairs of its head piece alone."),
        ),
        why="1 + 2 + 7 + 8 = 18.",
        shows=lp.view(record),
        veiled=without_work(lp.view(record)),
    )


def _width() -> Item:
    model = lp.model("llama3.1-405b")
    q = model.n_heads
    kv = model.n_kv_heads
    return Item(
        "405B: Q is how many times as wide as K and V together?",
        q // (2 * kv),
        unit="times",
        hints=(
            "All heads have the same size, so count heads.",
            "Q has 128 heads, K has 8 and V has 8.",
        ),
        slips=((16, "That is K alone: V has as many heads again."),),
        why="128 heads beside 8 + 8.",
    )


def _third_token() -> Item:
    head, tail = lp.sequence({"cp": 4}, 16).rank(1).chunks
    return Item(
        "The third token on rank 1: which position in the text?",
        [*head, *tail][2],
        hints=(
            "A piece has 2 tokens, and rank 1 holds the pieces 1 and 6, counted from 0.",
            "The first two tokens on rank 1 are piece 1, so the third one begins piece 6.",
        ),
        slips=(
            (6, "That is so if the sequence is cut in order."),
            (13, "Positions count from 0."),
            (2, "That is its place on the rank; the text has tokens before it on other ranks."),
        ),
        why="Piece 6 begins at 6 · 2 = 12.",
    )


def _ring() -> Item:
    ways = ("all_gather", "ring")
    runs = [lp.run("attention", "tiny", {"cp": 4}, cp_method=way, **_EXACT) for way in ways]
    gathered, around = (run.trace.bytes("cp", "forward") for run in runs)
    truth = _SAME
    if around != gathered:
        truth = _LESS if around < gathered else _MORE
    return Item(
        "Forward, does the ring send more, less, or as much?",
        truth,
        choices=choices_of(_MORE, _LESS, _SAME),
        hints=(
            "How many times does a rank hand keys and values on until it has seen those of all four ranks?",
            "Three times, for it has its own already. How many parts leave a rank in an all-gather of four?",
        ),
        slips=(
            (_LESS, "An all-gather does not send a rank its own quarter, either."),
            (_MORE, "A rank hands on three parts, and in an all-gather, too."),
        ),
        why=f"{around:,} bytes around the ring, {gathered:,} in the all-gathers: three of four parts each.",
    )


def _documents() -> Item:
    run = lp.run("attention", "tiny", {"cp": 4}, documents=(384, 64, 64), **_EXACT)
    pairs = [trace.pairs() for trace in run.traces.values()]
    return Item(
        "384 + 64 + 64 over CP 4: does a rank work more than another?",
        max(pairs) > min(pairs),
        hints=(
            "Head and tail balance one triangle of pairs, which goes over the whole sequence.",
            "The first document is pieces 0 to 5 of 8. Rank 0 holds pieces 0 and 7, rank 2 pieces 2 and 5.",
        ),
        why=f"Pairs of the four ranks: {', '.join(f'{n:,}' for n in pairs)}.",
    )


def _last_over_first() -> Item:
    record = lp.sequence({"cp": 8}, 4096, chunking="contiguous")
    return Item(
        "4,096 tokens over CP 8, cut in order: rank 7 makes how many times the pairs of rank 0? "
        "Round to one digit after the point.",
        round(record.rank(7).pairs / record.rank(0).pairs, 1),
        unit="times",
        hints=(
            "Both have 512 queries, so compare their average queries.",
            "In rank 7 it stands at position 3,839.5, in rank 0 at 255.5. It reads one key more.",
        ),
        slips=(
            (1, "They have equally many tokens; but the later a token, the more pairs it makes."),
            (8, "Compare the average tokens of the two ranks, not their last ones."),
        ),
        why="(3,839.5 + 1) / (255.5 + 1) = 15.0.",
        shows=lp.view(record),
        veiled=without_work(lp.view(record)),
    )


def _tokens_between() -> Item:
    tape = lp.tape("attention", "tiny", lp.Layout(tp=2, cp=2), seq_len=16)
    given = next(step for step in tape.steps if step.name == "x")  # as it comes, before it is gathered
    return Item(
        "TP 2, CP 2, 16 tokens: how many does a rank hold between the matrices?",
        given.local[0][1],
        unit="tokens",
        hints=("Count what CP leaves a rank first.", "The 2 TP ranks share these 8 tokens."),
        slips=(
            (8, "That is what CP leaves; between the matrices TP ranks share it."),
            (16, "Both cut: CP for the whole layer, and SP once more between the matrices."),
        ),
        why="16 / 2 / 2 = 4.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "TP 2, CP 2, 16 tokens: how many does a rank hold between the matrices?": _tokens_between,
    "8 tokens in order: how many pairs does rank 1 make?": _in_order,
    "8 tokens in head-tail pieces: pairs of rank 0?": _head_tail,
    "405B: Q is how many times as wide as K and V together?": _width,
    "The third token on rank 1: which position in the text?": _third_token,
    "Forward, does the ring send more, less, or as much?": _ring,
    "384 + 64 + 64 over CP 4: does a rank work more than another?": _documents,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {"last over first": _last_over_first}
"""By the name of the exercise."""
