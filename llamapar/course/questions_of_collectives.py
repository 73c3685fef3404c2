"""What the notebook on collectives asks: each question with its truth, hints and slips.

Bytes are those of `course.collective`, and what a backward sends is read from a run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import llamapar as lp

from .boxes import Item, choices_of
from .collective_costs import collective

_RANKS = 4


def _mib(kind: str, ranks: int, of: int = 64) -> float:
    return collective(kind, ranks, of).sent_bytes / 2**20  # MiB


def _sum_of_four() -> Item:
    held = [rank + 1 for rank in range(_RANKS)]
    return Item(
        "Ranks 0 to 3 hold 1, 2, 3 and 4. What does rank 2 hold after an all-reduce?",
        sum(held),
        hints=("An all-reduce adds up, and nobody is left out.", "1 + 2 + 3 + 4, on every rank."),
        slips=(
            (3, "That is what rank 2 had before."),
            (sum(held) / _RANKS, "That is the mean; an all-reduce adds up unless it is asked for more."),
            (6, "Rank 3's number counts as well: all ranks get the same sum."),
        ),
        why="Every rank has 1 + 2 + 3 + 4.",
    )


def _rows_of_1() -> Item:
    rows = torch.empty(16).chunk(_RANKS)[1].numel()
    return Item(
        "The tensor has 16 rows. How many rows of the sum does rank 1 have after the reduce-scatter?",
        rows,
        unit="rows",
        hints=("Each row of the sum goes to one rank only.", "16 rows are shared by 4 ranks."),
        slips=(
            (16, "That is an all-reduce: here a rank gets only its own rows of the sum."),
            (1, "The 16 rows go to 4 ranks, so each gets more than one."),
        ),
        why="16 / 4 = 4: rank 1 gets rows 4 to 7 of the sum.",
    )


def _halves_are_whole() -> Item:
    return Item(
        "Reduce-scatter, then all-gather: is the result that of an all-reduce?",
        True,
        hints=(
            "After the reduce-scatter every row of the sum lies on some rank.",
            "The all-gather copies each of these rows to all ranks.",
        ),
        slips=((False, "Follow one row: it is summed on its owner, and then the owner hands it to all."),),
        why="Every row is summed once, on its owner, and then copied to all.",
    )


def _pieces_from() -> Item:
    return Item(
        "After the all-to-all, pieces of how many ranks' rows lie on rank 2?",
        _RANKS,
        unit="ranks",
        hints=("Each rank gives every rank one piece.", "One of the pieces is rank 2's own."),
        slips=(
            (3, "Rank 2 keeps a piece of its own rows, too."),
            (1, "That is a send: in an all-to-all everybody gives everybody something."),
        ),
        why="One piece from each of the four, its own included.",
    )


def _ring_of_five() -> Item:
    sent = _mib("all-reduce", 5, 20)
    return Item(
        "An all-reduce of 20 MiB over 5 ranks: how many MiB does each rank send?",
        sent,
        unit="MiB",
        hints=(
            "It is two halves. How much of the tensor does a rank send in one of them?",
            "In each half it sends four of the five parts, and a part is 20 / 5 MiB.",
        ),
        slips=(
            (20.0, "A rank need not send itself its own part, and there are two halves."),
            (40.0, "Nearly: of each half it keeps its own part."),
            (_mib("all-gather", 5, 20), "That is one half of it; an all-reduce is two."),
            (80.0, "That would be the whole tensor to four others; a ring sends each part once."),
        ),
        why=f"2 · 4/5 · 20 = {sent:g}.",
    )


def _ring_of_many() -> Item:
    sent = _mib("all-reduce", 1024)
    return Item(
        "64 MiB over 1,024 ranks: does each rank still send less than 128 MiB?",
        sent < 2 * 64,
        hints=(
            "2 · (n − 1)/n · 64. What does (n − 1)/n become when n is large?",
            "It never reaches 1, so the whole never reaches 2 · 64.",
        ),
        slips=((False, "(n − 1)/n stays below 1, however many ranks there are."),),
        why=f"2 · 1023/1024 · 64 = {sent:g}. What grows is the waiting for hops.",
    )


def _backward_of_a_gather() -> Item:
    run = lp.run("mlp", "tiny", lp.Layout(tp=_RANKS), dtype="float64", device="cpu", seq_len=32)
    *_, last = (event.kind for event in run.trace.events if event.phase == "backward")
    words = {"all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "all_reduce": "all-reduce"}
    return Item(
        "Forward an all-gather. What does its backward send?",
        words[last],
        choices=choices_of(*words.values(), "nothing"),
        hints=(
            "Forward a row is copied to four ranks. Who has a gradient of it afterwards?",
            "All four have one, from their own work, and the owner of the row needs the sum.",
        ),
        slips=(
            (
                "all-gather",
                "Gradients of copies are added up, and an owner needs its own rows only.",
            ),
            ("all-reduce", "The sum is right; but a rank needs only the rows that it put in."),
            ("nothing", "Each rank used the row, so each has a part of its gradient."),
        ),
        why="Four ranks used each row, so its owner needs the sum of four gradients.",
    )


def _share_of_sixteen() -> Item:
    sent = _mib("reduce-scatter", 16)
    return Item(
        "A reduce-scatter of 64 MiB over 16 ranks in a ring: how many MiB does each rank send?",
        sent,
        unit="MiB",
        hints=("It is one half of an all-reduce.", "15 of 16 parts, each 64 / 16 MiB."),
        slips=(
            (_mib("all-reduce", 16), "That is an all-reduce, both halves."),
            (64.0, "Of 16 parts one is never sent: its sum travels to the rank and ends there."),
            (4.0, "That is what a rank has in the end."),
        ),
        why=f"15/16 · 64 = {sent:g}.",
    )


def _rows_to_one() -> Item:
    rows = 64 // 8
    return Item(
        "Eight ranks hold 64 rows each. How many rows' worth does rank 3 send rank 5 in an all-to-all?",
        rows,
        unit="rows",
        hints=("Rank 3 cuts what it holds into as many equal pieces as there are ranks.", "64 / 8."),
        slips=((64, "It gives every rank a different piece, not all of it."), (56, "That is all it sends.")),
        why="64 rows in 8 equal pieces.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "Ranks 0 to 3 hold 1, 2, 3 and 4. What does rank 2 hold after an all-reduce?": _sum_of_four,
    "The tensor has 16 rows. How many rows of the sum does rank 1 have after the reduce-scatter?": _rows_of_1,
    "Reduce-scatter, then all-gather: is the result that of an all-reduce?": _halves_are_whole,
    "After the all-to-all, pieces of how many ranks' rows lie on rank 2?": _pieces_from,
    "An all-reduce of 20 MiB over 5 ranks: how many MiB does each rank send?": _ring_of_five,
    "64 MiB over 1,024 ranks: does each rank still send less than 128 MiB?": _ring_of_many,
    "Forward an all-gather. What does its backward send?": _backward_of_a_gather,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "MiB of a reduce-scatter": _share_of_sixteen,
    "rows of an all-to-all": _rows_to_one,
}
"""By the name of the exercise."""
