"""What the notebook on the Llama 3 paper's Table 4 asks: each question with its truth and hints.

Every truth comes from the library when the question is asked: from the rows of `lp.JOBS`, and from what
`lp.cost`, `lp.memory`, `lp.ranks` and `lp.stages` say of them.
"""

from __future__ import annotations

from collections.abc import Callable

import llamapar as lp

from .boxes import Item, choices_of
from .published import PRINTED, table_4, table_4_memory

_FIRST, _SECOND, _THIRD = lp.JOBS
_ROWS = ((_FIRST, "the first", ""), (_SECOND, "the second", ""), (_THIRD, "the third", ""))


def _twice_the_cp() -> Item:
    return Item(
        "Twice the CP on the GPUs of the first row: which DP is left?",
        lp.JOBS[_FIRST].job.layout.world // lp.Layout(tp=8, cp=2, pp=16).world,
        hints=(
            "TP, CP, PP and DP multiply to the GPUs. Three of the five numbers stay.",
            "8 · 2 · 16 · DP = 8,192.",
        ),
        slips=(
            (64, "With DP 64 as before it would be 16,384 GPUs."),
            (128, "CP and DP share the GPUs: what one gets, the other lacks."),
        ),
        why="8,192 / (8 · 2 · 16).",
    )


def _tokens_of_a_gpu() -> Item:
    cost = table_4()[_FIRST]
    return Item(
        "How many tokens of a step are one GPU's work in the first row?",
        cost.tokens // (cost.layout.cp * cost.layout.dp),
        unit="tokens",
        hints=(
            "A GPU works for one DP group. How many sequences does the group read, and does CP cut them?",
            "32 sequences of 8,192 tokens, and CP is 1.",
        ),
        slips=(
            (8192, "Those are of one sequence, and a group reads 32."),
            (
                cost.tokens // cost.layout.world,
                "TP and PP cut the model: their ranks share tokens.",
            ),
            (cost.tokens, "Those are all of the step; 64 DP groups share them."),
        ),
        why="32 · 8,192: TP and PP cut the model, so each of their ranks has a part in every token.",
    )


def _rounds() -> Item:
    off = {name: abs(PRINTED[name] / 989 - ran.mfu) for name, ran in lp.JOBS.items()}
    return Item(
        "In which row do the two printed figures not go together?",
        max(off, key=lambda name: off[name]),
        choices=_ROWS,
        hints=(
            "MFU is what a GPU does over what it could: TFLOP/s over 989.",
            "43.5, 40.4 and 38.4 %. Which of them is printed as another number?",
        ),
        slips=((_FIRST, "43.5 may be printed as 43."), (_THIRD, "38.4 rounds to 38.")),
        why="400 / 989 is 40.4 %, and 41 is printed. 400 may stand for anything up to 409.",
    )


def _stays() -> Item:
    first, second = (table_4()[name].seconds for name in (_FIRST, _SECOND))
    parts = {"GEMMs": "matrix products", "exposed TP": "TP", "pipeline idle": "the wait of the pipeline"}
    return Item(
        "Half the sequences for each group: what takes as long as before?",
        max(parts, key=lambda part: second[part] / first[part]),
        choices=tuple((part, label, "") for part, label in parts.items()),
        hints=(
            "Which of the three is done for every sequence?",
            "A pipeline fills and empties once a step.",
        ),
        slips=(
            ("GEMMs", "Each sequence needs its own, so they halve."),
            ("exposed TP", "TP speaks in each layer, for each sequence, so it halves."),
        ),
        why="A rank waits for 15 others at both ends of a step, however many sequences it has.",
    )


def _times_the_attention() -> Item:
    attention = {name: cost.seconds["attention"] for name, cost in table_4().items()}
    return Item(
        "From the second row to the third: how many times the attention?",
        attention[_THIRD] / attention[_SECOND],
        unit="times",
        hints=(
            "A GPU has as many tokens as before. With how many others is each compared?",
            "With those before it in its sequence. How many times as long are sequences in the third row?",
        ),
        slips=(
            (256, "A sequence has 16² as many pairs, and CP deals them out to 16 ranks."),
            (1, "So it is for matrix products; attention also depends on the length of a sequence."),
        ),
        why="As many tokens on a GPU, and each looks back at 16 times as many.",
    )


