"""What a library says of its own ranks, meshes and stages, and sizes that are found forwards from what is known.

The statements are as the sources of torch.distributed, Megatron-core, DeepSpeed, Accelerate, transformers and JAX
raise them, with numbers of our own.
"""
# ruff: noqa: E501

from __future__ import annotations

import pytest

import llamapar as lp


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("RuntimeError: Global world size at save time was 6, but at load time was 4", "checkpoint_tp_mismatch"),
        ("RuntimeError: DeepSpeed checkpoint was saved with 8 partitions but 6 ranks load it",
         "checkpoint_tp_mismatch"),
        ("ValueError: [GPipe] expecting n_microbatches to be at least the number of stages", "microbatch_divisibility"),
        ("AssertionError: embedding is shared by the first and last stage, whose weights differ", "tied_embeddings"),
        ("RuntimeError: Pipeline group size 10 cannot be larger than number of stages 7", "layers_not_divisible_pp"),
        ("ValueError: Middle layers missing: partitions [3, 4] do not cover all 9 layers of the model",
         "layers_not_divisible_pp"),
        ("AssertionError: load balance index expects shape (1, seq_len) on every rank of context parallel",
         "seq_not_divisible"),
        ("ValueError: Shard tensor size does not match with the metadata of local shards", "fsdp_uneven"),
        ("ValueError: Expected out mesh with 2 dimensions, got placements of 3", "other"),
        ("NameError: unbound axis name: rows", "other"),
        ("ValueError: The arg 'group_size' (6) must not exceed the world size (4)", "world_size_product"),
        ("ValueError: Group rank 6 is not part of group 2", "other"),
        ("ValueError: `tp_plan` and `device_map` are mutually exclusive. Choose one for parallelization.", "other"),
    ],
)  # fmt: skip
def test_a_statement_of_ranks_is_read_by_what_it_is_about(text: str, category: str) -> None:
    told = lp.explain(text)
    assert (told.verdict, told.best.category) == ("sharding", category)
    assert told.best.level is not lp.Level.LIKELY  # words of a family prove no more


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: You must specify exactly one of input_ids or inputs_embeds",
        "RuntimeError: pixel_unshuffle expects height to be divisible by downscale_factor, but 8 is not divisible by 3",
        "ValueError: Unrecognized pipeline task text-generate, must be one of summarization, translation",
        "ValueError: All adapters must have the same r value when using combination_type linear",
    ],
)
def test_a_statement_of_nothing_that_is_cut_blames_no_cut(text: str) -> None:
    assert lp.explain(text).verdict != "sharding"


MEET = "RuntimeError: The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension {}"
VIEW = "RuntimeError: shape '{}' is invalid for input of size {}"
FRAME = 'Traceback (most recent call last):\n  File "a.py", line 3, in forward\n    {}\n'


