"""What the notebook on shapes and messages asks: each question with its truth and hints.

Every truth is found by the library when the question is asked: from programs on shapes alone, from the
maps of heads and vocabulary, and from what `lp.explain` says of messages. `WILD` and `TRAIN` hold the
notebook's own texts; `tests/test_questions.py` compares both copies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import llamapar as lp

from .boxes import Item

_MISMATCH = "size mismatch for tok_embeddings.weight: copying a param with shape torch.Size([128256, 8192]) "
_WEIGHT = "Weight input_size_per_partition = 14784 is not divisible by min_thread_k = 128. "
WILD = {
    "a": "AssertionError: 25 is not divisible by 4",
    "b": "The size of tensor a (128256) must match the size of tensor b (16032) at non-singleton dimension 0",
    "c": "The size of tensor a (1110) must match the size of tensor b (6656) at non-singleton dimension 2",
    "d": _MISMATCH + "from checkpoint, the shape in current model is torch.Size([32000, 8192]).",
    "e": "padded_vocab_size value from checkpoint (32000) is not equal to the input argument value (32256)",
    "f": _WEIGHT + "Consider reducing tensor_parallel_size or running with --quantization gptq.",
    "g": "AssertionError: num_layers=60 should be divisible by config.pipeline_model_parallel_size=8",
    "h": "RuntimeError: shape '[1, 21, 32, 128]' is invalid for input of size 43008",
}
"""The eight messages from the wild."""

TRAIN = """
[model]
name = "llama3"
flavor = "70B"

[training]
seq_len = 8192
local_batch_size = 2

[parallelism]
tensor_parallel_degree = 16
"""
"""The settings of a run."""


@cache
def _named_size() -> Item:
    stopped = lp.tape("attention", "llama3-8b", {"tp": 16}, seq_len=8192).errors[0]
    return Item(
        "K of 8,192 tokens, in heads of 128: which size does the message call invalid?",
        int(stopped.rpartition(" ")[2]),
        hints=(
            "The size is the number of entries that a rank holds of K: tokens times columns.",
            "8 KV heads of 128 columns are cut over 16 ranks.",
        ),
        slips=(
            (8192 * 1024, "That is all of K; 16 ranks share its 1024 columns."),
            (8192 * 128, "That is a whole KV head, and the view would work."),
            (8192 * 256, "That is Q, of which a rank has two whole heads: its line works."),
        ),
        why="8,192 tokens of 64 columns, half a head each.",
    )


@cache
def _other_model() -> Item:
    told = {name: lp.explain(text) for name, text in WILD.items()}
    return Item(
        "Which of the eight was caused by another model's configuration, and not by a layout?",
        next(name for name, found in told.items() if found.verdict == "not_sharding"),
        choices=tuple(
            (name, name, "; ".join(one.best.equations if one.best else ())) for name, one in told.items()
        ),
        hints=(
            "Divide the two sizes of each message. A number of ranks is a whole number.",
            "Padding may stand between: 32,000 and 32,256 are both multiples of 64.",
        ),
        why="128,256 rows are no whole number of times 32,000, and no padding makes them so.",
    )


def _largest_tp() -> Item:
    run = lp.read_settings(text=TRAIN, known={"gpus": 128})
    works = [n for n in range(1, 65) if 128 % n == 0 and lp.check(run, tp=n, dp=128 // n).ok]
    return Item(
        "Which is the largest tensor_parallel_degree with which torchtitan runs it?",
        max(works),
        hints=(
            "16 slices of 64 query heads are whole. And of the KV heads?",
            "torchtitan stores no copies of KV heads, so each GPU needs a whole one of its own.",
        ),
        slips=(
            (16, "8 KV heads over 16 GPUs are 0.5 on each."),
            (64, "So many query heads there are, but the KV heads are fewer."),
        ),
        why="8 KV heads give whole heads to at most so many GPUs.",
        shows=lp.check(run).errors[0],
    )


def _saved_head() -> Item:
    tp = next(tp for tp in range(1, 65) if len(lp.vocab("qwen2.5-7b", {"tp": tp}).rank(0).rows) == 19_008)
    return Item(
        "lm_head.weight is [19008, 3584], saved by Qwen2.5 7B, whose vocabulary has 152064 rows. At which "
        "TP?",
        tp,
        hints=(
            "How many such pieces make the vocabulary?",
            "152064 / 19008 is whole, so nothing was padded.",
        ),
        slips=(
            (16, "At TP 16 a rank has 9504 rows."),
            (4, "At TP 4 a rank has 38016 rows."),
        ),
        why="19008 · 8 = 152064: the rows divide exactly.",
    )


def _columns() -> Item:
    own = 262_144 // (2 * 4096)
    tp = next(tp for tp in range(1, 257) if len(lp.heads("llama3-8b", {"tp": tp}).rank(0).kv_rows) == own)
    return Item(
        "shape '[2, 4096, -1, 128]' is invalid for input of size 262144. How many columns has a rank, and "
        "at which TP do 8 KV heads leave that?",
        [own, tp],
        unit="columns, TP",
        hints=(
            "All but the last two sizes of the view are batch and sequence.",
            "8 · 128 = 1024 columns are cut over the ranks.",
        ),
        slips=(
            ([64, 16], "The batch of 2 divides the size too."),
            (
                [128, 8],
                "Then a rank would hold a whole head, and the view would work; 262144 / (2 · 4096) is less.",
            ),
        ),
        why="262144 / (2 · 4096) = 32, and 1024 / 32 = 32: a quarter of a head.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "K of 8,192 tokens, in heads of 128: which size does the message call invalid?": _named_size,
    "Which of the eight was caused by another model's configuration, and not by a layout?": _other_model,
    "Which is the largest tensor_parallel_degree with which torchtitan runs it?": _largest_tp,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "TP of the saved head": _saved_head,
    "columns of a rank": _columns,
}
"""By the name of the exercise."""
