"""The integer maps: every unit placed once, copies where they belong, and what the records say."""

import itertools
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from inputs import Page, layouts, models
from llamapar.describe.splits import LAYER_SPLITS, Padding
from llamapar.place.rank_grid import MAX_CELLS
from llamapar.records.tables import SHOWN

# -- heads -----------------------------------------------------------------------------------------


@given(models(), st.integers(1, 70))
def test_without_copies_every_row_has_one_rank(model, tp):
    made = lp.heads(model, {"tp": tp})
    held = made.ranks
    assert list(itertools.chain.from_iterable(r.q_rows for r in held)) == list(range(model.q_dim))
    assert list(itertools.chain.from_iterable(r.kv_rows for r in held)) == list(range(model.kv_dim))
    for r in held:
        width = model.head_dim
        assert set(r.q_heads) == {row // width for row in r.q_rows}
        assert set(r.kv_heads) == {row // width for row in r.kv_rows}
        assert r.q_whole == (len(r.q_rows) == len(r.q_heads) * width > 0)
        assert r.kv_whole == (len(r.kv_rows) == len(r.kv_heads) * width > 0)
    assert made.ok == (model.n_heads % tp == 0 and model.n_kv_heads % tp == 0)
    assert made.shared() == {}
    if made.ok:
        assert all(r.kv_heads == made.kv_needed(r.rank) for r in held)


@given(models(), st.integers(2, 16))
def test_copies_lie_where_the_query_heads_need_them(model, copies):
    tp = model.n_kv_heads * copies
    made = lp.heads(model, {"tp": tp}, kv_replication=True)
    assert made.replicas == copies
    shared = made.shared()
    assert sorted(itertools.chain.from_iterable(shared.values())) == list(range(tp))
    assert [len(ranks) for ranks in shared.values()] == [copies] * model.n_kv_heads
    assert all(rank // copies == head for head, ranks in shared.items() for rank in ranks)
    assert made.ok == (model.n_heads % tp == 0)
    if made.ok:
        assert made.wrong_ranks == []
        assert all(r.kv_heads == made.kv_needed(r.rank) and r.kv_whole for r in made.ranks)


@given(models(), st.integers(2, 16))
def test_tiled_copies_pass_every_shape_check(model, copies):
    """The trap: as many rows on each rank and copies of each head as there should be."""
    tp = model.n_kv_heads * copies
    right = lp.heads(model, {"tp": tp}, kv_replication=True)
    tiled = lp.heads(model, {"tp": tp}, kv_replication=True, interleave=False)
    assert [len(r.kv_rows) for r in tiled.ranks] == [len(r.kv_rows) for r in right.ranks]
    assert Counter(r.kv_heads[0] for r in tiled.ranks) == Counter(r.kv_heads[0] for r in right.ranks)
    if model.n_heads % tp == 0:
        wrong = [r for r in range(tp) if r % model.n_kv_heads != r // copies]
        assert tiled.wrong_ranks == wrong
        assert tiled.ok == (not wrong)


# -- heads traded over CP ----------------------------------------------------------------------------


def pairs(held):
    """The (position, query head) pairs that a rank holds."""
    return {(at, head) for chunk in held.chunks for at in chunk for head in held.q_heads}


@pytest.mark.parametrize("chunking", ["head-tail", "contiguous"])
@pytest.mark.parametrize(("cp", "way", "among"), [(4, "a2a", 4), (8, "ulysses:2", 2), (2, "ulysses", 2)])
def test_a_rank_gets_its_slice_of_heads_from_each_rank_that_trades(cp, way, among, chunking):
    """As if every rank cut its heads into pieces and sent the n-th one to the n-th rank of its group."""
    made = lp.heads("llama3-8b", tp=4, kv_replication=True).traded(
        lp.sequence(cp=cp, seq_len=64, chunking=chunking), way
    )
    for r in range(cp):
        group = range(r // among * among, r // among * among + among)
        each = 8 // among
        mine = range(r % among * each, (r % among + 1) * each)
        wanted = {pair for n in group for pair in pairs(made.before(n)) if pair[1] in mine}
        assert pairs(made.after(r)) == wanted
        assert set(made.after(r).kv_heads) == {head // 4 for head in mine}
    assert sum(len(pairs(made.after(r))) for r in range(cp)) == 64 * 8


# -- vocabulary ------------------------------------------------------------------------------------

PADDINGS = (Padding(1), Padding(64), Padding(1, True), Padding(64, True), Padding(128, True))


@given(models(), st.integers(1, 70), st.sampled_from(PADDINGS))
def test_every_token_has_one_rank_and_pads_are_at_the_end(model, tp, padding):
    made = lp.vocab(model, {"tp": tp}, padding=padding)
    held = made.ranks
    assert list(itertools.chain.from_iterable(r.rows for r in held)) == list(range(made.padded))
    assert list(itertools.chain.from_iterable(r.real for r in held)) == list(range(model.vocab_size))
    assert sum(r.pads for r in held) == made.pad_rows == made.padded - model.vocab_size
    for r in held:  # a rank's pads are its last rows
        assert r.rows[: len(r.real)] == r.real or not r.real
    for token in {0, model.vocab_size // 2, model.vocab_size - 1}:
        assert token in made.rank(made.owner(token)).real
    assert made.ok == (made.padded % tp == 0) == (not made.reason)


# -- FFN columns -----------------------------------------------------------------------------------


@given(models(), st.integers(1, 70))
def test_every_ffn_column_has_one_rank(model, tp):
    made = lp.ffn(model, {"tp": tp})
    assert list(itertools.chain.from_iterable(made.split)) == list(range(model.ffn_dim))
    assert made.ok == (model.ffn_dim % tp == 0) == (not made.reason)
    assert made.ok == all(f.code != "LP103" for f in lp.check(model, {"tp": tp}).findings)


# -- sequence --------------------------------------------------------------------------------------


@given(st.integers(1, 3000), st.integers(1, 40), st.sampled_from(["head-tail", "contiguous"]))
def test_every_position_has_one_rank(seq, cp, chunking):
    made = lp.sequence({"cp": cp}, seq, chunking=chunking)
    held = [p for r in made.ranks for chunk in r.chunks for p in chunk]
    assert sorted(held) == list(range(seq))
    assert sum(r.tokens for r in made.ranks) == seq
    assert sum(r.pairs for r in made.ranks) == made.pairs == seq * (seq + 1) // 2
    for r in made.ranks:
        assert r.pairs == sum(p + 1 for chunk in r.chunks for p in chunk)
    unit = cp * (2 if chunking == "head-tail" else 1)
    assert made.ok == (cp == 1 or seq % unit == 0)
    assert made.imbalance == max(r.pairs for r in made.ranks) * cp / made.pairs
    if made.ok and chunking == "head-tail":
        assert made.imbalance == 1
        assert len({r.pairs for r in made.ranks}) == 1


# -- stages ----------------------------------------------------------------------------------------


@given(models(), st.integers(1, 40), st.integers(1, 4), st.sampled_from(sorted(LAYER_SPLITS)))
def test_every_layer_has_one_stage(model, pp, virtual, split):
    made = lp.stages(model, {"pp": pp, "virtual_stages": virtual}, layer_split=split)
    if not made.ok:
        assert (made.counts, made.stages, made.runs) == ([], [], [])
        assert re.search(r"\d+ (stages for|layers do not divide over) \d+", made.reason)
        assert made.reason in str(made)
        return
    placed = [layer for stage in made.stages for layer in stage.layers]
    assert placed == list(range(model.n_layers))
    assert len(made.stages) == pp * virtual
    assert [s.stage for s in made.stages if s.embedding] == [0]
    assert [s.stage for s in made.stages if s.head] == [pp * virtual - 1]
    assert sorted(s.stage for s in made.stages) == list(range(pp * virtual))
    assert all(sum(s.rank == r for s in made.stages) == virtual for r in range(pp))
    assert sum(n * count for n, count in made.runs) == model.n_layers


# -- ranks -----------------------------------------------------------------------------------------


@given(layouts(), st.randoms(use_true_random=False))
def test_a_grid_has_a_cell_for_every_rank(lay, random):
    rank = random.randrange(lay.world)
    grid = lp.ranks(lay, rank)
    assert (grid.rows - 1) * grid.cols * grid.block < lay.world <= grid.rows * grid.cols * grid.block
    assert -(-lay.world // grid.block) <= MAX_CELLS
    for r in {0, lay.world - 1, rank, lay.world // 3}:
        row, col = grid.cell(r)
        assert 0 <= row < grid.rows
        assert 0 <= col < grid.cols
        first = (row * grid.cols + col) * grid.block
        assert first <= r < first + grid.block
    assert all(rank in group for group in grid.peers.values())
    assert grid.coord == lay.coord_of(rank)


# -- what every record has in common ---------------------------------------------------------------


NAME = "<script>alert('&')</script>"
RECORDS = {
    "heads": lambda: lp.heads(lp.model("tiny").replace(name=NAME), {"tp": 64}),
    "vocab": lambda: lp.vocab(lp.model("tiny").replace(name=NAME), {"tp": 64}),
    "sequence": lambda: lp.sequence({"cp": 64}, 8192),
    "stages": lambda: lp.stages(lp.model("llama3-8b").replace(name=NAME), {"pp": 34}),
    "ffn": lambda: lp.ffn(lp.model("llama3-8b").replace(name=NAME), {"tp": 64}),
    "ranks": lambda: lp.ranks({"tp": 64}),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_records_show_themselves(kind):
    record = RECORDS[kind]()
    assert repr(record) == str(record) == str(RECORDS[kind]())
    page = record._repr_html_()
    assert page == RECORDS[kind]()._repr_html_()
    assert "<script" not in page
    parser = Page()
    parser.feed(page)
    assert parser.open == []
    if kind in ("heads", "vocab", "stages", "ffn"):
        assert any(NAME in text for text in parser.text)
    lines = str(record).splitlines()
    assert all(line == line.rstrip() for line in lines)
    words = " ".join(" ".join(parser.text).split())
    assert all(line.split()[0] in words for line in lines)
    if kind != "ranks":
        assert len(lines) <= 2 + SHOWN + 1
