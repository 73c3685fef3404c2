"""`run` and `local`: bad input, forced layouts, programs of one's own, room, stepping, and cancelling."""

import logging
import math
import os
import signal
import threading
import time
from dataclasses import replace
from itertools import count

import pytest
import torch
import torch.distributed as dist

import llamapar as lp
from llamapar import Layout, ModelConfig, Padding
from llamapar.execution import capacity as room
from llamapar.execution import execute
from llamapar.execution import recorder as record
from llamapar.execution.replies import Cancelled
from llamapar.execution.run_options import RunOptions
from llamapar.programs.parts import column_input
from llamapar.spmd import collectives, compat
from stepping import step_through
from weights import exactly

MODEL = ModelConfig(
    dim=64, n_layers=1, n_heads=16, n_kv_heads=8, head_dim=4, ffn_dim=96, vocab_size=100, name="small"
)
ENGINES = ["local", "processes"]

pytestmark = pytest.mark.usefixtures("no_ranks_left")

# -- what a person may give ------------------------------------------------------------------------


def test_inputs_are_taken_in_the_dtype_of_the_run():
    x = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(1))
    result = lp.run("mlp", MODEL, Layout(tp=2), seq_len=16, inputs={"x": x}, dtype="float64")
    assert result.ok
    assert result.outputs[0]["out"].dtype == torch.float64
    other = lp.run("mlp", MODEL, Layout(tp=2), seq_len=16, dtype="float64")
    assert not torch.equal(result.outputs[0]["out"], other.outputs[0]["out"])


# -- programs of one's own -------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_of_ones_own_is_compared_with_its_own_reference(engine):
    def gate(mesh, setting, x, w1):
        return torch.tanh(column_input(x, mesh, setting) @ w1.mT)

    def reference(setting, x, w1):
        return torch.tanh(x @ w1.mT)

    def other(setting, x, w1):
        return torch.tanh(x @ w1.mT) + 1e-9

    layout, options = Layout(tp=2, cp=2), {"dtype": "float64", "out": "ffn", "engine": engine}
    right = lp.run(gate, MODEL, layout, reference=reference, **options)
    assert right.ok, right
    assert right.outputs[0]["out"].shape == (2, 32, 48)
    assert set(right.gradient_errors) == {"x", "w1"}
    wrong = lp.run(gate, MODEL, layout, reference=other, **options)
    assert not wrong.ok
    assert wrong.output_errors["out"] == pytest.approx(1e-9, rel=0.5)
    assert max(wrong.gradient_errors.values()) < 1e-12
    alone = lp.run(gate, MODEL, layout, **options)
    assert (alone.ok, alone.max_error) == (True, None)
    assert alone.summary.endswith("ran, nothing to compare with")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_that_raises_on_one_rank_alone(engine):
    def picky(mesh, setting, x, w1):
        def own(coord, t):
            if coord == {"dp": 0, "cp": 1, "tp": 1}:
                raise ValueError("rank three is mine")
            return t.clone()

        return collectives.all_reduce(compat.each_rank(mesh, own, x) @ w1.mT @ w1, mesh, "tp")

    result = lp.run(picky, MODEL, Layout(tp=2, cp=2, sequence_parallel=False), engine=engine)
    first, error = next(iter(result.errors.items()))
    assert (first, type(error), str(error)) == (3, ValueError, "rank three is mine")
    assert "rank 3 raised ValueError" in result.summary
    assert engine == "processes" or set(result.errors) == {3}
    assert "rank three is mine" in result.reports[3].traceback
    assert lp.run("mlp", MODEL, Layout(tp=2, cp=2), engine=engine).ok  # and nothing stays broken


# Programs of one's own, for texts/execute.txt.


def square(mesh, setting, x, w1):
    return x @ w1.view(32, 64).mT


def listed(mesh, setting, x):
    return [x]


def nested(mesh, setting, x):
    lp.run("mlp", MODEL, Layout(tp=2))
    return x


def test_a_run_while_ranks_are_stepped_through_is_refused():
    with (
        step_through("mlp", MODEL, Layout(tp=2)),
        pytest.raises(lp.LlamaparError, match=r"^a local run inside another one\n"),
    ):
        lp.run("mlp", MODEL, Layout(tp=4))


def needed(layout, model=MODEL, engine="local"):
    return f"{room.bytes_needed(execute.prepare('mlp', model, RunOptions(layout))[0], engine):,}"


# -- an end in time --------------------------------------------------------------------------------


def goes_on(mesh, setting, x):
    while True:
        x = x + 1


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_cancel_ends_a_run_that_gets_on(engine):
    lp.run("mlp", MODEL, Layout(tp=2), engine=engine)  # the server is there now
    started = time.monotonic()
    with pytest.raises(Cancelled, match=r"^the run was cancelled") as ended:
        lp.run(goes_on, MODEL, Layout(tp=2), engine=engine, device="cpu", timeout=30,
               cancel=lambda: time.monotonic() > started + 1)  # fmt: skip
    assert time.monotonic() - started < 10
    assert ("ranks 0, 1: computing" in str(ended.value)) == (engine == "processes")


