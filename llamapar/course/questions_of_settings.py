"""What the notebook on a run that broke asks: each question with its truth and hints.

The library reads the notebook's own files, which stand here once more, when a question is asked.
`tests/test_questions.py` compares both copies.
"""

from __future__ import annotations

from collections.abc import Callable

import llamapar as lp

from .boxes import Item

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

MISSPELT = """
trainer: {num_nodes: 16, devices: 8}
model:
  tensor_model_paralel_size: 8
  encoder_seq_length: 8192
  micro_batch_size: 1
  global_batch_size: 128
"""

NORMY = """
[model]
name = "bit_byte_llama3"
flavor = "debugmodel"

[training]
local_batch_size = 4
global_batch_size = 4

[parallelism]
data_parallel_shard_degree = -1
"""

_GPUS = (1, 2, 4, 8, 16)


def _open_facts() -> Item:
    said = lp.read_settings(text=TRAIN)
    return Item(
        "How many facts does the file leave open?",
        len(said.unknown),
        unit="facts",
        hints=(
            "Go through what a layout needs: TP, CP, PP and DP, the GPUs, the batch.",
            "The file names no number of GPUs. What follows from it?",
        ),
        slips=(
            (1, "The number of GPUs is open, and with it what is worked out from it: DP, and the batch."),
            (2, "GPUs and DP are open, and the global batch is a product with DP."),
            (5, "CP and PP are left out as well, and have torchtitan's default, 1."),
        ),
        why=f"They are {', '.join(said.unknown)}: the last two follow from the first.",
        shows=said,
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


def _copies_made() -> Item:
    read = lp.read_settings(text=MISSPELT.replace("tensor_model_paralel_size", "not_there")).to_layout()
    return Item(
        "NeMo does not read the misspelt key: how many copies of the model do the 128 GPUs make?",
        read.dp,
        unit="copies",
        hints=(
            "What does NeMo take for tp where its own key is not there?",
            "Copies are GPUs / (tp · cp · pp), and nothing else is cut.",
        ),
        slips=(
            (16, "So many were meant, with tp 8. NeMo looks for a key that is not there."),
            (8, "That is the tp that was meant; asked are the copies."),
        ),
        why="With tp 1 each GPU is a copy of its own, where 16 were meant.",
        shows=lp.read_settings(text=MISSPELT).unknown["tp"],
    )


def _able() -> Item:
    able = [gpus for gpus in _GPUS if not lp.read_settings(text=NORMY, known={"gpus": gpus}).contradictions]
    return Item(
        "Of 1, 2, 4, 8 and 16 GPUs, on how many numbers of them does it run?",
        len(able),
        unit="of the five",
        hints=(
            "How many sequences do two copies take at once?",
            "Each copy takes 4 sequences at once, and a step has 4.",
        ),
        slips=(
            (5, "Two copies take 8 sequences at once, and a step has 4."),
            (3, "4 sequences over 4 copies would be one each, but each takes 4 at once."),
            (0, "With one copy, 4 sequences are just its local batch."),
        ),
        why=f"It runs on {able[0]}: dp copies take 4 · dp sequences at once, and the step has 4.",
    )


def _copies() -> Item:
    return Item(
        "The same file is started on 512 GPUs with tensor_parallel_degree = 8 and pipeline_parallel_degree "
        "= 4. How many copies of the model, dp, work on different data?",
        512 // lp.Layout(tp=8, pp=4).world,
        unit="copies",
        hints=(
            "How many GPUs does one copy take?",
            "8 · 4 = 32. How often do 512 GPUs hold that?",
        ),
        slips=(
            (64, "A copy also has 4 stages."),
            (128, "Each stage is cut over 8 GPUs."),
            (32, "That is how many GPUs one copy takes."),
        ),
        why="A copy takes 8 · 4 GPUs; dp is how often that fits.",
    )


def _smallest_batch() -> Item:
    def runs(batch: int) -> bool:
        text = NORMY.replace("global_batch_size = 4", f"global_batch_size = {batch}")
        return not lp.read_settings(text=text, known={"gpus": 16}).contradictions

    return Item(
        "In the fork's file of section 3, change one number so that it runs on 16 GPUs with 4 sequences at "
        "once on each. What is the smallest global_batch_size?",
        next(batch for batch in range(1, 1025) if runs(batch)),
        unit="sequences",
        hints=(
            "Every GPU holds a copy that reads data of its own.",
            "16 copies take 4 sequences each.",
        ),
        slips=(
            (16, "Each copy takes 4 sequences at once, not one."),
            (4, "That is enough for one copy; the others read other data."),
        ),
        why="4 · 16: the weights are shared out over the GPUs, the data is not.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "How many facts does the file leave open?": _open_facts,
    "Which is the largest tensor_parallel_degree with which torchtitan runs it?": _largest_tp,
    "NeMo does not read the misspelt key: how many copies of the model do the 128 GPUs make?": _copies_made,
    "Of 1, 2, 4, 8 and 16 GPUs, on how many numbers of them does it run?": _able,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "copies that the GPUs leave": _copies,
    "smallest global batch": _smallest_batch,
}
"""By the name of the exercise."""
