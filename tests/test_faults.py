"""Faults made on purpose: what still looks fine with each, and that the comparison catches the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import llamapar as lp
from llamapar import Layout, ModelConfig, Padding
from llamapar.execution.result import Result
from llamapar.programs import faults

MODEL = ModelConfig(
    dim=64, n_layers=1, n_heads=16, n_kv_heads=8, head_dim=4, ffn_dim=96, vocab_size=100, name="small"
)

pytestmark = pytest.mark.usefixtures("no_ranks_left")


@dataclass(frozen=True)
class Caught:
    """The outputs and gradients that differ from the reference under a fault, and of a step AdamW's means of
    gradients and the updated weights; all others stay equal. AdamW divides a factor away but for its eps: the
    weights then differ by 1e-8 of themselves, and a comparison in float64 still sees it. Clipping divides it
    away before that.

    factor: by which those gradients are too large, where it is one number.
    """

    outputs: str = ""
    gradients: str = ""
    means: str = ""
    weights: str = ""
    factor: float | None = None


ALL = " ".join(parameter.name for parameter in MODEL.parameters())

ATTENTION = "x wq wk wv wo"

DROPPED = {
    "drop_all_reduce": "forward",
    "drop_backward_all_reduce": "backward",
    "no_norm_grad_sum": "gradients",
    "no_data_grad_sum": "gradients",
}
"""Fault → the phase whose all-reduces it leaves out."""

HANGS = {"send_receive_crossed"}
"""What never comes to a result: tests/test_pipelines.py has what is told."""

CAUGHT = {
    "drop_all_reduce": Caught("out"),
    "drop_backward_all_reduce": Caught(gradients="x"),
    "sum_twice": Caught(gradients="x w1 w2 w3", factor=2),
    "no_kv_grad_sum": Caught(gradients="wk wv"),
    "tile_kv": Caught("out", "x wq wk wv wo"),
    "no_norm_grad_sum": Caught(gradients="attention_norm ffn_norm"),
    "contiguous_positions": Caught("out", "x wq wk wv wo"),
    "no_context_grad_sum": Caught(gradients="wq wk wv wo"),
    "no_data_grad_sum": Caught(gradients="w1 w2 w3"),
    "shards_not_summed": Caught(gradients="w1 w2 w3"),
    "replicas_not_summed": Caught(gradients="w1 w2 w3"),
    "shards_out_of_order": Caught("out", "x w1 w2 w3"),
    "pad_in_softmax": Caught("loss", "x output"),
    "tied_not_summed": Caught(gradients="tok_embeddings.weight"),
    "micro_batches_swapped": Caught("loss", ALL),
    "loss_not_divided": Caught(gradients=ALL, factor=4),
    "gradients_too_early": Caught(gradients=ALL),
    "send_receive_crossed": Caught(),
    "norm_counts_copies": Caught("norm", means=ALL, weights=ALL),
    "norm_forgets_pp": Caught("norm", means=ALL, weights=ALL),
    "clipped_per_rank": Caught(means=ALL, weights=ALL),
    "averaged_over_context": Caught("norm", ALL, ALL, factor=0.5),
    "neighbours_shard": Caught(means=ALL, weights=ALL),
    "weights_late": Caught(weights=ALL),
    "last_row_missed": Caught("out", "tok_embeddings"),
    "maximum_not_shared": Caught("loss", "x output"),
    "slices_not_summed": Caught("out"),
    "gather_not_summed_backward": Caught(gradients="x"),
    "scale_forgotten": Caught("out", ATTENTION),
    "batch_for_sequence": Caught("out", ATTENTION),
    "kv_heads_in_turn": Caught("out", ATTENTION),
    "rope_by_halves": Caught("out", ATTENTION),
    "chunk_at_the_start": Caught("out", ATTENTION),
    "tokens_as_they_came": Caught("out", ATTENTION),
    "heads_not_sent_home": Caught(gradients="x wq wk wv"),
    "documents_ignored": Caught("out", ATTENTION),
    "norm_without_eps": Caught("out", f"{ATTENTION} attention_norm ffn_norm w1 w2 w3"),
    "never_clipped": Caught(means=ALL, weights=ALL),
    "means_not_corrected": Caught(weights=ALL),
    "decay_in_gradient": Caught(means=ALL, weights=ALL),
}
"""Fault → what the comparison catches, in the program and layout where the fault shows."""


def run(name: str, *, broken: bool, **options: Any) -> Result:
    """The program and layout of a fault, with it or without."""
    fault = faults.FAULTS[name]
    known: dict[str, Any] = {"dtype": "float64"}
    if fault.layout.get("tp", 1) > MODEL.n_kv_heads:
        known["kv_replication"] = True
    if name == "pad_in_softmax":
        known["padding"] = Padding(16, per_tp=True)
    known |= fault.needs
    if "micro_batches" in fault.needs:
        known["seq_len"] = 8
    layout, model = Layout(**fault.layout), MODEL.replace(**fault.model)
    return lp.run(fault.program, model, layout, fault=name if broken else None, **{**known, **options})


def shapes(result: Result) -> dict[int, dict[str, torch.Size]]:
    pieces = (result.outputs, result.gradients)
    return {r: {n: t.shape for of in pieces for n, t in of[r].items()} for r in range(result.ranks)}


def differing(result: Result) -> list[set[str]]:
    """Names of the outputs, gradients, means and updated weights that are not equal to the reference's."""
    kinds = ("output", "gradient", "AdamW's mean", "updated weight")
    return [{row.name for row in result.rows if row.kind == kind and not row.ok} for kind in kinds]