# -- what ranks say ---------------------------------------------------------------------------------


def test_what_goes_to_stderr_is_shown_once_with_its_ranks(capfd):
    def warns(mesh, setting, x):
        rank = dist.get_rank()
        print(f"at {rank}")
        logging.getLogger("of a user").warning("half of us" if rank % 2 else "the others")
        return x

    capfd.readouterr()
    assert not lp.run(warns, MODEL, Layout(tp=4), engine="processes", device="cpu").errors
    out, err = capfd.readouterr()
    assert out.splitlines() == [f"rank {rank}: at {rank}" for rank in range(4)]
    assert err.splitlines() == ["ranks 0, 2: the others", "ranks 1, 3: half of us"]


# -- room ------------------------------------------------------------------------------------------


def test_more_ranks_than_a_machine_runs(monkeypatch):
    monkeypatch.setattr(room, "memory_available", lambda: 10**12)
    layout = Layout(tp=8, cp=16)
    said = (
        "128 ranks, and at most 64 run on one machine\n"
        f"  why  they would take about {needed(layout)} bytes; 1,000,000,000,000 are free\n"
        "  try  lp.shrink(model, layout), or model='tiny'"
    )
    with pytest.raises(lp.LayoutError, match=exactly(said)):
        lp.run("mlp", MODEL, layout, kv_replication=True)


def test_a_small_copy_does_not_divide_where_the_model_does_not():
    """11008 FFN columns over tp=3 leave one; a copy whose columns 3 divides would run where it does not."""
    small = lp.shrink("llama2-7b", Layout(tp=3)).model
    assert 11008 % 3 == small.ffn_dim % 3 == 1


def test_more_bytes_than_are_free(monkeypatch):
    monkeypatch.setattr(room, "memory_available", lambda: 2**30)
    layout, model = Layout(tp=8), "llama3.1-405b"
    weights = 3 * 16384 * 53248 * 4
    assert 2 * weights < int(needed(layout, model).replace(",", "")) < 10 * weights
    said = (
        f"8 ranks would take about {needed(layout, model)} bytes; 1,073,741,824 are free\n"
        "  why  parameters, gradients, activations and the unsharded reference are all held at once\n"
        "  try  lp.shrink(model, layout), or model='tiny'"
    )
    for begin in (lp.run, step_through):
        with pytest.raises(lp.LayoutError, match=exactly(said)):
            begin("mlp", model, layout)
    fitted = lp.shrink(lp.model(model), layout)  # what it says to try has room
    room.require_room(execute.prepare("mlp", fitted.model, RunOptions(fitted.layout))[0], "local")


def test_processes_need_room_for_themselves(monkeypatch):
    monkeypatch.setattr(room, "memory_available", lambda: 4 * room.RANK_BYTES)
    assert lp.run("mlp", MODEL, Layout(tp=4)).ok
    with pytest.raises(
        lp.LayoutError, match=r"^4 ranks would take about [\d,]+ bytes; 629,145,600 are free\n"
    ):
        lp.run("mlp", MODEL, Layout(tp=4), engine="processes")


# -- stepping through ------------------------------------------------------------------------------


def test_local_ranks_end_with_the_next_local_run():
    first = step_through("mlp", MODEL, Layout(tp=2))
    with first:
        assert first.shapes(first.tensors["w1"] * 2) == {0: (48, 64), 1: (48, 64)}
    second = step_through("mlp", MODEL, Layout(tp=4))
    message = r"^these local ranks are closed\n  why  a later local run took their place$"
    with pytest.raises(lp.LlamaparError, match=message):
        first.__enter__()
    first.close()  # does not end the second
    with second:
        assert second.shapes(second.tensors["w1"] * 2)[3] == (24, 64)
    assert lp.run("mlp", MODEL, Layout(tp=2)).ok
    with pytest.raises(lp.LlamaparError, match=message):
        second.__enter__()


def test_all_weights_of_a_model_by_rank():
    ranks = step_through("llama", MODEL, Layout(tp=4), padding=Padding(8, per_tp=True))
    weights = ranks.tensors["weights"]
    assert set(weights) >= {p.name for p in MODEL.parameters()}
    assert ranks.shapes(weights["output.weight"])[3] == (32, 64)
    last = ranks.values(weights["output.weight"])[3]  # rows 96 to 127, of which 100 and on are pads
    assert last[4:].abs().max() == 0
    assert last[:4].abs().min() > 0
    ranks.close()


# -- a program that destroys its process group ------------------------------------------------------


def twice(mesh, setting, x):
    return x * 2


def doubled(setting, x):
    return x * 2


def without_a_world(mesh, setting, x):
    dist.destroy_process_group()
    return x * 2


def without_a_group(mesh, setting, x):
    dist.destroy_process_group(mesh.get_group("tp"))
    return x * 2


