"""A job: what may be said of it, what is refused, and the numbers that messages speak of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from inputs import BAD_COUNTS, jobs, layouts
from llamapar.describe.job import _COUNTS
from llamapar.describe.layout import AXES

B8 = "llama3-8b"


@given(layouts(degrees=(1, 2, 3, 4, 6)), st.sampled_from((3, 4, 6, 8)))
def test_an_axis_leaves_its_node_where_a_group_has_ranks_of_two(layout, node):
    job = lp.Job(lp.model(B8), layout, gpus_per_node=node)
    for axis in AXES:
        groups = {lp.ranks(layout, rank).peers[axis] for rank in range(layout.world)}
        across = any(len({rank // node for rank in group}) > 1 for group in groups)
        assert job.leaves_node(axis) == across, axis


@pytest.mark.parametrize("field", _COUNTS)
def test_every_count_refuses_what_is_none(field):
    for kind, value in BAD_COUNTS.items():
        if kind == "none":  # not said
            assert getattr(lp.check(B8, {}, **{field: None}).job, field) == (
                8 if field == "gpus_per_node" else None
            )
            continue
        with pytest.raises(lp.LayoutError, match=f"^{field}=") as refusal:
            lp.check(B8, {}, schedule="flexible", **{field: value})
        assert refusal.value.field == field
        assert f"{field} must be a whole number from 1 to {_COUNTS[field]}" in str(refusal.value)
        for choice in refusal.value.choose:
            assert lp.check(B8, {}, schedule="flexible", **{field: int(choice.split("=")[1])}).job is not None


@given(jobs())
def test_numbers_agree_with_each_other(arguments):
    job = lp.check(**arguments).job
    n = job.numbers()
    layout, model = job.layout, job.model
    assert n["world"] == n["model_ranks"] * n["dp"] == layout.world
    assert n["q_dim"] == model.n_heads * model.head_dim
    assert n["vocab_local"] * n["tp"] >= n["vocab_padded"] >= n["vocab_size"]
    assert n["pad_rows"] == n["vocab_padded"] - n["vocab_size"]
    assert n["ffn_local"] * n["tp"] == n["ffn_wide"] >= n["ffn_dim"]
    assert n["kv_numel"] == n["tokens_local"] * n["kv_local"]
    assert n["stages"] == n["pp"] * n["virtual_stages"]
    assert n["layers_kept"] <= n["n_layers"]
    assert n["token_unit"] == (layout.tp if layout.sp else 1) * (2 * layout.cp if layout.cp > 1 else 1)
    assert n["replicas"] in (1, layout.tp // model.n_kv_heads)
    count = job.n_micro_batches
    assert count is None or count >= 1
