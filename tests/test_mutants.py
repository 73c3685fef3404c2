"""`lp.run(..., mutants=True)`: which slips a run would have noticed, and which its inputs cannot show."""

import json
import time
from typing import Any

import pytest
import torch

import llamapar as lp
from llamapar.execution import mutants
from llamapar.programs import FAULTS

MODEL = lp.model("tiny")
Tried = tuple[str, dict[str, int], dict[str, Any]]
DEFAULTS: list[Tried] = [
    ("attention", {"tp": 2, "cp": 2}, {"documents": (5, 11), "seq_len": 16}),
    ("attention", {"tp": 8}, {"kv_replication": True}),
    ("meta_attention", {"tp": 2}, {}),
    ("embedding", {"tp": 4}, {}),
    ("loss", {"tp": 4}, {}),
    ("mlp", {"tp": 2, "dp": 2}, {}),
    ("mlp", {"dp": 2, "zero": 3}, {}),
    ("mlp_unfused", {"tp": 2}, {}),
    ("block", {"tp": 2, "cp": 2}, {}),
]
LONG: list[Tried] = [
    ("llama", {"tp": 2, "dp": 2, "zero": 3}, {}),
    ("llama", {"pp": 2}, {"micro_batches": 4}),
    ("step", {"tp": 2, "dp": 2, "zero": 1}, {}),
    ("step", {"pp": 2, "cp": 2}, {}),
]


def tried(program: str, layout: dict[str, Any], **options: Any) -> mutants.Mutants:
    result = lp.run(program, MODEL, lp.Layout(**layout), device="cpu", mutants=True, **options)
    assert result.ok, result
    return result.mutants


@pytest.mark.parametrize(
    ("program", "layout", "options"),
    [*DEFAULTS, *(pytest.param(*case, marks=pytest.mark.soak) for case in LONG)],
)
def test_the_default_inputs_show_every_slip(
    program: str, layout: dict[str, int], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "SECONDS", 600.0)
    found = tried(program, layout, **options)
    assert len(found.noticed) >= (9 if program in ("llama", "step") else 1)
    assert (found.unseen, found.untried) == ({}, ())


def test_what_inputs_cannot_show_is_listed(run: Any) -> None:
    line = "run attention --model tiny --tp 2 --global-batch 1 --mutants"
    status, out, _ = run(line)
    assert status == 0
    assert "PASSES UNSEEN" in out
    assert "slips would have been noticed, and not batch_for_sequence" in out
    found = json.loads(run(f"{line} --json")[1])["mutants"]
    why = "nothing that is compared changes, with these inputs"
    assert (found["unseen"], found["untried"]) == ({"batch_for_sequence": why}, [])
    assert found["noticed"]["slices_not_summed"] == "output out"


def test_a_slip_that_the_dtype_rounds_away_is_told_apart_from_one_that_nothing_shows() -> None:
    x = torch.randn(2, 64, 128, generator=torch.Generator().manual_seed(0))  # no token is near zero
    found = tried("block", {"tp": 2}, dtype="bfloat16", inputs={"x": x})
    why = "bfloat16 rounds as much; in float64 output out differs"
    assert found.unseen == {"norm_without_eps": why}
    assert not tried("block", {"tp": 2}, dtype="float64", inputs={"x": x}).unseen


def test_slips_that_change_nothing_in_a_layout_are_left_out() -> None:
    between_ranks = {"drop_all_reduce", "sum_twice"}
    assert not between_ranks & tried("mlp", {}).noticed.keys()
    assert between_ranks <= tried("mlp", {"tp": 2, "sequence_parallel": False}).noticed.keys()


def test_the_right_functions_are_back_afterwards() -> None:
    before = [getattr(fault.patch[0], fault.patch[1]) for fault in FAULTS.values()]
    tried("attention", {"tp": 2})
    assert [getattr(fault.patch[0], fault.patch[1]) for fault in FAULTS.values()] == before


def test_what_there_is_no_time_for_is_listed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "SECONDS", 0.1)
    found = tried("attention", {"tp": 2})
    assert len(found.noticed) < len(found.untried)
    assert "no time for" in found.summary


def test_a_cancelled_run_stops_while_slips_are_tried() -> None:
    end = time.monotonic() + 2.0
    with pytest.raises(lp.Cancelled, match="cancelled"):
        lp.run("step", MODEL, lp.Layout(pp=2), mutants=True, cancel=lambda: time.monotonic() > end)


def test_a_run_that_differs_has_no_list() -> None:
    result = lp.run("mlp", MODEL, lp.Layout(tp=2), fault="slices_not_summed", mutants=True)
    assert not result.ok
    assert result.mutants is None


def test_your_own_program_is_asked_as_well() -> None:
    def double(mesh: Any, setting: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    options = {"reference": lambda setting, x: 2 * x}
    result = lp.run(double, MODEL, lp.Layout(tp=2), mutants=True, **options)
    assert result.mutants == mutants.Mutants({}, {})  # it calls none of the functions that could be wrong
    with pytest.raises(lp.LlamaparError, match="nothing is there that a slip could differ from"):
        lp.run(double, MODEL, lp.Layout(tp=2), mutants=True)


def test_torchrun_is_refused() -> None:
    with pytest.raises(lp.LlamaparError, match="one process tries them all"):
        lp.run("mlp", MODEL, lp.Layout(), engine="torchrun", mutants=True)


def test_processes_say_the_same() -> None:
    assert tried("mlp", {"tp": 2}, engine="processes") == tried("mlp", {"tp": 2})
