"""The whole training step, through pipelines too: equal to one process, and to transformers and torch."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from typing import Any, NamedTuple

import pytest
import torch

import llamapar as lp
from llamapar import Layout, LlamaparError, ModelConfig, RankFailure
from llamapar.checkpoint.sharding import reordered
from llamapar.describe.modelfile import config_json
from llamapar.execution.body import inputs, uncut
from llamapar.execution.execute import prepare
from llamapar.execution.result import Result
from llamapar.execution.run_options import RunOptions
from llamapar.execution.stepping import allowed_distance, reference_steps
from llamapar.place.orders import ORDERS
from llamapar.programs import PROGRAMS, llama
from llamapar.programs.corpus import CORPUS, token_ids
from llamapar.spmd import update
from llamapar.spmd.microbatches import of_step
from llamapar.spmd.setting import DTYPES
from llamapar.spmd.training import Training
from sent import check_sent

MODEL = ModelConfig(
    dim=16, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=4, ffn_dim=24, vocab_size=50, name="small"
)
TIED = MODEL.replace(tied=True, name="small tied")
SHALLOW = MODEL.replace(n_layers=2)

LAYOUTS: tuple[tuple[Layout, dict[str, Any]], ...] = (
    (Layout(tp=2), {}),
    (Layout(cp=2), {"cp_method": "ring"}),
    (Layout(dp=2), {"micro_batches": 3}),
    (Layout(dp=5), {}),
    (Layout(tp=4, sequence_parallel=False), {}),  # each KV head in two copies
    (Layout(pp=2, dp=2, order="pp-dp-cp-tp"), {}),
    (Layout(cp=2, dp=2), {}),
    (Layout(dp=4, dp_replicate=2), {}),
    (Layout(tp=2, cp=2, pp=2, dp=2), {}),
)

pytestmark = pytest.mark.usefixtures("no_ranks_left")


class Case(NamedTuple):
    engine: str
    layout: Layout
    zero: int = 0
    model: ModelConfig = MODEL
    of_layout: Any = None

    def run(self, **options: Any) -> Result:
        known = {"dtype": "float64", "seq_len": 16, "micro_batches": 2, "steps": 2, "device": "cpu"}
        many = self.layout.tp > self.model.n_kv_heads
        options = {**known, "kv_replication": many, **(self.of_layout or {}), **options}
        model = self.model.replace(n_layers=6) if self.layout.pp == 4 else self.model
        return lp.run("step", model, self.layout.replace(zero=self.zero), engine=self.engine, **options)


ENGINES = ("local", "processes")
PIPELINES = (
    Layout(pp=2),
    Layout(pp=4),
    Layout(tp=2, pp=2, sequence_parallel=False),
    Layout(cp=2, pp=2, dp=2),
)
CASES = [
    *(
        Case(engine, layout, zero, model, options)
        for engine, (layout, options), zero, model in product(ENGINES, LAYOUTS, range(4), (MODEL, TIED))
    ),
    *(
        Case(
            engine,
            layout,
            layout.dp,
            model,
            {"schedule": schedule, "micro_batches": 2 * layout.pp, "steps": 1},
        )
        for schedule, engine, layout, model in product(ORDERS, ENGINES, PIPELINES, (MODEL, TIED))
    ),
]
SHORT = [
    Case("local", Layout(pp=2), 0, TIED, {"schedule": "zbv", "micro_batches": 4}),
    Case("local", Layout(tp=4, sequence_parallel=False), 1, SHALLOW),
    Case("local", Layout(cp=2, dp=2), 3, SHALLOW.replace(tied=True)),
    Case("processes", Layout(pp=2, dp=2, order="pp-dp-cp-tp"), 3, TIED),
    Case("processes", Layout(cp=2, dp=2), 2),
    Case("processes", Layout(tp=2, pp=2), 0, TIED, {"schedule": "dualpipev", "micro_batches": 4}),
    Case("processes", PIPELINES[2], 0, MODEL, {"schedule": "interleaved-zero-bubble", "micro_batches": 4}),
]
"""The first four are what `make test` runs; the soak takes more, and `make deep` all."""


def check(case: Case) -> None:
    """Equal to one process: outputs, norm, every gradient, AdamW's means, weights, and the curve.

    Of a pipeline nothing is left out, and the schedule's numbers are those of the run.
    """
    result = case.run()
    assert result.ok, (case, str(result))
    setting = result.task.setting
    table, names, steps = setting.schedule, set(setting.weights()), setting.training.steps
    for errors, most in (
        (result.gradient_errors, 1e-12),
        (result.errors_of("AdamW's mean"), 1e-12),
        (result.errors_of("updated weight"), 1e-9),
    ):
        assert set(errors) == names
        assert max(errors.values()) <= most
    assert set(result.output_errors) == {"loss", "logits", "norm"}
    assert len(result.loss_curve.losses) == steps
    assert result.loss_curve.distance <= 1e-9
    check_sent(result, steps)
    for report in result.reports:  # whoever holds a copy has the same norm, and goes on with the same weights
        pp_rank = case.layout.coord_of(report.rank).pp
        own = {name for stage in setting.stages_on(pp_rank) for name in setting.parameters_on(stage)}
        assert torch.equal(report.curve["norms"], result.reports[0].curve["norms"])
        assert set(report.gradients) == own, (case, report.rank)
        assert not set(report.state) - {f"{k}{n}" for k in ("", "exp_avg.", "exp_avg_sq.") for n in own}
        assert report.work.in_flight == table.in_flight[pp_rank], (case, report.rank)
        assert [done.action for done in report.work.operations] == list(table.ranks[pp_rank])


def test_a_step_equals_one_process(counts):
    longer = random.Random(0).sample(CASES, counts(0, 8, len(CASES)))
    for case in sorted(
        [*SHORT[: counts(4, 7, 7)], *longer], key=lambda case: (case.engine, case.layout.world)
    ):
        check(case)


def test_weights_change_and_a_later_step_starts_from_them():
    one, two = (Case("local", Layout(dp=2), 1, SHALLOW).run(steps=n) for n in (1, 2))
    assert one.loss_curve.losses == two.loss_curve.losses[:1]
    assert one.loss_curve.norms[0] > 1  # so that clipping has something to do
    for report, later in zip(one.reports, two.reports, strict=True):
        for name, own in report.state.items():
            assert torch.equal(own, later.first[name])
            assert not torch.equal(own, later.state[name])


def test_sums_of_gradients_and_the_state_are_float32_where_weights_are_bfloat16():
    result = Case("local", Layout(dp=2), 0).run(dtype="bfloat16", steps=1)
    check_sent(result)
    (own, *_) = result.reports
    assert {t.dtype for t in own.gradients.values()} == {torch.float32}
    assert own.state["output.weight"].dtype == torch.bfloat16
    assert {own.state[f"{kind}.output.weight"].dtype for kind in update.STATES} == {torch.float32}
    assert torch.equal(own.state["master.output.weight"].bfloat16(), own.state["output.weight"])


def test_bfloat16_on_a_narrow_model_is_held_to_what_one_process_rounds():
    """Off by 0.07, where one process is off by 0.07 of itself in float64; what is broken is off by more."""
    layout = Layout(tp=2, pp=2, dp=2)
    options = {"dtype": "bfloat16", "seed": 2, "steps": 1}
    result = Case("local", layout, 1).run(**options)
    assert 5e-2 < result.max_grad_error <= result.tolerance < 0.2
    assert result.ok
    assert "one process in bfloat16 is off by" in result.notes[-1]
    assert not Case("local", layout, 1).run(fault="gradients_too_early", **options).ok
    wide = lp.run("step", "tiny", Layout(tp=2), dtype="bfloat16", seed=5, seq_len=16, micro_batches=2)
    assert wide.tolerance == DTYPES["bfloat16"]
    assert wide.ok, "a weight that AdamW moves from nearly zero is rounded at its new size"


def _without_bias_correction(
    state: update.ParameterState, gradient: torch.Tensor, training: Training, step: int
) -> update.ParameterState:
    """AdamW in the state that it reaches after many steps, where both corrections are 1."""
    return _right_adamw(state, gradient, training, 10**6)


def _decay_in_the_gradient(
    state: update.ParameterState, gradient: torch.Tensor, training: Training, step: int
) -> update.ParameterState:
    """Adam with L2 regularisation: the decay goes through the means."""
    gradient = gradient + training.weight_decay * state.master
    return _right_adamw(state, gradient, replace(training, weight_decay=0.0), step)


_right_adamw = update.adamw


@pytest.mark.parametrize("wrong", [_without_bias_correction, _decay_in_the_gradient])
def test_the_reference_of_a_step_shares_no_update_with_it(wrong, monkeypatch):
    monkeypatch.setattr(update, "adamw", wrong)
    result = lp.run("step", MODEL, Layout(tp=2), dtype="float64", seq_len=16, device="cpu")
    assert not result.errors
    assert not result.ok


@pytest.mark.parametrize("size", [0.01, 0.5, 1.0, 30.0])
def test_gradients_are_clipped_as_torch_clips_them(size):
    """Those below the norm stay as they are."""
    weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    gradient = torch.tensor([1.0, -2.0, 2.0, 4.0], dtype=torch.float64) / 5 * size
    weight.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(weight, max_norm=1.0)
    factor = update.clip_factor(norm, norm / 7, Training(max_norm=1.0))
    assert torch.equal(gradient * factor, weight.grad)


def test_a_rounding_of_a_gradient_moves_a_weight_as_far_as_is_allowed():
    """1e-15 becomes 1e-10 where a gradient is as small as eps, and nothing where it is large."""
    training, g, off = Training(), torch.tensor([1e-8, 1.0], dtype=torch.float64), 1e-15
    zero = torch.zeros_like(g)

    def after(gradient):
        return update.adamw(update.ParameterState(zero, zero, zero), gradient, training, 1).master

    moved = (after(g + off) - after(g)).abs()
    assert 1e-11 < moved[0] < 1e-10
    assert moved[1] < 1e-18
    task, _, _ = prepare("step", MODEL, RunOptions(Layout(), dtype="float64", seq_len=16))
    first = next(reference_steps(task))
    for name in first.states:
        limit = allowed_distance(first, name, training, 1e-12)
        assert 0 < limit.min() < limit.max() <= 2 * training.lr + 1e-12


def test_what_is_no_training_step_is_refused():
    with pytest.raises(LlamaparError, match="llama updates no weights"):
        prepare("llama", MODEL, RunOptions(Layout(), steps=2))
    with pytest.raises(LlamaparError, match="steps=0: steps must be a whole number"):
        prepare("step", MODEL, RunOptions(Layout(), steps=0))
    assert lp.run("step", MODEL, Layout(), backward=False, seq_len=16, device="cpu").ok


def test_the_corpus_goes_on_from_step_to_step():
    task, _, _ = prepare("step", "tiny", RunOptions(Layout(dp=2), steps=2, seq_len=16))
    ids = token_ids(task.setting.model.vocab_size)
    text = [ids[character] for character in CORPUS * 2]
    given = inputs(task, uncut)
    batch = given["tokens"]
    assert batch.flatten().tolist() == text[: batch.numel()]
    assert torch.equal(given["targets"].flatten()[:-1], batch.flatten()[1:])
    assert given["step1.tokens"].flatten().tolist() == text[batch.numel() : 2 * batch.numel()]


def test_the_command_trains(run):
    line = "run step --model tiny --tp 2 --pp 2 --zero 2 --schedule zbv --micro-batches 4 --seq-len 8"
    status, out, err = run(f"{line} --steps 2 --dtype float64 --device cpu --json")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert (told["ok"], told["ranks"]) == (True, 4)
    assert told["max_grad_error"] <= 1e-12
    weights = [row for row in told["rows"] if row["kind"] == "updated weight"]
    assert weights
    assert all(row["ok"] and row["error"] <= 1e-9 for row in weights)
    assert len(told["losses"]) == len(told["norms"]) == 2
    assert told["losses"][1] < told["losses"][0]
    assert set(told["bytes"]) == {"tp", "pp"}


# -- transformers and torch as witness ---------------------------------------------------------------


def renamed(wholes: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights by transformers' names, in its order of rows."""
    found = {}
    for p in MODEL.parameters():
        index = reordered(MODEL, p, "meta", "hf")
        whole = wholes[p.name]
        found[p.hf_name] = whole if index is None else whole[torch.from_numpy(index)]
    return found


