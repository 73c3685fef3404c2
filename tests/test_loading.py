"""Loading over machines: exact file and node bytes, limits, and what narrow counters make of the sizes."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from llamapar.nodes.loading import BLOCKS, COUNTERS, kv_cache_bytes, wrapped_count

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


# -- nodes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
@pytest.mark.parametrize("format", list(BLOCKS))
def test_nodes_hold_the_file_and_copies_of_the_norms(nodes, format):
    loaded = lp.loading(TINY, format=format, nodes=nodes)
    norms = 9 * 128 * (4 if loaded.framework == "distributed-llama" else 2)
    assert sum(n.weight_bytes for n in loaded.nodes) == loaded.file_bytes + (nodes - 1) * norms


# -- counters --------------------------------------------------------------------------------------


@given(st.integers(0, 2**62) | st.sampled_from([2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 2**31]))
def test_counters_wrap_as_numpys_do(value):
    whole = np.array([value], dtype=np.int64)
    for name in COUNTERS:
        assert wrapped_count(value, name) == int(whole.astype(name)[0])
