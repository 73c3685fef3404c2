"""The state of a training step in files: the weights and AdamW's state, each a checkpoint of the model.

AdamW's means have the names and shapes of the weights, so the code that reshards weights reshards them too.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.describe.modelfile import config_json
from llamapar.errors import CheckpointError, Choice
from llamapar.execution.run_result import RunResult
from llamapar.spmd.update import STATES

from .atomic_write import OutputFile, write_checkpoint
from .rows import LazyRows, Output, picked
from .sharding import Sharding, reordered
from .source import opened, understood
from .stored import Bytes
from .whole import cut_shard, whole_parameter

WEIGHTS = "weights"
"""The folder of the weights; those of AdamW's state have its names."""

_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16"}


def whole_state(result: RunResult) -> dict[str, Tensor]:
    """The weights after the last step and AdamW's state, unsharded: the `inputs` of a later run.

    Raises CheckpointError for a run that updated nothing, and on ranks of torchrun that hold no tensors.
    """
    setting, shapes = result.task.setting, result.task.setting.weights()
    if not any(result.state.values()):
        what, choose = "the run holds no state of a training step", [Choice.of(program="step")]
        raise CheckpointError(what, "weights were not updated, or this is not rank 0", choose)
    found: dict[str, Tensor] = {}
    for rank, state in result.state.items():
        coord = setting.layout.coord_of(rank)._asdict()
        for name, own in state.items():
            parameter = name if name in shapes else name.partition(".")[2]
            what = "parameters" if name in shapes else "optimizer state"
            size = math.prod(shapes[parameter])
            # Numbers start at 1: 0 marks a pad row.
            numbers = torch.arange(1, size + 1).view(shapes[parameter])
            at = setting.held(parameter, numbers, coord, what).flatten()
            into = found.setdefault(name, own.new_zeros(size + 1))
            into[at] = own.flatten()
    return {
        name: t[1:].view(shapes[name if name in shapes else name.partition(".")[2]])
        for name, t in found.items()
    }


def save_state(result: RunResult, target: str | Path) -> None:
    """Write what the next step needs to the folder `target`: weights/, exp_avg/, exp_avg_sq/, and master/ if
    the master weights are wider.

    Each subfolder is a checkpoint with one file for each (tp, pp) rank, so `reshard` can convert it to
    another layout. ZeRO's shards over dp and cp are joined. Raises CheckpointError as `whole_state` and
    `reshard` do.
    """
    setting, state = result.task.setting, whole_state(result)
    layout = Layout(tp=setting.layout.tp, pp=setting.layout.pp)
    wanted = Sharding(
        setting.model,
        layout,
        padding=setting.padding,
        kv_replication=setting.kv_replication,
        layer_split=setting.layer_split,
    )
    beside = {"config.json": json.dumps(config_json(setting.model), indent=2).encode()}
    for kind in (WEIGHTS, *STATES):
        start = "" if kind == WEIGHTS else f"{kind}."
        if not any(name.startswith(start) for name in state):
            continue
        files = []
        for stage, rank in wanted:
            tensors = {}
            for name, parameter in wanted.tensors[stage].items():
                t = state[start + parameter.name]
                # Programs hold Q and K in Meta's order of rows, and these files have Hugging Face's.
                index = reordered(setting.model, parameter, "meta", "hf")
                rows = _rows(t) if index is None else picked(_rows(t), index)
                own = cut_shard(wanted, parameter, rank, rows, t.element_size())
                tensors[name] = Output(_DTYPES[t.dtype], wanted.local_shape(parameter, rank), own)
            files.append(OutputFile(f"tp{rank:02d}-pp{stage:02d}.safetensors", (stage, rank), tensors))
        write_checkpoint(Path(target) / kind, files, beside, {"sharding": wanted.as_dict()})


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
        model, naming = placement.sharding.model, placement.sharding.naming
        for parameter in model.parameters():
            dtype, rows = whole_parameter(placement, parameter)
            index = reordered(model, parameter, naming, "meta")
            rows = rows if index is None else picked(rows, index)
            kept = next(torch_one for torch_one, stored in _DTYPES.items() if stored == dtype)
            read = torch.from_numpy(rows.read(0, rows.rows).copy()).flatten().view(kept)
            name = parameter.name if kind == WEIGHTS else f"{kind}.{parameter.name}"
            found[name] = read.view(parameter.shape)
    return found


def _rows(t: Tensor) -> LazyRows:
    """The rows of a tensor in memory."""
    # numpy has no bfloat16, so the tensor is seen as bytes, which is all that a file needs.
    raw: Bytes = t.contiguous().view(torch.uint8).view(t.shape[0], -1).numpy()

    def part(rows: range, columns: range) -> Bytes:
        return raw[rows.start : rows.stop, columns.start : columns.stop]

    return LazyRows(len(raw), raw.shape[1], part)