def test_every_fault_has_its_row() -> None:
    assert list(CAUGHT) == list(lp.programs.FAULTS)
    for fault in lp.programs.FAULTS.values():
        assert fault.looks_fine
        assert fault.caught_by


@pytest.mark.parametrize("name", [name for name in CAUGHT if name not in HANGS])
def test_a_fault_is_caught_by_exactly_what_it_breaks(name: str) -> None:
    broken = run(name, broken=True)
    whole = run(name, broken=False)  # afterwards: the fault ends with its run
    assert whole.ok, whole
    assert not broken.errors  # it runs
    assert not broken.ok  # and is wrong
    caught = CAUGHT[name]
    expected = (caught.outputs, caught.gradients, caught.means, caught.weights)
    assert differing(broken) == [set(names.split()) for names in expected]
    errors = [*broken.output_errors.values(), *broken.gradient_errors.values()]
    if not caught.outputs + caught.gradients:
        errors += broken.errors_of("AdamW's mean").values()
    if not caught.means:
        errors += [broken.errors_of("updated weight")[name] for name in differing(broken)[-1]]
    assert min(error for error in errors if error > broken.tolerance) > 1e-4  # by far, not by rounding
    assert shapes(broken) == shapes(whole)
    if caught.factor is not None:
        for rank, own in broken.gradients.items():
            for gradient in set(caught.gradients.split()) & own.keys():
                torch.testing.assert_close(own[gradient], caught.factor * whole.gradients[rank][gradient])
    if name == "pad_in_softmax":
        assert all((broken.outputs[r]["loss"] > whole.outputs[r]["loss"]).all() for r in range(8))
    if name in DROPPED:  # what a fault drops is missing in the trace
        phase, (full, lacking) = DROPPED[name], (whole.trace.events, broken.trace.events)
        assert (phase, "all_reduce") in {(e.phase, e.kind) for e in full}
        assert [e for e in full if e.phase != phase] == list(lacking)
        assert phase not in {e.phase for e in lacking}
    assert "DIFFERS from the reference" in str(broken)
    assert f"with {name}" in broken.summary


@pytest.mark.parametrize("name", ["drop_all_reduce", "no_data_grad_sum", "tied_not_summed"])
def test_a_fault_is_the_same_in_processes_and_ends_there_too(name: str) -> None:
    broken, local = run(name, broken=True, engine="processes"), run(name, broken=True)
    after = run(name, broken=False, engine="processes")  # the same processes
    assert differing(broken) == differing(local)
    assert broken.traces == local.traces
    assert after.ok, after


def test_a_fault_ends_when_its_run_raises() -> None:
    def raises(mesh: Any, setting: Any, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    result = lp.run(raises, MODEL, Layout(tp=2), fault="drop_all_reduce")
    assert [str(e) for e in result.errors.values()] == ["'mine'", "'mine'"]
    assert run("drop_all_reduce", broken=False).ok


def test_the_faults_show_themselves_as_a_table() -> None:
    text, html = str(lp.programs.FAULTS), lp.programs.FAULTS._repr_html_()
    assert text.splitlines()[1].split("  ")[0] == "fault"
    for name, fault in lp.programs.FAULTS.items():
        assert f"\n{name} " in text
        assert f">{name}</td>" in html
        assert fault.looks_fine in text
    assert "readers&#x27;" in html