def test_transformers_with_torchs_adamw_takes_the_same_steps():
    from transformers import LlamaConfig, LlamaForCausalLM

    layout = Layout(tp=2, pp=2)
    result = Case("local", layout, 1).run()
    setting, given = result.task.setting, inputs(result.task, uncut)
    source = {name: setting.make(name, shape) for name, shape in setting.weights().items()}
    theirs = LlamaForCausalLM(LlamaConfig(**config_json(MODEL))).double()
    theirs.load_state_dict(renamed(source))
    training = setting.training
    optimizer = torch.optim.AdamW(
        theirs.parameters(),
        lr=training.lr,
        betas=(training.beta1, training.beta2),
        eps=training.eps,
        weight_decay=training.weight_decay,
    )
    losses, norms = [], []
    for number in range(training.steps):
        tokens, targets = (given[of_step(name, number)] for name in ("tokens", "targets"))
        logits = theirs(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(theirs.parameters(), training.max_norm).item())
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(result.loss_curve.losses, rel=1e-6)  # its norms and angles are in float32
    assert norms == pytest.approx(result.loss_curve.norms, rel=1e-6)
    wholes = renamed(lp.checkpoint.whole_state(result))
    for name, weight in theirs.named_parameters():
        moved = (weight.detach() - renamed(source)[name]).abs().mean()
        assert (wholes[name] - weight.detach()).abs().mean() < 1e-4 * moved, name


