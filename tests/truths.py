"""Answers to the course's questions on pipelines, memory, steps and time, worked out by hand.

Nothing here asks the library: each is arithmetic on what the notebook says, or a fact that its text states.
"""

from __future__ import annotations

import pytest

PIPELINES: dict[str, object] = {
    # rank 1 waits for F0 and then has no gap: 1 + 2 forwards + 2 backwards of 2; all forwards come first
    "Two ranks, two micro-batches: place GPipe": ["F0 F1 B0 B1", "F0 F1 B0 B1"],
    # a rank works 8 * (1 + 2), and waits for three forwards and three backwards
    "For what share of the time is a GPU idle?": pytest.approx(9 / (8 * 3 + 9)),
    "What does 1F1B make smaller: bubble, memory, or bubble and memory?": "memory",
    # (pp - 1) / (v * m)
    "How many times smaller is the bubble with two stages on each GPU?": pytest.approx((3 / 8) / (3 / 16)),
    # three columns before the first micro-batch reaches the last rank; eight micro-batches of two stages of 3
    "What is the bubble of ZBV, as a share of the computing time?": pytest.approx(3 / (8 * 2 * 3)),
    "Which of the three ends last?": "1F1B",
    # 0B0 needs 1B0, which comes after 1F1, which needs 0F1, which comes after 0B0
    "Can the two ranks run this?": False,
    # the swap alone changes what the forward sees
    "In how many of the four is the loss wrong?": 1,
}

WORKED_OUT = PIPELINES
"""By the question, or by the name of the exercise."""
