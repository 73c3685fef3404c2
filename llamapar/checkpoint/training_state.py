"""The state of a training step as one process has it: what the ranks hold, put together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from llamapar.errors import CheckpointError, Choice
from llamapar.execution.result import Result


def whole_state(result: Result) -> dict[str, Tensor]:
    """The weights after the last step and AdamW's state, unsharded: the `inputs` of a later run, in any
    layout. `torch.save` keeps them.

    Raises CheckpointError for a run that updated nothing, and on ranks of torchrun that hold no tensors.
    """
    setting = result.task.setting
    shapes = result.task.setting.weights()
    if not any(result.state.values()):
        what = "the run holds no state of a training step"
        choose = [Choice.of(program="step")]
        raise CheckpointError(what, "weights were not updated, or this is not rank 0", choose)
    flat: dict[str, Tensor] = {}
    found: dict[str, Tensor] = {}
    for rank, state in result.state.items():
        coord = setting.layout.coord_of(rank)._asdict()
        for name, own in state.items():
            parameter = name
            if name not in shapes:
                parameter = name.partition(".")[2]
            what = "optimizer state"
            if name in shapes:
                what = "parameters"
            size = math.prod(shapes[parameter])
            if name not in flat:
                flat[name] = own.new_zeros(size + 1)
                found[name] = flat[name][1:].view(shapes[parameter])
            # Numbers start at 1: 0 marks a pad row.
            numbers = torch.arange(1, size + 1).view(shapes[parameter])
            flat[name][setting.held(parameter, numbers, coord, what).flatten()] = own.flatten()
    return found
