"""The Explorer: a widget to change a layout, which shows what is wrong, what to do, and a map.

One anywidget holds controls, findings and one plotly figure. A change of a control travels as one message,
and all its consequences return as one `payload`, so each change is one atomic update, followed by the answer.
`state` computes everything; this file only transports it. Slow work has traits of its own: `offered`, which
only the tab Memory shows and waits for, and `running`, which the thread of the run sets.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import traitlets

from llamapar.describe.arguments import named_options
from llamapar.describe.keywords import ExplorerKeywords
from llamapar.describe.models import ModelLike
from llamapar.describe.option_rows import OTHER_DEFAULTS
from llamapar.describe.options import EXPORT_TITLES, Values
from llamapar.errors import LlamaparError
from llamapar.figures import NO_FIGURE, View
from llamapar.figures.plan import Mark
from llamapar.rules.job_text import as_cli, exported
from llamapar.rules.report import Report

from .answers import judge_name
from .controls import DEFAULTS, EXPLORER, MAIN_TABS, TIMES
from .line import PLAIN, is_line
from .maps import MAP_AXES, rank_at
from .page import Undoing, nth, source, style
from .runner import Runner
from .runs import Run, figure_of
from .searching import Search, Searcher, mark, results_picture, search_as_dict, title_of, values_of_layout
from .state import State

if TYPE_CHECKING:
    from llamapar.describe.job import Job
    from llamapar.execution.result import Result
    from llamapar.rules.fix import Fix
    from llamapar.timing.plan import Plan


OTHER_DEFAULTS["explorer"] = DEFAULTS | PLAIN  # of a reader's own job that does not say them


class Explorer(Undoing[State]):
    """The Explorer panel. `set` moves controls from code; `snapshot` is a static View of what it shows."""

    _esm = source("page.js", "map.js", "explorer.js", "run.js", "drop.js", "plan.js", "answers.js")
    _css = style("explorer.css")
    schema = traitlets.List(EXPLORER).tag(sync=True)
    tabs = traitlets.List(list(MAIN_TABS.items())).tag(sync=True)
    times = traitlets.List(list(TIMES.items())).tag(sync=True)
    exports = traitlets.List(list(EXPORT_TITLES.values())).tag(sync=True)
    running = traitlets.Dict().tag(sync=True)
    offered = traitlets.Dict().tag(sync=True)
    answers = traitlets.Dict().tag(sync=True)
    planned = traitlets.Dict().tag(sync=True)

    @named_options("explorer")
    def __init__(self, **values: Unpack[ExplorerKeywords]) -> None:
        self._runner = Runner(self._report)
        self._searcher = Searcher(self._show_search)
        self._knob = ""
        self._first = State.opened(Values(values))
        super().__init__(self._first)

    # -- from code -------------------------------------------------------------------------------

    @named_options("explorer")
    def set(  # type: ignore[override]
        self, *, model: ModelLike | None = None, **values: Unpack[ExplorerKeywords]
    ) -> None:
        """Set controls by name, like the mouse. A layout that the rules refuse is shown with its reason.

        GPUs and global batch stay constant: a degree that changes takes from DP, or from the axis in `gives`;
        degrees that are set together all keep their values. Another model keeps what it can of the job that
        was set before it. The status and `gave` say what changed.

        Raises LlamaparError for an unknown control, and for a value that leaves no job: nothing changes then.
        """
        if model:
            values["model"] = model  # type: ignore[typeddict-unknown-key]
        self.move(Values(values))

    def move(self, changes: Values) -> None:
        self._show(lambda state: state.move(changes))

    @property
    def gave(self) -> str:
        """The changes that the last move brought with it, to keep GPUs and batch or to suit another model;
        empty if none was needed.
        """
        return self._state.gave

    @property
    def job(self) -> Job:
        """The job of the controls. Raises ModelError or LayoutError if they describe none."""
        return self._state.job()

    @property
    def report(self) -> Report | None:
        """The report of `check`; None without a model or layout."""
        return self._state.outcome.report

    def apply_fix(self, finding: int = 0, fix: int = 0) -> None:
        """Press the button of a finding's fix."""
        findings = self.report.findings if self.report else ()
        fixes = nth("finding", finding, findings, count="there is no such finding").fixes
        self._apply(nth("fix", fix, fixes, count="the finding has {}"))

    def _apply(self, fix: Fix) -> None:
        self._show(lambda state: state.apply(dict(fix.changes)))

    @property
    def remedies(self) -> tuple[Fix, ...]:
        """Changes that make the job fit its GPU; empty if it fits already, or if nothing helps."""
        return self._state.outcome.remedies

    def apply_remedy(self, remedy: int = 0) -> None:
        """Press the button of a remedy."""
        self._apply(nth("remedy", remedy, self.remedies))

    def pin(self) -> None:
        """Keep this layout for comparison; a second call unpins it."""
        self._show(lambda state: replace(state, pinned=None) if state.pinned else state.pin())

    def swap(self) -> None:
        """Move the pinned layout into the controls, and pin the current one."""
        self._show(State.swap)

    @property
    def line(self) -> str:
        """The job as one line of text, for `restore`, `lp.explorer` and the command."""
        return self._state.line

    def _read(self, line: str) -> State:
        return self._state.restore(line)

    def reset(self) -> None:
        """Restore the state in which this Explorer opened."""
        self._show(lambda state: self._first.change({"tab": state.values["tab"]}))

    def _again(self, state: State) -> State:
        looked = {name: self._state.values[name] for name in ("tab", "beside", "gives")}
        return replace(state, values=state.values | looked, gave="")

    def _differs(self, before: State, after: State) -> bool:
        return after.differs(before)

    @property
    def found(self) -> Plan | None:
        """The result of the Plan tab's search; None without one (yet)."""
        return self._searcher.now.plan if self._searcher.now else None

    def adopt(self, place: int = 0) -> None:
        """Put a layout of the search into the controls; 0 is the fastest."""
        found = self.found
        nth("place", place, found.layouts if found else ())
        assert found is not None
        settings = values_of_layout(found, place)
        self._show(lambda state: state.change(settings))

    @property
    def result(self) -> Result | None:
        """The result of the run that the controls describe; None without one (yet)."""
        now = self._runner.now
        with suppress(LlamaparError):
            if now and now.plan == self._state.plan():
                return now.result
        return None

    def run(self) -> Result:
        """Run what the controls describe, now, and wait for it; an interrupt cancels it.

        Raises LlamaparError for a run that is refused, fails or is cancelled.
        """
        now = self._runner.run(self._state.plan())
        if now.result is None or now.problem:
            raise now.problem or LlamaparError("the run was cancelled")
        return now.result

    def cancel(self) -> None:
        """Cancel the current run or search, if there is one."""
        self._runner.cancel()
        self._searcher.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no run or search is active, at most `timeout` seconds each; returns whether none is."""
        return self._runner.wait(timeout) and self._searcher.wait(timeout)

    def snapshot(self) -> View:
        """The panel as it is now: its figure, and the status, findings and the figure's summary as text.

        In the Run and Plan tabs it waits for the work in progress.
        """
        if self._state.outcome.plan or self._state.outcome.question:
            self.wait()
        return self._now()

    def _now(self) -> View:
        outcome = self._state.outcome
        lines = []
        if outcome.report:
            lines += ["".join(text for text, _ in self._state.sentence), str(outcome.report)]
        lines += filter(None, (self.gave, self._state.published))
        if outcome.problem:
            lines.append(str(outcome.problem))
        if outcome.view:
            lines.append(outcome.view.summary)
        picture = outcome.view
        if outcome.question and self._searcher.now:
            picture = results_picture(self._searcher.now, self._marks())
            lines.append(title_of(self._searcher.now.question))
            if picture:
                lines.append(picture.summary)
        if outcome.plan:
            picture = None
            if now := self._runner.now:
                lines.append(now.text)
                picture = now.picture
        return View(figure_of(picture)["figure"] or NO_FIGURE, "\n".join(lines))

    # -- to and from the browser -----------------------------------------------------------------

    def _follow(self) -> None:
        """The work after the picture: slow results, remedies, a run if it is quick, a search."""
        state = self._state
        super()._follow()
        if state.values["tab"] == "memory" and state.outcome.fits is None:
            offered = [[remedy.text, remedy.effect.text] for remedy in self.remedies]
            self.offered = {"seq": self.payload["seq"], "fixes": offered}
        plan = self._state.outcome.plan
        now = self._runner.now
        if plan and not (now and now.plan == plan):
            if plan.quick:
                self._runner.start(plan)
            else:
                self._runner.offer(plan)
        self._send_ahead()
        question = state.outcome.question
        search = self._searcher.now
        if question and not (search and search.question == question):
            self._searcher.start(question)
        elif question and search:
            self._show_search(search)

    def _send_ahead(self) -> None:
        """Send the maps and answers one step to each side of the slider that the page holds.

        A round trip to the kernel is most of what a step of a slider costs. The page draws a step's map and
        answers as soon as it is taken, and what the kernel then sends finds them standing as they are.
        """
        steps = self.payload["steps"].get(self._knob, [])
        state = self._state
        now = state.values.get(self._knob)
        if now in steps and state.values["tab"] in MAP_AXES:
            at = steps.index(now)
            around = [*steps[max(0, at - 1) : at], *steps[at + 1 : at + 2]]
            ahead = {}
            for step in around:
                with suppress(LlamaparError):  # a step that leaves no job is refused
                    there = state.move({self._knob: step})
                    view = there.outcome.view
                    if view and view.is_map:
                        ahead[f"{self._knob}={step}"] = [view.spec, there.plain_answers]
            self.send({"kind": "ahead", "seq": self.payload["seq"], "steps": ahead})

    def _marks(self) -> list[Mark]:
        """This layout and the pinned one, marked among those of a search."""
        pinned = self._state.pinned
        own = [mark("this layout", self.report)]
        other = pinned and pinned.outcome.report
        if pinned and other and self.report and other.job.model == self.report.job.model:
            own.append(mark("pinned", other))
        return [each for each in own if each]

    def _show_search(self, now: Search) -> None:
        """Called by the thread of a search too."""
        self.planned = search_as_dict(now, self._marks())

    def _report(self, now: Run) -> None:
        """Called by the thread of a run; ipykernel's sockets take messages from any thread."""
        self.running = now.as_dict()

    def _press(self, kind: str, content: Values, current: bool) -> None:
        if kind == "fix" and current:
            self.apply_fix(int(content["finding"]), int(content["fix"]))
        elif kind == "remedy" and current:
            self.apply_remedy(int(content["remedy"]))
        elif kind == "run" and self._state.outcome.plan:
            self._runner.start(self._state.outcome.plan)
        elif kind == "search" and self._state.outcome.question:
            self._searcher.start(self._state.outcome.question)
        elif kind == "adopt":
            self.adopt(int(content["place"]))
        elif kind == "look" and current:
            rank = rank_at(self._state.values, self._state.layout(), int(content["place"]))
            self._show(lambda state: state.change({"rank": rank}))
        elif kind == "ahead":
            self._knob = str(content["knob"])
            self._send_ahead()
        elif kind in STEPS:
            STEPS[kind](self)
        elif kind == "copy" and self.report:
            text = copied_text(str(content["name"]), self._state, self.report, self._state.outcome.view)
            self.send({"kind": "copied", "name": content["name"], "text": text})
        else:
            super()._press(kind, content, current)


