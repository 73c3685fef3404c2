"""The layout and the options of a run, for every engine: what `lp.run` and `lp.tape` receive.

One frozen value carries them from the call to the setting of every rank. Values are stored as given.
`execute.prepare` checks each one, because most are right or wrong only beside the program and the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.describe.splits import Padding
from llamapar.place.pipeline import Schedule


@dataclass(frozen=True)
class RunOptions:
    """The layout and options of a run; `run` documents them."""

    layout: Layout
    dtype: str = "float32"
    seq_len: int | None = None
    global_batch: int | None = None
    seed: int = 0
    force: bool = False
    kv_replication: bool = False
    padding: str | Padding | None = None
    chunking: str = "head-tail"
    cp_method: str = "all_gather"
    documents: tuple[int, ...] | None = None
    pads_in_softmax: bool = False
    fault: str | None = None
    inputs: Mapping[str, Tensor] | None = None
    reference: Callable[..., Any] | None = None
    out: str = "residual"
    backward: bool = True
    schedule: str | Schedule = "1f1b"
    micro_batches: int | None = None
    nc: int | None = None
    reshard_after_forward: bool = True
    steps: int = 1
    steps_done: int = 0
