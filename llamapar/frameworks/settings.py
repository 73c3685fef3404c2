"""The settings of a run as a record, and public functions that accept this record in place of a model.

The optional room `configs` reads files into the record; others know only the record. So one call checks a job
from its files or from its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter
from typing import ParamSpec, Protocol, TypeVar, cast, overload

from llamapar.describe.configfile import Values
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.options import OPTIONS
from llamapar.errors import LayoutError, LlamaparError, printable
from llamapar.late import late
from llamapar.records.tables import AsDict, Plain, Record, plain_value

from . import framework as find_framework
from . import of_version
from .base import Framework
from .citation import Change

MODEL, LAYOUT, JOB = "model", "layout", "job"
"""Sections of the settings of a run."""

DIMS = ("dim", "n_layers", "n_heads", "n_kv_heads", "ffn_dim", "vocab_size")
"""The dimensions that define a model, besides head_dim."""

JOB_FACTS = ("gpus", "gpus_per_node", "seq_len", "micro_batch", "micro_batches", "global_batch")
"""Fields of a Job that files give as they are."""


_SHOWN = 12
"""The most unread settings that the text lists."""


@dataclass(frozen=True)
class Contradiction(AsDict):
    """Values of one field that cannot all be true. values: each with its source."""

    json_names = ("field", "values", "why")

    field: str
    values: tuple[object, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {' or '.join(map(str, self.values))}: {self.why}"


_SCHEDULES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved": "interleaved-1f1b",
    "interleaved1f1b": "interleaved-1f1b",
    "loopedbfs": "looped-bfs",
    "interleavedzerobubble": "interleaved-zero-bubble",
    "zbvzerobubble": "zbv",
    "dualpipev": "dualpipev",
}
"""Schedules as Megatron-LM and torch's pipelining write them (torch/distributed/pipelining/schedules.py)."""


@dataclass(frozen=True, repr=False)
class Settings(Record):
    """What a run's settings files say, with the source of every value.

    model, layout, job: field → value. sources: field → file and line, or the framework whose default applies.
    unknown: field → what would determine it. not_covered: settings that change the model or the run in a way
    that is not counted here. covered: whether the rest can still be judged. ignored: settings without effect.
    notes: spellings of other versions. unread: settings that nothing here reads.
    """

    format: str
    framework: str | None
    model: Mapping[str, object]
    layout: Mapping[str, object]
    job: Mapping[str, object]
    sources: Mapping[str, str]
    unknown: Mapping[str, str]
    not_covered: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    contradictions: tuple[Contradiction, ...]
    covered: bool = True
    unread: tuple[str, ...] = ()
    since: Change | None = None
    before: Change | None = None
    """The changes between which the framework's version lies, as far as the files tell."""

    @property
    def judge(self) -> Framework | None:
        """The framework, in the version that the settings are written for; None if the files name none."""
        if self.framework:
            return of_version(find_framework(self.framework), self.since, self.before)
        return None

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        return {
            **{name: plain_value(getattr(self, name)) for name in self.__dataclass_fields__},
            "since": str(self.since or ""),
            "before": str(self.before or ""),
            "unknown": list(self.unknown),
            "unknown_why": dict(self.unknown),
        }

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        ends = [f"{word} {end}" for word in ("since", "before") if (end := getattr(self, word))]
        rows: list[list[object]] = []
        if ends:
            rows.append(["version", " ".join(ends), "by its form"])
        for section, held in ((MODEL, self.model), (LAYOUT, self.layout), (JOB, self.job)):
            for name, value in held.items():
                rows.append([name, printable(str(value)), printable(self.sources[f"{section}.{name}"])])
        rows += [[name, "unknown", printable(why)] for name, why in self.unknown.items()]
        notes = [f"contradiction: {c}" for c in self.contradictions]
        notes += [f"not covered: {what}" for what in self.not_covered]
        notes += [f"without effect: {what}" for what in self.ignored]
        notes += [f"note: {what}" for what in self.notes]
        if self.unread:
            more = ""
            if len(self.unread) > _SHOWN:
                more = ", …"
            first = ", ".join(self.unread[:_SHOWN])
            notes.append(f"not read ({len(self.unread)}): {first}{more}")
        title = f"settings of {self.format}"
        return title, ["field", "value", "from"], rows, printable("\n".join(notes))

    def model_config(self) -> ModelConfig:
        """The model. LlamaparError names what is missing, or why the model is not counted here."""
        if not self.covered:
            why = "; ".join(self.not_covered)
            raise LlamaparError(
                f"the model of these {self.format} settings is not covered", why, field="model"
            )
        preset = self.model.get("preset")
        given = {f: self.model.get(f) for f in DIMS}
        missing = [name for name, value in given.items() if value is None]
        # A named preset supplies the dimensions; the files may change some of them.
        if isinstance(preset, str) and (not missing or preset in PRESETS):
            base = PRESETS[preset]
            fields = {
                n: v for n, v in self.model.items() if n in ModelConfig.__dataclass_fields__ and n != "name"
            }
            changed = {n: v for n, v in fields.items() if v is not None and getattr(base, n) != v}
            if changed:
                return base.replace(**changed)
            return base
        if missing:
            whys = "; ".join(f"{name}: {self.unknown.get(name, 'not given')}" for name in missing)
            what = f"{', '.join(missing)} of the model {'are' if len(missing) > 1 else 'is'} not in the files"
            raise LlamaparError(what, whys, ["a model's name", "a config.json"], missing[0])
        known = {n: v for n, v in self.model.items() if n in ModelConfig.__dataclass_fields__}
        return ModelConfig(**Values({"name": "from the settings"} | known))

    def to_layout(self) -> Layout:
        """The layout. LayoutError names the first degree that is missing."""
        for axis in AXES:
            if self.layout.get(axis) is None:
                choose = ["the number of GPUs" if axis == "dp" else f"the degree of {axis}"]
                raise LayoutError(f"{axis} is not known", self.unknown.get(axis, "not given"), choose, axis)
        fields = {n: v for n, v in self.layout.items() if n in Layout.__dataclass_fields__ and v is not None}
        if "zero" in self.unknown:
            fields.setdefault("zero", 0)  # Nothing is shared for sure, so that memory is an upper bound.
        return Layout(**Values(fields))

    def facts(self) -> dict[str, object]:
        """Known facts besides model and layout, as `Job.of` takes them."""
        found = {
            name: self.job.get(name) for name in (*JOB_FACTS, "padding", "layer_split", "saves", "cp_method")
        }
        late("memory")  # Its room owns the words for recompute and schedule, and hands them to the options.
        words = {
            "recompute": str(self.job.get("recompute")).partition(" ")[0],
            "schedule": _SCHEDULES.get(str(self.job.get("schedule")).lower(), ""),
        }
        found |= {name: word for name, word in words.items() if word in OPTIONS[name].choices}
        return {name: value for name, value in found.items() if value is not None}

    def known(self) -> dict[str, int]:
        """Every integer of model, layout and job by field name, as the context of `explain`."""
        held = {**self.model, **self.layout, **self.job}
        return {n: v for n, v in held.items() if isinstance(v, int) and not isinstance(v, bool)}


