"""How bad a job is by each rule of arithmetic: codes and severities without words, for thousands of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from llamapar.describe.job import Job
from llamapar.describe.layout import divisors
from llamapar.describe.splits import NO_PADDING
from llamapar.frameworks import ADAPTS, FAILS, NA, UNKNOWN, WORKS, Framework

from .fix import changed_job
from .table import ARITHMETIC, ERROR, NOTE, RULE_BY_CODE, Rule


def is_unproven(rule: Rule, job: Job, judge: Framework | None) -> bool:
    """Whether the paper calls it an error, and there is no evidence of what the judge does."""
    if judge is None or rule.of_facts or judge.as_paper(rule.code):
        return False
    if rule.severity(judge.job_of(rule.code, job)) != ERROR:
        return False
    case = judge.case(rule.code, job)
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
    # Without evidence the paper's word stands, but for an error, which is then unproven.
    if case is None or (own == ERROR and case.verdict == UNKNOWN):
        if own == ERROR:
            return NOTE
        return own
    if case.verdict in FAILS:
        return ERROR
    # It works there, but a reader should still learn of replication or padding, or of the paper's objection.
    if case.verdict in (WORKS, ADAPTS):
        if own or case.verdict == ADAPTS:
            return NOTE
        return None
    if case.verdict == NA:
        return rule.if_na or own
    # UNKNOWN is left: evidence was sought and none found, which is worth a note.
    return own or NOTE


def says(rule: Rule, job: Job, judge: Framework | None) -> str | None:
    """The severity of a rule of arithmetic; None if it does not apply or has nothing to say."""
    if judge is None:
        if rule.applies(job, NO_PADDING):
            return rule.severity(job)
        return None
    # A judge may really run another layout than the one asked for, so a rule sees the job as it would run.
    seen = judge.job_of(rule.code, job)
    if rule.applies(seen, judge.padding):
        return severity_of(rule, seen, judge)
    return None


def severities(job: Job, judge: Framework | None) -> dict[str, str]:
    """Code → severity, for every rule of arithmetic with something to say; no words are made."""
    found = {rule.code: says(rule, job, judge) for rule in ARITHMETIC}
    return {code: severity for code, severity in found.items() if severity}


severities_again = lru_cache(maxsize=8192)(severities)
"""Cached, because all findings of one report try the same jobs."""


def codes(found: dict[str, str], severity: str) -> set[str]:
    """The rules of one severity."""
    return {code for code, how_bad in found.items() if how_bad == severity}


def unproven(job: Job, judge: Framework | None) -> set[str]:
    """The rules that the paper calls an error and for which there is no evidence of the judge."""
    notes = codes(severities_again(job, judge), NOTE)
    return {code for code in notes if is_unproven(RULE_BY_CODE[code], job, judge)}


MAX_LISTED, MOST_DEGREES = 1024, 12
"""The largest cp tried for a sequence of unknown length, and how many valid degrees are listed."""


@lru_cache(maxsize=256)
def listed_degrees(axis: str, job: Job, judge: Framework | None) -> str:
    """The degrees of an axis that no rule about it refuses, in words: "tp may be 1, 2, 4, 8".

    Of more than MOST_DEGREES the first are listed, and "…" says that there are others.
    """
    rules = [rule for rule in ARITHMETIC if rule.axis == axis]
    tried: Iterable[int] = range(1, job.model.n_heads + 1)  # LP101 refuses a larger tp
    if axis == "cp":
        # LP201 refuses what does not cut the sequence into 2·cp chunks.
        tried = divisors(max(1, job.seq_len // 2)) if job.seq_len else range(1, MAX_LISTED + 1)
    found = []
    for degree in tried:
        made = changed_job(job, {axis: degree})
        if made and all(says(rule, made, judge) != ERROR for rule in rules):
            found.append(str(degree))
    more = []
    if len(found) > MOST_DEGREES:
        more = ["…"]
    if found:
        return f"{axis} may be {', '.join([*found[:MOST_DEGREES], *more])}"
    return ""
