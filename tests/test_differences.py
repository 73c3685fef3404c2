"""Numbers that differ: the tensors, the first wrong line, and the axes over which ends are summands still."""

from __future__ import annotations

import pytest

import llamapar as lp
from llamapar.programs import FAULTS

TOLD = {
    "drop_all_reduce": ("output out differs", "own summand of the sum over tp", ""),
    "drop_backward_all_reduce": ("gradient x differs", "own summand of the sum over tp", ""),
    "sum_twice": ("gradient x, w1, w2 …", "is the first that is wrong", "row_output"),
    "no_kv_grad_sum": ("gradient wk, wv differs", "own summand of the sum over tp", ""),
    "no_context_grad_sum": ("gradient wq, wk, wv …", "own summand of the sum over cp", ""),
    "no_data_grad_sum": ("gradient w1, w2, w3", "own summand of the sum over dp", ""),
    "contiguous_positions": ("output out", "q is the first that is wrong", "rope(q, positions"),
    "maximum_not_shared": ("output loss", "top is the first that is wrong", "top = collectives.maximum"),
    "slices_not_summed": ("output out", "out is the first that is wrong", "row_output(partial"),
    "gather_not_summed_backward": ("gradient x", "x.grad is the first that is wrong", "column_input"),
    "scale_forgotten": ("output out", "heads is the first that is wrong", "heads = causal(q, k, v"),
    "norm_without_eps": ("output out", "normed is the first that is wrong", "normed = rms_norm"),
}
"""A fault → parts of its sentence, and of the first wrong line."""


@pytest.mark.parametrize("name", TOLD)
def test_a_fault_is_told_by_tensors_and_the_first_wrong_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llamapar.execution.differences.SECONDS", 60.0)  # on a machine with other work, too
    fault, (*said, line) = FAULTS[name], TOLD[name]
    run = lp.run(fault.program, "tiny", fault.layout, fault=name, dtype="float64", **fault.needs)
    told = run.explanation
    assert all(words in told.reason for words in said)
    assert line in told.line
    assert bool(line) == bool(told.line)


def test_a_result_that_is_equal_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[object] = []
    monkeypatch.setattr(
        "llamapar.execution.differences.followed_steps", lambda *given: followed.append(given)
    )
    run = lp.run("mlp", "tiny", dict(tp=2))
    assert run.ok
    assert run.explanation is None
    assert followed == []
