"""The layout and the options of a run, for every engine: what `lp.run` and `lp.tape` receive.

One frozen value carries them from the call to the setting of every rank. Values are stored as given.
`execute.prepare` checks each one, because most are right or wrong only beside the program and the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from torch import Tensor

from llamapar.describe.configfile import Values
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.options import LAYOUT
from llamapar.describe.splits import Padding
from llamapar.place.pipeline import Schedule

ENGINES = ("local", "processes", "torchrun", "dry")

RunKeywords = TypedDict(
    "RunKeywords",
    {
        "dtype": "str",
        "seq_len": "int | None",
        "global_batch": "int | None",
        "seed": "int",
        "force": "bool",
        "kv_replication": "bool",
        "padding": "str | Padding | None",
        "chunking": "str",
        "cp_method": "str",
        "documents": "tuple[int, ...] | None",
        "pads_in_softmax": "bool",
        "fault": "str | None",
        "inputs": "Mapping[str, Tensor] | None",
        "reference": "Callable[..., Any] | None",
        "out": "str",
        "backward": "bool",
        "schedule": "str | Schedule",
        "micro_batches": "int | None",
        "nc": "int | None",
        "reshard_after_forward": "bool",
        "steps": "int",
        "steps_done": "int",
        "tp": "int",
        "cp": "int",
        "pp": "int",
        "dp": "int",
        "dp_replicate": "int",
        "sequence_parallel": "bool | None",
        "virtual_stages": "int",
        "zero": "int",
        "order": "str",
    },
    total=False,
)
"""What `lp.run` takes for its program."""

TapeKeywords = TypedDict(
    "TapeKeywords",
    {
        "dtype": "str",
        "seq_len": "int | None",
        "global_batch": "int | None",
        "seed": "int",
        "kv_replication": "bool",
        "padding": "str | Padding | None",
        "chunking": "str",
        "cp_method": "str",
        "documents": "tuple[int, ...] | None",
        "pads_in_softmax": "bool",
        "fault": "str | None",
        "inputs": "Mapping[str, Tensor] | None",
        "reference": "Callable[..., Any] | None",
        "out": "str",
        "backward": "bool",
        "schedule": "str | Schedule",
        "micro_batches": "int | None",
        "nc": "int | None",
        "reshard_after_forward": "bool",
        "steps": "int",
        "steps_done": "int",
        "tp": "int",
        "cp": "int",
        "pp": "int",
        "dp": "int",
        "dp_replicate": "int",
        "sequence_parallel": "bool | None",
        "virtual_stages": "int",
        "zero": "int",
        "order": "str",
    },
    total=False,
)
"""The same for `lp.tape`, which never refuses a layout."""

CompareKeywords = TypedDict(
    "CompareKeywords",
    {
        "dtype": "str",
        "seed": "int",
        "seq_len": "int | None",
        "global_batch": "int | None",
        "tp": "int",
        "cp": "int",
        "pp": "int",
        "dp": "int",
        "dp_replicate": "int",
        "sequence_parallel": "bool | None",
        "virtual_stages": "int",
        "zero": "int",
        "order": "str",
    },
    total=False,
)
"""What `lp.compare` takes for its module."""


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

    @classmethod
    def of(cls, layout: LayoutLike | None = None, **given: Unpack[RunKeywords]) -> RunOptions:
        """From a layout, or from its degrees by name, and options. Raises LayoutError for an invalid
        layout.
        """
        options = Values(given)
        degrees = {name: options.pop(name) for name in LAYOUT if name in options}
        return cls(Layout.of(layout, **degrees), **options)
