"""`llamapar report`: what an issue needs to say of a machine, and nothing private.

Versions come from the metadata of packages and the names of GPUs from the driver's files, so nothing is
imported.
"""

from __future__ import annotations

import platform
from importlib import import_module, metadata
from pathlib import Path

from llamapar.records.tables import aligned

from .commands import Command, CommandAnswer, Given
from .output import as_text

_PACKAGES = ("torch", "numpy", "cloudpickle", "jupyterlab", "ipywidgets", "anywidget", "plotly", "pyyaml")

_GPUS = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver for Linux has a folder here for each GPU, and in it a file with its model."""


def _answer(given: Given) -> CommandAnswer:
    """Versions and GPUs."""
    told: dict[str, object] = {
        "llamapar": import_module(__name__.partition(".")[0]).__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {n: next((d.version for d in metadata.distributions(name=n)), None) for n in _PACKAGES},
        "gpus": [
            line.removeprefix("Model:").strip()
            for file in sorted(_GPUS.glob("*/information"))
            for line in file.read_text().splitlines()
            if line.startswith("Model:")
        ],
    }
    lines = aligned(_row(name, value) for name, value in told.items())
    return CommandAnswer(True, lambda: "\n".join(map(as_text, lines)), lambda: told)


def _row(name: str, value: object) -> tuple[str, str]:
    if isinstance(value, dict):
        value = [f"{key} {each or 'not installed'}" for key, each in value.items()]
    if isinstance(value, list):
        value = ", ".join(value) or "none"
    return name, str(value)


COMMAND = Command(
    "versions and GPUs, to paste into an issue; nothing private",
    "report",
    "llamapar report\n  llamapar report --json",
    exits="0 written",
    answer=_answer,
)