STEPS: dict[str, Callable[[Explorer], None]] = {
    "cancel": Explorer.cancel,
    "pin": Explorer.pin,
    "swap": Explorer.swap,
    "reset": Explorer.reset,
}
"""Buttons that ask for no more than their name."""


@named_options("explorer")
def explorer(model: ModelLike | None = None, **values: Unpack[ExplorerKeywords]) -> Explorer:
    """An Explorer on `model` (a preset's name, a config or a ModelConfig) with controls set.

    Without a model or a degree it opens on the Llama 3 paper's job with 131,072 tokens. With one of them the
    job is yours: degrees that you do not give are 1, and other facts are unknown, as in `lp.check`. Without a
    sequence length, answers and pictures take the model's longest, and say so.

    model may also be a line of text from an Explorer's `line`, or a `llamapar check` command.

    Controls are tp, cp, pp, dp, gpus, seq_len, framework, tab and the others of `Explorer.set`.
    """
    if isinstance(model, str) and is_line(model):
        panel = Explorer()
        panel.restore(model)
        panel._show(lambda state: state.change(Values(values)))
        return panel
    return Explorer(**Values({} if model is None else {"preset": model}) | Values(values))


def copied_text(name: str, state: State, report: Report, drawn: View | None) -> str:
    """The text for "copy as": the job; for a command line in the Memory tab, the command that counts its
    bytes.
    """
    judge = judge_name(report)
    if name == "CLI" and state.values["tab"] == "memory" and drawn and report.job.seq_len:
        return as_cli(report.job, judge, "memory")
    return exported(name, report.job, judge)