@pytest.mark.parametrize(
    ("text", "facts", "category"),
    [
        (VIEW.format([5, 7, -1], 39 * 16), {"layers": 39, "pp": 5}, "layers_not_divisible_pp"),
        (VIEW.format([1, 128, 6, 5, 64], 128 * 32 * 64), {"cp": 6, "heads": 32}, "heads_not_divisible"),
        (FRAME.format("return arange(world).view(world // tp, tp)") + VIEW.format([3, 8], 28), {"world": 28, "tp": 8},
         "world_size_product"),
        (FRAME.format("qkv.view(2, 8, 6, 288)") + VIEW.format([2, 8, 6, 288], 16 * 1844),
         {"tp": 10, "heads": 64, "head_dim": 96}, "heads_not_divisible"),
        ("RuntimeError: stack expects each tensor to be equal size, but got [2, 5, 64] at entry 0 and [2, 5, 32] at "
         "entry 6", {"tp": 16, "heads": 104, "kv_heads": 8, "head_dim": 64}, "heads_not_divisible"),
        ("IndexError: The shape of the mask [1, 4096] at index 1 does not match the shape of the indexed tensor "
         "[1, 512, 64] at index 1", {"cp": 8, "seq": 4096}, "other"),
        (FRAME.format("buffer.copy_(received)") + MEET.format(128, 512, 0), {"tp": 4, "seq": 512}, "other"),
        (FRAME.format("x * cos[None]") + MEET.format(512, 2048, 1), {"cp": 4, "seq": 2048}, "position/rope"),
        (MEET.format(43, 42, 0), {"dp": 3}, "fsdp_uneven"),
        (MEET.format(96, 768, 0), {"dp": 8}, "other"),
        ("TypeError: mul got incompatible shapes for broadcasting: (2, 8, 3669), (1, 1, 3670).",
         {"tp": 3, "ffn": 11008}, "hidden_or_ffn_not_divisible"),
        ("ValueError: Expected input batch_size (684) to match target batch_size (680).", {"cp": 3, "seq": 1024},
         "seq_not_divisible"),
        (FRAME.format("order = balancer(seq_len, cp)") + "AssertionError", {"seq": 1026, "cp": 4}, "seq_not_divisible"),
        ("RuntimeError: size mismatch, got input (16), mat (16x64), vec (0)", {"zero": 3}, "other"),
        (FRAME.format("assert n % p == 0, m") + "AssertionError: 61 % 2 != 0", {"pp": 2, "layers": 61},
         "layers_not_divisible_pp"),
    ],
)  # fmt: skip
def test_sizes_are_found_forwards_from_what_is_known(text: str, facts: dict[str, int], category: str) -> None:
    told = lp.explain(text, context=facts)
    if (
        category == "other" and "world" in facts
    ):  # nothing but the length of the list speaks for a grid of ranks
        assert told.verdict != "not_sharding"
    else:
        assert (told.verdict, told.best.category) == ("sharding", category), told


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("ValueError: extent 427 of the first operand is unlike the 426 of the second", {"tp": 6, "ffn": 2560}),
        ("RuntimeError: Given groups=1, weight of size [5, 426, 3], expected input[2, 427, 7] to have 426 channels, "
         "but got 427 channels instead", {"tp": 6, "ffn": 2560}),
        (FRAME.format("a, b, c = x.split(n, 2)") + "ValueError: not enough values to unpack (expected 3, got 2)",
         {"tp": 2}),
        ("IndexError: index 1000 is out of bounds for dimension 0 with size 1000", {"seq_len": 1000, "cp": 6}),
        ("AssertionError: FP8 execution requires 2D matrices with height divisible by 8, but got [5504, 184]",
         {"cp": 6}),
        ("ValueError: all_to_all split_axis (6) has to be divisible by the size of the named axis sp (4)", {"cp": 4}),
        ("RuntimeError: Number of heads in key and value must divide the number of heads in query", {"tp": 4}),
        ("RuntimeError: start (4000) + length (4000) exceeds dimension size (4000).", {"tp": 2}),
    ],
)  # fmt: skip
def test_what_no_reader_knows_is_neither_blamed_nor_acquitted(text: str, facts: dict[str, int]) -> None:
    assert lp.explain(text, context=facts).verdict == "unknown"


def test_a_slice_that_divides_is_not_told_as_a_size_that_does_not() -> None:
    """448 is 3584/8, and 28 heads over 8 ranks would be 448 columns as well: no uneven share meets the whole."""
    told = lp.explain(MEET.format(448, 3584, 2), "qwen2-7b", tp=8)
    assert (told.verdict, told.best.title) == ("sharding", "other / global_dim_not_localized")


def test_an_empty_weight_is_no_packed_one() -> None:
    text = "RuntimeError: Given normalized_shape=[0], expected input with shape [*, 0], but got input of size[2, 8, 64]"
    assert lp.explain(text).verdict == "unknown"
    assert lp.explain(text, zero=3).verdict == "sharding"


def test_a_small_group_is_one_of_ranks() -> None:
    text = "AssertionError: input dimension 0 (6 must be a multiple of group_size {})"
    assert "quant_group_vs_tp" not in [d.category for d in lp.explain(text.format(4)).diagnoses]
    assert "quant_group_vs_tp" in [d.category for d in lp.explain(text.format(128)).diagnoses]


def test_with_one_rank_nothing_is_left_open() -> None:
    text = "ValueError: Expected input batch_size (400) to match target batch_size (1600)."
    assert lp.explain(text).verdict == "unknown"
    assert lp.explain(text, gpus=1).verdict == "not_sharding"
