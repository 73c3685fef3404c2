"""llamapar: how Llama-style transformers are cut across GPUs, checked, drawn and explained.

One Layout object is checked (`check`, `require`), drawn (`heads`, `vocab`, `sequence`, `stages`,
`ranks`, `view`, `explorer`), executed (`run`, `local`, `tape`, `record`) and explained (`explain`,
`clinic`). Importing this needs no third-party package.
"""

from __future__ import annotations

from typing import Any

from . import interrupts as _interrupts  # first: of what follows Ctrl-C may already end the command
from .budget import memory, reconcile
from .diagnosis import Explanation, explain, explain_stream
from .errors import LayoutError, LlamaparError, ModelError
from .fit import fit
from .frameworks import FRAMEWORKS
from .job import Job
from .layout import AXES, Layout
from .loading import load
from .maps import ffn, heads, ranks, sequence, stages, vocab
from .model import PRESETS, ModelConfig, model
from .report import Finding, Report, check, require
from .shard import Padding
from .volume import volume

__version__ = "0.1.0"

__all__ = [
    "AXES",
    "FAULTS",
    "FRAMEWORKS",
    "PRESETS",
    "PROGRAMS",
    "Finding",
    "Job",
    "Layout",
    "LayoutError",
    "LlamaparError",
    "ModelConfig",
    "ModelError",
    "Padding",
    "Report",
    "check",
    "checkpoint",
    "clinic",
    "explain",
    "explain_stream",
    "explorer",
    "ffn",
    "fit",
    "heads",
    "load",
    "local",
    "memory",
    "model",
    "ranks",
    "reconcile",
    "record",
    "require",
    "run",
    "sequence",
    "show_source",
    "stages",
    "tape",
    "view",
    "vocab",
    "volume",
]

_LAZY = {
    "FAULTS": ".spmd.faults",
    "PROGRAMS": ".spmd.programs",
    "checkpoint": ".checkpoint",
    "clinic": ".panels",
    "explorer": ".panels",
    "local": ".execute",
    "record": ".spmd.record",
    "run": ".execute",
    "show_source": ".execute",
    "tape": ".execute",
    "view": ".figures",
}
"""Names that need torch, plotly or ipywidgets: imported when first used."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        with _interrupts.deferred():  # a torch whose import is broken off cannot be imported again
            module = import_module(_LAZY[name], __name__)
        value = module if _LAZY[name] == f".{name}" else getattr(module, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _show(told: Explanation) -> None:
    """An explanation in a notebook: its words, then its picture, which lie layers above it."""
    from importlib import import_module

    import_module(".magics", __name__).show(told)


Explanation._ipython_display_ = _show


def load_ipython_extension(ip: Any) -> None:
    """`%load_ext llamapar`: diagnoses under the tracebacks of shape-like errors, and `%explain`."""
    from importlib import import_module

    import_module(".magics", __name__).load(ip)


def unload_ipython_extension(ip: Any) -> None:
    """`%unload_ext llamapar`: takes both away."""
    from importlib import import_module

    import_module(".magics", __name__).unload(ip)
