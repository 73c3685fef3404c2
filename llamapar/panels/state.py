"""What the Explorer's controls say, and what comes of it: pure, no widget in sight."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llamapar.count.saved import RECOMPUTE
from llamapar.count.schedule import SCHEDULES
from llamapar.describe.counts import number, typed
from llamapar.describe.hardware import GPUS
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, AXIS_TITLES, ORDERS, PAPER_ORDER, Layout
from llamapar.describe.modelnames import preset_name
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.splits import LAYER_SPLITS, NO_PADDING
from llamapar.errors import LlamaparError, ModelError, flag, one_of
from llamapar.figures import View, view
from llamapar.frameworks import FRAMEWORKS, framework, padding_rule
from llamapar.place.sequence_map import CHUNKINGS
from llamapar.rules.remedies import Remedy, memory_of, remedies
from llamapar.rules.report import Report, check_job

from .records import RECORDS, layer_split, padding
from .runs import CP_METHODS, DTYPES, ENGINES, FAULTS, PROGRAMS, RunPlan, plan

DIMS = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "ffn_dim", "vocab_size")
LAYOUT = (*AXES, "sequence_parallel", "virtual_stages", "zero", "dp_replicate", "order")
FACTS = (
    "gpus",
    "gpus_per_node",
    "seq_len",
    "micro_batch",
    "micro_batches",
    "global_batch",
    "batch_per_dp",
    "batch_tokens",
    "kv_replication",
    "quant_group",
)
STEP = ("gpu", "recompute", "schedule")
OWN = "own"
"""The choice "as the framework does it" of padding and layer split."""

CUSTOM = "custom"

DEFAULTS: dict[str, Any] = {
    "preset": "llama3.1-405b",
    **dict.fromkeys(DIMS),
    "tp": 8,
    "cp": 1,
    "pp": 16,
    "dp": 128,
    "sequence_parallel": True,
    "virtual_stages": 1,
    "zero": 1,
    "dp_replicate": 1,
    "order": PAPER_ORDER,
    **dict.fromkeys(FACTS),
    "gpus_per_node": 8,
    "seq_len": 8192,
    "kv_replication": False,
    "framework": "",
    "padding": OWN,
    "layer_split": OWN,
    "chunking": "head-tail",
    "rank": 0,
    "gpu": "h100-80gb",
    "recompute": "selective",
    "schedule": "1f1b",
    "program": "attention",
    "engine": "local",
    "dtype": "float32",
    "cp_method": "all_gather",
    "fault": "",
    "tab": "heads",
}

TABS = {
    "heads": "Heads",
    "vocab": "Vocabulary",
    "sequence": "Sequence",
    "stages": "Layers",
    "ranks": "Ranks",
    "memory": "Memory",
    "run": "Run",
}

_PADDINGS = {OWN: "as the framework", "none": "none"} | {
    name: f"{f.title}: {f.padding}" for name, f in FRAMEWORKS.items() if f.padding != NO_PADDING
}


def _orders() -> dict[str, str]:
    """Every rank order, those of frameworks first and with the name of one."""
    users: dict[str, list[str]] = {}
    for f in FRAMEWORKS.values():
        if f.order:
            users.setdefault(f.order, []).append(f.name)
    named = {order: f"{order} ({names[0]}{', …' * (len(names) > 1)})" for order, names in users.items()}
    return named | {order: order for order in ORDERS if order not in named}


def _control(name: str, label: str, kind: str, help: str = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "label": label, "kind": kind, "help": help, **more}


def _choice(name: str, label: str, options: Mapping[Any, str], help: str = "") -> dict[str, Any]:
    return _control(name, label, "choice", help, options=list(options.items()))


_ZERO = _choice("zero", "ZeRO stage", {n: str(n) for n in range(4)})
_BATCH = (
    _control("micro_batch", "micro-batch", "int", "sequences", placeholder="not said"),
    _control("global_batch", "global batch", "int", "sequences", placeholder="not said"),
    _control("micro_batches", "micro-batches per step", "int", placeholder="not said"),
)

SCHEMA: list[dict[str, Any]] = [
    {
        "group": "Model",
        "open": True,
        "controls": [
            _choice("preset", "model", {name: name for name in PRESETS} | {CUSTOM: "custom"}),
            _control("config", "or your own", "file", "a config.json or params.json; it is read as data"),
        ],
    },
    {
        "group": "Dimensions",
        "open": False,
        "controls": [_control(name, name, "int") for name in DIMS],
    },
    {
        "group": "Layout",
        "open": True,
        "controls": [
            *(
                _control(axis, axis.upper(), "axis", AXIS_TITLES[axis], steps=steps)
                for axis, steps in zip(AXES, (8, 8, 8, 12), strict=True)
            ),
            _control("sequence_parallel", "sequence parallel", "bool", "shares the residual stream over TP"),
            _control("kv_replication", "replicate KV heads", "bool", "when tp > n_kv_heads"),
        ],
    },
    {
        "group": "Job",
        "open": True,
        "controls": [
            _control("seq_len", "sequence length", "int", "tokens"),
            _control("gpus", "GPUs", "int", "empty: one for each rank", placeholder="one a rank"),
            _control("gpus_per_node", "GPUs per node", "int"),
            _choice(
                "framework",
                "framework",
                {"": "the Llama 3 paper"} | {name: f.title for name, f in FRAMEWORKS.items()},
                "whose rules judge the layout",
            ),
            _choice("padding", "vocabulary padding", _PADDINGS),
        ],
    },
    {
        "group": "Maps",
        "open": True,
        "controls": [
            _choice(
                "layer_split",
                "layers per stage",
                {OWN: "as the framework"} | {name: name for name in LAYER_SPLITS},
            ),
            _choice("chunking", "sequence chunks", {name: name for name in CHUNKINGS}),
            _choice("order", "rank order", _orders(), "fastest axis first"),
            _control("rank", "rank shown", "int", "in the Ranks tab; or click a cell there"),
        ],
    },
    {
        "group": "Memory",
        "open": True,
        "tab": "memory",
        "controls": [
            _choice("gpu", "GPU", {name: name for name in GPUS}, "whose HBM must hold it"),
            _choice("recompute", "recomputation", {name: name for name in RECOMPUTE}, "of activations"),
            _choice("schedule", "pipeline schedule", {name: name for name in SCHEDULES}),
            _ZERO,
            *_BATCH[:2],
        ],
    },
    {
        "group": "Run",
        "open": True,
        "tab": "run",
        "controls": [
            _choice("program", "program", {name: name for name in PROGRAMS}),
            _choice("engine", "engine", ENGINES),
            _choice("dtype", "number format", {name: name for name in DTYPES}),
            _choice("cp_method", "CP attention", CP_METHODS, "how CP ranks exchange K and V"),
            _choice("fault", "break on purpose", {"": "nothing"} | {name: name for name in FAULTS}),
        ],
    },
    {
        "group": "More",
        "open": False,
        "controls": [
            _control("virtual_stages", "virtual stages per rank", "int"),
            _ZERO,
            _control("dp_replicate", "dp_replicate", "int", "full copies among the DP ways"),
            *_BATCH,
            _control("batch_per_dp", "batch per DP group", "int", "sequences", placeholder="not said"),
            _control("batch_tokens", "global batch in tokens", "int", placeholder="not said"),
            _control(
                "quant_group",
                "quantisation group",
                "int",
                "weights that share a scale",
                placeholder="not said",
            ),
        ],
    },
]
"""The Explorer's controls, in the order in which they are shown; a group with a tab is shown in that one,
and repeats what it needs of the others."""

_CONTROLS = {control["name"]: control for group in SCHEMA for control in group["controls"]}

_COUNTS = {name for name, control in _CONTROLS.items() if control["kind"] in ("int", "axis")}
"""Controls in which people type numbers."""


@dataclass(frozen=True)
class Outcome:
    """What the controls amount to: everything that could be made, and the problem where one was met.

    step: what else the Memory tab counted with.
    """

    model: ModelConfig | None = None
    layout: Layout | None = None
    report: Report | None = None
    view: View | None = None
    step: dict[str, Any] | None = None
    plan: RunPlan | None = None
    problem: LlamaparError | None = None

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """What makes the job fit, in the Memory tab; looked for when asked, after the picture is shown."""
        if self.report is None or self.step is None:
            return ()
        return tuple(remedies(self.report.job, self.report.judge, **self.step))

    @property
    def status(self) -> str:
        """One line: the report's summary, or what is wrong with the input."""
        return self.report.summary if self.report else self.problem.what if self.problem else ""


