"""The state of a training step in files: the weights and AdamW's state, each a checkpoint of the model.

AdamW's means have the names and shapes of the weights, so the code that reshards weights reshards them too.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.describe.modelfile import config_json
from llamapar.errors import CheckpointError, Choice
from llamapar.execution.result import Result
from llamapar.spmd.update import STATES

from .atomic_write import new_folder
from .pth import KINDS
from .sharding import Sharding, reordered
from .source import opened, understood
from .whole import dtype_of_shards, whole_parameter

WEIGHTS = "weights"
"""The folder of the weights; those of AdamW's state have its names."""


def whole_state(result: Result) -> dict[str, Tensor]:
    """The weights after the last step and AdamW's state, unsharded: the `inputs` of a later run.

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
            parameter = name if name in shapes else name.partition(".")[2]
            what = "parameters" if name in shapes else "optimizer state"
            size = math.prod(shapes[parameter])
            if name not in flat:
                flat[name] = own.new_zeros(size + 1)
                found[name] = flat[name][1:].view(shapes[parameter])
            # Numbers start at 1: 0 marks a pad row.
            numbers = torch.arange(1, size + 1).view(shapes[parameter])
            flat[name][setting.held(parameter, numbers, coord, what).flatten()] = own.flatten()
    return found


def save_state(result: Result, target: str | Path) -> None:
    """Write what the next step needs to the folder `target`: weights/, exp_avg/, exp_avg_sq/, and master/ if
    the master weights are wider.

    Each subfolder is a whole checkpoint of the model, which `reshard` cuts for a layout. Raises
    CheckpointError as `whole_state` and `reshard` do.
    """
    model = result.task.setting.model
    state = whole_state(result)
    config = json.dumps(config_json(model), indent=2)
    with new_folder(Path(target)) as work:
        for kind in (WEIGHTS, *STATES):
            start = "" if kind == WEIGHTS else f"{kind}."
            if not any(name.startswith(start) for name in state):
                continue
            tensors = {}
            for name, parameter in Sharding(model, Layout()).tensors[0].items():
                t = state[start + parameter.name]
                # Programs hold Q and K in Meta's order of rows, and these files have Hugging Face's.
                index = reordered(model, parameter, "meta", "hf")
                tensors[name] = t.contiguous() if index is None else t[torch.from_numpy(index)]
            (work / kind).mkdir()
            (work / kind / "config.json").write_text(config)
            save_file(tensors, work / kind / "model.safetensors", {"format": "pt"})


def load_state(source: str | Path) -> dict[str, Tensor]:
    """The state that `save_state` wrote, as `inputs` for "step", whatever the layout of each folder is now.

    Raises CheckpointError for files that are damaged or no checkpoint.
    """
    found = {}
    for kind in (WEIGHTS, *STATES):
        folder = Path(source) / kind
        if kind == "master" and not folder.is_dir():
            continue
        placement = understood(opened(folder))
        model = placement.sharding.model
        naming = placement.sharding.naming
        for parameter in model.parameters():
            whole = whole_parameter(placement, parameter)
            index = reordered(model, parameter, naming, "meta")
            whole = whole if index is None else whole[index]
            kept = KINDS[dtype_of_shards(placement, parameter)]
            name = parameter.name if kind == WEIGHTS else f"{kind}.{parameter.name}"
            found[name] = torch.from_numpy(whole.reshape(-1).copy()).view(kept).view(parameter.shape)
    return found
