"""What the notebook on whole steps asks: each question with its truth and hints.

Every truth comes from the library when the question is asked: a run of a very small model on the fewest
ranks that show it, so that a box opens at once. The notebook's own runs follow below the questions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import floor, log10, sqrt

import llamapar as lp

from .boxes import Item, choices_of

_SIXTEEN = lp.Layout(tp=2, cp=2, pp=2, dp=2, zero=2)

FAULTS = (
    "gradients_too_early",
    "norm_forgets_pp",
    "clipped_per_rank",
    "averaged_over_context",
    "neighbours_shard",
    "weights_late",
)
"""The six of the notebook."""


def _model() -> lp.ModelConfig:
    """The notebook's: two layers, so narrow that a step takes a fraction of a second."""
    size = {"n_layers": 2, "dim": 32, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "ffn_dim": 48}
    return lp.model("tiny").replace(**size)


def _ranks_of_a_gradient() -> Item:
    layout = _SIXTEEN
    return Item(
        "Over how many of the 16 ranks is the gradient of a matrix summed?",
        layout.size("dp-cp"),
        unit="ranks",
        hints=(
            "Which ranks hold the same part of the matrix, and saw other tokens?",
            "TP and PP ranks hold other weights. CP ranks saw other tokens, and so did DP ranks.",
        ),
        slips=(
            (2, "CP ranks hold the same weights and saw other tokens, too."),
            (16, "TP and PP ranks hold other weights; their gradients are of those."),
            (8, "The two TP ranks hold different halves of the matrix."),
        ),
        why="DP 2 times CP 2.",
        shows=lp.view(lp.ranks(layout, 0)),
    )


@cache
def _copies_counted() -> Item:
    run = lp.run(
        "step", _model(), {"tp": 2}, fault="norm_counts_copies", micro_batches=1, seq_len=16,
        dtype="float64", device="cpu",
    )  # fmt: skip
    assert run.loss_curve is not None
    counted = run.loss_curve.norms[0]
    one = run.loss_curve.one_norms[0]
    return Item(
        "With every copy counted: is the norm too large or too small?",
        "too large" if counted > one else "too small",
        choices=choices_of("too large", "too small"),
        hints=(
            "Both TP ranks add the squares of the same RMSNorm weights.",
            "A square is never negative, and these are in the sum twice.",
        ),
        why="Squares that are added twice make the sum larger, and with it the root.",
    )


def _power_of_ten() -> Item:
    def moved(gradient: float) -> float:
        return 1e-3 * gradient / (abs(gradient) + 1e-8)

    power = floor(log10(moved(1e-8 + 1e-15) - moved(1e-8)))
    return Item(
        "By what power of ten is the updated weight off (for 3e-7: -7)?",
        power,
        hints=(
            "Near g = ε the update grows with g as lr / (4 ε).",
            "lr / ε is 1e5, a quarter of it 2.5e4, and the gradient is off by 1e-15.",
        ),
        slips=(
            (-15, "That is the gradient's own error; AdamW multiplies it."),
            (-18, "That holds for a large gradient, where the division makes an error small."),
            (-10, "lr / ε is the most; at g = ε it is a quarter of that."),
        ),
        why="1e-15 times 2.5e4 is 2.5e-11.",
    )


@cache
def _grown() -> Item:
    run = lp.run(
        "step", _model(), {"tp": 2}, steps=6, micro_batches=1, seq_len=16, dtype="float64", device="cpu"
    )
    assert run.loss_curve is not None
    return Item(
        "After six steps, do the losses still agree to twelve digits?",
        run.loss_curve.distance < 1e-12,
        hints=(
            "Only weights with a gradient near 1e-8 are off by 1e-11. What do they do to the loss?",
            "A loss is a mean over all tokens, and a weight whose gradient is 1e-8 hardly moves it.",
        ),
        why="The weights that are off most are those on which the loss depends least.",
    )


@cache
def _losses_that_are_off() -> Item:
    off = 0
    for name in FAULTS:
        run = lp.run(
            "step", _model(), lp.Layout(cp=2, pp=2, dp=2), fault=name, micro_batches=2, backward=False,
            seq_len=16, dtype="float64", device="cpu",
        )  # fmt: skip
        off += run.output_errors["loss"] > 1e-5
    return Item(
        "In how many of the six runs is the loss of the step off?",
        off,
        unit="of the six",
        hints=(
            "When in a step is the loss computed?",
            "Go through the six: does any of them happen before the backward?",
        ),
        slips=(
            (6, "They change what comes after the backward, and the loss is known before."),
            (1, "A mean of gradients over CP ranks changes gradients; the loss is known before them."),
        ),
        why="The loss comes out of the forward, and all six come after it.",
    )


