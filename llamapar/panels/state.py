"""The values of the Explorer's controls, and everything that follows from them: pure, without a widget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from llamapar.describe.hardware import hardware
from llamapar.describe.job import Job
from llamapar.describe.jobs import JOBS
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.options import OPTIONS, Values
from llamapar.describe.typed_numbers import parse_number, typed
from llamapar.errors import LlamaparError, ModelError, flag, one_of
from llamapar.figures import view
from llamapar.frameworks import judge_of, padding_rule
from llamapar.frameworks.settings import Settings
from llamapar.records.tables import Plain
from llamapar.rules.job_text import as_cli
from llamapar.rules.report import check_job
from llamapar.rules.severity import codes, severities_again
from llamapar.rules.table import ERROR

from .answers import (
    YES,
    Answer,
    answers,
    job_in_words,
    judge_name,
    plain_finding,
    ranks_view,
    sentence_of,
    times_view,
)
from .bringing import controls_of
from .controls import COUNTS, CUSTOM, DEFAULTS, DIMS, FACTS, FIRST_JOB, FIRST_MODEL, LAYOUT, OWN, STEP, TABS
from .fitting import fitted, told
from .holding import also_changed, kept_gpus, rank_within, ranks_in_words
from .job_controls import as_controls, dims_of, preset_of, settings_of_job, still_describes
from .line import PLAIN, read_line
from .maps import RECORDS, padding, place_on_map
from .outcome import Outcome
from .runs import RunPlan, card, figure_of, planned_run
from .searching import question_of
from .slider_steps import steps_of

VIEW = ("tab", "rank", "time", "beside", "step", "gives")
"""Controls of what is looked at, or of what gives, which are no step to undo."""


@dataclass(frozen=True)
class State:
    """The values of all controls as typed, and the model from which the dimensions start."""

    values: Values
    base: ModelConfig
    pinned: State | None = None
    """A layout that stands beside this one."""
    kept: int = 0
    """The GPUs that a move keeps."""
    gave: str = ""
    """What gave in the last move."""
    meant: State | None = None
    """The job under its last model, where only models were chosen since: each is fitted to that job."""

    @classmethod
    def start(cls) -> State:
        """Llama 3.1 405B on 16,384 GPUs, sequence 8,192: the defaults for another model's controls."""
        base = PRESETS[FIRST_MODEL]
        return cls(DEFAULTS | dims_of(base), base)

    @classmethod
    def opened(cls, values: Values) -> State:
        """The initial state for the given controls: the paper's job, or the reader's own with a model or a
        degree.
        """
        is_own = values.keys() & {"preset", *AXES, *DIMS}
        return cls.start().apply(PLAIN if is_own else {"job": FIRST_JOB}).change(values)

    def change(self, changes: Mapping[str, object]) -> State:
        """With some controls changed, and the controls that depend on them.

        A published job sets all its values, until one of them is changed. A preset or a model sets the
        dimensions; a changed dimension makes the model a custom one. The chosen rank stays within the layout.
        "16k" becomes a number. Raises LayoutError for an unknown control.
        """
        for name in changes:
            one_of("control", name, DEFAULTS)
        if changes.get("job"):
            published = OPTIONS["job"].chosen(changes["job"])
            taken = self.take(JOBS[published].job)
            rest = {name: value for name, value in changes.items() if name != "job"}
            named = {"job": published, "framework": JOBS[published].framework}
            return replace(taken, values=taken.values | named).change(rest)
        changes = {name: typed(name, v) if name in COUNTS else v for name, v in changes.items()}
        if "gpu" in changes:
            with suppress(LlamaparError):  # the page is told what is wrong with it
                changes["gpu"] = hardware(changes["gpu"]).text  # type: ignore[arg-type]
        values = self.values | changes
        base = self.base
        if "preset" in changes and changes["preset"] != CUSTOM:
            base = preset_of(changes["preset"])
            values |= dims_of(base) | {k: v for k, v in changes.items() if k in DIMS}
            values["preset"] = base.name if PRESETS.get(base.name) == base else CUSTOM
        if any(values[name] != value for name, value in dims_of(base).items()):
            values["preset"] = CUSTOM
        if "head_dim" not in changes and {"dim", "n_heads"} & changes.keys():
            values["head_dim"] = None
        if set(AXES) & changes.keys() and "rank" not in changes:
            values["rank"] = rank_within(values["rank"], values)
        if values["job"] and not still_describes(values, JOBS[values["job"]].job):
            values["job"] = ""
        after = replace(self, values=values, base=base, kept=kept_gpus(values, self.kept))
        if changes.keys() <= {*VIEW}:
            return after
        return replace(after, gave="", meant=None)

    def move(self, changes: Mapping[str, object]) -> State:
        """The same for a user's change, which keeps GPUs and batch; a published job brings its own.

        "model" is the preset's other name, "value" a whole Job, "settings" a run's own files. Raises
        LlamaparError for what is no value, and for what leaves no job.
        """
        after = self._moved(changes)
        problem = None if after.outcome.report else after.outcome.problem
        # Without a job before, as after a half-read file, one field is filled at a time.
        if problem and "settings" not in changes and (self.outcome.report or problem.field in changes):
            raise problem
        return after

    def _moved(self, changes: Mapping[str, object]) -> State:
        if isinstance(settings := changes.get("settings"), Settings):
            return self.bring(settings)
        if isinstance(job := changes.get("value"), Job):
            return self.take(job).change({name: value for name, value in changes.items() if name != "value"})
        changes = {"preset" if name == "model" else name: value for name, value in changes.items()}
        for name, value in changes.items():
            one_of("control", name, self.values)
            if name in COUNTS and isinstance(value, str):
                value = parse_number(name, value).value
            if value not in (None, ""):
                OPTIONS[name].checked(value)
        if "job" in changes:
            return self.change(changes)
        if "preset" in changes:
            return self._fit(changes)
        read = {name: typed(name, v) if name in COUNTS else v for name, v in changes.items()}
        move = also_changed(self.values, read, self.kept)
        after = self.change(read | move.more)
        if not move.gave:
            return after
        return replace(after, gave=move.gave, kept=move.gpus)

    def _fit(self, given: Mapping[str, object]) -> State:
        """With another model, and what it can keep of the job that the reader has made."""
        meant = self.meant or replace(self)  # without what was made of it
        now = {name: self.values[name] for name in VIEW}
        after = replace(meant, values=meant.values | now, pinned=self.pinned).change(given)
        if after.base == meant.base:
            return after
        after = after.change(fitted(after.values, given, after.base.max_seq_len, after._errors))
        gave = f"{after.base.name} replaced {meant.base.name}: {told(meant.values, after.values)}."
        return replace(after, gave=gave, meant=meant if len(given) == 1 else None)

    def _errors(self, changes: Values) -> float:
        """How many rules refuse the job with some changes, on as many GPUs as it has ranks; inf for none."""
        made = replace(self, values=self.values | changes | {"gpus": None})
        try:
            judge = judge_of(made.values["framework"] or None)
            job = made.job()
            # As the answers take it.
            job = job.replace(micro_batch=job.micro_batch_size)
            return len(codes(severities_again(job, judge), ERROR))
        except LlamaparError:
            return math.inf

    def apply(self, changes: Mapping[str, object]) -> State:
        """With settings changed whose form can be that of a job or a fix, not the controls' own."""
        return self.change(as_controls(changes))

    def take(self, job: Job) -> State:
        """With a job's model, layout and facts in the controls."""
        settings = settings_of_job(job)
        if job.gpu is None:
            settings["gpu"] = self.values["gpu"]
        return self.change({"preset": job.model}).change(settings)

    def bring(self, settings: Settings) -> State:
        """With the values in a run's own files; an incomplete model leaves the current one."""
        state = self
        with suppress(LlamaparError):  # the page is told what of the model is missing
            state = self.change({"preset": settings.model_config()})
        return state.apply(controls_of(settings))

    def restore(self, line: str) -> State:
        """Exactly the state in a line of text. Raises LlamaparError."""
        model, values = read_line(line)
        state = self
        if model:
            state = self.change({"preset": model})
        return state.apply(PLAIN | values)

    @cached_property
    def line(self) -> str:
        """The job as one line for `restore`, `lp.explorer` and the command; empty without a job."""
        report = self.outcome.report
        if report is None:
            return ""
        return as_cli(report.job, judge_name(report)).splitlines()[-1]

    def pin(self) -> State:
        """With itself pinned."""
        return replace(self, pinned=replace(self, pinned=None))

    def swap(self) -> State:
        """With the pinned state in the controls, and this one pinned."""
        pinned = self.pinned or self
        there = replace(pinned, values=pinned.values | {"tab": self.values["tab"]})
        return replace(there, pinned=replace(self, pinned=None))

    def differs(self, other: State) -> bool:
        """Whether more than the view differs."""
        mine, others = ({k: v for k, v in each.values.items() if k not in VIEW} for each in (self, other))
        return mine != others or self.base is not other.base or self.pinned != other.pinned

    # -- what comes of it ------------------------------------------------------------------------

    def _read(self, names: Iterable[str]) -> Values:
        """Values of controls. Raises LayoutError for a text in place of a number."""
        values = {name: self.values[name] for name in names}
        texts = {name: v for name, v in values.items() if name in COUNTS and isinstance(v, str)}
        return values | {name: parse_number(name, text).value for name, text in texts.items()}

    def model(self) -> ModelConfig:
        """The model of the controls. Raises ModelError."""
        dims = self._read(DIMS)
        if dims == dims_of(self.base):
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
        model = self.model()
        layout = self.layout()
        facts = {name: value for name, value in self._read((*FACTS, *STEP)).items() if value is not None}
        rule = self.values["padding"]
        split = self.values["layer_split"]
        if facts["schedule"] != "flexible":
            facts.pop("nc", None)
        facts["padding"] = None if rule == OWN else padding_rule(rule)
        facts["cp_method"] = self.values["cp_method"]
        return Job.of(model, layout, **facts, layer_split=None if split == OWN else split)

    @cached_property
    def outcome(self) -> Outcome:
        """Everything that follows from the controls; never raises."""
        report = None
        try:
            job = self.job()
            judge = judge_of(self.values["framework"] or None)
            report = check_job(job, judge)
            tab = one_of("tab", self.values["tab"], TABS)
            if tab == "run":
                return Outcome(report, plan=planned_run(job, padding(report), self.values))
            if tab == "plan":
                return Outcome(report, question=question_of(report))
            if tab == "time":
                return Outcome(
                    report, times_view(report, self.pinned.outcome.report if self.pinned else None)
                )
            if tab == "ranks":
                return Outcome(report, ranks_view(report, self._read(("rank",))))
            return Outcome(report, view(RECORDS[tab](report, self._read(self.values))))
        except LlamaparError as problem:
            return Outcome(report, problem=problem)

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """The four answers: legal, fits, how fast, what travels."""
        return answers(self.outcome.report, self.values)

    @property
    def plain_answers(self) -> list[Plain]:
        """The answers as plain values."""
        return [asdict(answer) for answer in self.answers]

    @property
    def published(self) -> str:
        """A published job's outcome beside what is predicted; empty for any other job."""
        if not self.values["job"] or not self.answers:
            return ""
        _, memory, speed, _ = self.answers
        predicted = [speed.text]
        if memory.verdict != YES:  # it ran, so it fits
            predicted.append(memory.text)
        return JOBS[self.values["job"]].beside(", ".join(predicted))

    @cached_property
    def sentence(self) -> list[tuple[str, str]]:
        """What the chosen rank works on, or why the layout is refused, in pieces with their axes; empty
        without a job.
        """
        report = self.outcome.report
        if report is None:
            return []
        try:
            return sentence_of(report, self._read(("rank", "chunking")))
        except LlamaparError as problem:
            return [(f"{problem.what}.", "")]

    @property
    def beside_pinned(self) -> Plain | None:
        """The pinned job and its answers."""
        if not self.pinned:
            return None
        other = self.pinned.outcome.report
        title = f"{other.job.model.name} {other.job.layout}" if other else self.pinned.status
        return {"title": title, "answers": self.pinned.plain_answers}

    def plan(self) -> RunPlan:
        """The plan of the Run tab, whichever tab is shown. Raises LlamaparError."""
        outcome = self.change({"tab": "run"}).outcome
        if outcome.plan is None:
            raise outcome.problem or LlamaparError("there is nothing to run")
        return outcome.plan

    # -- for the browser, as plain values --------------------------------------------------------

    @property
    def synced(self) -> Values:
        """The traits: every control, the model by its name, and its dims as they are."""
        values = {name: value for name, value in self.values.items() if name not in ("job", "preset")}
        if self.value is None:
            return values | {"model": self.values["preset"]}
        model = self.value.model
        return values | dims_of(model) | {"model": model.name}

    @property
    def value(self) -> Job | None:
        """The job; None if the controls describe none."""
        if self.outcome.report is None:
            return None
        return self.outcome.report.job

    @property
    def status(self) -> str:
        """One line, with the compensating change."""
        return "; ".join(filter(None, (self.outcome.status, self.gave)))

    def traits(self, seq: int) -> Values:
        """Everything for the page. seq numbers it; remedies and buttons refer to this number."""
        outcome = self.outcome
        report = self.outcome.report
        problem = self.outcome.problem
        payload = {
            "seq": seq,
            "values": self.values,
            "ok": bool(report and report.ok and not problem),
            "status": outcome.status,
            "gave": self.gave,
            "about": "",
            "sentence": self.sentence,
            "chosen": None,
            "steps": steps_of(self.values, self.base, outcome.view),
            "problem": card(problem, DEFAULTS),
            "findings": [],
            **figure_of(outcome.view),
            "fits": outcome.fits,
        }
        if report:
            payload |= {
                "status": ranks_in_words(self.values),
                "about": job_in_words(report, self.values["job"]),
                "chosen": place_on_map(self.values, report.job.layout),
                "findings": [plain_finding(finding) for finding in report.findings],
            }
        said = {
            "seq": seq,
            "now": self.plain_answers,
            "pinned": self.beside_pinned,
            "line": self.line,
            "published": self.published,
        }
        # The answers go first: the picture of a slider's step stands on the page already, sent ahead.
        return {"answers": said, "payload": payload}
