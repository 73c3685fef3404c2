"""What common mistakes make of a training step: another norm, another mean, another update."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

from llamapar.describe.placement import PARAMETERS
from llamapar.spmd.setting import kind

from .body import RankReport, Task, inputs, uncut
from .ends import End
from .module_reading import gap, largest
from .patterns import FIT
from .rows import MEAN
from .unsharded import Unsharded


def _norms(task: Task, reports: Sequence[RankReport]) -> dict[str, dict[int, float]]:
    """Whose gradients → rank → their norm."""
    squares = dict[int, float]()
    for r in reports:
        own = (g for name, g in r.gradients.items() if kind(name) in PARAMETERS)
        squares[r.rank] = sum(float(g.double().square().sum()) for g in own)
    layout = task.setting.layout
    axes = [axis for axis in layout.axes if layout.size(axis) > 1]
    found = dict[str, dict[int, float]]()
    for summed in itertools.chain([()], *(itertools.combinations(axes, n + 1) for n in range(len(axes)))):
        place = {rank: layout.coord_of(rank)._replace(**dict.fromkeys(summed, 0)) for rank in squares}
        over = f"the gradients of all ranks along {' and '.join(summed)}, copies counted each time"
        found[over if summed else "each rank's own gradients"] = {
            rank: sum(n for r, n in squares.items() if place[r] == place[rank]) ** 0.5 for rank in squares
        }
    return found


def norm_pattern(task: Task, end: End, reports: Sequence[RankReport]) -> str:
    """A norm of other gradients than it should be; "" where none fits."""
    for words, norms in _norms(task, reports).items():
        pairs = [(float(own), norms[rank]) for rank, own in end.owns.items() if own is not None]
        if all(abs(own - norm) <= FIT * norm for own, norm in pairs):
            return f"it is the norm of {words}"
    return ""


def update_pattern(task: Task, end: End, alone: Unsharded, reports: Sequence[RankReport]) -> str:
    """How a step of another kind made a mean or an updated weight; "" where nothing fits."""
    training = task.setting.training
    assert training is not None
    first = alone.steps[0]
    before = inputs(task, uncut, wanted=(end.name,))[end.name].detach().double()
    clipped = first.made.gradients[end.name].double() * first.factor
    owns = {rank: own.double() for rank, own in end.owns.items() if own is not None}

    def fits(whole: Tensor, times: dict[int, float]) -> bool:
        limit = FIT * largest(end.whole)
        pairs = [(own, end.take(whole, rank) * times.get(rank, 1.0)) for rank, own in owns.items()]
        return all(gap(own, right) <= limit for own, right in pairs)

    if end.kind == MEAN:
        for words, norms in _norms(task, reports).items():
            clip = {r: min(1, training.max_norm / (norm + 1e-6)) / first.factor for r, norm in norms.items()}
            if fits(end.whole.double(), clip):
                return f"gradients are clipped by the norm of {words}"
        if fits(end.whole.double() / first.factor, {}):
            return "gradients are not clipped"
        decayed = clipped + training.weight_decay * before
        if fits(decayed * (1 - training.beta1), {}):
            return "the decay went through the mean"
        return ""
    if fits(before, {}):
        return "the weights of before the step"
    # The first step, from means of zero; a correction would make it lr long wherever the gradient is large.
    spread = (1 - training.beta2) ** 0.5 * clipped.abs() + training.eps
    step = training.lr * (1 - training.beta1) * clipped / spread
    uncorrected = before * (1 - training.lr * training.weight_decay) - step
    if fits(uncorrected, {}):
        return "AdamW's means are not corrected"
    return ""
