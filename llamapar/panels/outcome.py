"""What follows from the Explorer's controls, before it is made plain for the page."""

from __future__ import annotations

from dataclasses import dataclass

from llamapar.count.terms import FITS
from llamapar.describe.options import Values
from llamapar.errors import LlamaparError
from llamapar.figures import View
from llamapar.rules.fix import Fix
from llamapar.rules.memory_rule import load_of
from llamapar.rules.report import Finding, Report
from llamapar.rules.table import ERROR, WARNING

from .runs import RunPlan


@dataclass(frozen=True)
class Outcome:
    """The result of the controls: everything that could be computed, and the problem if there was one."""

    report: Report | None = None
    view: View | None = None
    plan: RunPlan | None = None
    question: Values | None = None
    problem: LlamaparError | None = None

    @property
    def fits(self) -> str | None:
        """What the tab Memory says where no change is looked for that makes the job fit; else None."""
        if self._memory and self._memory.severity in (ERROR, WARNING):
            return None
        report = self.report
        if report is None or report.job.gpu is None:
            return ""
        if report.job.seq_len is None:
            return "What makes it fit is looked for at a sequence length: set the tokens."
        load = load_of(report.job, report.judge)
        if load and load.outcome(report.job.gpu) == FITS:
            return "It fits."
        return ""

    @property
    def remedies(self) -> tuple[Fix, ...]:
        """Changes that make the job fit; computed on request, after the picture is shown."""
        if self._memory is None:
            return ()
        return self._memory.fixes

    @property
    def _memory(self) -> Finding | None:
        """What the report says of memory."""
        return self.report.memory if self.report else None

    @property
    def status(self) -> str:
        """One line: the report's summary, or the problem with the input."""
        if self.report:
            return self.report.summary
        if self.problem:
            return self.problem.what
        return ""
