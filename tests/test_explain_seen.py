"""A sentence is said only where its condition was seen: each with a text that has it and one that has not."""

from __future__ import annotations

import pytest

import llamapar as lp

TWO = "The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension {}"
LOADED = (
    "size mismatch for model.layers.0.mlp.down_proj.weight: copying a param with shape torch.Size({}) from "
    "checkpoint, the shape in current model is torch.Size({})."
)


def raised(line: str, message: str, function: str = "forward") -> str:
    return f'Traceback (most recent call last):\n  File "x.py", line 3, in {function}\n    {line}\n{message}'


def categories(told: lp.Explanation) -> list[str]:
    return [d.category for d in told.diagnoses]


# -- position tables and vocabularies ----------------------------------------------------------------------


def test_a_position_table_is_an_operand_or_is_not_named() -> None:
    text = TWO.format(937, 512, 1)
    seen = lp.explain(raised("q = q * cos + rotate_half(q) * sin", text))
    assert seen.best.category == "position/rope"
    assert "rows" not in seen.best.cause
    for line in ("scores = scores + mask", "x = rotate_half(x) + y", "return self.rotary_emb(x)"):
        assert "position table" not in str(lp.explain(raised(line, text, "apply_rotary")))


def test_a_power_of_two_is_a_vocabulary_only_where_one_is_named() -> None:
    text = TWO.format(131072, 8192, 3)
    assert "vocabular" not in str(lp.explain(text))
    assert "embed_checkpoint_shape" in categories(lp.explain(raised("x = self.embed_tokens(ids)", text)))
    assert "embed_checkpoint_shape" in categories(lp.explain(text, vocab_size=131072))


# -- a division by 0 ---------------------------------------------------------------------------------------

ZERO = "ZeroDivisionError: integer division or modulo by zero"
USUAL = "a count per rank rounds down to 0 and then divides: usual where tp > n_kv_heads"


def test_kv_heads_are_usual_only_where_a_count_of_heads_is_named() -> None:
    told = lp.explain(raised("self.n_rep = self.n_local_heads // self.n_local_kv_heads", ZERO))
    assert told.best.cause == USUAL
    assert [said.framework for said in told.best.frameworks] == ["llama-models"]
    for line in ("rate = tokens // elapsed", "steps = n // len(loader)"):
        told = lp.explain(raised(line, ZERO))
        assert (told.verdict, categories(told)) == ("unknown", ["other"])
    bare = lp.explain(ZERO)
    assert (bare.verdict, bare.best.frameworks, bare.best.equations) == ("unknown", (), ())
    assert USUAL not in str(bare)
    assert {"tp", "n_kv_heads"} <= set(bare.needs)


def test_known_heads_prove_no_division_of_something_else() -> None:
    for known in ({"tp": 16, "n_kv_heads": 8}, {"tp": 16, "model": "llama3-8b"}):
        told = lp.explain(raised("steps = n // len(loader)", ZERO), **known)
        assert (told.verdict, str(told.best.level)) == ("unknown", "weak")
        why = "no name in the code is a count of heads"
        assert told.reason.endswith(why)


# -- a rank's slice ----------------------------------------------------------------------------------------


def test_a_rank_s_slice_takes_a_second_rank() -> None:
    text = TWO.format(1024, 4096, 2)
    assert lp.explain(text).best.cause == "1024 is 1/4 of 4096, as a rank's slice at tp=4 would be"
    meets = "1024 is 1/4 of 4096: a rank's slice ({}=4) meets the whole dim"
    assert lp.explain(f"{text}, on one of the ranks").best.cause == meets.format("tp")
    assert lp.explain(text, tp=4).best.cause == meets.format("tp")
    assert lp.explain(text, ep=4).best.cause == meets.format("ep")
    for alone in ({"tp": 1}, {"gpus": 1}):
        assert "slice" not in str(lp.explain(text, **alone))


# -- two models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", ["[14336, 4096]", "[29360128, 1]", "[5120, 13824]"])
def test_a_weight_that_differs_in_two_dims_was_not_cut(saved: str) -> None:
    told = lp.explain(LOADED.format(saved, "[4096, 14336]"))
    assert told.best.cause.endswith("differs in more than one dim: two models, or one weight in two forms")
    assert told.verdict == "not_sharding"


def test_widths_that_no_degree_relates_are_no_cut() -> None:
    cause = "no usual degree cuts {} into 4096, nor one width into both: no cut relates them"
    text = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (7x{} and 4096x11)"
    for width in (14336, 9999):
        assert lp.explain(text.format(width)).best.cause == cause.format(width)


SIZES = "RuntimeError: The size of tensor a (262144) must match the size of tensor b (349526) at dimension 0"


def test_flat_parts_of_a_state_are_vocabularies_perhaps() -> None:
    failing = raised("self.partition.copy_(saved['fp32_partition'])", SIZES)
    assert "perhaps vocabularies of 262144 and 349526 rows" in str(lp.explain(failing))


def test_an_index_of_what_is_written_to_is_no_position_table() -> None:
    shapes = (
        "RuntimeError: shape mismatch: value tensor of shape [2, 5, 3, 128] cannot be broadcast to indexing"
    )
    shapes += " result of shape [2, 5, 2, 128]"
    assert "position table" not in str(lp.explain(raised("self.k[:, positions] = k", shapes)))
    assert "position table" in str(lp.explain(raised("self.k[:, :n] = k * cos[positions]", shapes)))


# -- what another stage holds ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "TypeError: 'NoneType' object is not subscriptable",
        "AttributeError: 'LlamaStage' object has no attribute 'norm'",
        "AttributeError: 'Transformer' object has no attribute 'output'",
        "KeyError: 'hidden_states'",
    ],
)
def test_what_another_stage_may_hold_is_not_acquitted(text: str) -> None:
    told = lp.explain(text)
    assert (told.verdict, "pp" in told.needs) == ("unknown", True)
    assert lp.explain(text, pp=4).verdict == "unknown"
    assert lp.explain(text, pp=1).verdict == "not_sharding"


def test_what_no_stage_holds_is_no_matter_of_sharding() -> None:
    assert lp.explain("AttributeError: 'NoneType' object has no attribute 'strip'").verdict == "not_sharding"


# -- layers that no size of a Llama describes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("MLA: kv_lora_rank (512) must be divisible by tp 3", "multi-head latent attention (MLA)"),
        ("linear_num_value_heads (32) must be divisible by tp_size (6)", "a linear-attention layer"),
        (TWO.format(8, 64, 0) + ", in the dispatch of expert parallelism", "experts (EP)"),
    ],
)
def test_another_layer_is_not_explained_by_a_cut_of_a_llama(text: str, layer: str) -> None:
    told = lp.explain(text)
    cause = f"at best the text names {layer}, whose cuts are not read here"
    assert (told.reason, told.verdict, categories(told)) == (cause, "unknown", ["other"])
