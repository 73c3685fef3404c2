"""What the notebook on time and plans asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import log10

import llamapar as lp

from .boxes import Item

_SIZES = {0.5: "a half", 0.1: "a tenth", 0.01: "a hundredth", 0.001: "a thousandth or less"}


_TIMES = {
    1: ("as much", "Half as many groups share the batch, so each has twice as many sequences."),
    2: ("two to three times", ""),
    9: ("nine times", "Eight network cards of a machine carry the ring side by side."),
    18: ("eighteen times", "Twice the sequences, yes; but eight network cards carry the ring side by side."),
}


def _milliseconds() -> Item:
    tokens, weights = 8192, 218_103_808  # as the notebook's text gives them
    one = lp.cost("llama3-8b", lp.Layout(), seq_len=tokens, global_batch=1, recompute="none")
    own = 1e3 * one.layer.forward["GEMMs"].value
    work = 2 * tokens * weights
    return Item(
        "Milliseconds of matrix products in one layer?",
        own,
        unit="ms",
        hints=(
            "2 operations, times tokens, times weights.",
            f"{work:.3g} operations, at 63 % of 989 trillion a second.",
        ),
        slips=(
            (own / 2, "Each weight makes two operations a token: a multiplication and an addition."),
            (0.635 * own, "That is at the peak, and 63 % of it is reached."),
            (own / 1e3, "Those are seconds."),
        ),
        why=f"{work:.3g} operations, at {work / own / 1e9:.0f} trillion a second.",
    )


def _waits() -> Item:
    eight = lp.cost("llama3-8b", lp.Layout(dp=8, zero=3), seq_len=8192, global_batch=64, recompute="none")
    share = eight.seconds["exposed DP"] / eight.step_seconds
    return Item(
        "Which fraction of the step waits for weights and gradients?",
        min(_SIZES, key=lambda size: abs(log10(size / share))),
        choices=tuple((size, name, "") for size, name in _SIZES.items()),
        hints=(
            "When does a layer need its weights, and when are its gradients ready?",
            "Both travel while other layers are computed; the first weights and the last gradients cannot.",
        ),
        why=f"It is {share:.2%} of the step: the rest travels beside compute.",
    )


def _times_the_waiting() -> Item:
    def waiting(tp: int) -> float:
        layout = lp.Layout(tp=tp, dp=64 // tp)
        cost = lp.cost(
            "llama3.1-70b", layout, seq_len=8192, global_batch=512, recompute="full", kv_replication=True
        )
        return cost.seconds["exposed TP"]

    grows = waiting(16) / waiting(8)
    return Item(
        "From TP 8 to TP 16: how many times the waiting?",
        min(_TIMES, key=lambda times: abs(times - grows)),
        choices=tuple((times, *words) for times, words in _TIMES.items()),
        hints=(
            "64 GPUs are 8 groups of TP 8, or 4 of TP 16: a group has twice as many sequences.",
            "For each sequence it waits a little longer: eight network cards carry the ring side by side.",
        ),
        why=f"Twice the sequences a group, and for each a ring through slower links: {grows:.1f} times.",
    )


@cache
def _fastest() -> Item:
    plan = lp.plan("llama3.1-70b", 64, seq_len=8192, global_batch=512, top=80, framework="torchtitan")
    first: dict[int, float] = {}
    for found in plan.layouts:
        first.setdefault(found.layout.tp, found.cost.step_seconds)
    notes = {tp: f"{first[tp]:.1f} s" if tp in first else "none of the first 80" for tp in (1, 2, 4, 8)}
    return Item(
        "Which TP has the fastest layout?",
        plan.best.layout.tp,
        choices=tuple((tp, f"TP {tp}", note) for tp, note in notes.items()),
        hints=(
            "Which axis makes every layer wait, whatever else is done?",
            "ZeRO 3 gathers weights while the GPU computes, and CP makes the activations small enough.",
        ),
        why="TP makes every layer wait. ZeRO 3 sends its weights beside the products. The best of TP 2 and "
        "TP 4 are no more than a tie behind.",
    )


def _sixty_four() -> Item:
    shape = {"pp": 16, "virtual_stages": 8}
    bubble = lp.schedule("interleaved-1f1b", **shape, micro_batches=64).timeline().bubble
    return Item(
        "PP 16, eight stages each, 64 micro-batches: percent of its compute that the bubble is",
        round(100 * bubble, 1),
        unit="%",
        hints=("The bubble is (pp − 1) / (v · m).", "That is 15 / (8 · 64)."),
        slips=(
            (round(100 * 15 / 64, 1), "That is with one stage on each rank."),
            (round(100 * 15 / 128, 1), "That is with 16 micro-batches."),
            (round(bubble, 3), "Those are not percent."),
        ),
        why="15 / (8 · 64), of 100.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "Milliseconds of matrix products in one layer?": _milliseconds,
    "Which fraction of the step waits for weights and gradients?": _waits,
    "From TP 8 to TP 16: how many times the waiting?": _times_the_waiting,
    "Which TP has the fastest layout?": _fastest,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {"bubble of 64 micro-batches": _sixty_four}
"""By the name of the exercise."""
