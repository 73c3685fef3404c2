"""What the Explorer's controls say, and what comes of it: pure, no widget in sight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from llamapar.describe.counts import number, typed
from llamapar.describe.job import Job
from llamapar.describe.jobs import JOBS
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.modelnames import preset_name
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.options import OPTIONS, Values, written
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.errors import Choice, LayoutError, LlamaparError, ModelError, flag, one_of
from llamapar.figures import View, view
from llamapar.figures.cost import stacked
from llamapar.figures.machine import picture
from llamapar.frameworks import framework, padding_rule
from llamapar.frameworks.export import as_cli
from llamapar.frameworks.settings import Settings
from llamapar.place import heads, stages, vocab
from llamapar.place.orders import ORDERS
from llamapar.place.pipeline import Timeline, Timelines
from llamapar.place.schedule import schedule_of
from llamapar.records.tables import Record, plural
from llamapar.rules.capacity import account, load
from llamapar.rules.report import Report, check_job
from llamapar.rules.search import Fix
from llamapar.rules.table import ERROR, WARNING

from .answers import (
    Answer,
    answers,
    layer_split,
    layer_steps,
    machine,
    method,
    plain_finding,
    sequence_map,
    timed,
)
from .bringing import controls_of
from .controls import COUNTS, CUSTOM, DEFAULTS, DIMS, FACTS, FIRST_JOB, FIRST_MODEL, LAYOUT, OWN, STEP, TABS
from .line import PLAIN, read_line
from .runs import RunPlan, card, plan
from .searching import Question


def padding(report: Report) -> Padding:
    return report.job.padding or (report.judge.padding if report.judge else NO_PADDING)


def pipeline(report: Report, values: Values) -> Record:
    """The timeline of the schedule, with a cursor where a time is set, or beside another one.

    Raises LayoutError where a schedule is not defined, or has more operations than the tab draws.
    """
    layout = report.job.layout
    pp, v = layout.pp, layout.virtual_stages
    many = report.job.n_micro_batches or layout.usual_micro_batches
    if 2 * pp * v * many > MOST_OPERATIONS:
        what = f"{plural(many, 'micro-batch')} over pp·virtual_stages = {pp * v:,} stages"
        fewer = Choice.of(micro_batches=max(1, MOST_OPERATIONS // (2 * pp * v)))
        raise LayoutError(what, f"at most {MOST_OPERATIONS:,} operations are drawn", [fewer], "micro_batches")

    def timeline(name: str) -> Timeline:
        nc = values["nc"] if name == "flexible" else None
        return schedule_of(name, pp, v, many, nc).timeline()

    shown: Timeline | Timelines
    shown = first = timeline(one_of("schedule", values["schedule"], ORDERS))
    if values["beside"]:
        shown = first.beside(timeline(one_of("beside", values["beside"], ORDERS)))
    return shown if values["time"] is None else shown.at(min(values["time"], shown.end))


RECORDS: dict[str, Callable[[Report, Values], Record]] = {
    "heads": lambda r, v: heads(r.job.model, r.job.layout, kv_replication=r.job.kv_replication),
    "vocab": lambda r, v: vocab(r.job.model, r.job.layout, padding=padding(r)),
    "sequence": sequence_map,
    "stages": lambda r, v: stages(r.job.model, r.job.layout, layer_split=layer_split(r.job, r.judge)),
    "memory": lambda r, v: (load(r.job, r.judge) or account(r.job, r.judge)).memory,  # else raises why
    "pipeline": pipeline,
    "layer": layer_steps,
}
"""By the tab's name what it draws, of a report and the values of the controls; Run draws when it ran."""


VIEW = ("tab", "rank", "time", "beside", "step")
"""Controls of what is looked at, which are no step to undo."""

MOST_OPERATIONS = 2**15
"""That the Pipeline tab draws: what a timeline of half a second has."""


