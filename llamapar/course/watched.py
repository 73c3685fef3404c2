"""Small programs for `lp.watch` in the notebook on collectives: each is one exchange, after one line of work.

`own` is what a rank makes with its quarter of an MLP: a summand as large as the layer's output. Under
teaching data it draws the rank's two letters of a word.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import silu

from llamapar.spmd import collectives
from llamapar.spmd.setting import Setting


def all_reduced(mesh: DeviceMesh, setting: Setting, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """The sum of the ranks' summands, on every rank."""
    own = (silu(x @ w1.mT) * (x @ w3.mT)) @ w2.mT
    return collectives.all_reduce(own, mesh, "tp")


def in_two_halves(
    mesh: DeviceMesh, setting: Setting, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor
) -> Tensor:
    """The same in two steps: each rank gets its rows of the sum, and then everybody gets all rows."""
    own = (silu(x @ w1.mT) * (x @ w3.mT)) @ w2.mT
    rows = collectives.reduce_scatter(own, mesh, "tp", 1)
    return collectives.all_gather(rows, mesh, "tp", 1)


def traded(mesh: DeviceMesh, setting: Setting, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """Rows for columns: each rank gives every rank a piece of its rows."""
    own = (silu(x @ w1.mT) * (x @ w3.mT)) @ w2.mT
    rows = collectives.reduce_scatter(own, mesh, "tp", 1)
    return collectives.all_to_all(rows, mesh, "tp", 2, 1, 4)
