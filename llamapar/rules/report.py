"""`check` and `require`: the verdict on a layout, with reasons, fixes and every framework's verdict."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.job import Job
from llamapar.describe.keywords import CheckKeywords, CheckSettings
from llamapar.describe.layout import AXES, LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.options import Values
from llamapar.errors import LayoutError
from llamapar.frameworks import (
    FRAMEWORKS,
    JUDGES,
    UNKNOWN,
    Framework,
    Verdict,
    habits_of,
    judge_of,
    padding_rule,
)
from llamapar.frameworks.settings import takes_settings
from llamapar.late import late
from llamapar.records.tables import AsDict, Plain, fold, html_rows, plural

from . import memory_rule
from .fix import Fix
from .severity import is_unproven, listed_degrees, severities
from .table import ERROR, MEMORY, NOTE, RULE_BY_CODE, SEVERITIES, Rule

_WIDTH = 100
"""Columns of a report as text, except its messages."""


def _folded(word: str, text: str, width: int) -> list[str]:
    """A line of a finding, indented and folded: "    why  …"."""
    return textwrap.wrap(
        text, width, initial_indent=f"    {word:<4} ", subsequent_indent=" " * 9, break_on_hyphens=False
    )


@dataclass(frozen=True, repr=False)
class Finding(AsDict):
    """One rule's finding about a job; its words and fixes are made at first use."""

    json_names = ("code", "severity", "message", "why", "fixes", "frameworks")

    rule: Rule
    severity: str
    job: Job
    judge: Framework | None

    @property
    def code(self) -> str:
        return self.rule.code

    @cached_property
    def _numbers(self) -> Plain:
        job = self.job
        judge = self.judge
        numbers = judge.job_of(self.code, job).numbers(judge.padding) if judge else job.numbers()
        numbers["reductions"] = habits_of(judge).reductions(job.layout.pp, job.layout.zero)
        if self.rule in MEMORY:
            return numbers | memory_rule.template_values(job, judge)
        return numbers

    @cached_property
    def message(self) -> str:
        """What is wrong, with both numbers, in one line."""
        return self.rule.message.format_map(self._numbers)

    @cached_property
    def why(self) -> str:
        """Why it cannot work, or why it matters, in one line.

        An error also lists the valid degrees, and says if no layout of the GPUs can hold the model.
        """
        # Without this a person would try fix after fix for a model that these GPUs cannot hold.
        hopeless = ""
        if self.severity == ERROR:
            hopeless = memory_rule.nothing_holds(self.job, self.judge)
        listed = self.severity == ERROR and self.rule.axis in AXES
        degrees = ""
        if listed:
            degrees = listed_degrees(self.rule.axis, self.job, self.judge)
        return "; ".join(filter(None, [self.rule.why.format_map(self._numbers), degrees, hopeless]))

    @cached_property
    def fixes(self) -> tuple[Fix, ...]:
        """A few fixes, the nearest first; each passes `check` and ends this finding. A note has none."""
        if self.severity == NOTE:
            return ()
        return late("find_fixes")(self.job, self.rule, self.judge)

    @cached_property
    def frameworks(self) -> dict[str, Verdict]:
        """Every framework's verdict by name, the judge first."""
        # A dict keeps the first place of a key and the last value, which puts the judge in front and
        # loses none.
        first = {}
        if self.judge:
            first = {self.judge.name: self.judge}
        return {f.name: f.judge(self.code, self.job) for f in (first | JUDGES | first).values()}

    @property
    def unproven(self) -> bool:
        """Whether the paper calls it an error, and there is no evidence of what the judge does."""
        return is_unproven(self.rule, self.job, self.judge)

    def _judged(self, judge: Framework) -> str:
        """What the judge does here, in one line."""
        if self.unproven:
            return f"{judge.title}: {UNKNOWN}, so unproven: the paper's own semantics would refuse it"
        verdict = self.frameworks[judge.name]
        return f"{judge.title}: {': '.join(filter(None, (verdict.verdict, verdict.words)))}"

    def by_verdict(self) -> dict[str, list[str]]:
        """Verdict → titles of the frameworks that give it."""
        groups: dict[str, list[str]] = {}
        for name, verdict in self.frameworks.items():
            groups.setdefault(verdict.verdict, []).append(FRAMEWORKS[name].title + verdict.dated)
        return groups

    def text(self, width: int | None = None) -> str:
        """The finding in words, with lines of at most `width` characters if given."""
        most = min(width or _WIDTH, _WIDTH)
        lines = [f"{self.code} {self.severity}  {self.message}", *_folded("why", self.why, most)]
        for i, fix in enumerate(self.fixes):
            lines += _folded("or" if i else "try", str(fix), most)
        # Where nothing is known of the judge, what the others do may help.
        if self.judge and (self.unproven or self.frameworks[self.judge.name].source):
            lines.append(f"    {self._judged(self.judge)}")
        else:
            groups = self.by_verdict()
            # Frameworks of which nothing is known would fill the line; the HTML names them.
            groups.pop(UNKNOWN, None)
            if groups:
                verdicts = "; ".join(f"{verdict}: {', '.join(who)}" for verdict, who in groups.items())
                lines += _folded("note", verdicts, most)
        return fold("\n".join(lines), width)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        fixes = ", or ".join(
            f"<code>{escape(fix.text)}</code> {escape(fix.effect.text)}".rstrip() for fix in self.fixes
        )
        tried = ""
        if fixes:
            tried = f"<br>try {fixes}"
        judged = ""
        if self.judge and self.unproven:
            judged = f"<br>{escape(self._judged(self.judge))}"
        return (
            f"<p><b>{self.code} {self.severity}</b> {escape(self.message)}<br>"
            f"<i>{escape(self.why)}</i>{tried}{judged}</p>{self._verdicts()}"
        )

    def _verdicts(self) -> str:
        """The frameworks' verdicts as a folded HTML table; empty for memory, on which they have none."""
        if self.rule in MEMORY:
            return ""
        rows = []
        for name, verdict in self.frameworks.items():
            if verdict.source:
                words = f"{escape(verdict.words)}<br><small>{verdict.source._repr_html_()}</small>"
                rows.append((escape(FRAMEWORKS[name].title), escape(verdict.verdict), words))
        if silent := self.by_verdict().get(UNKNOWN):
            rows.append((escape(", ".join(silent)), UNKNOWN, ""))
        table = html_rows(rows, ("framework", "verdict", "what it says or does"))
        return f"<details><summary>what each framework does</summary>{table}</details>"


