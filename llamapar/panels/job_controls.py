"""A job in the form of the Explorer's controls, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from llamapar.describe.hardware import Gpu
from llamapar.describe.job import Job
from llamapar.describe.modelnames import preset_name
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.options import Values, as_argument
from llamapar.errors import ModelError, one_of

from .controls import DEFAULTS, DIMS, FACTS, LAYOUT, OWN, STEP


def preset_of(name: object) -> ModelConfig:
    """The preset for a name, also a publisher's name, or the reader's own model. Raises ModelError."""
    if isinstance(name, ModelConfig | Mapping):
        return find_model(name)
    known = preset_name(name) if isinstance(name, str) else ""
    return PRESETS[known if known in PRESETS else one_of("preset", name, PRESETS, ModelError)]


def dims_of(model: ModelConfig) -> dict[str, int]:
    return {name: getattr(model, name) for name in DIMS}


def as_controls(changes: Mapping[str, object]) -> Values:
    """Settings of a job or a fix in the controls' form; settings without a control are left out."""
    values = {c: v for k, v in changes.items() if (c := {"model": "preset"}.get(k, k)) in DEFAULTS}
    if "padding" in values:
        rule = values["padding"]
        values["padding"] = OWN if rule is None else as_argument(rule)
    if isinstance(gpu := changes.get("gpu"), Gpu):
        values["gpu"] = gpu.text
    if "layer_split" in values:
        values["layer_split"] = values["layer_split"] or OWN
    if "sequence_parallel" in values:
        values["sequence_parallel"] = values["sequence_parallel"] is not False
    return values


def settings_of_job(job: Job) -> Values:
    """A job's layout and facts as control values."""
    facts = (*FACTS, *STEP, "padding", "layer_split")
    settings = {name: getattr(job.layout, name) for name in LAYOUT}
    return as_controls(settings | {name: getattr(job, name) for name in facts})


def still_describes(values: Values, job: Job) -> bool:
    """Whether the controls still describe the job, whatever else they contain."""
    known = settings_of_job(job) | dims_of(job.model)
    return all(values[name] == value for name, value in known.items())
