"""What the notebook on GPUs asks: each question with its truth and hints.

Every truth comes from the library when the question is asked: from the notebook's own small run, between
processes too, and from the layout's coordinates. All of it runs on the CPU, on every machine alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Literal

import llamapar as lp

from .boxes import Item

if TYPE_CHECKING:
    from llamapar.execution.result import Result  # The page imports this module, and has no processes.


@cache
def _run(engine: Literal["local", "processes"]) -> Result:
    return lp.run("llama", "tiny", lp.Layout(tp=2, cp=2), engine=engine, dtype="float64", device="cpu")


def _same_order() -> Item:
    return Item(
        "Are all collectives the same, in the same order?",
        _run("local").traces == _run("processes").traces,
        hints=(
            "Which code decides what is called next: the engine's, or the program's?",
            "Both engines run the same program; what differs is who carries a message.",
        ),
        why="The program calls them, and it is the same one.",
    )


def _collectives() -> Item:
    run = _run("local")
    return Item(
        "How many collectives in one step of this small model?",
        len(run.traces[0].events),
        unit="collectives",
        hints=(
            "Count a layer first: the model has 4. TP joins tokens before attention and "
            "before the MLP, and shares them out after each. CP gathers K and V.",
            "Each gather has its mirror image in the backward, and 39 gradients are summed over CP.",
        ),
        slips=(
            (48, "Those are TP's alone; CP gathers K and V, and sums gradients."),
            (56, "Those are CP's alone; TP joins and shares out the tokens of each layer."),
        ),
        why="48 over TP and 56 over CP, the gradients' sums included.",
        shows=lp.view(run.trace),
    )


def _place() -> Item:
    layout = lp.Layout(tp=8, cp=2, dp=2)
    return Item(
        "TP 8, CP 2 and DP 2 on four machines of 8 GPUs: which (tp, cp, pp, dp) has GPU 5 of the third "
        "machine?",
        tuple(layout.coord_of(2 * 8 + 5)),
        unit="tp, cp, pp, dp",
        hints=(
            "Ranks are numbered machine by machine, from 0. Which rank is it?",
            "It is rank 2 · 8 + 5 = 21. TP is the fastest axis, then CP.",
        ),
        slips=(
            ((5, 1, 0, 1), "Machines count from 0, so the third one is number 2."),
            (
                (4, 0, 0, 1),
                "GPUs count from 0, like ranks: GPU 5 of a machine is its sixth.",
            ),
            (
                (5, 2, 0, 0),
                "CP ranks are 0 to 1: divide by 2 once more, for DP.",
            ),
        ),
        why="Rank 21: 21 = 5 + 8 · 2.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "Are all collectives the same, in the same order?": _same_order,
    "How many collectives in one step of this small model?": _collectives,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "GPU 5 of the third machine": _place,
}
"""By the name of the exercise."""
