"""What made a number of a pipeline: by its stage, in its micro-batch, and on the stage that sent it."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from llamapar import Layout
from llamapar.execution.body import Task, inputs
from llamapar.execution.following import ranks_of
from llamapar.execution.stage_tape import one_process
from llamapar.execution.watching import lights, watch_task, watched
from llamapar.panels.watch_panel import watch
from llamapar.programs.llama import llama_stage
from llamapar.records.trace import Tape, TapeStep
from llamapar.spmd.microbatches import targets_of
from wire import customs, deliver

Index = tuple[int, ...]


@cache
def watched_at_random(program: str, layout: Layout) -> tuple[Task, Tape]:
    task = watch_task(program, None, layout, data="random")
    return task, watched(task)


def step_at(tape: Tape, where: str, name: str) -> int:
    """The step of an operation's line, or of the operation itself."""
    found = [n for n, s in enumerate(tape.steps) if s.where.startswith(where) and s.name == name]
    assert found, (where, name)
    return found[-1]


def whole_index(step: TapeStep, rank: int, at: int) -> Index:
    """Where a number of a rank lies in the whole tensor."""
    local = torch.unravel_index(torch.tensor(at), step.values[rank].shape)
    return tuple(
        [i for part in ranges for i in part][int(k)] for ranges, k in zip(step.at[rank], local, strict=True)
    )


def whole_of(step: TapeStep) -> Tensor:
    """The whole tensor, from the pieces of all ranks."""
    assert step.global_shape is not None
    whole = torch.full(step.global_shape, torch.nan, dtype=torch.float64)
    for rank, own in step.values.items():
        places = torch.meshgrid(*[torch.tensor([i for p in ranges for i in p]) for ranges in step.at[rank]],
                                indexing="ij")  # fmt: skip
        whole[places] = own
    assert not whole.isnan().any()
    return whole


def tried(task: Task, pp_rank: int, micro_batch: int, x: Tensor) -> Tensor:
    """By one process: a stage's output of its input, and of the input with one number added to, for each."""
    one = one_process(task)
    (stage,) = one.setting.stages_on(pp_rank)
    n = x.numel()
    tries = torch.cat([x, x + 1e-3 * torch.eye(n, dtype=x.dtype).view(n, *x.shape[1:])])
    with ranks_of(one, True) as (mesh, cut), torch.no_grad():
        given = inputs(one, cut)
        targets = (
            targets_of(given["targets"], one.setting, micro_batch).expand(n + 1, -1) if stage.head else None
        )
        weights = {name: given[name] for name in one.setting.parameters_on(stage)}
        made = llama_stage(mesh, one.setting, stage, tries, given["positions"], targets, weights)
    return made if isinstance(made, Tensor) else made["loss"]


def changed_by(made: Tensor, x: Tensor, out: Index) -> set[Index]:
    """The numbers of the input that change a number of the output."""
    own = made[(slice(None), *out[1:])]
    changed = (own[1:] - own[0]).abs() > 1e-12 * own[0].abs()
    return {tuple(int(i) for i in torch.unravel_index(k, x.shape)) for k in changed.nonzero()[:, 0]}


@pytest.mark.parametrize(
    ("layout", "operation", "name"),
    [(Layout(tp=2, pp=3), "1F1", "x"), (Layout(cp=2, pp=2), "1F1", "loss")],
    ids=["a stage in the middle", "the loss"],
)
def test_a_forward_depends_on_what_a_finite_difference_says(
    layout: Layout, operation: str, name: str
) -> None:
    task, tape = watched_at_random("llama", layout)
    number = step_at(tape, f"{operation}:", name)
    step = tape.steps[number]
    (read,) = step.reads
    arrived = tape.steps[read]
    assert arrived.where.startswith("to stage")
    x = whole_of(arrived)
    made = tried(task, int(operation[0]), int(operation[2]), x)
    for rank in sorted(step.values):
        at = step.values[rank].numel() * 2 // 3
        found = lights(task, number, rank, at)
        assert set(found) == {read}
        lit = {whole_index(arrived, r, cell) for r, cells in found[read].items() for cell in cells}
        out = whole_index(step, rank, at)
        assert lit == changed_by(made, x, out)
        if name == "x":  # causal: own token and those before
            assert {token for _, token, _ in lit} == set(range(out[1] + 1))