# -- the state, to go on with ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", pytest.param("bfloat16", marks=pytest.mark.soak)])
def test_the_next_step_in_another_layout_is_the_next_step_here(tmp_path, dtype):
    here = Case("local", Layout(tp=2, dp=2), 2, SHALLOW)
    there = Layout(tp=1, pp=2, dp=2, zero=1)
    torch.save(lp.checkpoint.whole_state(here.run(steps=2, dtype=dtype)), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt")
    assert ("master.norm.weight" in state) == (dtype == "bfloat16")
    next_there = Case("local", there, 1, SHALLOW).run(inputs=state, steps=1, steps_done=2, dtype=dtype)
    all_here = here.run(steps=3, dtype=dtype)
    assert next_there.ok or dtype == "bfloat16", next_there
    close = {"float64": 1e-12, "bfloat16": 1e-2}[dtype]
    assert next_there.loss_curve.losses[0] == pytest.approx(all_here.loss_curve.losses[2], rel=close)
    ours, theirs = (lp.checkpoint.whole_state(result) for result in (next_there, all_here))
    assert set(ours) == set(theirs)
    for name, own in ours.items():
        torch.testing.assert_close(own, theirs[name], rtol=0.1 if dtype == "bfloat16" else 1e-9, atol=3e-3)
    again = Case("local", here.layout, 2, SHALLOW).run(inputs=state, steps=1, steps_done=2, dtype=dtype)
    for rank, own_state in again.state.items():  # the same layout goes on bit by bit
        for name, own in own_state.items():
            assert torch.equal(own, all_here.state[rank][name]), name


def test_a_run_without_a_step_has_no_state_to_save():
    result = lp.run("mlp", MODEL, Layout(), device="cpu", seq_len=8)
    with pytest.raises(lp.CheckpointError, match="the run holds no state of a training step"):
        lp.checkpoint.whole_state(result)


# -- what goes wrong ---------------------------------------------------------------------------------


def of_two(happens: Callable[[], object] | None = None, **options: Any) -> Result:
    """Two steps on two stages, where something happens on the last one in a forward of its second batch."""
    forwards = count()

    def stage(mesh: Any, setting: Any, own: Any, *args: Any) -> Any:
        if happens is not None and own.stage == 1 and next(forwards) == 2:
            happens()
        return llama.llama_stage(mesh, setting, own, *args)

    known = {"micro_batches": 2, "seq_len": 8, "steps": 2, "device": "cpu", "engine": "processes"}
    return lp.run(replace(PROGRAMS["step"], stage=stage), MODEL, Layout(pp=2), **{**known, **options})


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep() -> None:
    time.sleep(3600)


def slip(*_: object) -> None:
    raise ValueError("slipped")


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_raise_in_the_middle_of_steps_is_told_and_the_next_run_works(engine):
    result = of_two(slip, engine=engine)
    rank, error = next(iter(result.errors.items()))
    assert (rank, str(error)) == (1, "slipped")
    assert "rank 1 raised ValueError" in result.summary
    assert engine == "processes" or set(result.errors) == {1}
    assert of_two(engine=engine).ok


def test_a_raise_in_a_local_update_is_told_and_the_next_run_works(monkeypatch):
    case = Case("local", Layout(tp=2, pp=2, dp=2), 3, SHALLOW)
    with monkeypatch.context() as slipped:
        slipped.setattr(update, "adamw", slip)
        result = case.run(steps=1)
    assert {rank: str(error) for rank, error in result.errors.items()} == dict.fromkeys(
        (0, 1, 4, 5), "slipped"
    )
    assert case.run(steps=1).ok


def test_a_rank_that_is_killed_in_the_middle_of_the_steps_is_named():
    with pytest.raises(RankFailure, match="rank 1 was killed by SIGKILL") as caught:
        of_two(kill)
    assert caught.value.first == 1
    # Rank 0 is asked where it waits, or has already been told by gloo that its peer is gone: the connection
    # was closed or reset by it, or the pipe is broken.
    said = ("gradients of micro-batch 0 for stage 0 from rank 1", "by peer", "Broken pipe")
    assert any(text in caught.value.ranks[0] for text in said), caught.value.ranks[0]


def test_a_rank_that_hangs_in_the_middle_of_the_steps_is_named_and_who_waited_for_it():
    with pytest.raises(RankFailure, match="time-out: no rank made progress for 6 s") as caught:
        of_two(sleep, timeout=6)
    assert caught.value.first == 1
    for said in (
        "the gradients of micro-batch 0 for stage 0 from rank 1: rank 0 arrived",
        "rank 1 never did",
        "rank 1 stands on line",
    ):
        assert said in str(caught.value)
    assert of_two().ok  # the ranks after it are new
