"""A view in the local engine keeps the storage of its own shell: numbers are in the ranks' tensors alone."""

import pytest
import torch

import llamapar as lp
from llamapar import Layout, ModelConfig
from llamapar.programs import PROGRAMS
from llamapar.spmd import local_mode
from stepping import step_through

MODEL = ModelConfig(
    dim=16, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=4, ffn_dim=24, vocab_size=50, name="small"
)

CALLS = [
    *((name, {}) for name in PROGRAMS),
    ("attention", {"cp_method": "ring"}),
    ("attention", {"documents": (3, 5)}),
    ("llama", {"layout": Layout(tp=2, pp=2), "schedule": "zbv", "micro_batches": 2}),
]


def run(program, options):
    known = {"layout": Layout(tp=2, cp=2), "seq_len": 8, "dtype": "float64", "device": "cpu"}
    return lp.run(program, MODEL, **(known | options))


def tensors(result):
    sides = (False, result.outputs), (True, result.gradients)
    return {(rank, name, g): t for g, side in sides for rank, own in side.items() for name, t in own.items()}


@pytest.mark.soak
def test_every_program_makes_the_same_to_the_last_bit(sample, monkeypatch):
    for program, options in sample(CALLS, 3):
        ours = run(program, options)
        with monkeypatch.context() as patch:
            patch.setattr(local_mode, "_PATCHES", local_mode._PATCHES[1:])  # as torch does it
            theirs = run(program, options)
        assert ours.traces == theirs.traces
        assert tensors(ours).keys() == tensors(theirs).keys()
        for key, t in tensors(ours).items():
            assert torch.equal(t, tensors(theirs)[key]), key


def _through_a_view(x):
    y = x * 1.0
    y.view(-1)[:3].mul_(2.0)
    y.mT[0].add_(x.mT[1])
    return y


def _through_pieces(x):
    y = x * 1.0
    for column in range(0, y.shape[1], 2):
        y.narrow(1, column, 1).neg_()
    y.unsqueeze_(0)
    return y.squeeze(0) + y.detach()[0]


@pytest.mark.parametrize("function", [_through_a_view, _through_pieces])
def test_what_a_view_changes_is_changed_in_its_base_and_has_its_gradient(function):
    ranks = step_through("mlp", "tiny", Layout(tp=2), seq_len=8, dtype="float64")
    with ranks:
        made = function(ranks.tensors["w1"])
        (gradient,) = torch.autograd.grad(made.square().sum(), [ranks.tensors["w1"]])
        found = ranks.values(made), ranks.values(gradient)
    for rank, own in ranks.values(ranks.tensors["w1"]).items():
        alone = own.clone().requires_grad_()
        expected = function(alone)
        (wanted,) = torch.autograd.grad(expected.square().sum(), [alone])
        assert torch.equal(found[0][rank], expected)
        assert torch.equal(found[1][rank], wanted)
    ranks.close()


def test_torch_has_its_own_again_outside_of_local_ranks():
    ranks = step_through("mlp", "tiny", Layout(tp=2))
    with ranks:
        assert local_mode._local.return_and_correct_aliasing is local_mode._unaliased
    assert local_mode._local.return_and_correct_aliasing is local_mode._aliased
    ranks.close()
