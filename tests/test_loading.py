"""Loading over machines: exact file and node bytes, limits, and what narrow counters make of the sizes."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from llamapar.errors import LayoutError
from llamapar.nodes.loading import BLOCKS, COUNTERS, Count, kv_cache_bytes, wrapped_count

PUBLISHED = json.loads((Path(__file__).parent / "oracles" / "published_memory.json").read_text())
TINY = lp.model("tiny")


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", PUBLISHED["files"], ids=lambda c: f"{c['model']} {c['format']}")
def test_file_bytes_are_the_published_ones(case):
    assert lp.loading(case["model"], format=case["format"]).file_bytes == case["bytes"]


@pytest.mark.parametrize("case", PUBLISHED["meta_shards"], ids=lambda c: f"{c['model']} mp{c['mp']}")
def test_a_shard_of_metas_checkpoints(case):
    loaded = lp.loading(case["model"], format=case["format"], nodes=case["mp"])
    assert {node.weight_bytes for node in loaded.nodes} == {case["tensor_bytes"]}
    over = case["file_bytes"] - case["tensor_bytes"] if case["file_bytes"] else 1
    assert 0 < over < 500_000


@pytest.mark.parametrize("case", PUBLISHED["kv_cache"], ids=lambda c: f"{c['model']} {c['tokens']}")
def test_kv_cache(case):
    assert kv_cache_bytes(case["model"], case["tokens"]) / 2**30 == pytest.approx(case["gib"], abs=0.025)


def test_q40_by_hand():
    """tiny: 4 layers, dim 128, 8 KV heads of 8, ffn 384, 1024 rows."""
    matrices = 4 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 384 * 128) + 1024 * 128
    other = 1024 * 128 + 9 * 128
    assert lp.loading(TINY).file_bytes == matrices // 32 * 18 + other * 4
    assert lp.loading(TINY, format="q80").file_bytes == matrices // 32 * 34 + other * 4
    assert lp.loading(TINY, format="f32").file_bytes == (matrices + other) * 4
    assert lp.loading(TINY.replace(tied=True)).file_bytes == lp.loading(TINY).file_bytes
    assert lp.loading(TINY, format="bf16").file_bytes == TINY.n_params * 2
    assert lp.loading(TINY, format="fp8").file_bytes == TINY.n_params * 2 - 2 * 3 * 384 * 128


def test_the_order_of_a_distributed_llama_file():
    names = [p.name for p in lp.loading(TINY.replace(tied=True, n_layers=1)).tensors]
    inner = "attention.wq attention.wk attention.wv attention.wo feed_forward.w1 feed_forward.w2"
    inner += " feed_forward.w3 attention_norm ffn_norm"
    layer = [f"layers.0.{name}.weight" for name in inner.split()]
    assert names == ["tok_embeddings.weight", *layer, "norm.weight", "output.weight"]


# -- nodes -----------------------------------------------------------------------------------------


def test_the_incident_has_about_three_gb_free():
    loaded = lp.loading("llama3.1-405b-mp16", nodes=4)
    root, *workers = loaded.nodes
    assert f"{root.weight_bytes / 2**30:.2f}" == "61.28"
    assert 2.7 < 64 - root.weight_bytes / 2**30 < 3
    assert root.kv_cache_bytes == 2 * 126 * 4096 * 16 * 128 // 4 * 4
    assert loaded.fits
    assert loaded.smallest_nodes == 4
    assert [n.role for n in workers] == ["worker"] * 3
    assert root.weight_bytes - workers[0].weight_bytes == 128256 * 16384 * 4
    assert len({n.weight_bytes for n in workers}) == 1


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
@pytest.mark.parametrize("format", list(BLOCKS))
def test_nodes_hold_the_file_and_copies_of_the_norms(nodes, format):
    loaded = lp.loading(TINY, format=format, nodes=nodes)
    norms = 9 * 128 * (4 if loaded.framework == "distributed-llama" else 2)
    assert sum(n.weight_bytes for n in loaded.nodes) == loaded.file_bytes + (nodes - 1) * norms


@pytest.mark.parametrize(
    ("memory_gib", "smallest"), [(16, None), (32, None), (48, 8), (64, 4), (128, 2), (256, 1)]
)
def test_the_smallest_number_of_nodes(memory_gib, smallest):
    for nodes in (1, 2, 4, 8):
        loaded = lp.loading("llama3.1-405b", nodes=nodes, memory_gib=memory_gib)
        assert loaded.smallest_nodes == smallest
        assert loaded.fits == (smallest is not None and nodes >= smallest)


def test_a_gigabyte_is_two_to_the_thirtieth():
    need = lp.loading("llama3.1-8b").nodes[0].total_bytes
    assert lp.loading("llama3.1-8b", memory_gib=need / 2**30).fits
    assert not lp.loading("llama3.1-8b", memory_gib=(need - 1) / 2**30).fits
    assert lp.loading("llama3.1-8b").nodes == lp.loading("llama3.1-8b", seq_len=4096).nodes


# -- counters --------------------------------------------------------------------------------------


@given(st.integers(0, 2**62) | st.sampled_from([2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 2**31]))
def test_counters_wrap_as_numpys_do(value):
    whole = np.array([value], dtype=np.int64)
    for name in COUNTERS:
        assert wrapped_count(value, name) == int(whole.astype(name)[0])


def test_the_embedding_that_wrapped():
    first = lp.loading("llama3.1-405b").overflows[0]
    assert first == Count("tok_embeddings.weight", "128256 × 16384 × 4", 8_405_385_216)
    assert first.wraps == ["int32", "uint32"]
    assert first.as_dict()["off_by"] == {"int32": 2**33, "uint32": 2**32}
    with np.errstate(over="ignore"):
        assert (
            int(np.uint32(128256 * 16384) * np.uint32(4))
            == wrapped_count(first.value, "uint32")
            == 4_110_417_920
        )


def test_nothing_overflows_in_a_small_model():
    assert lp.loading(TINY).overflows == ()
    totals = [c.value for c in lp.loading(TINY).counts() if c.what == "total"]
    assert totals[-1] == lp.loading(TINY).file_bytes
    assert totals == sorted(totals)


# -- bad input -------------------------------------------------------------------------------------


def test_rows_that_no_block_divides():
    odd = TINY.replace(ffn_dim=336 + 8)
    message = r"layers.0.feed_forward.w2.weight has rows of 344 weights, and a q40 block holds 32"
    with pytest.raises(LayoutError, match=message):
        lp.loading(odd)
    assert lp.loading(odd, format="bf16").file_bytes == odd.n_params * 2


def test_qk_norms_are_never_quantised():
    """distributed-llama's file has them before the other norms of a layer, in float32 (convert-hf.py)."""
    fit = lp.loading("qwen3-8b", nodes=2)
    layer = [p.key for p in fit.tensors if p.layer == 3]
    assert layer == ["wq", "wk", "wv", "wo", "w1", "w2", "w3", "q_norm", "k_norm", "norm", "norm"]
    plain = lp.loading(lp.model("qwen3-8b").replace(qk_norm=False), nodes=2)
    assert fit.file_bytes == plain.file_bytes + 36 * 2 * 128 * 4