@dataclass(frozen=True)
class Outcome:
    """What the controls amount to: everything that could be made, and the problem where one was met."""

    report: Report | None = None
    view: View | None = None
    plan: RunPlan | None = None
    question: Question | None = None
    problem: LlamaparError | None = None

    @property
    def fits(self) -> bool:
        """Whether the job surely fits its GPU, as far as it is counted."""
        memory = self.report.memory if self.report else None
        return memory is None or memory.severity not in (ERROR, WARNING)

    @property
    def remedies(self) -> tuple[Fix, ...]:
        """What makes the job fit; looked for when asked, after the picture is shown."""
        memory = self.report.memory if self.report else None
        return memory.fixes if memory else ()

    @property
    def status(self) -> str:
        """One line: the report's summary, or what is wrong with the input."""
        if self.report:
            return self.report.summary
        return self.problem.what if self.problem else ""


@dataclass(frozen=True)
class State:
    """Values of all controls, as typed, and the model that the dimensions start from."""

    values: Values
    base: ModelConfig
    pinned: State | None = None
    """A layout that stands beside this one."""

    @classmethod
    def start(cls) -> State:
        """Llama 3.1 405B on 16,384 GPUs, sequence 8,192: what another model's controls start from."""
        base = PRESETS[FIRST_MODEL]
        return cls(DEFAULTS | _dims(base), base)

    @classmethod
    def opened(cls, values: Values) -> State:
        """As it opens with controls set: the paper's job, or with a model or degree the reader's own."""
        is_own = values.keys() & {"preset", *AXES, *DIMS}
        return cls.start().apply(PLAIN if is_own else {"job": FIRST_JOB}).change(values)

    def change(self, changes: Mapping[str, object]) -> State:
        """With some controls changed, and those that follow from them.

        A published job sets all that it says, until something of it is changed; a preset or a model
        sets the dimensions; a dimension makes the model a custom one; the rank that is shown stays within the
        layout; "16k" becomes the number that it says. Raises LayoutError for a control that is not there.
        """
        for name in changes:
            one_of("control", name, DEFAULTS)
        if changes.get("job"):
            published = OPTIONS["job"].chosen(changes["job"])
            taken = self.take(JOBS[published].job)
            rest = {name: value for name, value in changes.items() if name != "job"}
            return replace(taken, values=taken.values | {"job": published}).change(rest)
        changes = {name: typed(name, v) if name in COUNTS else v for name, v in changes.items()}
        values, base = self.values | changes, self.base
        if "preset" in changes and changes["preset"] != CUSTOM:
            base = _preset(changes["preset"])
            values = self._freed(base).values | changes
            values |= _dims(base) | {k: v for k, v in changes.items() if k in DIMS}
            values["preset"] = base.name if PRESETS.get(base.name) == base else CUSTOM
        if any(values[name] != value for name, value in _dims(base).items()):
            values["preset"] = CUSTOM
        if "head_dim" not in changes and {"dim", "n_heads"} & changes.keys():
            values["head_dim"] = None
        if set(AXES) & changes.keys() and "rank" not in changes:
            values["rank"] = _within(values["rank"], values)
        if values["job"] and not _is_still(values, JOBS[values["job"]].job):
            values["job"] = ""
        return replace(self, values=values, base=base)

    def apply(self, changes: Mapping[str, object]) -> State:
        """With settings changed that may be those of a job or a fix, not the controls' own form of them."""
        return self.change(_controls(changes))

    def take(self, job: Job) -> State:
        """With a job's model, layout and facts in the controls."""
        state = self.load(job.model)
        return state.change(_settings(job) | {"gpu": job.gpu or self.values["gpu"]})

    def load(self, model: ModelConfig) -> State:
        """With a model, as the preset that it is where it is one."""
        return self.change({"preset": model})

    def _freed(self, model: ModelConfig) -> State:
        """Without what a published job says where the model is another; what is looked at stays."""
        if not self.values["job"] or model == JOBS[self.values["job"]].job.model:
            return self
        looked = {name: self.values[name] for name in (*VIEW, "framework")}
        return replace(self, values=State.start().apply(PLAIN).values | looked)

    def bring(self, settings: Settings) -> State:
        """With what a run's own files say; a model not said whole leaves the one there."""
        state = self
        with suppress(LlamaparError):  # the page is told what of the model is missing
            state = self.load(settings.model_config())
        return state.apply(controls_of(settings))

    def restore(self, line: str) -> State:
        """What a line of text says, and nothing else. Raises LlamaparError."""
        model, values = read_line(line)
        state = self.load(model) if model else self
        return state.apply(PLAIN | values)

    @cached_property
    def line(self) -> str:
        """The job as one line that `restore`, `lp.explorer` and the command take; empty for none."""
        report = self.outcome.report
        judge = report.judge.name if report and report.judge else None
        return as_cli(report.job, judge).splitlines()[-1] if report else ""

    def pin(self) -> State:
        """With itself pinned."""
        return replace(self, pinned=replace(self, pinned=None))

    def swap(self) -> State:
        """With the pinned one in the controls, and this one pinned."""
        pinned = self.pinned or self
        there = replace(pinned, values=pinned.values | {"tab": self.values["tab"]})
        return replace(there, pinned=replace(self, pinned=None))

    def differs(self, other: State) -> bool:
        """Whether more than what is looked at is another."""
        mine, others = ({k: v for k, v in each.values.items() if k not in VIEW} for each in (self, other))
        return mine != others or self.base is not other.base or self.pinned != other.pinned

    # -- what comes of it ------------------------------------------------------------------------

    def _read(self, names: Iterable[str]) -> Values:
        """Values of controls. Raises LayoutError for a text that is no number where one is needed."""
        values = {name: self.values[name] for name in names}
        texts = {name: v for name, v in values.items() if name in COUNTS and isinstance(v, str)}
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
        degrees = self._read(LAYOUT)
        on = flag("sequence_parallel", degrees.pop("sequence_parallel"))
        return Layout(**degrees, sequence_parallel=None if on else False)

    def job(self) -> Job:
        """Model, layout and facts. Raises ModelError or LayoutError."""
        model, layout = self.model(), self.layout()
        facts = {name: value for name, value in self._read((*FACTS, *STEP)).items() if value is not None}
        rule, split = self.values["padding"], self.values["layer_split"]
        if facts["schedule"] != "flexible":
            facts.pop("nc", None)
        facts["padding"] = None if rule == OWN else padding_rule(rule)
        return Job.of(model, layout, **facts, layer_split=None if split == OWN else split)

    @cached_property
    def outcome(self) -> Outcome:
        """Everything that the controls amount to; never raises."""
        report = None
        try:
            job = self.job()
            judge = framework(self.values["framework"]) if self.values["framework"] else None
            report = check_job(job, judge)
            tab = one_of("tab", self.values["tab"], TABS)
            if tab == "run":
                return Outcome(report, plan=plan(job, padding(report), self.values))
            if tab == "plan":
                return Outcome(report, question=Question.of(report, self.values))
            if tab in ("time", "ranks"):
                drawn = self._times if tab == "time" else self._machine
                return Outcome(report, drawn(report))
            made = view(RECORDS[tab](report, self._read(self.values)))
            if tab == "memory" and self.values["job"]:
                made = replace(made, summary=f"{made.summary}\n{JOBS[self.values['job']].note}")
            return Outcome(report, made)
        except LlamaparError as problem:
            return Outcome(report, problem=problem)

    def _machine(self, report: Report) -> View:
        """The rank that is shown among all. Raises LayoutError."""
        return View(*picture(machine(report, self._read(("rank", "cp_method")))))

    def _times(self, report: Report) -> View:
        """The step's terms, beside the pinned layout's where that has any. Raises LlamaparError."""
        costs = {"now": timed(report.job, report.judge, method(self.values))}
        other = self.pinned and self.pinned.outcome.report
        if self.pinned and other:
            with suppress(LlamaparError):  # its bar is then not there
                costs["pinned"] = timed(other.job, other.judge, method(self.pinned.values))
        return View(*stacked(list(costs.values()), list(costs)))

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """Legal, fits, how fast, what travels."""
        return answers(self.outcome.report, self.values)

    @property
    def product(self) -> str:
        """The degrees multiplied, beside the GPUs there are; empty among broken ones."""
        degrees, gpus = [self.values[axis] for axis in AXES], self.values["gpus"]
        if not all(isinstance(n, int) and 0 < n <= OPTIONS["tp"].most for n in degrees):
            return ""
        world = math.prod(degrees)
        there = f" of {gpus:,} GPUs" if isinstance(gpus, int) and 0 < gpus < 2**31 else " GPUs"
        return f"{' · '.join(map(str, degrees))} = {world:,}{there}"

    def plan(self) -> RunPlan:
        """What the Run tab runs, whichever tab is shown. Raises LlamaparError."""
        outcome = self.change({"tab": "run"}).outcome
        if outcome.plan is None:
            raise outcome.problem or LlamaparError("there is nothing to run")
        return outcome.plan

    # -- for the browser, as plain values --------------------------------------------------------

    @property
    def status(self) -> str:
        """One line."""
        return self.outcome.status

    def traits(self, seq: int) -> Values:
        """All that the page is sent. seq numbers it: remedies and buttons refer to it."""
        outcome, report, problem = self.outcome, self.outcome.report, self.outcome.problem
        payload = {
            "seq": seq,
            "values": self.values,
            "product": self.product,
            "ok": bool(report and report.ok and not problem),
            "status": outcome.status,
            "judged": report is not None,
            "problem": card(problem, DEFAULTS) if problem else None,
            "findings": [plain_finding(f) for f in report.findings] if report else [],
            "figure": outcome.view.spec if outcome.view else None,
            "summary": outcome.view.summary if outcome.view else "",
            "fits": outcome.fits,
        }
        return {"payload": payload}


