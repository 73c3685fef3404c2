"""Faults made on purpose: what still looks fine with each, and that the comparison catches the rest."""

import tomllib
from pathlib import Path

import pytest
import torch

import llamapar as lp
from llamapar import Layout, ModelConfig, Padding
from llamapar.programs import faults

MODEL = ModelConfig(
    dim=64, n_layers=1, n_heads=16, n_kv_heads=8, head_dim=4, ffn_dim=96, vocab_size=100, name="small"
)

pytestmark = pytest.mark.usefixtures("no_ranks_left")


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

CAUGHT = tomllib.loads(Path(__file__).with_name("faults.toml").read_text("utf-8"))
KINDS = {
    "outputs": "output",
    "gradients": "gradient",
    "means": "AdamW's mean",
    "weights": "updated weight",
}
"""What differs under a fault, all other rows stay equal. AdamW divides a factor away but for its eps: weights
then differ by 1e-8 of themselves, which float64 still shows. Clipping divides it away before that."""


def names(caught, kind):
    return set(caught.get(kind, "").format(ALL=ALL, ATTENTION=ATTENTION).split())


def run(name, *, broken, **options):
    """The program and layout of a fault, with it or without."""
    fault = faults.FAULTS[name]
    known = {"dtype": "float64"}
    if fault.layout.get("tp", 1) > MODEL.n_kv_heads:
        known["kv_replication"] = True
    if name == "pad_in_softmax":
        known["padding"] = Padding(16, per_tp=True)
    known |= fault.needs
    if "micro_batches" in fault.needs:
        known["seq_len"] = 8
    layout, model = Layout(**fault.layout), MODEL.replace(**fault.model)
    return lp.run(fault.program, model, layout, fault=name if broken else None, **{**known, **options})


def shapes(result):
    pieces = (result.outputs, result.gradients)
    return {r: {n: t.shape for of in pieces for n, t in of[r].items()} for r in range(result.ranks)}


def differing(result):
    """Names of the outputs, gradients, means and updated weights that are not equal to the reference's."""
    wrong = [row for row in result.rows if not row.ok]
    return [{row.name for row in wrong if row.kind == kind} for kind in KINDS.values()]


def test_every_fault_has_its_row():
    assert list(CAUGHT) == list(lp.programs.FAULTS)
    for fault in lp.programs.FAULTS.values():
        assert fault.looks_fine
        assert fault.caught_by


@pytest.mark.parametrize("name", [name for name in CAUGHT if name not in HANGS])
def test_a_fault_is_caught_by_exactly_what_it_breaks(name):
    broken = run(name, broken=True)
    whole = run(name, broken=False)  # afterwards: the fault ends with its run
    assert whole.ok, whole
    assert not broken.errors  # it runs
    assert not broken.ok  # and is wrong
    caught = CAUGHT[name]
    assert differing(broken) == [names(caught, kind) for kind in KINDS]
    errors = [*broken.output_errors.values(), *broken.gradient_errors.values()]
    if not caught.keys() & {"outputs", "gradients"}:
        errors += broken.errors_of("AdamW's mean").values()
    if "means" not in caught:
        errors += [broken.errors_of("updated weight")[name] for name in differing(broken)[-1]]
    assert min(error for error in errors if error > broken.tolerance) > 1e-4  # by far, not by rounding
    assert shapes(broken) == shapes(whole)
    if "factor" in caught:
        for rank, own in broken.gradients.items():
            for gradient in names(caught, "gradients") & own.keys():
                torch.testing.assert_close(own[gradient], caught["factor"] * whole.gradients[rank][gradient])
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
def test_a_fault_is_the_same_in_processes_and_ends_there_too(name):
    broken, local = run(name, broken=True, engine="processes"), run(name, broken=True)
    after = run(name, broken=False, engine="processes")  # the same processes
    assert differing(broken) == differing(local)
    assert broken.traces == local.traces
    assert after.ok, after


def test_a_fault_ends_when_its_run_raises():
    def raises(mesh, setting, x):
        raise KeyError("mine")

    result = lp.run(raises, MODEL, Layout(tp=2), fault="drop_all_reduce")
    assert [str(e) for e in result.errors.values()] == ["'mine'", "'mine'"]
    assert run("drop_all_reduce", broken=False).ok


def test_the_faults_show_themselves_as_a_table():
    text, html = str(lp.programs.FAULTS), lp.programs.FAULTS._repr_html_()
    assert text.splitlines()[1].split("  ")[0] == "fault"
    for name, fault in lp.programs.FAULTS.items():
        assert f"\n{name} " in text
        assert f">{name}</td>" in html
        assert fault.looks_fine in text
    assert "readers&#x27;" in html
