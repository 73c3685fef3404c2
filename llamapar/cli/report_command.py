"""`llamapar report`: what an issue needs to say, and nothing private.

Versions come from the metadata of packages and the names of GPUs from the driver's files, so nothing is
imported. A model or a GPU of one's own is told by its numbers alone, because its name may come from a path.
"""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path

from llamapar.describe.hardware import HARDWARE
from llamapar.describe.models import PRESETS
from llamapar.records.tables import aligned
from llamapar.rules.job_text import as_cli
from llamapar.rules.report import Report, check

from .commands import MODEL_WORD, Command, CommandAnswer, Given, returned
from .output import as_text

_PACKAGES = ("torch", "numpy", "cloudpickle", "jupyterlab", "ipywidgets", "anywidget", "plotly", "pyyaml")

_GPUS = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver for Linux has a folder here for each GPU, and in it a file with its model."""


def _answer(given: Given) -> CommandAnswer:
    """Versions and GPUs; of a model also the line that checks the same, and the findings by their codes."""
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
    if any(given[name] for name in given.about.options):
        report = returned(given, check, *([given.settings()] if given.files else []))
        told |= {"check": _line(report), "findings": {f.code: f.severity for f in report.findings}}
    lines = aligned(_row(name, value) for name, value in told.items())
    return CommandAnswer(True, lambda: "\n".join(map(as_text, lines)), lambda: told)


def _line(report: Report) -> str:
    """The `llamapar check` of the same job, without the names that people and their files gave."""
    job = report.job
    if PRESETS.get(job.model.name) != job.model:
        job = job.replace(model=job.model.replace(name="custom"))
    if job.gpu and HARDWARE.get(job.gpu.name) != job.gpu:
        job = job.replace(gpu=replace(job.gpu, name="custom", source=""))
    judge = report.judge.name if report.judge else None
    return as_cli(job, judge).splitlines()[-1]


def _row(name: str, value: object) -> tuple[str, str]:
    if isinstance(value, dict):
        value = [f"{key} {each or 'not installed'}" for key, each in value.items()]
    if isinstance(value, list):
        value = ", ".join(value) or "none"
    return name, str(value)


COMMAND = Command(
    "versions, GPUs, a layout and its findings, to paste into an issue; nothing private",
    "report",
    "llamapar report\n  llamapar report llama3-8b --tp 16 --gpus 16\n"
    "  llamapar report --config train.toml --launch run.slurm --json",
    exits="0 written",
    positional=MODEL_WORD,
    answer=_answer,
    calls="check",
)
