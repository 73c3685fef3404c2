"""SwiGLU over TP: w1 and w3 by rows (columns of the hidden layer), w2 by columns."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.spmd.setting import Setting

from .parts import column_input, row_output


def mlp(mesh: DeviceMesh, setting: Setting, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """x [batch, seq(/tp), dim] → the same shape. One way in for w1 and w3: one collective backward."""
    x = column_input(x, mesh, setting)  # [batch, seq, dim]
    hidden = F.silu(x @ w1.mT) * (x @ w3.mT)  # [batch, seq, ffn_dim/tp]
    partial = hidden @ w2.mT  # [batch, seq, dim], of the rank's own columns
    return row_output(partial, mesh, setting)


def mlp_unfused(mesh: DeviceMesh, setting: Setting, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """The same with a way in for each of w1 and w3: the backward has two collectives instead of one."""
    gate = column_input(x, mesh, setting) @ w1.mT
    up = column_input(x, mesh, setting) @ w3.mT
    return row_output((F.silu(gate) * up) @ w2.mT, mesh, setting)


def mlp_reference(setting: Setting, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """The same on one device."""
    return (F.silu(x @ w1.mT) * (x @ w3.mT)) @ w2.mT
