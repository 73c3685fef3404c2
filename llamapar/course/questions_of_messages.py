"""What the notebook on shapes and messages asks: each question with its truth and hints.

Every truth is found by the library when the question is asked: from programs on shapes alone, from the
maps of heads and vocabulary, and from what `lp.explain` says of messages. `WILD` holds the notebook's own.
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


def _facts_to_add() -> Item:
    return Item(
        "How many facts must you add to that line before it has one cause?",
        len(lp.explain("ZeroDivisionError: integer division or modulo by zero").needs),
        unit="facts",
        hints=(
            "Some count of the model was divided by the number of ranks that share it, and came out as 0.",
            "The line says neither which count it was, nor how many ranks there were.",
        ),
        slips=(
            (0, "No number of the model stands in it, and many counts can come out as 0."),
            (1, "A count is 0 for every degree above it, and at a given degree every count below it is."),
        ),
        why="The count, here that of KV heads, and the degree that divides it.",
    )


@cache
def _named_size() -> Item:
    m, tp, tokens = lp.model("llama3-8b"), 16, 8192
    stopped = lp.tape("attention", m, {"tp": tp}, seq_len=tokens).errors[0]
    return Item(
        f"K of {tokens:,} tokens, in heads of {m.head_dim}: which size does the message call invalid?",
        int(stopped.rpartition(" ")[2]),
        hints=(
            "The size is the number of entries that a rank holds of K: tokens times columns.",
            f"{m.n_kv_heads} KV heads of {m.head_dim} columns are cut over {tp} ranks.",
        ),
        slips=(
            (tokens * m.kv_dim, f"That is all of K; {tp} ranks share its {m.kv_dim} columns."),
            (tokens * m.head_dim, "That is a whole KV head, and the view would work."),
            (tokens * m.q_dim // tp, "That is Q, of which a rank has two whole heads: its line works."),
        ),
        why=f"{tokens:,} tokens of {m.kv_dim // tp} columns, half a head each.",
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


def _saved_head() -> Item:
    rows, model = 19008, lp.model("qwen2.5-7b")
    tp = next(tp for tp in range(1, 65) if len(lp.vocab(model, {"tp": tp}).rank(0).rows) == rows)
    return Item(
        f"lm_head.weight is [{rows}, {model.dim}], saved by Qwen2.5 7B, whose vocabulary has "
        f"{model.vocab_size} rows. At which TP?",
        tp,
        hints=(
            "How many such pieces make the vocabulary?",
            f"{model.vocab_size} / {rows} is whole, so nothing was padded.",
        ),
        slips=(
            (2 * tp, f"At TP {2 * tp} a rank has {model.vocab_size // (2 * tp)} rows."),
            (tp // 2, f"At TP {tp // 2} a rank has {model.vocab_size // (tp // 2)} rows."),
        ),
        why=f"{rows} · {tp} = {model.vocab_size}: the rows divide exactly.",
    )


def _columns() -> Item:
    batch, seq_len, size, m = 2, 4096, 262144, lp.model("llama3-8b")
    own = size // (batch * seq_len)
    tp = next(tp for tp in range(1, 257) if len(lp.heads(m, {"tp": tp}).rank(0).kv_rows) == own)
    return Item(
        f"shape '[{batch}, {seq_len}, -1, {m.head_dim}]' is invalid for input of size {size}. How many "
        f"columns has a rank, and at which TP do {m.n_kv_heads} KV heads leave that?",
        [own, tp],
        unit="columns, TP",
        hints=(
            "All but the last two sizes of the view are batch and sequence.",
            f"{m.n_kv_heads} · {m.head_dim} = {m.kv_dim} columns are cut over the ranks.",
        ),
        slips=(
            ([size // seq_len, m.kv_dim // (size // seq_len)], f"The batch of {batch} divides the size too."),
            (
                [m.head_dim, m.n_kv_heads],
                f"Then a rank would hold a whole head, and the view would work; {size} / "
                f"({batch} · {seq_len}) is less.",
            ),
        ),
        why=f"{size} / ({batch} · {seq_len}) = {own}, and {m.kv_dim} / {own} = {tp}: a quarter of a head.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "How many facts must you add to that line before it has one cause?": _facts_to_add,
    "K of 8,192 tokens, in heads of 128: which size does the message call invalid?": _named_size,
    "Which of the eight was caused by another model's configuration, and not by a layout?": _other_model,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "TP of the saved head": _saved_head,
    "columns of a rank": _columns,
}
"""By the name of the exercise."""
