"""Who holds what: every unit of every parameter is somewhere, and whoever asks is told the same."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import llamapar as lp
from inputs import models
from llamapar.checkpoint.sharding import Sharding
from llamapar.count.sizes import Sizes
from llamapar.describe.placement import ACTIVATIONS, COUNTED_IN, Shard
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.place.cut import Cut
from llamapar.spmd.setting import Setting

SMALL = lp.model("tiny").replace(n_layers=2, vocab_size=67, ffn_dim=52, qkv_bias=True)
LAYOUTS = [
    lp.Layout(tp=2, cp=2, dp=2),
    lp.Layout(tp=4, sequence_parallel=False),
    lp.Layout(tp=8),
    lp.Layout(tp=16),
]


def one_of_each(model):
    return list({p.key: p for p in model.replace(n_layers=1).parameters()}.values())


@st.composite
def cuts(draw):
    """Any model over any tp, its KV heads held in copies, side by side or tiled, or not."""
    model = draw(models())
    copied = draw(st.booleans())
    tp = model.n_kv_heads * draw(st.integers(2, 4)) if copied else draw(st.integers(1, 20))
    padding = draw(st.sampled_from([NO_PADDING, Padding(64), Padding(128, per_tp=True)]))
    return Cut(
        model, lp.Layout(tp=tp), padding=padding, kv_replication=copied, interleave=draw(st.booleans())
    )


# -- parameters ------------------------------------------------------------------------------------


@given(cuts())
def test_every_unit_is_held_as_often_as_there_are_copies(cut):
    tp, padded = cut.layout.tp, cut.vocab.padded
    for p in one_of_each(cut.model):
        placement, copies = cut.placement(p.key), cut.copies(p.key)
        pieces = [cut.rows(p.key, r) for r in range(tp)]
        for rank, rows in enumerate(pieces):
            shape = list(p.shape)
            if isinstance(placement, Shard):
                assert rows is not None
                shape[placement.dim] = len(rows)
            assert cut.local_shape(p, rank) == tuple(shape)
        if not isinstance(placement, Shard):
            assert pieces == [None] * tp
            assert copies == tp
            continue
        units = padded if p.key in ("tok_embeddings", "output") else p.shape[placement.dim]
        counted = Counter(itertools.chain.from_iterable(piece or () for piece in pieces))
        assert counted == Counter(dict.fromkeys(range(units), copies))
        assert COUNTED_IN[placement.unit] in ("vocab_size", "ffn_dim", "q_dim", "kv_dim")


@given(models(), st.integers(1, 20))
def test_without_copies_and_pads_a_piece_is_torchs_chunk(model, tp):
    cut = Cut(model, lp.Layout(tp=tp))
    for p in one_of_each(model):
        placement = cut.placement(p.key)
        if isinstance(placement, Shard):
            whole = torch.arange(p.shape[placement.dim])
            chunks = [chunk.tolist() for chunk in whole.chunk(tp)]
            chunks += [[]] * (tp - len(chunks))
            assert [list(cut.rows(p.key, r) or ()) for r in range(tp)] == chunks


@given(cuts())
def test_query_heads_find_their_kv_heads_where_copies_lie_side_by_side(cut):
    if not (cut.interleave and cut.heads.ok):
        return
    width, group = cut.model.head_dim, cut.model.group_size
    for rank in range(cut.layout.tp):
        q, kv = cut.rows("wq", rank) or range(0), cut.rows("wk", rank) or range(0)
        assert {row // width // group for row in q} == {row // width for row in kv} != set()
        assert cut.rows("wo", rank) == q
        assert cut.rows("w2", rank) == cut.rows("w1", rank)


# -- whoever asks is told the same -----------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("padding", [NO_PADDING, Padding(8, per_tp=True)], ids=str)
@pytest.mark.parametrize("interleave", [True, False])
def test_a_run_cuts_the_pieces_that_the_cut_tells(layout, padding, interleave):
    known = {"padding": padding, "kv_replication": True, "interleave": interleave}
    cut, sharding = Cut(SMALL, layout, **known), Sharding(SMALL, layout, **known)
    setting = Setting(SMALL, layout, **known, seq_len=32)
    for p, rank in itertools.product(one_of_each(SMALL), range(layout.tp)):
        whole = torch.arange(p.numel).reshape(p.shape)
        piece = setting.part(p.key, whole, {"tp": rank, "cp": 0, "dp": 0})
        assert tuple(piece.shape) == cut.local_shape(p, rank) == sharding.local_shape(p, rank)
        placement, rows = cut.placement(p.key), cut.rows(p.key, rank)
        if isinstance(placement, Shard) and rows is not None:
            dim, n = placement.dim, p.shape[placement.dim]
            real = torch.tensor([row for row in rows if row < n], dtype=torch.int64)
            assert torch.equal(piece.narrow(dim, 0, len(real)), whole.index_select(dim, real))
            assert not piece.narrow(dim, len(real), len(rows) - len(real)).any()
        else:
            assert torch.equal(piece, whole)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_memory_counts_the_pieces_that_a_run_cuts(layout):
    setting = Setting(SMALL, layout, kv_replication=True, seq_len=64, global_batch=layout.dp)
    sizes = Sizes(SMALL, layout, seq_len=64, kv_replication=True)
    at = {"tp": 0, "cp": 0, "dp": 0}
    for key in ("tokens", "residual", "q", "k", "ffn", "logits"):
        sizes_of = setting.sizes()
        whole = torch.empty([sizes_of[dim] for dim in ACTIVATIONS[key].dims], device="meta")
        assert setting.part(key, whole, at).numel() == sizes.activations[key], key
    counted = {part.key: part.numel for parts in sizes.parts.values() for part in parts}
    assert counted == {p.key: math.prod(setting.local_shape(p)) for p in one_of_each(SMALL)}


@settings(deadline=None)
@given(models(), st.sampled_from([1, 2, 4, 8]))
def test_traffic_of_gradients_is_that_of_the_pieces(model, tp):
    layout = lp.Layout(tp=tp, dp=2)
    cut = Cut(model, layout, kv_replication=True)
    if cut.heads.reason:
        return
    terms = lp.traffic("attention", model, layout, seq_len=8, kv_replication=True).terms
    sent = {t.part: t.payload for t in terms if t.phase == "gradients" and t.axis == "dp"}
    pieces = {p.key: 4 * math.prod(cut.local_shape(p)) for p in one_of_each(model)}
    ends = ("tok_embeddings", "output", "norm", "w1", "w2", "w3")
    assert sent == {key: size for key, size in pieces.items() if key not in ends}