def _preset(name: object) -> ModelConfig:
    """The preset of a name, its publisher's too, or a model of the reader's own. Raises ModelError."""
    if isinstance(name, ModelConfig | Mapping):
        return find_model(name)
    known = preset_name(name) if isinstance(name, str) else ""
    return PRESETS[known if known in PRESETS else one_of("preset", name, PRESETS, ModelError)]


def _dims(model: ModelConfig) -> dict[str, int]:
    return {name: getattr(model, name) for name in DIMS}


def _controls(changes: Mapping[str, object]) -> Values:
    """Settings of a job or a fix in the controls' own form, those that have none left out."""
    values = {c: v for k, v in changes.items() if (c := {"model": "preset"}.get(k, k)) in DEFAULTS}
    if "padding" in values:
        rule = values["padding"]
        values["padding"] = OWN if rule is None else written(rule)
    if "layer_split" in values:
        values["layer_split"] = values["layer_split"] or OWN
    if "sequence_parallel" in values:
        values["sequence_parallel"] = values["sequence_parallel"] is not False
    return values


def _settings(job: Job) -> Values:
    """What a job's layout and facts are in the controls."""
    facts = (*FACTS, *STEP, "padding", "layer_split")
    settings = {name: getattr(job.layout, name) for name in LAYOUT}
    return _controls(settings | {name: getattr(job, name) for name in facts})


def _is_still(values: Values, job: Job) -> bool:
    """Whether the controls still say the job, whatever they say besides."""
    known = _settings(job) | _dims(job.model)
    return all(values[name] == value for name, value in known.items())


def _within(rank: object, values: Values) -> object:
    """`rank`, as it stands in a layout of fewer ranks; untouched among broken degrees."""
    degrees = [values[axis] for axis in AXES]
    if not all(isinstance(n, int) and n > 0 for n in (*degrees, rank + 1 if isinstance(rank, int) else 0)):
        return rank
    return rank % math.prod(degrees)
