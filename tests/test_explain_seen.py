"""A sentence is said only where its condition was seen: each with a text that has it and one that has not."""

import pytest

import llamapar as lp
from explaining import LOADED, MEET, ZERO, categories, frame

WRITTEN = (
    "RuntimeError: shape mismatch: value tensor of shape [2, 5, 3, 128] cannot be broadcast to indexing "
)
WRITTEN += "result of shape [2, 5, 2, 128]"
LENGTHS = MEET.format(937, 512, 1)


@pytest.mark.parametrize(
    ("line", "message", "named"),
    [
        ("q = q * cos + rotate_half(q) * sin", LENGTHS, True),
        ("scores = scores + mask", LENGTHS, False),
        ("x = rotate_half(x) + y", LENGTHS, False),
        ("return self.rotary_emb(x)", LENGTHS, False),
        ("self.k[:, :n] = k * cos[positions]", WRITTEN, True),
        ("self.k[:, positions] = k", WRITTEN, False),  # an index of what is written to
    ],
)
def test_a_position_table_is_an_operand_or_is_not_named(line, message, named):
    told = lp.explain(frame(line, message, "apply_rotary"))
    assert ("position table" in str(told)) == named
    assert not named or "rows" not in told.best.cause


# -- a division by 0 ---------------------------------------------------------------------------------------

USUAL = "a count per rank rounds down to 0 and then divides: usual where tp > n_kv_heads"


def test_kv_heads_are_usual_only_where_a_count_of_heads_is_named():
    told = lp.explain(frame("self.n_rep = self.n_local_heads // self.n_local_kv_heads", ZERO))
    assert told.best.cause == USUAL
    assert [said.framework for said in told.best.frameworks] == ["llama-models"]
    bare = lp.explain(ZERO)
    assert (bare.verdict, bare.best.frameworks, bare.best.equations) == ("unknown", (), ())
    assert USUAL not in str(bare)
    assert {"tp", "n_kv_heads"} <= set(bare.needs)


# -- a rank's slice ----------------------------------------------------------------------------------------


def test_a_rank_s_slice_takes_a_second_rank():
    text = MEET.format(1024, 4096, 2)
    assert lp.explain(text).best.cause == "1024 is 1/4 of 4096, as a rank's slice at tp=4 would be"
    meets = "1024 is 1/4 of 4096: a rank's slice ({}=4) meets the whole dim"
    assert lp.explain(f"{text}, on one of the ranks").best.cause == meets.format("tp")
    assert lp.explain(text, tp=4).best.cause == meets.format("tp")
    assert lp.explain(text, ep=4).best.cause == meets.format("ep")
    for alone in ({"tp": 1}, {"gpus": 1}):
        assert "slice" not in str(lp.explain(text, **alone))


# -- two models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", ["[14336, 4096]", "[29360128, 1]", "[5120, 13824]"])
def test_a_weight_that_differs_in_two_dims_was_not_cut(saved):
    told = lp.explain(LOADED.format("model.layers.0.mlp.down_proj.weight", saved, "[4096, 14336]"))
    assert told.best.cause.endswith("differs in more than one dim: two models, or one weight in two forms")
    assert told.verdict == "not_sharding"


# -- layers that no size of a Llama describes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("MLA: kv_lora_rank (512) must be divisible by tp 3", "multi-head latent attention (MLA)"),
        ("linear_num_value_heads (32) must be divisible by tp_size (6)", "a linear-attention layer"),
        (MEET.format(8, 64, 0) + ", in the dispatch of expert parallelism", "experts (EP)"),
    ],
)
def test_another_layer_is_not_explained_by_a_cut_of_a_llama(text, layer):
    told = lp.explain(text)
    cause = f"the text names {layer}, whose cuts are not read here"
    assert (told.reason, told.verdict, categories(text)) == (cause, "unknown", [])
