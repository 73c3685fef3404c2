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


def _machines() -> Item:
    return Item(
        f"How many machines of {_MACHINE} GPUs does it need?",
        _JOB.world // _MACHINE,
        unit="machines",
        hints=(
            "One rank takes one GPU. How many ranks has the layout?",
            f"{_JOB.tp} · {_JOB.cp} · {_JOB.pp} · {_JOB.dp} = {_JOB.world} ranks.",
        ),
        slips=(
            (_JOB.world, f"Those are GPUs; a machine has {_MACHINE}."),
            (1, f"TP {_JOB.tp} fills one machine, and CP and DP need more of them."),
            (2, "CP doubles the machines, and DP does so once more."),
        ),
        why=f"{_JOB.world} ranks / {_MACHINE}.",
    )


def _place() -> Item:
    machine, gpu = 3, 5
    rank = (machine - 1) * _MACHINE + gpu
    return Item(
        f"The layout of section 5, TP {_JOB.tp}, CP {_JOB.cp}, DP {_JOB.dp}, on four machines: which (tp, "
        f"cp, pp, dp) has GPU {gpu} of the third machine?",
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


def _launch() -> Item:
    nodes = _PAPER.world // _MACHINE
    return Item(
        f"--nnodes and --nproc-per-node for the paper's TP 8, CP 16, PP 16, DP 8 on machines of {_MACHINE}?",
        [nodes, _MACHINE],
        unit="nnodes, nproc-per-node",
        hints=(
            "A process drives one GPU, so a machine starts as many as it has.",
            f"8 · 16 · 16 · 8 = {_PAPER.world:,} ranks. How many machines hold them?",
        ),
        slips=(
            ([_PAPER.world, _MACHINE], f"That is {_MACHINE} processes on {_PAPER.world:,} machines."),
            ([_PAPER.world, 1], "One torchrun is started on each machine, and it starts the processes."),
            ([_MACHINE, nodes], "The other way round: machines first."),
        ),
        why=f"{_PAPER.world:,} ranks / {_MACHINE} on a machine.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "Are all collectives the same, in the same order?": _same_order,
    "How many collectives in one step of this small model?": _collectives,
    "How many machines of 8 GPUs does it need?": _machines,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "GPU 5 of the third machine": _place,
    "torchrun for the paper": _launch,
}
"""By the name of the exercise."""