@dataclass(frozen=True)
class Report(AsDict):
    """What `check` found. `ok` is the judge's verdict: a framework's, or without one the paper's."""

    json_names = ("ok", "findings")

    job: Job
    judge: Framework | None
    arithmetic: tuple[Finding, ...]
    """The findings that need no count of memory."""

    @cached_property
    def memory(self) -> Finding | None:
        """The finding about memory, if there is one; memory is counted at first use."""
        found = memory_rule.finding_of(self.job, self.judge)
        if found:
            return Finding(RULE_BY_CODE[found[0]], found[1], self.job, self.judge)
        return None

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the worst first."""
        found = [*self.arithmetic]
        if self.memory:
            found.append(self.memory)
        return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make the layout refused."""
        judged = self.arithmetic if self.job.gpu is None else self.findings  # memory is then a note at most
        return tuple(f for f in judged if f.severity == ERROR)

    @property
    def ok(self) -> bool:
        return not self.errors

    def refusal(self) -> LayoutError:
        """The errors as one exception, which carries this report."""
        error = LayoutError("\n".join(map(str, self.errors)))
        error.report = self
        return error

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """The fixes of the first finding that has any."""
        return next((finding.fixes for finding in self.findings if finding.fixes), ())

    @property
    def summary(self) -> str:
        """One line: the model, the layout, and how many findings of each severity."""
        job = self.job
        found = Counter(finding.severity for finding in self.findings)
        counts = [plural(found[severity], severity) for severity in SEVERITIES if found[severity]]
        verdict = ", ".join(counts) or "nothing to report"
        judge = ""
        if self.judge:
            judge = f" for {self.judge.title}"
        if self.judge and self.judge.paper:
            judge += ", judged by the paper's rules"
        ranks = plural(job.layout.world, "rank").replace(",", "")
        return f"{job.model.name}  {job.layout} ({ranks}){judge}: {verdict}"

    def text(self, width: int | None = None) -> str:
        """Summary and findings, with lines of at most `width` characters if given."""
        return "\n".join([fold(self.summary, width), *(f.text(width) for f in self.findings)])

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        body = "".join(f"<hr>{f._repr_html_()}" for f in self.findings)
        return f"<p><b>{escape(self.summary)}</b></p>{body}"