@dataclass(frozen=True)
class State:
    """Values of all controls, as typed, and the model that the dimensions start from."""

    values: dict[str, Any]
    base: ModelConfig

    @classmethod
    def start(cls) -> State:
        """The Explorer as it opens: Llama 3.1 405B on 16,384 GPUs, sequence 8,192."""
        base = PRESETS[DEFAULTS["preset"]]
        return cls(DEFAULTS | _dims(base), base)

    def change(self, changes: dict[str, Any]) -> State:
        """With some controls changed, and those that follow from them.

        A preset or a loaded model sets the dimensions; a dimension makes the model a custom one; the
        rank that is shown stays within the layout; "16k" becomes the number that it says. Raises
        LayoutError for a control that is not there.
        """
        for name in changes:
            one_of("control", name, DEFAULTS)
        changes = {name: typed(name, v) if name in _COUNTS else v for name, v in changes.items()}
        values, base = self.values | changes, self.base
        if "preset" in changes and changes["preset"] != CUSTOM:
            base = _preset(changes["preset"])
            values |= _dims(base) | {k: v for k, v in changes.items() if k in DIMS} | {"preset": base.name}
        if any(values[name] != value for name, value in _dims(base).items()):
            values["preset"] = CUSTOM
        if "head_dim" not in changes and {"dim", "n_heads"} & changes.keys():
            values["head_dim"] = None
        if set(AXES) & changes.keys() and "rank" not in changes:
            values["rank"] = _within(values["rank"], values)
        return State(values, base)

    def apply(self, changes: Mapping[str, Any]) -> State:
        """With settings changed that may be those of a job or a fix, not the controls' own form of them."""
        given = {name: value for name, value in changes.items() if name in DEFAULTS}
        if "padding" in given:
            rule = given["padding"]
            given["padding"] = OWN if rule is None else f"{rule.multiple}{'*tp' * rule.per_tp}"
        if "layer_split" in given:
            given["layer_split"] = given["layer_split"] or OWN
        if "sequence_parallel" in given:
            given["sequence_parallel"] = given["sequence_parallel"] is not False
        return self.change(given)

    def take(self, job: Job) -> State:
        """With a job's model, layout and facts in the controls."""
        preset = next((name for name, model in PRESETS.items() if model == job.model), None)
        state = self.change({"preset": preset}) if preset else self.load(job.model)
        settings = {name: getattr(job.layout, name) for name in LAYOUT}
        settings |= {name: getattr(job, name) for name in (*FACTS, "padding", "layer_split")}
        return state.apply(settings)

    def load(self, model: ModelConfig) -> State:
        """With a model that somebody brought."""
        return State(self.values | _dims(model) | {"preset": CUSTOM}, model)

    # -- what comes of it ------------------------------------------------------------------------

    def _read(self, names: Iterable[str]) -> dict[str, Any]:
        """Values of controls. Raises LayoutError for a text that is no number where one is needed."""
        values = {name: self.values[name] for name in names}
        texts = {name: v for name, v in values.items() if name in _COUNTS and isinstance(v, str)}
        return values | {name: number(name, text).value for name, text in texts.items()}

    def model(self) -> ModelConfig:
        """The model of the controls. Raises ModelError."""
        dims = self._read(DIMS)
        if dims == _dims(self.base):
            return self.base
        for name, value in dims.items():
            if value is None and name != "head_dim":
                raise ModelError(f"{name} is empty", "the model's size depends on it", field=name)
        return self.base.replace(**dims, name=CUSTOM)

    def layout(self) -> Layout:
        """The layout of the controls. Raises LayoutError."""
        given = self._read(LAYOUT)
        on = flag("sequence_parallel", given.pop("sequence_parallel"))
        return Layout(**given, sequence_parallel=None if on else False)

    def job(self) -> Job:
        """Model, layout and facts. Raises ModelError or LayoutError."""
        v = self.values
        facts = {name: value for name, value in self._read(FACTS).items() if value is not None}
        return Job.of(
            self.model(),
            self.layout(),
            **facts,
            padding=None if v["padding"] == OWN else padding_rule(v["padding"]),
            layer_split=None if v["layer_split"] == OWN else v["layer_split"],
        )

    def outcome(self) -> Outcome:
        """Everything that the controls amount to; never raises."""
        model = layout = report = None
        try:
            model = self.model()
            layout = self.layout()
            judge = framework(self.values["framework"]) if self.values["framework"] else None
            report = check_job(self.job(), judge)
            tab = one_of("tab", self.values["tab"], TABS)
            if tab == "run":
                return Outcome(model, layout, report, plan=plan(report.job, padding(report), self.values))
            if tab == "memory":
                step = {name: self.values[name] for name in STEP}
                step |= {"padding": padding(report), "layer_split": layer_split(report)}
                found = memory_of(report.job, **step)
                return Outcome(model, layout, report, view(found), None if found.fits else step)
            return Outcome(model, layout, report, view(RECORDS[tab](report, self._read(self.values))))
        except LlamaparError as problem:
            return Outcome(model, layout, report, problem=problem)

    def plan(self) -> RunPlan:
        """What the Run tab runs, whichever tab is shown. Raises LlamaparError."""
        outcome = self.change({"tab": "run"}).outcome()
        if outcome.plan is None:
            raise outcome.problem or LlamaparError("there is nothing to run")
        return outcome.plan


def _preset(name: Any) -> ModelConfig:
    """The preset of a name, its publisher's too. Raises ModelError."""
    known = preset_name(name) if isinstance(name, str) else ""
    return PRESETS[known if known in PRESETS else one_of("preset", name, PRESETS, ModelError)]


def _dims(model: ModelConfig) -> dict[str, int]:
    return {name: getattr(model, name) for name in DIMS}


def _within(rank: Any, values: dict[str, Any]) -> Any:
    """`rank`, or the last rank of the layout where that is smaller; untouched among broken degrees."""
    degrees = [values[axis] for axis in AXES]
    if not all(isinstance(n, int) and n > 0 for n in (*degrees, rank + 1 if isinstance(rank, int) else 0)):
        return rank
    return min(rank, math.prod(degrees) - 1)
