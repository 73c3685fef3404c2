"""What the notebook on memory asks: each question with its truth, hints and pictures.

The library or torch computes a truth when its question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable

import llamapar as lp
from llamapar.count.in_flight import in_flight
from llamapar.count.sizes import Sizes

from .boxes import Item

_GIB = 2**30

_PAPER = lp.Layout(tp=8, pp=16, dp=128)


def _one_gpu() -> Item:
    alone = lp.memory("llama3.1-8b", {}, seq_len=8192)
    weights = alone.worst.bytes("parameters")
    states = alone.worst.bytes("optimizer states")
    return Item(
        "Can one GPU of 80 GB train the 8B model?",
        alone.fits,
        hints=(
            "Training changes a weight. What must be known of each, beside the weight itself?",
            f"Adam alone keeps two float32 averages of each: {states / weights:g} times the file.",
        ),
        why=f"It takes {alone.worst.total_bytes / _GIB:.0f} GiB.",
        shows=lp.view(alone),
    )


def _saves_most() -> Item:
    parts = ("parameters", "gradients", "master weights", "optimizer states", "gathered parameters")
    stages = [lp.memory("llama3.1-8b", lp.Layout(dp=8, zero=n), seq_len=8192).worst for n in range(4)]
    needs = [stage.bytes(*parts) for stage in stages]
    saved = {zero: needs[zero - 1] - needs[zero] for zero in (1, 2, 3)}
    shares = {1: "the optimizer", 2: "the gradients, too", 3: "the weights, too"}
    choices = tuple(
        (zero, f"{zero}: shares {what}", f"saves {saved[zero] / _GIB:.1f} GiB more")
        for zero, what in shares.items()
    )
    return Item(
        "Which of ZeRO's stages saves most: 1, 2 or 3?",
        max(saved, key=lambda zero: saved[zero]),
        choices=choices,
        hints=(
            "Each stage shares one more part of the 18 bytes. Which part is the largest?",
            "Weights are 2 bytes, gradients 4. The rest belongs to the optimizer.",
        ),
        why="Master weights and the two averages are 12 of the 18 bytes.",
    )


def kept_for_backward() -> int:
    """How many tensors torch keeps of the MLP, the weights apart."""
    import torch

    kept: set[int] = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.add(tensor.data_ptr())
        return tensor

    sizes = ((4, 8), (8, 24), (8, 24), (24, 8))
    x, w1, w3, w2 = (torch.ones(size, requires_grad=True) for size in sizes)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = (torch.nn.functional.silu(x @ w1) * (x @ w3)) @ w2
    assert out.requires_grad  # what is kept must live until here, or an address could come twice
    return len(kept - {w.data_ptr() for w in (w1, w3, w2)})


def _tensors() -> Item:
    return Item(
        "How many tensors does the MLP keep for its backward?",
        kept_for_backward(),
        unit="tensors",
        hints=(
            "The gradient of a matrix product needs its input, that of a product of two tensors needs both.",
            "x; the input of silu; both factors; the input of w2.",
        ),
        slips=(
            (4, "x is kept as well: the gradients of w1 and w3 need it."),
            (6, "x is the input of two products, and is kept once."),
            (3, "silu keeps its input, and the product keeps both of its factors."),
        ),
        why="x once, silu's input, both factors, and the input of w2.",
    )


def _saves_more() -> Item:
    def kept(recompute: str, sp: bool) -> int:
        layout = lp.Layout(tp=8, sequence_parallel=sp)
        memory = lp.memory("llama3.1-70b", layout, seq_len=8192, recompute=recompute)
        return memory.worst.bytes("activations")

    left = {"SP": kept("none", True), "selective recomputation": kept("selective", False)}
    plain = kept("none", False)
    notes = {name: f"{plain / _GIB:.1f} → {bytes_ / _GIB:.1f} GiB" for name, bytes_ in left.items()}
    return Item(
        "Which saves more alone: SP, or selective recomputation?",
        min(left, key=lambda name: left[name]),
        choices=tuple((name, name, note) for name, note in notes.items()),
        hints=(
            "TP has cut the wide tensors of the MLP by 8 already. What lies between the matrices is as wide "
            "as the model.",
            "Selective recomputation keeps neither what the norms made nor half of the MLP's tensors.",
        ),
        why="SP shares what is as wide as the model; recomputation also drops half of the MLP's tensors.",
    )


def _fullest() -> Item:
    big = lp.memory("llama3.1-405b", _PAPER, seq_len=8192, global_batch=2048, recompute="selective")
    first = big.stages[0]
    second = big.stages[1]
    return Item(
        "Which stage, 0 to 15, needs most memory?",
        big.worst.stage,
        hints=(
            "Stage s has 16 − s micro-batches in flight, of each of its layers.",
            "Stage 0: 16 times 7 layers. Stage 1: 15 times 8.",
        ),
        slips=(
            (0, "It has one micro-batch more in flight, but 7 layers, and stage 1 8."),
            (15, "It holds the head, but only one micro-batch at a time."),
        ),
        why=f"Stage {second.stage} needs {second.total_bytes / _GIB:.1f} GiB, stage {first.stage} "
        f"{first.total_bytes / _GIB:.1f}.",
        shows=lp.view(big),
    )


def _own_bytes() -> Item:
    rank = lp.memory("llama3.1-70b", lp.Layout(dp=64, zero=3), seq_len=8192).worst
    own = rank.bytes("parameters", "gradients", "optimizer states")
    weights = lp.model("llama3.1-70b").n_params // 64
    return Item(
        "70B under ZeRO 3 at DP 64: a rank's own bytes of weights, gradients and states",
        own,
        unit="bytes",
        hints=(
            "70,553,706,496 parameters, of which a rank owns one in 64.",
            "At ZeRO 3 a rank owns float32 pieces only: the weight, its gradient, two averages.",
        ),
        slips=(
            (own * 64, "That is all of it; 64 ranks share it."),
            (18 * weights, "At ZeRO 3 the pieces are float32, and no bfloat16 weight stands beside them."),
            (12 * weights, "The gradient is a float32 piece as well."),
        ),
        why="16 bytes for each of 1,102,401,664 weights.",
    )


def _stage_five() -> Item:
    return Item(
        "PP 8, 1F1B: most micro-batches in flight on stage 5",
        in_flight("1f1b", 5, pp=8, virtual_stages=1, micro_batches=64)[0],
        hints=(
            "The last stage has one: its backward follows at once.",
            "Each stage before it keeps one more.",
        ),
        slips=(
            (5, "Count from the other end: the last stage keeps one."),
            (6, "Count from the other end: the last stage keeps one."),
            (2, "Those are the stages behind it; stage 5 has one of its own as well."),
            (8, "So many has stage 0; stage 5 waits for fewer."),
        ),
        why="Stages are numbered from 0, so 8 − 5.",
    )


def _logits() -> Item:
    own = 4 * Sizes(lp.model("llama3.1-8b"), lp.Layout(tp=8), seq_len=8192).activations["logits"]
    return Item(
        "8B at TP 8, 8,192 tokens: bytes of a rank's float32 logits",
        own,
        unit="bytes",
        hints=(
            "A token has one number for each of the 128,256 rows of the vocabulary.",
            "TP cuts the vocabulary by 8, and a float32 is 4 bytes.",
        ),
        slips=(
            (own // 2, "A float32 is 4 bytes, not 2."),
            (own // 4, "Those are the numbers; each takes 4 bytes."),
            (own * 8, "That is all of it; TP cuts the vocabulary by 8."),
        ),
        why="8,192 · 128,256 / 8 · 4.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "Can one GPU of 80 GB train the 8B model?": _one_gpu,
    "Which of ZeRO's stages saves most: 1, 2 or 3?": _saves_most,
    "How many tensors does the MLP keep for its backward?": _tensors,
    "Which saves more alone: SP, or selective recomputation?": _saves_more,
    "Which stage, 0 to 15, needs most memory?": _fullest,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "own bytes under ZeRO 3": _own_bytes,
    "in flight on stage 5": _stage_five,
    "bytes of logits": _logits,
}
"""By the name of the exercise."""
