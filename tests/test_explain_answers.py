"""What `lp.explain` answers to a text with and without what is known of the run: one table."""

from __future__ import annotations

from typing import Any

import pytest

import llamapar as lp
from explaining import BATCHES, LOADED, MEET, PRODUCT, VIEW, ZERO, categories, frame, said

PADDED = "16064·8 = 128512 = 128256 + 256 pad rows"
TOKENS, RATHER = "model.embed_tokens.weight", "[16064, 8192] rather than [128256, 8192]"
QUANT = "The input size is not aligned with the quantized weight shape. This can be caused by too large "
QUANT += "tensor parallel size."
INDEX = "IndexError: list index out of range"
PAST = "IndexError: index 8192 is out of bounds for dimension 0 with size 4096"
NORMALISED = "RuntimeError: Given normalized_shape=[0], expected input with shape [*, 0], but got input of "
NORMALISED += "size[2, 8, 64]"
STACK = "RuntimeError: stack expects each tensor to be equal size, but got {} at entry 0 and {} at "
STACK += "entry {}"
MASK = "IndexError: The shape of the mask [1, 4096] at index 1 does not match the shape of the indexed "
MASK += "tensor [1, 512, 64] at index 1"
CHANNELS = "RuntimeError: Given groups=1, weight of size {}, expected input{} to have {} channels"
UNPACK = "ValueError: not enough values to unpack (expected {}, got {})"
EMPTY = "ValueError: optimizer got an empty parameter list"
INDICES = "too many indices for tensor of dimension 1"
ONE = {"tp": 1, "cp": 1, "pp": 1, "dp": 1}


def case(what: Any, why: str = "", **known: Any) -> tuple[Any, str, dict[str, Any]]:
    """What is asked, an equation of the answer or a fact that it asks for, and what is known."""
    return what, why, known


