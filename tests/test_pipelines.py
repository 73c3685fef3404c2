"""Pipelines: what may be asked for, torch's own beside them, and ranks that wait for one another."""

import pytest
import torch

import llamapar as lp
import torch_pipeline
from by_torch import check_gradients
from llamapar import Layout, LayoutError, LlamaparError, ModelConfig, RankFailure
from llamapar.execution.execute import prepare
from llamapar.execution.run_options import RunOptions
from llamapar.programs import PROGRAMS
from stepping import step_through

MODEL = ModelConfig(
    dim=16, n_layers=6, n_heads=4, n_kv_heads=2, head_dim=4, ffn_dim=24, vocab_size=50, name="small"
)
pytestmark = pytest.mark.usefixtures("no_ranks_left")

# -- what is asked for -----------------------------------------------------------------------------


def asked(program="llama", layout=None, **options):
    """The setting of a run, and what is said of it."""
    task, notes, _ = prepare(program, MODEL, RunOptions(layout or Layout(pp=2), **options))
    return task.setting, notes


# -- torch's own pipelining as witness -------------------------------------------------------------


def test_torchs_own_pipelining_makes_the_same_gradients(counts):
    layouts = (Layout(pp=2), Layout(tp=2, pp=2))
    for name in ("1f1b", "zbv") if counts(1, 2, 2) == 1 else torch_pipeline.SCHEDULES:
        for layout in layouts[: counts(1, 2, 2)]:
            # With several sequences torch's pipelining sends views, which gloo refuses.
            known = {"micro_batches": 4, "global_batch": 4, "seq_len": 8, "dtype": "float64"}
            result = lp.run("llama", MODEL, layout, schedule=name, engine="processes", device="cpu", **known)
            check_gradients(result, torch_pipeline.by_torch, rtol=1e-12)


# -- what goes wrong -------------------------------------------------------------------------------


def of_two(**options):
    known = {"micro_batches": 4, "seq_len": 8, "device": "cpu"}
    return lp.run("llama", MODEL, Layout(pp=2), **{**known, **options})


def test_ranks_that_wait_for_one_another_are_told_at_once_or_within_the_timeout():
    with pytest.raises(RankFailure, match="the pipeline stands still: no rank can go on") as told:
        of_two(fault="send_receive_crossed")
    waits = ("gradients of micro-batch 0 for stage 0", "activations of micro-batch 0 for stage 1")
    assert told.value.ranks == {
        rank: f"waiting for {wait}, from pp rank {1 - rank}" for rank, wait in enumerate(waits)
    }
    with pytest.raises(RankFailure, match="time-out: no rank made progress for 1 s") as told:
        of_two(fault="send_receive_crossed", engine="processes", timeout=1)
    for rank, wait in enumerate(waits):
        assert f"the {wait} from rank {1 - rank}: rank {rank} arrived" in str(told.value)


def test_a_table_that_cannot_run_is_refused_before():
    own = lp.Schedule.read(["0B0 0F0", "1F0 1B0"])
    with pytest.raises(LayoutError, match="0B0"):
        of_two(schedule=own, micro_batches=1)
    legal = lp.Schedule.read(["0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0"])  # last in, first out
    result = of_two(schedule=legal, micro_batches=2, dtype="float64")
    assert result.ok, str(result)
    assert [str(done.action) for done in result.reports[0].work.operations] == ["0F0", "0F1", "0B1", "0B0"]


@pytest.mark.parametrize("program", ["llama", "step"])
def test_any_micro_batch_can_be_stepped_through(program):
    layout, options = Layout(tp=2, pp=2, dp=2), {"micro_batches": 2, "seq_len": 8, "dtype": "float64"}
    whole = lp.run(program, MODEL, layout, **options)
    for number in (0, 1):
        with step_through(program, MODEL, layout, number=number, **options) as ranks:
            names = ("tokens", "positions", "targets", "weights")
            given = {name: ranks.tensors[name] for name in names}
            made = PROGRAMS[program].function(ranks.mesh, ranks.setting, **given)
            assert isinstance(made, dict)
            for rank, loss in ranks.values(made["loss"]).items():
                place = ranks.setting.layout.coord_of(rank)._replace(pp=1)
                in_the_run = whole.outputs[layout.rank_of(*place)]["loss"]
                torch.testing.assert_close(loss, in_the_run[2 * number : 2 * number + 2], rtol=1e-12, atol=0)
    with pytest.raises(LlamaparError, match="number=2: number must be a whole number from 0 to 1"):
        step_through(program, MODEL, layout, number=2, **options)