def test_a_number_that_arrives_is_the_one_that_was_sent() -> None:
    task, tape = watched_at_random("llama", Layout(tp=2, pp=2))
    sends = [n for n, s in enumerate(tape.steps) if s.where.startswith("to stage") and s.phase == "forward"]
    assert len(sends) == 2  # one a micro-batch
    for number in sends:
        step = tape.steps[number]
        for rank, own in step.values.items():
            ((source, by_rank),) = lights(task, number, rank, 7).items()
            ((sender, cells),) = by_rank.items()
            assert tape.steps[source].where.split("F")[1] == step.code.split("micro-batch ")[1][0] + ":0"
            assert tape.coords[sender] == tape.coords[rank] | {"pp": tape.coords[rank]["pp"] - 1}
            assert cells == [7]
            assert float(tape.steps[source].values[sender].view(-1)[7]) == float(own.view(-1)[7])


@pytest.mark.parametrize("micro_batch", [0, 1])
def test_a_line_of_a_stage_reads_its_own_micro_batch(micro_batch: int) -> None:
    task, tape = watched_at_random("llama", Layout(tp=2, pp=2))
    number = step_at(tape, f"1F{micro_batch} ", "logits")
    step = tape.steps[number]
    rank = 3
    width = step.values[rank].shape[-1]
    token, column = 5, 2
    found = lights(task, number, rank, token * width + column)
    assert {tape.steps[n].name for n in found} == {"x", "output.weight"}
    total = torch.zeros((), dtype=torch.float64)
    parts = []
    for n, by_rank in found.items():
        assert tape.steps[n].code == "argument" or tape.steps[n].where.startswith(f"1F{micro_batch} ")
        assert set(by_rank) == {rank}
        parts.append(tape.steps[n].values[rank].reshape(-1)[by_rank[rank]])
    total = (parts[0] * parts[1]).sum()  # a row of x times a row of the weight is the logit
    assert float(total) == pytest.approx(float(step.values[rank].view(-1)[token * width + column]), rel=1e-12)


@pytest.mark.soak
def test_a_gathered_parameter_was_in_one_ranks_shard() -> None:
    task, tape = watched_at_random("step", Layout(pp=2, dp=2, zero=3))
    number = next(n for n, s in enumerate(tape.steps) if s.name == "output.weight" and s.code != "argument")
    step = tape.steps[number]
    holders = set()
    for rank, own in step.values.items():
        for at in (0, own.numel() - 1):
            ((n, by_rank),) = lights(task, number, rank, at).items()
            ((holder, (cell,)),) = by_rank.items()
            assert float(tape.steps[n].values[holder].view(-1)[cell]) == float(own.reshape(-1)[at])
            assert n in step.reads
            holders.add(holder)
    assert len(holders) == 2


def test_what_is_no_forward_has_no_makers() -> None:
    task, tape = watched_at_random("step", Layout(pp=2))
    for phase in ("backward", "update"):
        number = next(n for n, s in enumerate(tape.steps) if s.phase == phase and s.values)
        assert lights(task, number, min(tape.steps[number].values), 0) == {}


def test_the_panel_lights_a_stage_and_another_program_has_none() -> None:
    panel = watch("llama", pp=2)
    number, step = next((n, s) for n, s in enumerate(panel.film["steps"]) if s["where"].startswith("1F0:"))
    place = {"step": number, "tensor": step["made"][0], "rank": 1, "row": 0, "column": 0}
    (told,) = customs(deliver(panel, {"kind": "cell", "seq": panel.payload["seq"], **place}), "lights")
    (light,) = told["lights"]
    assert light["tensor"] in step["reads"]
    assert light["rank"] == 1
    assert light["cells"]
    panel.set(program="mlp")
    assert panel.code == "lp.watch('mlp', tp=1)", "a part of a stage has no stages"