def _in_a_machine() -> Item:
    peers = lp.ranks(lp.JOBS[_THIRD].job.layout, 0).peers
    return Item(
        "Machines of 8 GPUs, third row: which groups lie within one machine?",
        " and ".join(axis.upper() for axis, ranks in peers.items() if max(ranks) < 8),
        choices=choices_of("TP", "TP and CP", "TP and CP and PP"),
        hints=(
            "Which axis is the fastest, and how many ranks has its group?",
            "It has 8: the machine is full.",
        ),
        slips=(
            ("TP and CP", "The next CP rank is 8 ranks further on: the same GPU of the next machine."),
            ("TP and CP and PP", "A machine has 8 GPUs, and TP takes all of them."),
        ),
        why="TP 8 fills a machine, so that every other axis leaves it.",
    )


def _eight_layers() -> Item:
    stages = lp.stages(lp.JOBS[_FIRST].job.model, pp=16).stages
    return Item(
        "126 layers on 16 pipeline ranks: how many ranks have 8?",
        sum(len(stage.layers) == 8 for stage in stages),
        unit="ranks",
        hints=(
            "16 · 8 are two layers too many. Which two ranks have other work?",
            "The first has the embedding, the last the output head.",
        ),
        slips=((16, "That would be 128 layers."), (15, "Both ends have other work, not one.")),
        why="14 · 8 + 2 · 7: the embedding and the output head stand in for a layer each.",
        shows=lp.view(lp.stages(lp.JOBS[_FIRST].job.model, pp=16)),
    )


def _fullest() -> Item:
    needs = {name: found.expected_bytes for name, found in table_4_memory().items()}
    return Item(
        "Which row needs most of a GPU's memory?",
        max(needs, key=lambda name: needs[name]),
        choices=_ROWS,
        hints=(
            "A GPU has 8,192 tokens of a sequence in every row. In what else do the rows differ?",
            "With 32 sequences a group it is ZeRO 1, with 16 it is ZeRO 2. What does stage 2 divide?",
        ),
        slips=(
            (_SECOND, "Under ZeRO 2 its ranks divide the gradients; the first row keeps them whole."),
            (_THIRD, "CP 16 leaves a GPU 8,192 tokens of a sequence, as many as in the other rows."),
        ),
        why="ZeRO 1 keeps its gradients whole, 12 GiB of float32, and 143 chunks are in flight for 128.",
    )


def _fourth_row() -> Item:
    dp = 16384 // lp.Layout(tp=8, cp=4, pp=16).world
    return Item(
        "16,384 GPUs, TP 8, CP 4, PP 16, 2^24 tokens a step in sequences of 32,768: DP, and batch a group?",
        [dp, 2**24 // 32768 // dp],
        unit="dp, sequences",
        hints=(
            "First the GPUs: 8 · 4 · 16 · DP = 16,384.",
            "A step has 2^24 / 32,768 = 512 sequences, and the DP groups share them.",
        ),
        slips=(([32, 512], "Those are the sequences of all groups together."),),
        why="16,384 / 512 = 32, and 512 / 32 = 16.",
    )


def _seconds_of_a_step() -> Item:
    flops = table_4()[_FIRST].flops
    gpus = lp.JOBS[_FIRST].job.layout.world
    return Item(
        "A step of the first row is 4.23e19 FLOPs. How many seconds did it take, by what is printed?",
        round(flops / gpus / PRINTED[_FIRST] / 1e12, 1),
        unit="s",
        hints=(
            "8,192 GPUs did 430 TFLOP/s each.",
            "4.23e19 / (8,192 · 430e12).",
        ),
        slips=((round(flops / gpus / 989e12, 1), "That is at the peak, which no run reaches."),),
        why="4.23e19 / (8,192 · 430e12).",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "Twice the CP on the GPUs of the first row: which DP is left?": _twice_the_cp,
    "How many tokens of a step are one GPU's work in the first row?": _tokens_of_a_gpu,
    "In which row do the two printed figures not go together?": _rounds,
    "Half the sequences for each group: what takes as long as before?": _stays,
    "From the second row to the third: how many times the attention?": _times_the_attention,
    "Machines of 8 GPUs, third row: which groups lie within one machine?": _in_a_machine,
    "126 layers on 16 pipeline ranks: how many ranks have 8?": _eight_layers,
    "Which row needs most of a GPU's memory?": _fullest,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "a fourth row": _fourth_row,
    "seconds of a measured step": _seconds_of_a_step,
}
"""By the name of the exercise."""
