"""Answers to the lessons' questions, worked out by hand or by other means than the library's."""

from __future__ import annotations


def _digits(rank: int) -> tuple[int, int, int, int]:
    """(tp, cp, pp, dp) under TP 8, CP 16, PP 16, DP 8, by the sizes of the blocks of ranks."""
    return rank % 8, rank % 128 // 8, rank % 2048 // 128, rank // 2048


ANSWERS: dict[str, object] = {
    # 01_four_axes
    "The four peers of rank 13, as a list?": [13 - 1, 13 + 2, 13 - 4, 13 - 8],
    "(tp, cp, pp, dp) of rank 12,345?": _digits(12345),
    "With CP fastest: over how many nodes is a TP group of 8 spread?": len({16 * k // 8 for k in range(8)}),
    "Does rank 4 have the same place in both?": False,
    "In order: how many times the average work has the last rank?": (
        sum(range(15 * 8192 + 1, 131072 + 1)) / (131072 * 131073 / 2 / 16)
    ),
    "How many of the 16,384 GPUs hold the same parameters as rank 12,345?": 16384 // (8 * 16),
    "coord of 5003": (3, 1, 7, 2),
    "DP neighbour of 57": [57 + 8 * 16 * 16, 57 + 8 * 16],
}
"""By the question, or the name of the exercise."""
