"""Answers to the lessons' questions, worked out by hand or by other means than the library's."""

from __future__ import annotations


def _digits(rank: int) -> tuple[int, int, int, int]:
    """(tp, cp, pp, dp) under TP 8, CP 16, PP 16, DP 8, by the sizes of the blocks of ranks."""
    return rank % 8, rank % 128 // 8, rank % 2048 // 128, rank // 2048


ANSWERS: dict[str, object] = {
    # 00_start_here
    "At TP 16, how many of the 1,024 rows of wk does a rank get?": 1024 // 16,
    "How many of the 16,384 GPUs does the printed row use?": 8 * 16 * 16 * 4,
    "Do torchtitan and vLLM agree about TP 16?": False,
    "How many of the 128 query heads does rank 12,345 hold?": 128 // 8,
    "10 KV heads for 4 ranks: does it run?": False,
    "DP of the short row": 8192 // (8 * 1 * 16),
    "half the GPUs": [8192 // (8 * 16 * 16), 16 * 2**20 // 131072 // 4],
    # 01_four_axes
    "The four peers of rank 13, as a list?": [13 - 1, 13 + 2, 13 - 4, 13 - 8],
    "(tp, cp, pp, dp) of rank 12,345?": _digits(12345),
    "With CP fastest: over how many nodes is a TP group of 8 spread?": len({16 * k // 8 for k in range(8)}),
    "Does rank 4 have the same place in both?": False,
    "In order: how many times the average work has the last rank?": (
        sum(range(15 * 8192 + 1, 131072 + 1)) / (131072 * 131073 / 2 / 16)
    ),
    "How many of the 16,384 GPUs hold the same parameters as rank 12,345?": 16384 // (8 * 16),
    "coord of 5003": (3, 1, 7, 2),
    "DP neighbour of 57": [57 + 8 * 16 * 16, 57 + 8 * 16],
    # 03_vocab_embedding
    "128,256 rows, 8 ranks: who owns token 100,000?": 100_000 // (128_256 // 8),
    "A multiple of 512: how high is the table of 70B?": 251 * 512,
    "Under how many of these five rules does the height depend on TP?": 3,
    "TP 7: on which rank does token // rows put the last token, 128255?": 7,
    "What is the widest dim of any tensor on any of the 8 ranks?": 251 * 512 // 8,
    "Pads left in: is the loss too high, too low, or right?": "too high",
    "The same setting at TP 16: how many pad rows?": 256,
    "pad rows by rank": [0, 0, 63 * 2048 - 128_256, 2048],
    # 04_context_parallel
    "8 tokens in order: how many pairs does rank 1 make?": 5 + 6 + 7 + 8,
    "8 tokens in head-tail pieces: pairs of rank 0?": 1 + 2 + 7 + 8,
    "405B: Q is how many times as wide as K and V together?": 128 // (8 + 8),
    "The third token on rank 1: which position in the text?": 6 * 2,
    "Forward, does the ring send more, less, or as much?": "less",
    "384 + 64 + 64 over CP 4: is the work even?": False,
    "CP 8: which is the next length after 100 that works?": 7 * 16,
    "last over first": round(sum(range(7 * 512 + 1, 4096 + 1)) / sum(range(1, 512 + 1)), 1),
    # 05_data_parallel
    "How many collectives run during the forward and the backward?": 0,
    "Parameters, gradients or optimizer state: which takes most memory?": "optimizer state",
    "How many rows of the matrix does rank 1 hold at stage 3?": 128 // 4,
    "The matrix is [128, 128]. What shape has its gradient on rank 1 at stage 2?": [128 // 4, 128],
    "How many all-gathers does a forward and backward take?": 39 + 38,
    "From which stage on does it fit?": 2,
    "How many ranks share one copy of the model?": 4 // 2 * 2,
    "slices of a norm": [1366, 1366, 4096 - 2 * 1366],
    "ranks that share": 8 // 2 * 4,
}
"""By the question, or the name of the exercise."""
