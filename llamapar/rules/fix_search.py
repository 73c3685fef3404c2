"""The one search for fixes: changed jobs are tried in order, and kept if they pass `check`.

`fixes` and `remedies` bring the candidates, and here they are judged. Rules give codes and severities without
words, so that thousands of jobs can be tried; memory is counted last, and within a budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from llamapar.count.terms import Memory
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.splits import NO_PADDING
from llamapar.errors import LlamaparError
from llamapar.frameworks import ADAPTS, FAILS, NA, UNKNOWN, WORKS, Evidence, Framework
from llamapar.records.tables import Plain

from . import memory_rule
from .effect import Effect, effect
from .repairs import Changes
from .table import ARITHMETIC, ERROR, NOTE, RULE_BY_CODE, WARNING, Rule

_LAYOUT_FIELDS = Layout.__dataclass_fields__.keys()


def _differ(old: Job | Layout, new: Job | Layout) -> Iterator[tuple[str, object]]:
    """Name and new value of every field that differs."""
    for name in old.__dataclass_fields__:
        if getattr(old, name) != (value := getattr(new, name)):
            yield name, value


@dataclass(frozen=True, repr=False)
class Fix:
    """A job that passes, the changes that lead to it from `old`, and the judge of both."""

    job: Job
    changes: tuple[tuple[str, object], ...]
    old: Job | None = field(default=None, compare=False)
    judge: Framework | None = field(default=None, compare=False)

    @classmethod
    def between(cls, old: Job, new: Job) -> Fix:
        """A Fix to `new`, with every field in which it differs, those of the layout first."""
        # A layout is listed by its fields, and the field "layout" itself, which differs too, is dropped
        # below.
        changed = dict(_differ(old.layout, new.layout)) | dict(_differ(old, new))
        changed |= {"model": new.model.name} if "model" in changed else {}
        return cls(new, tuple(pair for pair in changed.items() if pair[0] != "layout"))

    @property
    def layout(self) -> Layout:
        return self.job.layout

    @property
    def text(self) -> str:
        """The changes in the judge's own settings: "tp_size=4 (4·1·1·2 = 8 ranks)"."""
        # A change without a setting in the judge has no words there; if none has, ours are shown.
        own = [self.judge.setting(*change) for change in self.changes] if self.judge else []
        words = " ".join(filter(None, own)) or " ".join(f"{name}={value}" for name, value in self.changes)
        if any(name in AXES for name, _ in self.changes):
            lay = self.layout
            words += f" ({lay.tp}·{lay.cp}·{lay.pp}·{lay.dp} = {lay.world} ranks)"
        if "model" in dict(self.changes):
            words += f" (its checkpoint stores {self.job.model.n_kv_heads} KV heads)"
        return words

    @cached_property
    def effect(self) -> Effect:
        """What the change gains and costs."""
        return effect(self.old or self.job, self.job, self.judge)

    @property
    def memory(self) -> Memory | None:
        """The memory of a rank afterwards; None if nothing can be counted."""
        return self.effect.load.memory if self.effect.load else None

    def as_dict(self) -> Plain:
        """Plain values for JSON: the whole layout, all other changes, and their effect."""
        named = ("padding", "gpu")
        others = {n: str(v) if n in named else v for n, v in self.changes if n not in AXES}
        degrees = {axis: getattr(self.layout, axis) for axis in AXES}
        return degrees | others | {"text": self.text, "effect": self.effect.as_dict()}

    def __str__(self) -> str:
        """The changes with what they gain and cost: "recompute=full: 61.30 GiB, 31% more FLOPs"."""
        return ": ".join(filter(None, [self.text, self.effect.text]))

    __repr__ = __str__


def changed_job(job: Job, changes: Changes) -> Job | None:
    """`job` with changes to its own fields or its layout's; None if they give no valid job."""
    of_layout = {name: value for name, value in changes.items() if name in _LAYOUT_FIELDS}
    of_job = {name: value for name, value in changes.items() if name not in _LAYOUT_FIELDS}
    try:
        # Validity is the constructors' affair: a Layout or Job that refuses these values was no
        # candidate.
        if of_layout:
            job = job.replace(layout=job.layout.replace(**of_layout))
        return job.replace(**of_job) if of_job else job
    except LlamaparError:
        return None


# -- judging ---------------------------------------------------------------------------------------


def is_unproven(rule: Rule, job: Job, judge: Framework | None) -> bool:
    """Whether the paper calls it an error, and there is no evidence of what the judge does."""
    if judge is None or rule.of_facts or judge.as_paper(rule.code):
        return False
    if rule.severity(judge.job_of(rule.code, job)) != ERROR:
        return False
    return _says_nothing(judge.case(rule.code, job))


