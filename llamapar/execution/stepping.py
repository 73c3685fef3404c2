"""Training steps: the update of a rank, the same update on one process, and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.records.losses import LossCurve
from llamapar.spmd import update
from llamapar.spmd.microbatches import of_step
from llamapar.spmd.setting import Setting
from llamapar.spmd.training import Training
from llamapar.spmd.update import STATES, ParameterState
from llamapar.spmd.zero import zero_group

from .body import RankReport, Results, Task, computed, inputs, leaf, parameters, uncut

LIKE = 0.5
"""A later step's loss is equal to that of one process in this share of the digits of a first step's: what
rounding did to the first weights goes through every step after it."""


def begun(given: Mapping[str, Tensor], name: str, weight: Tensor, setting: Setting) -> ParameterState:
    """AdamW's initial state of a parameter: the given one, else the weight itself and zeros."""
    master = weight.detach().to(setting.sum_dtype)
    starts = master, torch.zeros_like(master), torch.zeros_like(master)
    kept = (given.get(f"{kind}.{name}") for kind in STATES)
    return ParameterState(
        *(start if own is None else own.detach() for own, start in zip(kept, starts, strict=True))
    )


class Trained:
    """The state of a rank's parameters from step to step.

    group: the ranks that share them under ZeRO; None without ZeRO. Every rank must create its own at the same
    time, because making groups is collective. given: the rank's pieces of weights and of AdamW's state, by
    name.
    """

    def __init__(self, mesh: DeviceMesh, setting: Setting, pp_rank: int, given: Mapping[str, Tensor]) -> None:
        assert setting.training is not None
        self.mesh = mesh
        self.setting = setting
        self.pp_rank = pp_rank
        self.training = setting.training
        shares = setting.layout.zero > 0 and setting.shards.ranks > 1
        self.group = zero_group(mesh, setting) if shares else None
        self.start = given["positions"].new_zeros(1, dtype=setting.sum_dtype)
        self.states: dict[str, ParameterState] = {}
        self.weights: dict[str, Tensor] = {}
        """As the rank holds them for the next forward."""
        for stage in setting.stages_on(pp_rank):
            for name in setting.parameters_on(stage):
                whole = begun(given, name, given[name], setting)
                if self.group is not None:
                    whole = ParameterState(*map(self.group.own, whole))
                own = self.states[name] = whole
                shared = self.shares("parameters")
                self.weights[name] = leaf(own.master.to(setting.torch_dtype)) if shared else given[name]
        self.held: Callable[[Tensor, str], None] = lambda t, what: None
        """Told of each tensor that is kept from now on, and what it is."""
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []

    def shares(self, what: str) -> bool:
        """Whether the rank stores only its shard of "parameters", or of "gradients"."""
        return self.group is not None and self.setting.shards.cuts(what)

    def tell(self, name: str) -> None:
        """Report the stored state of a parameter; a master weight can be the weight itself."""
        state = self.states[name]
        self.held(self.weights[name], "parameters")
        self.held(state.master, "master weights")
        self.held(state.exp_avg, "optimizer states")
        self.held(state.exp_avg_sq, "optimizer states")

    def squares(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """[1]: the sum of squares that the rank's stages add to the norm."""
        squares = update.squares(self.setting, gradients, self.pp_rank, self.start)
        squares = update.over_tensor(squares, self.mesh)
        if self.group is not None and self.shares("gradients"):
            squares = update.over_shards(squares, self.group)
        return squares

    def update(self, made: Results, squares: Sequence[Tensor], step: int) -> None:
        """One step, given the sums of squares of all PP ranks in order."""
        norm = update.over_stages(squares, self.pp_rank).sqrt()
        factor = update.clip_factor(norm, squares[self.pp_rank].sqrt(), self.training)
        number = self.training.done + step + 1
        dtype = self.setting.torch_dtype
        for name, gradient in made.gradients.items():
            before = self.states[name]
            if self.group is not None and not self.shares("gradients"):
                gradient = update.own_shard(self.group, gradient)
            master, exp_avg, exp_avg_sq = update.adamw(before, gradient * factor, self.training, number)
            weight = master.to(dtype)
            if self.group is not None and not self.shares("parameters"):
                weight = update.gathered_weight(self.group, name, before.master.to(dtype), weight)
            self.states[name], self.weights[name] = ParameterState(master, exp_avg, exp_avg_sq), leaf(weight)
            self.tell(name)
        self.norms.append(norm)
        if "loss" in made.outputs:
            self.losses.append(made.outputs["loss"].mean().view(1))

    @property
    def checkpoint(self) -> dict[str, Tensor]:
        """The input of the next step as the rank stores it: weights by name, and "exp_avg.output.weight"."""
        kinds = STATES[self.setting.sum_dtype == self.setting.torch_dtype :]
        states = {f"{kind}.{n}": getattr(own, kind) for n, own in self.states.items() for kind in kinds}
        return {name: w.detach() for name, w in self.weights.items()} | states

    @property
    def curve(self) -> dict[str, Tensor]:
        found = {"losses": self.losses, "norms": self.norms}
        return {name: torch.cat(numbers) for name, numbers in found.items() if numbers}


# -- one process -----------------------------------------------------------------------------------


class ProcessStep(NamedTuple):
    """One process's outputs and gradients, their norm, the clipping factor, and the states after the step."""

    made: Results
    norm: float
    factor: float
    states: dict[str, ParameterState]


def reference_steps(task: Task) -> Iterator[ProcessStep]:
    """The same steps on the unsharded model, with its whole batch at once.

    Norm, clipping and update are torch's own clip_grad_norm_ and AdamW, which share nothing with
    `spmd.update`: an error there is an error on the ranks alone, and shows as a difference.
    """
    setting = task.setting
    training = task.setting.training
    assert training is not None
    assert task.program.reference is not None

    given = inputs(task, uncut)
    states = {name: begun(given, name, w, setting) for name, w in parameters(given).items()}
    masters = {name: torch.nn.Parameter(state.master.clone()) for name, state in states.items()}
    optimizer = torch.optim.AdamW(
        masters.values(),
        lr=training.lr,
        betas=(training.beta1, training.beta2),
        eps=training.eps,
        weight_decay=training.weight_decay,
    )
    for name, master in masters.items():
        optimizer.state[master] = {
            "step": torch.tensor(float(training.done)),
            "exp_avg": states[name].exp_avg.clone(),
            "exp_avg_sq": states[name].exp_avg_sq.clone(),
        }
    function = partial(task.program.reference, setting)
    for step in range(training.steps):
        batch = {name: given[of_step(name, step)] for name in ("tokens", "targets")}
        weights = {name: leaf(master.to(setting.torch_dtype)) for name, master in masters.items()}
        own = {"positions": given["positions"], **batch, **weights}
        made = computed(task, function, own, setting.global_batch, uncut)
        for name, master in masters.items():
            master.grad = made.gradients[name].to(setting.sum_dtype, copy=True)  # clipping changes it
        norm = torch.nn.utils.clip_grad_norm_(masters.values(), training.max_norm).item()
        optimizer.step()
        # The comparison reads the first step after later ones, so each step keeps copies of its own.
        kept = {
            name: ParameterState(
                *(t.detach().clone() for t in (m, *(optimizer.state[m][kind] for kind in STATES[1:])))
            )
            for name, m in masters.items()
        }
        yield ProcessStep(made, norm, min(1.0, training.max_norm / (norm + 1e-6)), kept)


def allowed_distance(step: ProcessStep, name: str, training: Training, tolerance: float) -> Tensor:
    """Allowed distance of an updated weight from one process's, element by element.

    AdamW divides a gradient by its own size: g/(|g| + eps) in the first step. A gradient that is off by d
    moves this by up to d/(|g| + eps), or by 2 if its sign is rounding noise. So 1e-15 becomes 1e-10 at lr =
    1e-3 and eps = 1e-8, and in float32 a gradient that is nearly zero moves its weight by 2·lr.
    """
    state = step.states[name]
    number = training.done + 1
    size = state.exp_avg_sq.sqrt() / (1 - training.beta2**number) ** 0.5 + training.eps
    off = tolerance * step.made.gradients[name].abs().max().to(size.dtype) * step.factor
    moved = training.lr * (2 * off / size).clamp(max=2)
    rounding = 4 * torch.finfo(step.made.gradients[name].dtype).eps * (state.master.abs() + moved)
    return moved + rounding


# -- the curve -------------------------------------------------------------------------------------


def curve_of(task: Task, reports: Sequence[RankReport], steps: Sequence[ProcessStep]) -> LossCurve:
    """The loss curve of a run beside one process's; losses are means over the dp ways."""
    by_dp = {}
    for report in reports:
        if "losses" in report.curve:
            by_dp[task.setting.layout.coord_of(report.rank).dp] = report.curve["losses"].double()
    losses = torch.stack([by_dp[dp] for dp in sorted(by_dp)]).mean(0)
    title = f"{len(losses)} steps of {task.setting.model.name}, {task.setting.layout}, and of one process"
    return LossCurve(
        title,
        tuple(losses.tolist()),
        tuple(reports[0].curve["norms"].double().tolist()),
        tuple(step.made.outputs["loss"].double().mean().item() for step in steps),
        tuple(step.norm for step in steps),
    )