# By verdict and first cause, or by verdict alone. The statements are as the sources of torch.distributed,
# Megatron-core, DeepSpeed, Accelerate, transformers and JAX raise them, with numbers of our own.
ANSWERS: dict[str, list[Any]] = {
    "sharding: checkpoint_tp_mismatch, likely": [
        case(LOADED.format("attn.qkv_proj.weight", "[3072, 4096]", "[12288, 4096]"), "12288/4 = 3072", tp=4),
        case(MEET.format(262144, 349526, 0), "262144·8 = 2097152 ≈ 2097156", dp="6->8"),
        case(LOADED.format("lm_head.weight", "[16032, 4096]", "[128256, 4096]"), gpus=1),  # of the saving run
    ],
    "sharding: checkpoint_tp_mismatch, possible": [
        case({"q_proj.weight": (512, 4096)}, "512·8 = 4096", model="llama3-8b"),
        LOADED.format("norm.weight", "[512]", "[4096]"),
        case(frame("target.copy_(source)", MEET.format(2048, 8192, 0)), tp=4, dim=8192),
        case("No such file: '/ckpt/mp_rank_00/model.pt', expected 8 shards, found 1", "8 ≠ 1"),
    ],
    "unknown": [
        "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/mp_rank_03/model.pt'",
        frame("assert tp_size % self.total_num_kv_heads == 0", "AssertionError"),
        frame("return [layers[i] for i in range(pp_rank * per_stage, end)]", INDEX),
        case(EMPTY, pp=5),
        "ValueError: Expected out mesh with 2 dimensions, got placements of 3",
        case(INDICES, zero=3),
        "KeyError: 'tp_group'",
        "load balance index expects shape (1, seq_len) on every rank of context parallel",
        "AssertionError: embedding is shared by the first and last stage, whose weights differ",
        "ValueError: Invalid value for world_size: 12",
        "ValueError: Asking to pad but the tokenizer does not have a padding token.",
        frame("return self.rows[i]", INDEX),
        "AttributeError: 'NoneType' object has no attribute 'strip'",
        case(UNPACK.format(2, 1), zero=2),
        UNPACK.format(4, 3),
        QUANT,
        "AssertionError",
        MEET.format(64, 128, 1),
        "it broke",
        case(MEET.format(262144, 349526, 0), dp="6->7"),
        MEET.format(262144, 349526, 0),
        frame("return w.chunk(tp)[rank]", INDEX),
        frame("cos = table[positions]", PAST),
        "ValueError: You must specify exactly one of input_ids or inputs_embeds",
        "Unrecognized pipeline task text-generate, must be one of summarization, translation",
        "ValueError: All adapters must have the same r value when using combination_type linear",
        case(frame("a, b, c = x.split(n, 2)", UNPACK.format(3, 2)), tp=2),
        case("FP8 execution requires 2D matrices with height divisible by 8, but got [5504, 184]", cp=6),
        case("all_to_all split_axis (6) has to be divisible by the size of the named axis sp (4)", cp=4),
        case("Number of heads in key and value must divide the number of heads in query", tp=4),
        case("RuntimeError: start (4000) + length (4000) exceeds dimension size (4000).", tp=2),
        NORMALISED,
        BATCHES.format(400, 1600),
        "pipeline stage 1: Expected all tensors to be on the same device, but found cuda:3 and cuda:0!",
        f"TP rank 1: {STACK}".format([512], [498], 1),
        "ValueError: heads per rank must be an integer.",
        "ValueError: You have to specify either input_ids or inputs_embeds",  # as a later stage does
        "RuntimeError: Trying to create tensor with negative dimension -3: [-3, 4096]",
        "AssertionError: Padding_idx must be within num_embeddings",
        "AttributeError: 'NoneType' object has no attribute 'size' in stage 1",
        PRODUCT.format(16, 1024, 4096),  # a quarter
        PRODUCT.format(16, 1408, 4096),  # 11 heads of 128 of 32, over 3
        PRODUCT.format(16, 3670, 3668),  # parts of 11008 over 3
        PRODUCT.format(16, 2050, 2049),  # 683 on each of 3 ranks is 2049
        VIEW.format([6, 2, 512], 7168),
        "Invalid index 9, it should be in the interval [0, 7]",
        EMPTY,
        case(UNPACK.format(2, 1), zero=3),
        INDICES,
        case((4096, 4096), model="llama3-8b"),  # also a 32nd of the padded vocabulary, but wq's own shape
        case([128256, 8192], model="llama3.1-70b"),
        frame("rate = tokens // elapsed", ZERO),
        frame("steps = n // len(loader)", ZERO),
    ],
    "sharding: embed_checkpoint_shape, likely": [
        case("embed_tokens.weight is [16064, 8192]", PADDED, model="llama3.1-70b", tp=8),
        case(f"the size of `{TOKENS}` saved is {RATHER}", PADDED, model="llama3.1-70b", tp=8),
        case(LOADED.format(TOKENS, "[16064, 8192]", "[128256, 8192]"), PADDED, model="llama3.1-70b", tp=8),
        case(LOADED.format("lm_head.weight", "[16000, 64]", "[64000, 64]"), tp="4->1"),
    ],
    "sharding: embed_checkpoint_shape, possible": [
        case({"model.embed_tokens.weight": (16064, 8192)}, PADDED, model="llama3.1-70b"),
        case((16064, 8192), PADDED, model="llama3.1-70b"),
        case(MEET.format(128256, 16032, 0), "128256/8 = 16032"),
        case(MEET.format(32064, 16032, 0), "32064/2 = 16032"),
        case("embed_tokens.weight is [16032, 8192]", "model"),
    ],
    "sharding: fsdp_uneven, possible": [
        case("scatter: invalid tensor size at index 1 (expected (9, 4), got (8, 4))", dp=3),
        case(MEET.format(43, 42, 0), dp=3),
    ],
    "sharding: heads_not_divisible, likely": [
        case(f"stack expects each tensor: {VIEW.format([2, 8, 3, 5, 64], 16384)}", n_heads=16, cp=3),
        case(VIEW.format([1, 128, 6, 5, 64], 128 * 32 * 64), cp=6, heads=32),
        case(STACK.format("[2, 5, 64]", "[2, 5, 32]", 6), tp=16, heads=104, kv_heads=8, head_dim=64),
    ],
    "sharding: hidden_or_ffn_not_divisible, likely": [
        case("AssertionError: 14336 is not divisible by 5", "14336/5 = 2867.2", model="llama3-8b", tp=5),
        case(MEET.format(4779, 4778, 2), model="llama3-8b", tp=3),  # 14336 columns over 3 ranks
        case("mul got incompatible shapes for broadcasting: (2, 8, 3669), (1, 1, 3670).", tp=3, ffn=11008),
    ],
    "sharding: hidden_or_ffn_not_divisible, possible": [
        case("AssertionError: 4096 is not divisible by 3", "4096/3 = 1365.33"),
        case(MEET.format(40, 30, 2), tp=16),  # shares of 630
        case("ValueError: extent 427 of the first operand is unlike the 426 of the second", tp=6, ffn=2560),
        case(
            CHANNELS.format("[5, 426, 3]", "[2, 427, 7]", 426) + ", but got 427 channels instead",
            tp=6,
            ffn=2560,
        ),
    ],
    "sharding: kv_heads_lt_tp, likely": [
        case(VIEW.format("[1, 16, 0, 128]", 1024), tp=16),
        case(ZERO, "8//16 = 0", model="llama3.1-405b", tp=16),
    ],
    "sharding: kv_heads_lt_tp, possible": [
        case(VIEW.format("[32, 0, 8192]", 65536), tp=32),
        case(frame("steps = n // len(loader)", ZERO), tp=16, n_kv_heads=8),
        case(frame("steps = n // len(loader)", ZERO), tp=16, model="llama3-8b"),
    ],
    "sharding: layers_not_divisible_pp, likely": [
        case(frame("assert n % p == 0, m", "AssertionError: 61 % 2 != 0"), pp=2, layers=61),
    ],
    "sharding: other / global_dim_not_localized, likely": [
        case(VIEW.format("[1, 16, 8, 128]", 65536), "65536/4 = 16384", tp=4),
        case(MEET.format(10, 30, 1), tp=3, dim=30),
        case(MASK, cp=8, seq=4096),
        case(frame("buffer.copy_(received)", MEET.format(128, 512, 0)), tp=4, seq=512),
        case(MEET.format(448, 3584, 2), model="qwen2-7b", tp=8),  # 28 heads over 8 are as many columns
    ],
    "sharding: other / global_dim_not_localized, possible": [
        case(MEET.format(10, 30, 1), tp=3),  # of an activation, of a file's weight or of an adapter
        case(MEET.format(96, 768, 0), dp=8),
        case(PRODUCT.format(16, 1024, 4096), gpus=4),
    ],
    "sharding: other / zero3_unmaterialised_param, possible": [
        case("RuntimeError: size mismatch, got input (16), mat (16x64), vec (0)", zero=3),
        case(NORMALISED, zero=3),
    ],
    "sharding: position/rope, likely": [
        case(frame("x * cos[None]", MEET.format(512, 2048, 1)), cp=4, seq=2048),
    ],
    "sharding: position/rope, possible": [
        case(frame("cos = table[positions]", PAST), cp=3, seq_len=12288),
    ],
    "sharding: quant_group_vs_tp, possible": [
        case(QUANT, model="qwen2.5-72b", tp=4),
    ],
    "sharding: quant_group_vs_tp, likely": [
        case(VIEW.format([8, 26, 128], 8 * 3424), "107/4 = 26.75", ffn_dim=13696, tp=4, quant_group=128),
        case(VIEW.format([4, -1, 128], 4 * 1728) + " while scales are applied", ffn_dim=13824, tp=8),
    ],
    "sharding: seq_not_divisible, likely": [
        case(BATCHES.format(684, 680), cp=3, seq=1024),
    ],
    "sharding: seq_not_divisible, possible": [
        case(frame("order = balancer(seq_len, cp)", "AssertionError"), seq=1026, cp=4),
        case("IndexError: index 1000 is out of bounds for dimension 0 with size 1000", seq_len=1000, cp=6),
    ],
    "sharding: vocab_padding, likely": [
        case(LOADED.format("lm_head.weight", "[60032, 64]", "[60001, 64]"), tp=2, vocab=60001),
        f"[rank 3 of the model parallel group] {MEET.format(50304, 50432, 2)}",
    ],
    "sharding: vocab_padding, possible": [
        MEET.format(50304, 50432, 2),
    ],
    "sharding: world_size_product, likely": [
        case("got 8192 GPUs from 8·16·16·4", "8·16·16·4 = 8192 ≠ 16384", gpus=16384),
        case(frame("return arange(world).view(world // tp, tp)", VIEW.format([3, 8], 28)), world=28, tp=8),
    ],
    "sharding: world_size_product, possible": [
        "ValueError: The arg 'group_size' (6) must not exceed the world size (4)",
        case("AssertionError: the grid of ranks is not valid", world=12, tp=2, pp=2, dp=2),
    ],
    "not_sharding": [
        case(MEET.format(64, 128, 1), gpus=1),
        case(MEET.format(64, 128, 1), layout=ONE),
        case("it broke", gpus=1),
        case("it broke", layout=ONE),
        case(BATCHES.format(400, 1600), gpus=1),
        case(PRODUCT.format(16, 1024, 4096), gpus=1),
        case("IndexError: list index out of range", gpus=1),
    ],
    "not_sharding: fused_qkv_layout, likely": [
        case(MEET.format(32, 8, 1), "32/8 = 4", heads=32, kv_heads=8, tp=1),
    ],
    "not_sharding: other / model_config, likely": [
        case(LOADED.format("lm_head.weight", "[128256, 8192]", "[32000, 8192]"), "128256/32000 = 4.008"),
        LOADED.format("lm_head.weight", "[128256, 64]", "[50257, 64]"),
    ],
    "not_sharding: position/rope, likely": [
        case("index out of range in self", seq=900, max_seq_len=512),
    ],
    "not_sharding: quant_group_vs_tp, possible": [
        case(QUANT, tp=1),
    ],
    "unknown: heads_not_divisible, possible": [
        "pixel_unshuffle expects height to be divisible by downscale_factor, but 8 is not divisible by 3",
    ],
    "unknown: kv_heads_lt_tp, possible": [
        case(ZERO, "n_kv_heads"),
    ],
    "unknown: position/rope, likely": [
        frame("q = q * cos + rotate_half(q) * sin", MEET.format(937, 512, 1)),
    ],
    "unknown: vocab_padding, likely": [
        LOADED.format("lm_head.weight", "[60032, 64]", "[60001, 64]"),
    ],
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers(answer: str) -> None:
    for row in ANSWERS[answer]:
        what, why, known = case(row) if isinstance(row, str) else row
        found = said(what, **known)
        assert (found if ":" in answer else found.partition(":")[0]) == answer, (what, known)
        told = lp.explain(what, context=known)
        assert not why or why in (*told.best.equations, *told.needs), (what, known)


GLOO = "op.preamble.length <= op.nbytes. 40960 vs 32768. Is there a distributed collective mismatch?"
GROUP = "AssertionError: input dimension 0 (6 must be a multiple of group_size {})"
DEVICES = frame("x = rewards.view(num_devices, n)", VIEW.format([2, 8], 17))
TABLE = MEET.format(131072, 8192, 3)


@pytest.mark.parametrize(
    ("told", "other", "category"),
    [
        (None, case(GLOO), "rank_mapping_hang"),  # gloo's own question
        (
            case(GROUP.format(128)),
            case(GROUP.format(4)),
            "quant_group_vs_tp",
        ),  # a small group is one of ranks
        (None, case(DEVICES), "world_size_product"),  # a tensor beside a number of ranks is no list of ranks
        (case(TABLE, vocab_size=131072), case(TABLE), "embed_checkpoint_shape"),  # a power of two
        (None, case(TABLE), "vocab_padding"),
        (case(frame("x = self.embed_tokens(ids)", TABLE)), case(TABLE), "embed_checkpoint_shape"),
    ],
)
def test_a_cause_is_told_only_where_something_speaks_for_it(told: Any, other: Any, category: str) -> None:
    assert told is None or category in categories(told[0], **told[2])
    assert category not in categories(other[0], **other[2])


def test_a_table_that_is_not_as_wide_as_the_model_is_noticed() -> None:
    """Reported of a 70B: the rows are padded as said, and the width is that of the 8B."""
    text = "pads the vocabulary: shape before sharding [128256, 4096], after sharding [16064, 4096]"
    wide = "[128256, 4096] is 4,096 wide, and llama3.1-70b is 8,192 wide"
    assert wide in " ".join(str(lp.explain(text, model="llama3.1-70b")).split())
    alone = lp.explain("embed_tokens.weight is [128256, 5120]", model="llama3.1-70b")
    assert (
        alone.summary
        == "Not known: [128256, 5120] is 5,120 wide, and llama3.1-70b is 8,192 wide: a table of another model"
    )
    for model in (None, "llama3.1-8b"):
        assert "wide" not in str(lp.explain(text, model=model))
    for width, verdict in ((8192, "unknown"), (5120, "not_sharding")):
        loaded = LOADED.format("tok_embeddings.weight", "[128256, 4096]", f"[128256, {width}]")
        found = lp.explain(loaded)
        assert (found.verdict, found.best.subtype) == (verdict, "model_config")
        assert f"is 4,096 wide in one and {width:,} in the other: two models" in found.best.cause