# -- functions that take settings --------------------------------------------------------------------


Given = ParamSpec("Given")
Otherwise = ParamSpec("Otherwise")
Result = TypeVar("Result", covariant=True)


class TakesSettings(Protocol[Given, Otherwise, Result]):
    """Callable as f(model, layout, …) or f(settings, **overrides)."""

    @overload
    def __call__(self, settings: Settings, /, *_: Otherwise.args, **given: Otherwise.kwargs) -> Result: ...
    @overload
    def __call__(self, *args: Given.args, **given: Given.kwargs) -> Result: ...


_IN_BATCH = {*AXES, "layout", "gpus", "micro_batch"}
"""What a batch is derived from."""


def takes_settings(
    otherwise: Callable[Otherwise, object],
) -> Callable[[Callable[Given, Result]], TakesSettings[Given, Otherwise, Result]]:
    """Decorator: Settings in the place of `model` supply model, layout, framework and facts not given.

    otherwise: the TypedDict of the overrides, for type checkers. The decorated function raises LlamaparError
    for a required value that neither settings nor caller give.
    """

    def decorate(function: Callable[Given, Result]) -> TakesSettings[Given, Otherwise, Result]:
        known = inspect.signature(function).parameters

        @wraps(function)
        def call(*args: object, **given: object) -> object:
            if not args or not isinstance(args[0], Settings):
                return cast("Callable[..., object]", function)(*args, **given)
            settings = args[0]
            said = dict(zip([*known][1:], args[1:], strict=False)) | given
            held = {name: value for name, value in settings.facts().items() if name in known}
            # A batch that was worked out from degrees is that of these degrees alone.
            if said.keys() & _IN_BATCH and settings.sources.get("job.global_batch", "").startswith("derived"):
                held.pop("global_batch", None)
            # What the caller says wins over the files.
            held |= {"framework": settings.judge} | said
            if "layout" in known and held.get("layout") is None:
                held["layout"] = settings.to_layout()
            for name, parameter in known.items():
                if parameter.default is Parameter.empty and name not in held and name != "model":
                    why = settings.unknown.get(name, "the files do not say it")
                    raise LayoutError(f"{name} is not known", why, [f"{name}=…"], name)
            return cast("Callable[..., object]", function)(settings.model_config(), **held)

        return cast("TakesSettings[Given, Otherwise, Result]", call)

    return decorate
