"""What the notebook on GPUs asks: each question with its truth and hints.

Every truth comes from the library when the question is asked: from the notebook's own small run, between
processes too, and from the layout's coordinates. All of it runs on the CPU, on every machine alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Literal

import llamapar as lp

from .boxes import Item

_SMALL, _JOB = lp.Layout(tp=2, cp=2), lp.Layout(tp=8, cp=2, dp=2)
_PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)
_MACHINE = 8
"""GPUs of a machine."""


@cache
def _run(engine: Literal["local", "processes"]) -> lp.RunResult:
    return lp.run("llama", "tiny", _SMALL, engine=engine, dtype="float64", device="cpu")


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
    run, model = _run("local"), lp.model("tiny")
    events = run.traces[0].events
    axes = Counter(event.axis for event in events)
    return Item(
        "How many collectives in one step of this small model?",
        len(events),
        unit="collectives",
        hints=(
            f"Count a layer first: the model has {model.n_layers}. TP joins tokens before attention and "
            "before the MLP, and shares them out after each. CP gathers K and V.",
            f"Each gather has its mirror image in the backward, and {len(list(model.parameters()))} "
            "gradients are summed over CP.",
        ),
        slips=(
            (axes["tp"], "Those are TP's alone; CP gathers K and V, and sums gradients."),
            (axes["cp"], "Those are CP's alone; TP joins and shares out the tokens of each layer."),
        ),
        why=f"{axes['tp']} over TP and {axes['cp']} over CP, the gradients' sums included.",
        shows=lp.view(run.trace),
    )


def _place() -> Item:
    machine, gpu = 3, 5
    rank = (machine - 1) * _MACHINE + gpu
    return Item(
        "TP 8, CP 2 and DP 2 on four machines of 8 GPUs: which (tp, cp, pp, dp) has GPU 5 of the third "
        "machine?",
        tuple(_JOB.coord_of(rank)),
        unit="tp, cp, pp, dp",
        hints=(
            "Ranks are numbered machine by machine, from 0. Which rank is it?",
            f"It is rank {machine - 1} · {_MACHINE} + {gpu} = {rank}. TP is the fastest axis, then CP.",
        ),
        slips=(
            (tuple(_JOB.coord_of(rank + _MACHINE)), "Machines count from 0, so the third one is number 2."),
            (
                tuple(_JOB.coord_of(rank - 1)),
                "GPUs count from 0, like ranks: GPU 5 of a machine is its sixth.",
            ),
            (
                (gpu, rank // _JOB.tp, 0, 0),
                f"CP ranks are 0 to {_JOB.cp - 1}: divide by {_JOB.cp} once more, for DP.",
            ),
        ),
        why=f"Rank {rank}: {rank} = {_JOB.coord_of(rank).tp} + {_JOB.tp} · {rank // _JOB.tp}.",
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
