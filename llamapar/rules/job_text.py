"""A job as text to copy: lines of Python, or a command, that check it.

Names come from people and files, so they are quoted in code, and reduced to plain letters elsewhere.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields

from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.options import OPTIONS
from llamapar.frameworks import framework as find_framework


def job_title(job: Job) -> str:
    """The first comment of every text."""
    # Only letters without a meaning in a shell, comment or identifier.
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", job.model.name)[:60] or "model"
    title = f"# {name}: {job.layout} ({job.layout.world} ranks)"
    if job.model.lacks:
        title += f"\n# {job.model.family} has {job.model.lacks}: nothing here says so"
    return title


def left_out(*facts: tuple[object, str, str]) -> list[str]:
    """A comment for each fact of the job without a setting: whether there is such a fact, itself, and why."""
    return [f"# left out: {what} ({why})" for there, what, why in facts if there]


def differing(
    record: ModelConfig | Layout | Job, *skip: str, always: tuple[str, ...] = ()
) -> Iterator[tuple[str, object]]:
    """Name and value of the fields that differ from their defaults, and of the fields in `always`."""
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name not in skip and (field.name in always or value != field.default):
            yield field.name, value


def call_text(head: str, arguments: list[str], indent: str = "    ") -> str:
    """A call with an argument on each line."""
    return "\n".join([f"{head}(", *(f"{indent}{argument}," for argument in arguments), f"{indent[4:]})"])


def named_values(values: dict[str, object]) -> list[str]:
    """Known values as arguments by name."""
    return [f"{name}={value!a}" for name, value in values.items() if value is not None]


def as_python(job: Job, framework: str | None = None) -> str:
    """A line for a training script: `lp.require`, which raises if the layout is not ok."""
    model = job.model
    lines = [job_title(job), "import llamapar as lp"]
    if PRESETS.get(model.name) == model:
        source = ascii(model.name)
    else:
        source = call_text("lp.ModelConfig", named_values(dict(differing(model))), " " * 8)
        if model.rope_scaling:
            lines.append("from llamapar import RopeScaling")
    arguments = [source, f"lp.Layout({', '.join(named_values(dict(differing(job.layout, always=AXES))))})"]
    arguments += named_values(dict(differing(job, "model", "layout", "padding")))
    if job.padding is not None:
        arguments.append(f"padding=lp.{job.padding!r}")
    if framework is not None:
        arguments.append(f"framework={find_framework(framework).name!r}")
    return "\n".join([*lines, "", call_text("report = lp.require", arguments)]) + "\n"


def as_cli(job: Job, framework: str | None = None, command: str = "check") -> str:
    """The `llamapar check` for the same job, or the `memory` that counts it, quoted for a shell."""
    model = job.model
    lines = [job_title(job)]
    words = ["llamapar", command, "--model", model.name]
    if PRESETS.get(model.name) != model:
        words[-1] = json.dumps(dict(differing(model, "rope_scaling")), default=vars)  # of experts
        lines += left_out((model.rope_scaling, "rope_scaling", "no rule asks for it"))
    for name, value in (*differing(job.layout, always=AXES), *differing(job, "model", "layout")):
        words += OPTIONS[name].words(value)
    if framework is not None:
        words += OPTIONS["framework"].words(find_framework(framework).name)
    return "\n".join([*lines, shlex.join(words)]) + "\n"


_TEXTS: Mapping[str, Callable[[Job, str | None], str]] = {"Python": as_python, "CLI": as_cli}


def exported(title: str, job: Job, framework: str | None = None) -> str:
    """The job as the text of a title in `EXPORT_TITLES`. framework: the one that judges."""
    return _TEXTS[title](job, framework)