@cache
def _told_apart() -> Item:
    apart = {
        dtype: [
            lp.run(
                "step", _model(), lp.Layout(), dtype=dtype, fault=fault, seq_len=16, device="cpu"
            ).max_grad_error
            or 0.0
            for fault in (None, "norm_without_eps")
        ]
        for dtype in ("bfloat16", "float32", "float64")
    }
    return Item(
        "In how many of the three dtypes does the wrong run stand out, by more than twice?",
        sum(wrong > 2 * right for right, wrong in apart.values()),
        unit="of the three",
        hints=(
            "How large is rounding in each of them, and how large is the mistake?",
            "The mistake is some 7e-4 in every dtype. Rounding is near 3e-2, 1e-6 and 2e-15.",
        ),
        slips=(
            (1, "float32 rounds at 1e-6 here, and the mistake is seven hundred times as large."),
            (3, "bfloat16 rounds at 3e-2 here, and the mistake hides below it."),
        ),
        why="Rounding shrinks with the dtype and the mistake does not, so it hides in bfloat16 alone.",
    )


def _most_sent() -> Item:
    layout = lp.Layout(tp=8, cp=16, pp=16, dp=8)
    sent = lp.traffic(
        "step", "llama3.1-405b", layout, seq_len=131072, micro_batches=16, dtype="bfloat16", rank=12345
    ).by_axis
    axes = ("tp", "cp", "pp", "dp")
    return Item(
        "Over which axis does the rank send most: tp, cp, pp or dp?",
        max(axes, key=lambda axis: sent[axis]),
        choices=tuple((axis, axis, f"{sent[axis] / 1e9:.1f} GB") for axis in axes),
        hints=(
            "Which of the four sends in every layer, for every micro-batch?",
            "Two do: CP sends keys and values, TP the activations of all the model's width.",
        ),
        why="Every layer of every micro-batch gathers and scatters whole activations over it.",
    )


def _norm_of_two() -> Item:
    from llamapar.execution.execute import prepare
    from llamapar.execution.run_options import RunOptions
    from llamapar.spmd.update import share_of_squares

    squares = ((9, 2), (14, 2))
    setting = prepare("step", "tiny", RunOptions(lp.Layout(tp=len(squares))))[0].setting
    shares = [share_of_squares(setting, name, 0) for name in ("output.weight", "norm.weight")]
    whole = sum(share * own for rank in squares for share, own in zip(shares, rank, strict=True))
    norm = sqrt(whole)
    return Item(
        "Squares of two TP ranks, matrices and norms: 9 and 2, 14 and 2. The norm of all gradients?",
        int(norm) if norm.is_integer() else norm,
        hints=(
            "Each rank has half of the matrices, and all of the norms.",
            "The norms' squares count once: 2, not 4. And the norm is a root.",
        ),
        slips=(
            (sqrt(27), "The norms' weights are copies: their 2 counts once."),
            (whole, "That is the sum of the squares; the norm is its root."),
            (sqrt(23), "The norms' weights count as well, once."),
        ),
        why="9 + 14 + 2 = 25: the norms' weights are copies.",
    )


def _numbers_sent() -> Item:
    terms = lp.traffic("step", "tiny", lp.Layout(tp=2, cp=2, pp=4, dp=2), seq_len=8, micro_batches=4).terms
    payload = next(t.payload for t in terms if (t.part, t.kind) == ("sum of squares", "all_reduce"))
    return Item(
        "Numbers that a rank puts into one all-reduce for the norm of all gradients, in a step",
        payload // 4,  # float32
        unit="numbers",
        hints=(
            "A rank has millions of gradients. Must the others see each of them?",
            "It squares and adds up what it holds, and tells the sum.",
        ),
        slips=((0, "Then each rank would have the norm of its own part alone."),),
        why="The sum of a rank's squares, however large the model is.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "Over how many of the 16 ranks is the gradient of a matrix summed?": _ranks_of_a_gradient,
    "With every copy counted: is the norm too large or too small?": _copies_counted,
    "By what power of ten is the updated weight off (for 3e-7: -7)?": _power_of_ten,
    "After six steps, do the losses still agree to twelve digits?": _grown,
    "In how many of the six runs is the loss of the step off?": _losses_that_are_off,
    "In how many of the three dtypes does the wrong run stand out, by more than twice?": _told_apart,
    "Over which axis does the rank send most: tp, cp, pp or dp?": _most_sent,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "norm of two ranks": _norm_of_two,
    "numbers for the norm": _numbers_sent,
}
"""By the name of the exercise."""
