"""Answers to the questions of the notebooks, worked out by hand; that on heads has its own in test_boxes.py.

Nothing here asks the library: each is arithmetic on what the notebook says, or a fact that its text states.
"""

from __future__ import annotations

import pytest


def _digits(rank: int) -> tuple[int, int, int, int]:
    """(tp, cp, pp, dp) under TP 8, CP 16, PP 16, DP 8, by the sizes of the blocks of ranks."""
    return rank % 8, rank % 128 // 8, rank % 2048 // 128, rank // 2048


_WIDE = 128_256 * 16_384 + (2 * 126 + 1) * 16_384
"""Weights of 405B in float32: the embedding and the norms."""

_BLOCKS = 410_081_247_232 - _WIDE
"""Of the first release, with every KV head twice: 32 in 18 bytes."""


WORKED_OUT: dict[str, object] = {
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
    "In order: how many times the average work does the last rank do?": (
        sum(range(15 * 8192 + 1, 131072 + 1)) / (131072 * 131073 / 2 / 16)
    ),
    "How many of the 16,384 GPUs hold the same parameters as rank 12,345?": 16384 // (8 * 16),
    "coord of 5003": (3, 1, 7, 2),
    "DP neighbour of 57": [57 + 8 * 16 * 16, 57 + 8 * 16],
    # 02_collectives
    "Ranks 0 to 3 hold 1, 2, 3 and 4. What does rank 2 hold after an all-reduce?": 1 + 2 + 3 + 4,
    "The tensor has 16 rows. How many rows of the sum does rank 1 have after the reduce-scatter?": 16 // 4,
    "Reduce-scatter, then all-gather: is the result that of an all-reduce?": True,
    "After the all-to-all, pieces of how many ranks' rows lie on rank 2?": 4,
    # four fifths, twice
    "An all-reduce of 20 MiB over 5 ranks: how many MiB does each rank send?": 2 * 4 * (20 // 5),
    "64 MiB over 1,024 ranks: does each rank still send less than 128 MiB?": 2 * 1023 / 1024 * 64 < 128,
    "Forward an all-gather. What does its backward send?": "reduce-scatter",
    "MiB of a reduce-scatter": 15 * (64 // 16),
    "rows of an all-to-all": 64 // 8,
    # 04_vocab_embedding
    "128,256 rows, 8 ranks: who owns token 100,000?": 100_000 // (128_256 // 8),
    "A multiple of 512: how high is the table of 70B?": 251 * 512,
    "Under how many of these five rules does the height depend on TP?": 3,
    "TP 7: on which rank does token // rows put the last token, 128255?": 7,
    "What is the widest dim of any tensor on any of the 8 ranks?": 251 * 512 // 8,
    "Pads left in: is the loss too high, too low, or right?": "too high",
    "The same setting at TP 32: how many pad rows?": 126 * 32 * 32 - 128_256,
    "pad rows by rank": [0, 0, 63 * 2048 - 128_256, 2048],
    # 06_context_parallel
    "TP 2, CP 2, 16 tokens: how many does a rank hold between the matrices?": 16 // 2 // 2,
    "8 tokens in order: how many pairs does rank 1 make?": 5 + 6 + 7 + 8,
    "8 tokens in head-tail pieces: pairs of rank 0?": 1 + 2 + 7 + 8,
    "405B: Q is how many times as wide as K and V together?": 128 // (8 + 8),
    "The third token on rank 1: which position in the text?": 6 * 2,
    "Forward, does the ring send more, less, or as much?": "as much",
    "384 + 64 + 64 over CP 4: does a rank work more than another?": True,
    "last over first": round(sum(range(7 * 512 + 1, 4096 + 1)) / sum(range(1, 512 + 1)), 1),
    # 05_data_parallel
    "How many collectives run during the forward and the backward?": 0,
    "Parameters, gradients or optimizer state: which takes most memory?": "optimizer state",
    "How many rows of the matrix does rank 1 hold at stage 3?": 128 // 4,
    "The matrix is [128, 128]. What shape does its gradient have on rank 1 at stage 2?": [128 // 4, 128],
    "How many all-gathers does a forward and backward take?": 39 + 38,
    # 6 bytes of 8 billion weights and the activations are more than 80 GB, 2 bytes and the activations less
    "Which is the first stage that is expected to take less than the GPU has?": 2,
    "How many ranks share one copy of the model?": 4 // 2 * 2,
    "slices of a norm": [1366, 1366, 4096 - 2 * 1366],
    "ranks that share": 8 // 2 * 4,
    # 07_pipeline
    # rank 1 turns each micro-batch round at once, and rank 0 is one ahead
    "chunks of a schedule of your own": ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"],
    # rank 1 waits for F0 and then has no gap: 1 + 2 forwards + 2 backwards of 2; all forwards come first
    "Two ranks, two micro-batches: place GPipe": ["F0 F1 B0 B1", "F0 F1 B0 B1"],
    # a rank works 8 * (1 + 2), and waits for three forwards and three backwards
    "For what share of the time is a GPU idle?": pytest.approx(9 / (8 * 3 + 9)),
    "What does 1F1B make smaller: bubble, memory, or bubble and memory?": "memory",
    # (pp - 1) / (v * m)
    "How many times smaller is the bubble with two stages on each GPU?": pytest.approx((3 / 8) / (3 / 16)),
    # three columns before the first micro-batch reaches the last rank; eight micro-batches of two stages of 3
    "What is the bubble of ZBV, as a share of the computing time?": pytest.approx(3 / (8 * 2 * 3)),
    "Which of the three ends last?": "1F1B",
    # 0B0 needs 1B0, which comes after 1F1, which needs 0F1, which comes after 0B0
    "Can the two ranks run this?": False,
    # the swap alone changes what the forward sees
    "In how many of the four is the loss wrong?": 1,
    # 08_memory
    "Can one GPU of 80 GB train the 8B model?": 18 * 8_030_261_248 < 80 * 10**9,
    "Which of ZeRO's stages saves most: 1, 2 or 3?": 1,  # 12 of 18 bytes; then 4, then 2
    # x, once for w1 and w3; x @ w1 for silu; both factors; their product for w2
    "How many tensors does the MLP keep for its backward?": 1 + 1 + 2 + 1,
    "Which saves more alone: SP, or selective recomputation?": "selective recomputation",
    # 16 in flight of 7 layers, 15 of 8, 14 of 8
    "Which stage, 0 to 15, needs most memory?": max(range(3), key=[16 * 7, 15 * 8, 14 * 8].__getitem__),
    "own bytes under ZeRO 3": (4 + 4 + 8) * 70_553_706_496 // 64,
    "in flight on stage 5": 8 - 5,
    "bytes of logits": 8192 * 128256 // 8 * 4,
    # 09_whole_step
    "Over how many of the 16 ranks is the gradient of a matrix summed?": 2 * 2,  # cp times dp
    "With every copy counted: is the norm too large or too small?": "too large",
    # d/dg of g / (g + e) is e / (g + e)^2, at g = e a quarter of 1 / e: 1e-3 * 1e8 / 4 * 1e-15 = 2.5e-11
    "By what power of ten is the updated weight off (for 3e-7: -7)?": -11,
    "After six steps, do the losses still agree to twelve digits?": True,
    "In how many of the six runs is the loss of the step off?": 0,  # each comes after the forward
    # eps off by 7e-4 lies below bfloat16's rounding of 3e-2, and above the 1e-6 and 2e-15 of the others
    "In how many of the three dtypes does the wrong run stand out, by more than twice?": 2,
    "Over which axis does the rank send most: tp, cp, pp or dp?": "tp",
    "norm of two ranks": pytest.approx((9 + 14 + 2) ** 0.5),
    # one sum of squares, as in megatron/core/optimizer/clip_grads.py and torchtitan/distributed/utils.py
    "numbers for the norm": 1,
    # 10_time_and_plan
    # the notebook's own constants: 80.3 % of the peak in the best shapes, 79 % of it sustained
    "Milliseconds of matrix products in one layer?": pytest.approx(
        1e3 * 2 * 8192 * 218_103_808 / (989.4e12 * 0.803 * 0.79), rel=1e-3
    ),
    "Which fraction of the step waits for weights and gradients?": 0.001,  # 3.7 ms of 6.28 s
    # twice the sequences a group, 15/16 of the bytes for 7/8, eight cards of 50 GB/s for links of 450
    "From TP 8 to TP 16: how many times the waiting?": int(2 * (15 / 16) / (7 / 8) * 450 / (8 * 50)),
    "Which TP has the fastest layout?": 1,  # TP makes every layer wait; ZeRO 3 hides its gathers
    "bubble of 64 micro-batches": round(100 * 15 / (8 * 64), 1),
    # 11_checkpoints
    "How many tensors are in it?": 4 * (4 + 3 + 2) + 3,
    "A layer is missing. How many tensors does torch.load read without complaint?": 3 * (4 + 3 + 2) + 3,
    "wq and q_proj have the same shape. What else is the same?": "the rows",
    "TP 2 and PP 3: how many files?": 2 * 3,
    "Un-pad first, then gather: how many of the 128,256 rows are written?": 128_512 // 8,
    "Copies in the wrong order: do all headers pass?": True,
    "It stopped half-way: which folder is on disk?": "nothing",
    "TP of 8064 rows": 129_024 // 8064,  # 129,024 is 126 times 64 * 16
    "row 3 of a head": 64 + 1,  # the second row of pair 1, after 64 first ones
    # 08_memory, on loading
    # the KV cache: keys and values of 126 layers, 1,024 tokens, 16 heads of 128, in float32, on four machines
    "How many GB does the root need?": pytest.approx(
        (_BLOCKS / 32 * 18 / 4 + _WIDE * 4 + 2 * 126 * 1024 * 16 * 128 * 4 / 4) / 1e9, rel=1e-3
    ),
    "What does an unsigned 32-bit number hold of the product?": 128_256 * 16_384 * 4 - 2**32,
    "Make the result 64 bits wide, or one of the factors: which gives the right size?": "a factor",
    "Machines of 32 GB: on how many of them does it run?": 16,  # on 8, 29 + 8.4 GB on the root; 16 KV heads
    "first vocabulary that wraps": 2**32 // (16_384 * 4),
    # 12_shape_debugger
    # the count, and the degree that divides it
    # 1,024 columns of K over 16 ranks
    "K of 8,192 tokens, in heads of 128: which size does the message call invalid?": 8192 * 1024 // 16,
    # d names two models' vocabularies
    "Which of the eight was caused by another model's configuration, and not by a layout?": "d",
    "TP of the saved head": 152_064 // 19_008,
    "Which is the largest tensor_parallel_degree with which torchtitan runs it?": 8,  # its KV heads
    "columns of a rank": [262_144 // (2 * 4096), 8 * 128 // (262_144 // (2 * 4096))],
}
"""By the question, or by the name of the exercise."""
