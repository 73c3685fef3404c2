"""What the notebook on context parallelism asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; nothing is typed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import llamapar as lp
from llamapar.figures import View
from llamapar.place import SequenceMap

from .boxes import Item
from .veils import Frame, covered, framed

_EXACT: dict[str, Any] = {"seq_len": 512, "dtype": "float64", "device": "cpu", "backward": False}
_WIDEST = 3
"""Times that a picture of work is made as wide as it was, at most, for a guess that is too large."""

_MORE, _LESS, _SAME = "more", "less", "as much"


def _is_work(trace: Mapping[str, Any]) -> bool:
    """Whether a trace is one of the bars beside the picture of a sequence, the work of each rank."""
    return bool(trace.get("xaxis") == "x2")


def _without_work(record: SequenceMap) -> View:
    return covered(lp.view(record), _is_work, "x2")


def _with_pairs(record: SequenceMap, rank: int) -> Callable[[float], View]:
    """The picture with the pairs of a guess drawn beside the bar of a rank."""
    view, true = lp.view(record), record.rank(rank).pairs
    mean = sum(one.pairs for one in record.ranks) / len(record.ranks)
    layout = view.spec["layout"]
    end = layout["xaxis2"]["range"][1]

    def drawn(guess: float) -> View:
        lane = (rank - 0.45, rank + 0.45)
        frames = [Frame((0, true / mean), lane, f"it is {true}", part="x2")]
        reach = min(max(guess, 0) / mean, _WIDEST * end)
        if reach:
            frames.append(Frame((0, reach), lane, f"you said {guess:g}", True, "x2"))
        axis = {**layout["xaxis2"], "range": [0, max(end, 1.05 * reach)]}
        wide = View({**view.spec, "layout": {**layout, "xaxis2": axis}}, view.summary)
        return framed(wide, frames, f"You said {guess:g} pairs; it is {true}.")

    return drawn


def _in_order() -> Item:
    record = lp.sequence({"cp": 2}, 8, chunking="contiguous")
    first, last = record.rank(0).pairs, record.rank(1).pairs
    return Item(
        "8 tokens in order: how many pairs does rank 1 make?",
        last,
        unit="pairs",
        hints=(
            "Rank 1 has tokens 5 to 8 of the text. Each looks back at all before it, also on rank 0.",
            "The fifth token makes 5 pairs, and each later token one more.",
        ),
        slips=(
            (first, "That is rank 0. The tokens of rank 1 look back at those of rank 0, too."),
            (first + last, "Those are the pairs of both ranks."),
            (last - first, "Those are the pairs with tokens of rank 0; its own tokens make pairs as well."),
        ),
        why=f"5 + 6 + 7 + 8 = {last}.",
        shows=lp.view(record),
        veiled=_without_work(record),
        marked=_with_pairs(record, 1),
    )


def _head_tail() -> Item:
    record = lp.sequence({"cp": 2}, 8)
    straight = lp.sequence({"cp": 2}, 8, chunking="contiguous")
    own = record.rank(0).pairs
    return Item(
        "8 tokens in head-tail pieces: pairs of rank 0?",
        own,
        unit="pairs",
        hints=(
            "Rank 0 has the tokens 1, 2, 7 and 8 of the text.",
            "The first token makes 1 pair, the second 2, the seventh 7.",
        ),
        slips=(
            (straight.rank(0).pairs, "That is the first four tokens, in order."),
            (straight.rank(1).pairs, "That is the last four tokens."),
            (3, "Those are the pairs of its head piece alone."),
        ),
        why=f"1 + 2 + 7 + 8 = {own}.",
        shows=lp.view(record),
        veiled=_without_work(record),
        marked=_with_pairs(record, 0),
    )


def _width() -> Item:
    model = lp.model("llama3.1-405b")
    q, kv = model.n_heads, model.n_kv_heads
    return Item(
        "405B: Q is how many times as wide as K and V together?",
        q // (2 * kv),
        unit="times",
        hints=(
            "All heads have the same size, so count heads.",
            f"Q has {q} heads, K has {kv} and V has {kv}.",
        ),
        slips=((q // kv, "That is K alone: V has as many heads again."),),
        why=f"{q} heads beside {kv} + {kv}.",
    )


def _third_token() -> Item:
    record = lp.sequence({"cp": 4}, 16)
    head, tail = record.rank(1).chunks
    positions = [*head, *tail]
    in_order = lp.sequence({"cp": 4}, 16, chunking="contiguous").rank(1).chunks[0]
    return Item(
        "The third token on rank 1: which position in the text?",
        positions[2],
        hints=(
            f"A piece has {len(head)} tokens, and rank 1 holds the pieces 1 and 6, counted from 0.",
            "The first two tokens on rank 1 are piece 1, so the third one begins piece 6.",
        ),
        slips=(
            (in_order[2], "That is so if the sequence is cut in order."),
            (positions[2] + 1, "Positions count from 0."),
            (2, "That is its place on the rank; the text has tokens before it on other ranks."),
        ),
        why=f"Piece 6 begins at 6 · {len(tail)} = {tail.start}.",
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
        choices=tuple((word, word, "") for word in (_MORE, _LESS, _SAME)),
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
    packed = (384, 64, 64)
    run = lp.run("attention", "tiny", {"cp": 4}, documents=packed, **_EXACT)
    pairs = [trace.pairs() for trace in run.traces.values()]
    return Item(
        "384 + 64 + 64 over CP 4: is the work even?",
        max(pairs) == min(pairs),
        hints=(
            "Head and tail balance one triangle of pairs, which goes over the whole sequence.",
            "The first document is pieces 0 to 5 of 8. Rank 0 holds pieces 0 and 7, rank 2 pieces 2 and 5.",
        ),
        why=f"Pairs of the four ranks: {', '.join(f'{n:,}' for n in pairs)}.",
    )


def _last_over_first() -> Item:
    record = lp.sequence({"cp": 8}, 4096, chunking="contiguous")
    tokens = record.rank(0).tokens
    first, last = (rank * tokens + (tokens - 1) / 2 for rank in (0, 7))
    ratio = round(record.rank(7).pairs / record.rank(0).pairs, 1)
    return Item(
        "4,096 tokens over CP 8, cut in order: rank 7 makes how many times the pairs of rank 0? "
        "Round to one digit after the point.",
        ratio,
        unit="times",
        hints=(
            f"Both have {tokens} queries, so compare their average queries.",
            f"In rank 7 it stands at position {last:,}, in rank 0 at {first}. It reads one key more.",
        ),
        slips=(
            (1, "They have equally many tokens; but the later a token, the more pairs it makes."),
            (8, "Compare the average tokens of the two ranks, not their last ones."),
        ),
        why=f"({last:,} + 1) / ({first} + 1) = {ratio}.",
        shows=lp.view(record),
        veiled=_without_work(record),
    )


def _tokens_between() -> Item:
    layout, seq_len = lp.Layout(tp=2, cp=2), 16
    tape = lp.tape("attention", "tiny", layout, seq_len=seq_len)
    given = next(step for step in tape.steps if step.name == "x")  # as it comes, before it is gathered
    held, of_cp = given.local[0][1], lp.sequence(layout, seq_len).rank(0).tokens
    return Item(
        "TP 2, CP 2, 16 tokens: how many does a rank hold between the matrices?",
        held,
        unit="tokens",
        hints=("Count what CP leaves a rank first.", f"The {layout.tp} TP ranks share these {of_cp} tokens."),
        slips=(
            (of_cp, "That is what CP leaves; between the matrices TP ranks share it."),
            (seq_len, "Both cut: CP for the whole layer, and SP once more between the matrices."),
        ),
        why=f"{seq_len} / {layout.cp} / {layout.tp} = {held}.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "TP 2, CP 2, 16 tokens: how many does a rank hold between the matrices?": _tokens_between,
    "8 tokens in order: how many pairs does rank 1 make?": _in_order,
    "8 tokens in head-tail pieces: pairs of rank 0?": _head_tail,
    "405B: Q is how many times as wide as K and V together?": _width,
    "The third token on rank 1: which position in the text?": _third_token,
    "Forward, does the ring send more, less, or as much?": _ring,
    "384 + 64 + 64 over CP 4: is the work even?": _documents,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {"last over first": _last_over_first}
"""By the name of the exercise."""
