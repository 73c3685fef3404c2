"""What the notebook on data parallelism asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llamapar as lp

from .boxes import Item

_EXACT: dict[str, Any] = {"dtype": "float64", "device": "cpu", "seq_len": 32}
_COPIES = lp.Layout(dp=4, zero=0)
_WQ = "layers.0.attention.wq.weight"


def _collectives() -> Item:
    run = lp.run("llama", "tiny", _COPIES, **_EXACT)
    phases = [event.phase for event in run.trace.events]
    after = len(phases) - phases.count("forward") - phases.count("backward")
    return Item(
        "How many collectives run during the forward and the backward?",
        len(phases) - after,
        unit="collectives",
        hints=(
            "A rank has all weights, and works on a sequence of its own. What does it need of the others?",
            "The ranks have to agree before the weights change. Must it be earlier?",
        ),
        slips=((after, "They run after the backward, one for each parameter."),),
        why=f"All {after} collectives of this step run after the backward.",
    )


def _most_memory() -> Item:
    record = lp.zero("tiny", _COPIES)
    held: dict[str, list[int]] = record.as_dict()["held"]
    most = max(held, key=lambda what: held[what][0])
    return Item(
        "Parameters, gradients or optimizer state: which takes most memory?",
        most,
        choices=tuple((what, what, f"{of_rank[0]:,} bytes") for what, of_rank in held.items()),
        hints=(
            "How many numbers does each of the three keep for one parameter?",
            "A parameter has one gradient, and Adam remembers two means of it.",
        ),
        why="Adam keeps two numbers for each parameter, all of the same size here.",
        shows=lp.view(record),
    )


def _rows_of_a_rank() -> Item:
    record = lp.zero("tiny", _COPIES.replace(zero=3))
    own = len(record.rows("parameters", 1))
    return Item(
        "How many rows of the matrix does rank 1 hold at stage 3?",
        own,
        unit="rows",
        hints=(
            "At stage 3 nobody holds anything twice.",
            "The matrix has 128 rows, and 4 ranks share them evenly.",
        ),
        slips=((128, "That is the whole matrix, as each rank holds it at stage 0."),),
        why="128 / 4 = 32: rows 32–63.",
        shows=lp.view(record),
    )


def _shape_of_a_gradient() -> Item:
    run = lp.run("llama", "tiny", _COPIES.replace(zero=2), **_EXACT)
    return Item(
        "The matrix is [128, 128]. What shape does its gradient have on rank 1 at stage 2?",
        list(run.gradients[1][_WQ].shape),
        unit="rows, columns",
        hints=(
            "At stage 2 a rank keeps the gradient of those rows alone that it updates.",
            "Rank 1 updates rows 32 to 63, with all 128 columns.",
        ),
        slips=(
            ([128, 128], "That is the whole gradient, as at stage 1. A rank keeps only what it updates."),
            ([128, 32], "A tensor is cut along its first dimension, so it keeps all columns."),
            ([64, 64], "It is cut along one dimension only."),
        ),
        why="4 ranks cut 128 rows.",
    )


def _gathers() -> Item:
    run = lp.run("llama", "tiny", _COPIES.replace(zero=3), **_EXACT)
    gathers = [event.phase for event in run.trace.events if event.kind == "all_gather"]
    forward = gathers.count("forward")
    return Item(
        "How many all-gathers does a forward and backward take?",
        len(gathers),
        unit="all-gathers",
        hints=(
            f"The forward gathers each of the {forward} parameters once. Does the backward still have them?",
            "The backward needs every matrix again, except the embedding.",
        ),
        slips=(
            (forward, "That is the forward. The weights are dropped after it, and the backward needs them."),
            (2 * forward, "Nearly: the backward does not read the embedding."),
        ),
        why=f"{forward} in the forward and {len(gathers) - forward} in the backward.",
        shows=lp.view(run),
    )


def _stage_that_fits() -> Item:
    step: dict[str, Any] = {"seq_len": 8192, "global_batch": 64, "framework": "megatron-lm"}
    needs = [lp.memory("llama3.1-8b", lp.Layout(dp=64, zero=stage), **step) for stage in range(4)]
    gib = [f"{need.worst.total_bytes / 2**30:.1f} GiB" for need in needs]
    return Item(
        "Which is the first stage that is expected to take less than the GPU has?",
        next(stage for stage, need in enumerate(needs) if need.worst.total_bytes < need.hbm_bytes),
        choices=tuple((stage, f"stage {stage}", said) for stage, said in enumerate(gib)),
        hints=(
            "There are 8.0 billion parameters of 2 bytes, each with a gradient of 4 bytes and 12 bytes for "
            "Adam.",
            "At stage 1 the 64 ranks share Adam's 12 bytes. The other 6 are 48 GB, and the activations "
            "come on top.",
        ),
        slips=((1, "Adam's 12 bytes are shared by then, and 6 bytes of each weight are not."),),
        why=f"Stage 1 takes {gib[1]}; stage 2 takes {gib[2]}.",
    )


def _one_copy() -> Item:
    layout = lp.Layout(cp=2, dp=4, dp_replicate=2, zero=3)
    record = lp.zero("tiny", layout, rank=5)
    return Item(
        "How many ranks share one copy of the model?",
        record.ways,
        unit="ranks",
        hints=(
            "8 ranks hold 2 copies of the model together.",
            "dp_replicate cuts the 4 DP groups in 2; the 2 CP ranks share as well.",
        ),
        slips=(
            (8, "There are 2 groups, each of which holds the model once."),
            (2, "CP ranks hold the same weights, so they share as well."),
        ),
        why="4 / 2 · 2 = 4.",
        shows=lp.view(record),
    )


def _slices_of_a_norm() -> Item:
    record = lp.zero("llama3-8b", lp.Layout(dp=3, zero=3), parameter="norm")
    return Item(
        "A norm of 4,096 numbers is shared by 3 ranks, cut as fully_shard cuts. How many numbers does each "
        "hold?",
        [len(record.rows("parameters", place)) for place in range(3)],
        unit="numbers",
        hints=(
            "4,096 / 3 is not whole: 1,365.3.",
            "Slices have that many, rounded up, until the numbers run out.",
        ),
        slips=(
            ([1366, 1365, 1365], "That is as even as can be; fully_shard rounds up instead."),
            ([1365, 1365, 1366], "That is rounded down; fully_shard rounds up."),
            ([1366, 1366, 1366], "That makes 4,098 numbers, and there are 4,096."),
        ),
        why="The last rank has what is left: 4,096 - 2 · 1,366 = 1,364.",
    )


def _ranks_that_share() -> Item:
    layout = lp.Layout(tp=8, cp=4, pp=2, dp=8, dp_replicate=2)
    return Item(
        "TP 8, CP 4, PP 2 and DP 8 with dp_replicate 2: how many ranks share one copy of a stage's "
        "parameters?",
        lp.zero("llama3-8b", layout).ways,
        unit="ranks",
        hints=(
            "Which axes make ranks that hold the same parameters?",
            "Of the 8 DP ranks only 8 / 2 share one copy, each with its 4 CP ranks.",
        ),
        slips=(
            (32, "They hold 2 copies between them."),
            (4, "CP ranks hold the same parameters, so they share as well."),
            (8, "DP is cut by dp_replicate, and CP ranks share as well."),
            (512, "TP and PP ranks hold other parameters."),
        ),
        why="8 / 2 · 4; TP and PP ranks hold other parameters.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "How many collectives run during the forward and the backward?": _collectives,
    "Parameters, gradients or optimizer state: which takes most memory?": _most_memory,
    "How many rows of the matrix does rank 1 hold at stage 3?": _rows_of_a_rank,
    "The matrix is [128, 128]. What shape does its gradient have on rank 1 at stage 2?": _shape_of_a_gradient,
    "How many all-gathers does a forward and backward take?": _gathers,
    "Which is the first stage that is expected to take less than the GPU has?": _stage_that_fits,
    "How many ranks share one copy of the model?": _one_copy,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "slices of a norm": _slices_of_a_norm,
    "ranks that share": _ranks_that_share,
}
"""By the name of the exercise."""
