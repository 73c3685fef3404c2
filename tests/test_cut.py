"""Who holds what: every unit of every parameter is somewhere, and whoever asks is told the same."""

import ast
import itertools
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import llamapar as lp
from inputs import models
from llamapar.checkpoint.sharding import Sharding
from llamapar.count.sizes import Sizes
from llamapar.describe.placement import ACTIVATIONS, COUNTED_IN, PARAMETERS, Shard
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.place.cut import Cut
from llamapar.spmd.setting import Setting

PACKAGE = Path(lp.__file__).parent

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
        if not isinstance(placement, Shard):
            assert pieces == [None] * tp
            assert copies == tp
            continue
        units = padded if p.key in ("tok_embeddings", "output") else p.shape[placement.dim]
        counted = Counter(itertools.chain.from_iterable(piece or () for piece in pieces))
        assert counted == Counter(dict.fromkeys(range(units), copies))
        assert COUNTED_IN[placement.unit] in ("vocab_size", "ffn_dim", "q_dim", "kv_dim")


@given(cuts())
def test_a_local_shape_is_as_long_as_its_rows(cut):
    for p in one_of_each(cut.model):
        placement = cut.placement(p.key)
        for rank in {0, cut.layout.tp // 2, cut.layout.tp - 1}:
            rows, shape = cut.rows(p.key, rank), list(p.shape)
            if isinstance(placement, Shard):
                assert rows is not None
                shape[placement.dim] = len(rows)
            assert cut.local_shape(p, rank) == tuple(shape)


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


def test_columns_of_an_embedding_and_the_longest_sequence():
    cut = Cut(lp.model("llama2-13b"), lp.Layout(tp=2), embedding_columns=True)
    shapes = {p.key: cut.local_shape(p, 1) for p in one_of_each(cut.model)}
    assert (shapes["tok_embeddings"], shapes["output"]) == ((32000, 2560), (16000, 5120))
    model, layout = lp.model("llama3-8b"), lp.Layout(tp=2, cp=4)
    assert Cut(model, layout).sequence == lp.sequence(layout, model.max_seq_len)
    short = lp.sequence(layout, 64, chunking="contiguous")
    assert Cut(model, layout, seq_len=64, chunking="contiguous").sequence == short


def test_the_maps_are_those_of_the_public_functions():
    model, layout, padding = lp.model("llama3-70b"), lp.Layout(tp=16, pp=4), Padding(128, per_tp=True)
    cut = Cut(model, layout, padding=padding, kv_replication=True, layer_split="remainder first")
    assert cut.heads == lp.heads(model, layout, kv_replication=True)
    assert cut.vocab == lp.vocab(model, layout, padding=padding)
    assert cut.ffn == lp.ffn(model, layout)
    assert cut.stages == lp.stages(model, layout, layer_split="remainder first")


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


# -- nobody else knows where a KV head lies --------------------------------------------------------

UNITS = {placement.unit for placement in PARAMETERS.values() if str(placement).endswith("head")}
MAY_DISPATCH = {"describe/placement.py"}
"""And place/. figures/ and diagnosis/ print the words: there a table by them is no dispatch."""


def dispatches(source, keys):
    """Lines that compare with the unit of a head, match on it or, with `keys`, look up by it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        parts = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict) and keys:
            parts = list(node.keys)
        inner = [part for whole in parts if whole for part in ast.walk(whole)]
        found |= {part.lineno for part in inner if isinstance(part, ast.Constant) and part.value in UNITS}
    return sorted(found)


def test_a_unit_is_dispatched_on_by_the_cut_alone():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in MAY_DISPATCH and not name.startswith("place/"):
            keys = not name.startswith(("figures/", "diagnosis/"))
            assert dispatches(path.read_text(), keys) == [], name
    for source in (
        'if placed.unit == "KV head": pass',
        'x = "KV head" != unit',
        'y = unit in ("query head", "KV head")',
        'match unit:\n    case "KV head": pass',
        'z = {"KV head": 1}[unit]',
    ):
        assert dispatches(source, keys=True), "it would be noticed"
    assert not dispatches('raise ValueError(f"{n} KV heads", "KV head")', keys=True)