@takes_settings(CheckSettings)
@checked_options
def check(
    model: ModelLike,
    layout: LayoutLike | None = None,
    **options: Unpack[CheckKeywords],
) -> Report:
    """Judge `layout` for `model`. A layout that cannot work gives findings; only bad input raises.

    model: a preset's name, a ModelConfig, a path to a config, or its dict. Or the result of `read_settings`,
        which also gives layout, facts and framework; arguments given here override it.
    framework: its rules decide `ok`; None judges the paper's own semantics.
    padding: vocabulary padding: a Padding, "none", or a framework's name.
    options: degrees of the layout by name (tp=8, dp=2), which replace `layout` or some of its fields;
        and facts of `Job`: gpus, gpus_per_node, seq_len, batch_tokens, batch_per_dp, micro_batch,
        global_batch, micro_batches, kv_replication, quant_group, gpu, precision, recompute, schedule, nc.
    gpu: its memory counts for the verdict too; without one a note lists the GPUs that it fits.

    Raises LayoutError or ModelError for input that is not a valid number, name or file.
    """
    facts = Values(options)
    judge = judge_of(facts.pop("framework"))
    if facts["padding"] is not None:
        facts["padding"] = padding_rule(facts["padding"])
    return check_job(Job.of(model, layout, **facts), judge)


def check_job(job: Job, judge: Framework | None = None) -> Report:
    """`check` for a Job that already exists."""
    # Rules of equal severity stay in the table's order, for sorting is stable.
    found = sorted(severities(job, judge).items(), key=lambda pair: SEVERITIES.index(pair[1]))
    findings = (Finding(RULE_BY_CODE[code], severity, job, judge) for code, severity in found)
    return Report(job, judge, tuple(findings))


BATCH_FACTS = {
    "LP002": "batch_tokens",
    "LP402": "global_batch",
    "LP403": "batch_per_dp",
    "LP404": "batch_tokens",
    "LP405": "micro_batches",
}
"""Rule about facts of a batch that contradict each other → the field that its error names."""


def refuse_as_check(report: Report, fields: Mapping[str, str]) -> None:
    """Raises LayoutError, in the words of a report and with its fixes, for an error of some rules.

    fields: code of a rule → the field that the error names.
    """
    for refused in report.arithmetic:
        if refused.code in fields and refused.severity == ERROR:
            raise LayoutError(refused.message, refused.why, refused.fixes, fields[refused.code])


@checked_options
def require(model: ModelLike, layout: LayoutLike | None = None, **options: Unpack[CheckKeywords]) -> Report:
    """The Report of `check` if it is ok; else raises a LayoutError that carries the whole report.

    One line for a training script: `lp.require("llama3.1-405b", {"tp": 8, ...}, gpus=world_size)`.
    """
    report = check(model, layout, **options)
    if not report.ok:
        raise report.refusal()
    return report
