"""llamapar: how Llama-style transformers are cut across GPUs, checked, drawn and explained.

One Layout object is checked (`check`, `require`), drawn (`heads`, `vocab`, `sequence`, `stages`,
`ranks`, `view`, `explorer`) and explained. Importing this needs no third-party package.
"""

from __future__ import annotations

from typing import Any

from .errors import LayoutError, LlamaparError, ModelError
from .frameworks import FRAMEWORKS
from .job import Job
from .layout import AXES, Layout
from .maps import ffn, heads, ranks, sequence, stages, vocab
from .model import PRESETS, ModelConfig, model
from .report import Finding, Report, check, require
from .shard import Padding

__version__ = "0.1.0"

__all__ = [
    "AXES",
    "FRAMEWORKS",
    "PRESETS",
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
    "explorer",
    "ffn",
    "heads",
    "model",
    "ranks",
    "require",
    "sequence",
    "stages",
    "view",
    "vocab",
]

_LAZY = {"view": ".figures", "explorer": ".panels"}
"""Names that need plotly or ipywidgets: imported when first used."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(_LAZY[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
