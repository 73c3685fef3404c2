"""The arithmetic of splits and the placement table: nothing lost, nothing twice, pads where said."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from inputs import models
from llamapar.describe.splits import LAYER_SPLITS, NO_PADDING, Padding, Split
from llamapar.place.cut import Cut
from llamapar.records.trace import causal_pairs

# -- one dimension ---------------------------------------------------------------------------------


@given(st.integers(0, 3000), st.integers(1, 200))
def test_a_split_loses_nothing_and_repeats_nothing(n, k):
    split = Split(n, k)
    assert list(itertools.chain.from_iterable(split)) == list(range(n))
    sizes = [len(shard) for shard in split]
    assert len(sizes) == len(split) == k
    assert sizes == sorted(sizes, reverse=True)  # full shards, a shorter one, empty ones
    assert sum(0 < size < split.size for size in sizes) <= 1
    assert split.even == (len(set(sizes)) == 1)
    if n:
        assert all(unit in split[split.owner(unit)] for unit in {0, n // 2, n - 1})


@given(st.integers(0, 4000), st.integers(0, 300))
def test_causal_pairs_count_the_mask(first, count):
    assert causal_pairs(range(first, first + count)) == sum(p + 1 for p in range(first, first + count))


# -- padding ---------------------------------------------------------------------------------------


@given(
    st.integers(1, 200_000),
    st.integers(1, 70),
    st.sampled_from([NO_PADDING, Padding(64), Padding(1, True), Padding(64, True), Padding(128, True)]),
)
def test_padding_reaches_the_next_multiple(vocab, tp, padding):
    padded = padding.padded(vocab, tp)
    assert vocab <= padded < vocab + padding.unit(tp)
    assert padded % padding.unit(tp) == 0
    if padding.per_tp:
        assert Split(padded, tp).even


# -- layers over stages ----------------------------------------------------------------------------


@given(st.sampled_from(sorted(LAYER_SPLITS)), st.integers(1, 200), st.integers(1, 220))
def test_every_split_places_every_layer_or_refuses(name, layers, stages):
    try:
        counts = LAYER_SPLITS[name](layers, stages)
    except lp.LayoutError:
        if name == "equal":
            assert layers % stages
        else:
            assert name == "balanced ends"
            assert stages > layers + 2
        return
    assert len(counts) == stages
    assert sum(counts) == layers
    assert min(counts) >= 0
    work = list(counts)
    if name == "balanced ends" and stages > 1:
        work[0] += 1
        work[-1] += 1
    if name == "equal compute":  # without a head, stages end with the layer that passes their share
        assert max(counts) - min(counts) <= 2
    elif name != "remainder last":
        assert max(work) - min(work) <= (name != "equal")


# -- the placement table ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mp", "shard", "total"),
    [
        ("llama3-8b", 1, 8_030_261_248, 8_030_261_248),
        ("llama3-70b", 8, 8_820_367_360, 70_562_938_880),
        ("llama3.1-405b", 8, 50_735_300_608, 405_882_404_864),
        ("llama3.1-405b-mp16", 16, 25_633_964_032, 410_143_424_512),
        ("llama2-13b", 2, 6_508_139_520, 13_016_279_168 - 2 * 64),  # its files also hold rope.freqs
    ],
)
def test_elements_of_metas_shards(name, mp, shard, total):
    model = lp.model(name)
    cut = Cut(model, lp.Layout(tp=mp))
    ranks = [sum(math.prod(cut.local_shape(p, r)) for p in model.parameters()) for r in range(mp)]
    assert ranks == [shard] * mp
    assert sum(ranks) == total
    norms = (2 * model.n_layers + 1) * model.dim  # the only ones that every shard repeats
    assert total == model.n_params + (mp - 1) * norms


@given(models(), st.integers(1, 12), st.integers(1, 3), st.sampled_from(sorted(LAYER_SPLITS)))
def test_every_parameter_has_one_stage(model, pp, virtual, split):
    layout = lp.Layout(pp=pp, virtual_stages=virtual)
    try:
        counts = LAYER_SPLITS[split](model.n_layers, layout.stages, model.head_layers)
    except lp.LayoutError:
        return
    cut = Cut(model, layout, layer_split=tuple(counts))
    if layout.stages <= model.n_layers + 2:
        assert Cut(model, layout, layer_split=split).stages.stages == cut.stages.stages
    per_stage = [0] * layout.stages
    for p in model.parameters():
        per_stage[cut.stage(p)] += p.numel
    expected = [count * model.layer_params for count in counts]
    expected[0] += model.vocab_size * model.dim
    expected[-1] += model.dim + (0 if model.tied else model.vocab_size * model.dim)
    assert per_stage == expected