def _says_nothing(case: Evidence | None) -> bool:
    return case is None or case.verdict == UNKNOWN


def severity_of(rule: Rule, job: Job, judge: Framework | None) -> str | None:
    """The severity of a rule that applies: the judge's if there is one, else the paper's.

    An error by the paper without evidence of the judge is unproven, which is a note.
    """
    # A contradiction among the numbers that were given (`of_facts`) stays one in every framework.
    own = rule.severity(job)
    if judge is None or rule.of_facts or judge.as_paper(rule.code):
        return own
    case = judge.case(rule.code, job)
    if own == ERROR and _says_nothing(case):
        return NOTE
    # No evidence, and the paper does not call it an error: the paper's word stands.
    if case is None:
        return own
    if case.verdict in FAILS:
        return ERROR
    # It works there, but a reader should still learn of replication or padding, or of the paper's objection.
    if case.verdict in (WORKS, ADAPTS):
        return NOTE if own or case.verdict == ADAPTS else None
    if case.verdict == NA:
        return rule.if_na or own
    # UNKNOWN is left: evidence was sought and none found, which is worth a note.
    return own or NOTE


def severities(job: Job, judge: Framework | None) -> dict[str, str]:
    """Code → severity, for every rule of arithmetic with something to say; no words are made."""
    if judge is None:
        own = {rule.code: rule.severity(job) for rule in ARITHMETIC if rule.applies(job, NO_PADDING)}
        return {code: severity for code, severity in own.items() if severity}
    found = {}
    for rule in ARITHMETIC:
        # A judge may really run another layout than the one asked for, so each rule sees the job as it
        # would run.
        seen = judge.job_of(rule.code, job)
        if rule.applies(seen, judge.padding) and (severity := severity_of(rule, seen, judge)):
            found[rule.code] = severity
    return found


severities_again = lru_cache(maxsize=8192)(severities)
"""Cached, because all findings of one report try the same jobs."""


STAGES = 480
"""Pipeline stages whose memory one search counts: some 30 ms of work, however deep the pipeline."""


def codes(found: dict[str, str], severity: str) -> set[str]:
    """The rules of one severity."""
    return {code for code, how_bad in found.items() if how_bad == severity}


def unproven(job: Job, judge: Framework | None) -> set[str]:
    """The rules that the paper calls an error and for which there is no evidence of the judge."""
    notes = codes(severities_again(job, judge), NOTE)
    return {code for code in notes if is_unproven(RULE_BY_CODE[code], job, judge)}


def passing_fixes(
    job: Job, tries: Iterable[Fix], judge: Framework | None, ends: str = "", undecided: bool = False
) -> Iterator[Fix]:
    """The candidates in `tries` that pass, each once and in order.

    Keep a candidate if `check` reports no error and no new warning, nothing is newly unproven, and the
    finding of the rule `ends` is gone. Unless `ends` is the rule for open memory, a job without a framework
    may leave memory undecided; `undecided` allows that with any framework. `tries` is read lazily, and memory
    is counted only until STAGES are used up.
    """
    # What the job is warned of already may stay; what is to end may not.
    warned = codes(severities_again(job, judge), WARNING) - {ends}
    doubted = unproven(job, judge) - {ends}
    refused = {ERROR} if undecided else {ERROR, WARNING}  # of memory, if that is judged
    # A job whose memory is undecided already cannot demand of its fixes that theirs is decided.
    is_open = (memory_rule.OPEN, WARNING)
    if ends != memory_rule.OPEN and job.gpu and memory_rule.finding_of(job, judge) == is_open:
        refused.discard(WARNING)
    seen, stages = {Fix(job, ())}, STAGES  # The job itself is no fix of its own finding.
    for fix in tries:
        if fix in seen:
            continue
        seen.add(fix)
        # Cheapest test first: integer rules, then evidence, then a lower bound of memory, and the full
        # count last.
        left = severities_again(fix.job, judge)
        worse = codes(left, ERROR) | codes(left, WARNING) - warned
        if worse or not unproven(fix.job, judge) <= doubted:
            continue
        if fix.job.gpu is not None:
            if memory_rule.surely_exceeds(fix.job, judge):
                continue
            # Counting memory takes time for every stage, so the budget is in stages and not in candidates.
            stages -= fix.layout.pp
            if stages < 0:
                return
            memory = memory_rule.finding_of(fix.job, judge)
            if memory == is_open and judge is None and ends != memory_rule.OPEN:
                # Without a framework most estimates are ranges. One whose shown value fits passes, or
                # hardly a fix would.
                memory = None if memory_rule.has_room(fix.job) else memory
            if memory and memory[1] in refused:
                continue
        yield replace(fix, old=job, judge=judge)
