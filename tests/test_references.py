"""The references beside the programs: made of other pieces, so a broken piece is seen."""

import pytest
import torch

import llamapar as lp
from llamapar.programs import attention, llama, parts, plain
from test_run_witnesses import SMALL, config, transformers

__all__ = ["transformers"]  # a fixture

BIASED = SMALL.replace(qkv_bias=True, o_bias=True)
NORMED = SMALL.replace(qk_norm=True)


def untouched(x, *_):
    return x


def without_norm(x, weight, eps):
    return x * weight


def by_columns(x, head_dim):
    """Heads of every so-manieth column, in place of neighbouring ones: the same shape."""
    return x.view(x.shape[0], x.shape[1], head_dim, -1).transpose(2, 3)


def other_turn(x, positions, model):
    return right_rope(x, -positions, model)


right_rope = parts.rope


BROKEN = {
    "rope as identity": ("rope", untouched),
    "rope the other way, on queries and keys alike": ("rope", other_turn),
    "RMSNorm without the norm": ("rms_norm", without_norm),
    "heads split wrongly": ("split_heads", by_columns),
}


@pytest.fixture(params=BROKEN)
def broken(request, monkeypatch):
    name, wrong = BROKEN[request.param]
    for module in (parts, attention, llama):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, wrong)
    return name


CASES = [
    *(pytest.param(program, SMALL, id=program) for program in ("attention", "block", "llama")),
    pytest.param("block", BIASED, id="block, biased"),
    *(pytest.param(program, NORMED, id=f"{program}, normed") for program in ("attention", "llama")),
]


@pytest.mark.parametrize(("program", "model"), CASES)
def test_a_broken_piece_is_seen(broken, program, model):
    """With rope turning both ways alike or norms left out, all ranks agree: only the reference can tell."""
    found = lp.run(program, model, {"tp": 2, "sequence_parallel": False}, seq_len=16)
    has_no_norm = program == "attention" and not model.qk_norm
    assert found.ok == (broken == "rms_norm" and has_no_norm), found.summary
    assert not found.errors


@pytest.mark.parametrize(("program", "model"), CASES)
def test_whole_pieces_are_equal(program, model):
    for dtype in ("float64", "float32"):
        assert lp.run(program, model, {"tp": 2, "cp": 2}, seq_len=64, dtype=dtype).ok


# -- transformers' functions, a third witness --------------------------------------------------------


def halves(x):
    """Neighbouring pairs of dims as transformers has them: the first of each, then the second."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


@pytest.fixture(params=["llama3-8b", "llama3.1-8b", "llama3.2-1b"])
def cos_and_sin(transformers, request):
    """A model, positions, and transformers' cosines and sines of its angles."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    model = lp.model(request.param)
    positions = torch.tensor([0, 1, 7, 100, 4095])
    made = LlamaRotaryEmbedding(config(transformers, model))
    return model, positions, *made(torch.zeros(1, dtype=torch.float32), positions[None])


def test_rope_is_that_of_transformers(cos_and_sin):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model, positions, cos, sin = cos_and_sin
    x = torch.randn(1, 5, 3, model.head_dim, generator=torch.Generator().manual_seed(0))
    theirs, _ = apply_rotary_pos_emb(halves(x), halves(x), cos, sin, unsqueeze_dim=2)
    for mine in (plain.rotated, parts.rope):
        torch.testing.assert_close(halves(mine(x, positions, model)), theirs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(plain.rotated(x, positions, model), parts.rope(x, positions, model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_that_of_transformers(transformers, dtype):
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    theirs = LlamaRMSNorm(64, eps=1e-5).to(dtype)
    generator = torch.Generator().manual_seed(0)
    theirs.weight.data = torch.randn(64, generator=generator).to(dtype)
    x = torch.randn(2, 3, 64, generator=generator).to(dtype)
    for mine in (plain.norm, parts.rms_norm):
        torch.testing.assert_close(mine(x, theirs.weight, 1e-5), theirs(x))


def test_heads_are_those_of_transformers():
    """`view(*input_shape, -1, head_dim)` in LlamaAttention.forward."""
    x = torch.arange(2 * 3 * 24.0).view(2, 3, 24)
    assert torch.equal(plain.split_heads_plainly(x, 8), x.view(2, 3, -1, 8))


# -- angles in float64 -------------------------------------------------------------------------------


@pytest.mark.parametrize("rope", [parts.rope, plain.rotated])
def test_angles_are_as_exact_as_the_numbers(rope):
    """At position 100,000 the angle of float32 is wrong in its third digit after the point."""
    model, positions = lp.model("llama3.1-8b"), torch.tensor([100_000])
    x = torch.zeros(1, 1, 1, model.head_dim, dtype=torch.float64)
    x[..., 0::2] = 1
    turned = rope(x, positions, model)
    angles = torch.atan2(turned[0, 0, 0, 1::2], turned[0, 0, 0, 0::2])
    exact = [100_000 * plain._frequency(pair, model) for pair in range(model.head_dim // 2)]
    apart = (angles - torch.tensor(exact, dtype=torch.float64)).cos()
    assert (1 - apart).abs().max() < 1e-12
