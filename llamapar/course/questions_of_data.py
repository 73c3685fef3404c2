"""What the notebook on data parallelism asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; nothing is typed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llamapar as lp
from llamapar.figures import View
from llamapar.records.tables import span

from .boxes import Item
from .veils import Frame, framed

_EXACT: dict[str, Any] = {"dtype": "float64", "device": "cpu", "seq_len": 32}
_COPIES = lp.Layout(dp=4, zero=0)
_WQ = "layers.0.attention.wq.weight"
_GB = 1e9


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
    record, rank = lp.zero("tiny", _COPIES.replace(zero=3)), 1
    own, whole = record.rows("parameters", rank), lp.model("tiny").dim
    view = lp.view(record)

    def with_guess(guess: float) -> View:
        lane = (rank - 0.45, rank + 0.45)
        frames = [Frame((own.start, own.stop), lane, f"it is {len(own)}")]
        start = max(0, min(own.start, whole - guess))
        if guess > 0:
            frames.append(Frame((start, min(start + guess, whole)), lane, f"you said {guess:g}", guess=True))
        return framed(view, frames, f"You said {guess:g} rows; it is {len(own)}.")

    return Item(
        "How many rows of the matrix does rank 1 hold at stage 3?",
        len(own),
        unit="rows",
        hints=(
            "At stage 3 nobody holds anything twice.",
            f"The matrix has {whole} rows, and {_COPIES.dp} ranks share them evenly.",
        ),
        slips=((whole, "That is the whole matrix, as each rank holds it at stage 0."),),
        why=f"{whole} / {_COPIES.dp} = {len(own)}: rows {span(own)}.",
        shows=view,
        marked=with_guess,
    )


def _shape_of_a_gradient() -> Item:
    run = lp.run("llama", "tiny", _COPIES.replace(zero=2), **_EXACT)
    whole = list(run.gradients[0][_WQ].shape)
    whole[0] *= _COPIES.dp
    shape = list(run.gradients[1][_WQ].shape)
    return Item(
        "The matrix is [128, 128]. What shape has its gradient on rank 1 at stage 2?",
        shape,
        unit="rows, columns",
        hints=(
            "At stage 2 a rank keeps the gradient of those rows alone that it updates.",
            f"Rank 1 updates rows 32 to 63, with all {whole[1]} columns.",
        ),
        slips=(
            (whole, "That is the whole gradient, as at stage 1. A rank keeps only what it updates."),
            (shape[::-1], "A tensor is cut along its first dimension, so it keeps all columns."),
            ([whole[0] // 2, whole[1] // 2], "It is cut along one dimension only."),
        ),
        why=f"{_COPIES.dp} ranks cut {whole[0]} rows.",
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
    params = lp.model("llama3.1-8b").n_params
    return Item(
        "Which is the first stage that is expected to take less than the GPU has?",
        next(stage for stage, need in enumerate(needs) if need.worst.total_bytes < need.hbm_bytes),
        choices=tuple((stage, f"stage {stage}", said) for stage, said in enumerate(gib)),
        hints=(
            f"There are {params / _GB:.1f} billion parameters of 2 bytes, each with a gradient of 4 bytes "
            "and 12 bytes for Adam.",
            f"At stage 1 the 64 ranks share Adam's 12 bytes. The other 6 are {6 * params / _GB:.0f} GB, and "
            "the activations come on top.",
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
            f"{layout.world} ranks hold {layout.dp_replicate} copies of the model together.",
            f"dp_replicate cuts the {layout.dp} DP groups in {layout.dp_replicate}; "
            f"the {layout.cp} CP ranks share as well.",
        ),
        slips=(
            (layout.world, f"There are {layout.dp_replicate} groups, each of which holds the model once."),
            (layout.dp // layout.dp_replicate, "CP ranks hold the same weights, so they share as well."),
        ),
        why=f"{layout.dp} / {layout.dp_replicate} · {layout.cp} = {record.ways}.",
        shows=lp.view(record),
    )


def _slices_of_a_norm() -> Item:
    record, dim = lp.zero("llama3-8b", lp.Layout(dp=3, zero=3), parameter="norm"), 4096
    slices = [len(record.rows("parameters", place)) for place in range(3)]
    each = slices[0]
    return Item(
        "A norm of 4,096 numbers is shared by 3 ranks, cut as fully_shard cuts. How many numbers does each "
        "hold?",
        slices,
        unit="numbers",
        hints=(
            f"{dim:,} / 3 is not whole: {dim / 3:,.1f}.",
            "Slices have that many, rounded up, until the numbers run out.",
        ),
        slips=(
            ([each, each - 1, each - 1], "That is as even as can be; fully_shard rounds up instead."),
            ([each - 1, each - 1, dim - 2 * (each - 1)], "That is rounded down; fully_shard rounds up."),
            ([each] * 3, f"That makes {3 * each:,} numbers, and there are {dim:,}."),
        ),
        why=f"The last rank has what is left: {dim:,} - 2 · {each:,} = {slices[-1]:,}.",
    )


def _ranks_that_share() -> Item:
    layout = lp.Layout(tp=8, cp=4, pp=2, dp=8, dp_replicate=2)
    ways = lp.zero("llama3-8b", layout).ways
    return Item(
        "TP 8, CP 4, PP 2 and DP 8 with dp_replicate 2: how many ranks share one copy of a stage's "
        "parameters?",
        ways,
        unit="ranks",
        hints=(
            "Which axes make ranks that hold the same parameters?",
            f"Of the {layout.dp} DP ranks only {layout.dp} / {layout.dp_replicate} share one copy, "
            f"each with its {layout.cp} CP ranks.",
        ),
        slips=(
            (layout.dp * layout.cp, f"They hold {layout.dp_replicate} copies between them."),
            (layout.dp // layout.dp_replicate, "CP ranks hold the same parameters, so they share as well."),
            (layout.dp, "DP is cut by dp_replicate, and CP ranks share as well."),
            (layout.world, "TP and PP ranks hold other parameters."),
        ),
        why=f"{layout.dp} / {layout.dp_replicate} · {layout.cp}; TP and PP ranks hold other parameters.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "How many collectives run during the forward and the backward?": _collectives,
    "Parameters, gradients or optimizer state: which takes most memory?": _most_memory,
    "How many rows of the matrix does rank 1 hold at stage 3?": _rows_of_a_rank,
    "The matrix is [128, 128]. What shape has its gradient on rank 1 at stage 2?": _shape_of_a_gradient,
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
