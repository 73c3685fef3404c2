"""What the engines raise, explained: `Result.explanation`, `lp.explain(result)`, and the shape tape."""

import pytest
import torch

import llamapar as lp
from llamapar.diagnosis import newest


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_the_first_rank_to_raise_is_explained_by_its_own_words(engine):
    def mine(mesh, setting, x, wq):
        return (x @ wq.mT).view(*x.shape[:2], setting.model.n_heads, setting.model.head_dim).flatten(2)

    result = lp.run(mine, "tiny", lp.Layout(tp=2, sequence_parallel=False), engine=engine, timeout=120)
    assert result.explanation.best.subtype == "global_dim_not_localized"
    assert result.explanation.cause.startswith("64 is 1/2 of 128: a rank's slice (tp=2)")


def test_a_bug_of_the_program_itself_is_not_blamed_on_the_layout():
    def mine(mesh, setting, x, w1):
        return x @ w1.mT + torch.ones(7)

    result = lp.run(mine, "tiny", {"tp": 2})
    assert result.errors
    assert result.explanation.verdict != "sharding"


def test_replicated_kv_heads_are_known():
    """16 ranks with copies of 8 KV heads hold whole ones: what fails there fails for another reason."""

    def mine(mesh, setting, x, wk):
        return (x @ wk.mT).view(-1, 3)

    result = lp.run(mine, "tiny", {"tp": 16}, kv_replication=True)
    assert result.errors
    assert "kv_heads_lt_tp" not in {d.category for d in result.explanation.diagnoses}


def test_numbers_that_differ_are_explained_and_are_the_newest_failure():
    layout = lp.Layout(tp=2, sequence_parallel=False)
    result = lp.run("attention", "tiny", layout, fault="drop_all_reduce", dtype="float64")
    assert (result.where, result.rows[0].ranks) == ("output out", (0, 1))
    assert result.explanation.ranks == (0, 1)
    assert result.explanation.what == "Output out: each rank has its own summand of the sum over tp"
    assert str(result).endswith(str(result.explanation))
    assert newest.newest() is result
    assert result.as_dict()["explanation"] == result.explanation.as_dict()