def with_another_world(mesh, setting, x):
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return x * 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("program", [without_a_world, without_a_group, with_another_world])
def test_a_program_that_destroys_its_groups_spoils_no_later_run(program, engine):
    layout = Layout(tp=2, cp=2)  # more than one group
    assert lp.run(program, MODEL, layout, engine=engine, reference=doubled, backward=False).ok
    assert lp.run("attention", MODEL, layout, engine=engine, dtype="float64").ok


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_after_a_group_was_destroyed_says_so(engine):
    def goes_on(mesh, setting, x):
        dist.destroy_process_group()
        return x * dist.get_rank()

    result = lp.run(goes_on, MODEL, Layout(tp=2), engine=engine, reference=doubled)
    said = (
        "the program destroyed a process group of its ranks, and then went on\n"
        "  why  ValueError: Default process group has not been initialized, "
        "please make sure to call init_process_group.\n"
        "  try  leave the groups to llamapar"
    )
    assert {rank: str(error) for rank, error in result.errors.items()} == {0: said, 1: said}
    assert lp.run("mlp", MODEL, Layout(tp=2), engine=engine).ok


# -- cancelling, and what a result says -------------------------------------------------------------


def test_a_local_run_is_cancelled_wherever_it_is(soak):
    """An error raised where torch's C++ asks a tensor for its size would end this process."""
    asked = count()

    def ok(last=math.inf):
        cancel = lambda: next(asked) >= last  # noqa: E731
        return lp.run("mlp", MODEL, Layout(tp=2, cp=2), seq_len=8, cancel=cancel).ok

    assert ok()
    operations = next(asked)
    assert operations > 100
    for before in range(0, operations, 1 if soak else 40):
        asked = count()
        with pytest.raises(Cancelled, match=r"^the run was cancelled$"):
            ok(before)
    assert ok()


def endless(setting, x):
    while True:
        x = x + 1


def test_one_process_is_given_up_with_the_ranks():
    """It computes while they do: its numbers are of no use once a rank has raised, or the run is stopped."""

    def raises(mesh, setting, x):
        raise ValueError("here")

    before = threading.active_count()
    result = lp.run(raises, MODEL, Layout(tp=2), engine="processes", reference=endless)
    assert [str(error) for error in result.errors.values()] == ["here", "here"]
    assert threading.active_count() == before


@pytest.mark.soak
def test_one_process_is_given_up_with_a_run_that_is_cancelled():
    before, asked = threading.active_count(), count()
    options = {"engine": "processes", "reference": endless, "backward": False}
    with pytest.raises(Cancelled, match=r"^the run was cancelled"):
        lp.run(twice, MODEL, Layout(tp=2), cancel=lambda: next(asked) > 40, **options)
    assert threading.active_count() == before


@pytest.mark.parametrize("engine", ENGINES)
def test_what_one_process_raises_is_told(engine):
    def wrong(setting, x):
        raise ValueError("of the reference")

    with pytest.raises(ValueError, match=r"^of the reference$"):
        lp.run(twice, MODEL, Layout(tp=2), engine=engine, reference=wrong, backward=False)


def test_the_cancelling_question_is_asked_where_an_error_is_safe():
    sizes = ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_contiguous", "dim")
    assert not any(record._known(getattr(torch.ops.aten, name).default).ticks for name in sizes)
    for operation in (torch.ops.aten.mm.default, torch.ops.aten.split.Tensor, torch.ops.aten.add_.Tensor):
        assert record._known(operation).ticks


def test_without_a_backward_there_are_outputs_alone():
    result = lp.run("block", MODEL, Layout(tp=2, cp=2), backward=False, dtype="float64")
    assert result.ok
    assert result.max_grad_error is None
    assert result.gradients == {r: {} for r in range(4)}
    assert {e.phase for e in result.trace.events} == {"forward"}


def test_the_same_seed_gives_the_same_numbers():
    def out(**options):
        return lp.run("mlp", MODEL, Layout(tp=2), dtype="float64", **options).outputs[0]["out"]

    assert torch.equal(out(), out(seed=0))
    assert not torch.equal(out(), out(seed=1))


def test_an_interrupt_ends_a_local_run_and_not_the_process(counts):
    def over_and_over():
        while True:
            lp.run("block", "tiny", {"tp": 4})

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for i in range(counts(3, 25, 25)):
            timer = threading.Timer(0.02 + 0.03 * i, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt, match=r"^$"):
                over_and_over()
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert lp.run("mlp", "tiny", {"tp": 2}).ok


def test_many_tensors_that_agree_are_one_row():
    result = lp.run("llama", "tiny", tp=2, seq_len=8, device="cpu")
    _, _, rows, _ = result._table()
    worst = max(result.gradient_errors, key=result.gradient_errors.__getitem__)
    error = f"{result.gradient_errors[worst]:.0e}"
    folded = ["gradient", f"{len(result.gradient_errors)} tensors, worst {worst}", error, "equal"]
    assert [row for row in rows if row[0] == "gradient"] == [folded]
    off = {"error": 1.0, "ok": False, "how": "DIFFERS"}
    rows = [replace(row, **off) if row.name == worst else row for row in result.rows]
    differs = replace(result, rows=tuple(rows))
    assert differs.where == f"gradient {worst}"
    _, _, rows, _ = differs._table()
    assert ["gradient", worst, "1e+00", "DIFFERS"] in rows
    assert len(rows) == len(result.output_errors) + 2
