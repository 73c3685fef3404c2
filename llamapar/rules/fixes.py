"""Fixes of a finding: the nearest layouts or settings that themselves pass `check`.

Candidates come lazily, the nearest first: repairs of the rule, neighbouring layouts, then both together. Only
whether they work is asked; the fastest layout is `plan`'s question.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from llamapar.describe.job import Job
from llamapar.frameworks import Framework

from . import memory_rule
from .fix_search import STAGES, Fix, changed_job, codes, passing_fixes, severities_again
from .nearby import layouts
from .remedies import remedies
from .table import ERROR, MEMORY, RULE_BY_CODE, Rule

MOST = 3
"""The most fixes offered for one finding."""

_IDLE = 8
"""The most GPUs that a last resort leaves idle."""

_MENDED = 40
"""How many other layouts are also tried with repaired settings."""

_FITTED = 2
"""How many candidates that do not fit get a search for a remedy."""

_MENDS = 6
"""The most rounds of repairs on one job."""


def find_fixes(job: Job, rule: Rule, judge: Framework | None) -> Iterator[Fix]:
    """At most MOST fixes for `rule`, those that fit in memory first, then the nearest.

    For a rule of memory they are `remedies`. Each fix passes check without an error, ends this rule's
    finding, and brings no new warning. Larger GPUs or another number of GPUs are the last resort: only if the
    present GPUs offer nothing, not even a layout of undecided memory. Of other numbers only the nearest is
    offered, and none if no layout of the GPUs can hold the model.
    """
    # Filled while `tries` runs: candidates with other numbers of GPUs are put aside and tried only by
    # `last`.
    resort: list[Job] = []

    def tries() -> Iterator[Fix]:
        for candidate in _candidates(job, rule, judge):
            if candidate.gpus == job.gpus:
                yield Fix.between(job, candidate)
            else:
                resort.append(candidate)

    def last() -> Iterator[Fix]:
        if memory_rule.nothing_holds(job, judge):
            return
        # `resort` is complete only once `tries` has been read; the order of `ways` sees to that.
        nearest = sorted([*_fewer(job), *resort], key=lambda made: abs(_world(made) - _world(job)))
        yield from (Fix.between(job, made) for made in nearest)

    passing = partial(passing_fixes, job, judge=judge, ends=rule.code)
    # All of these are lazy. A way costs something only when the ones before it have led nowhere.
    fitted, bought = (passing(_fitted(job, rule, judge, buys)) for buys in (False, True))
    ways = [remedies(job, judge), fitted, bought]
    if rule not in MEMORY:
        near, fewer = _fitting_first(passing(tries())), itertools.islice(passing(last()), 1)
        ways = [near, fitted, passing(tries(), undecided=True), bought, fewer] if job.gpu else [near, fewer]
    # the first way that leads anywhere, read no further than it is asked
    found = next((itertools.chain([fix], fixes) for fixes in ways for fix in fixes), ())
    yield from found if rule in MEMORY else itertools.islice(found, MOST)


def _fitting_first(passing: Iterator[Fix]) -> Iterator[Fix]:
    """First those that fit the GPU (or some known GPU, if none is named), then the others; lazily."""
    later = []
    stages = STAGES
    for fix in passing:
        if memory_rule.has_room(fix.job, fix.judge):
            yield fix
        else:
            later.append(fix)
            # Each one that does not fit cost a count of its memory, so the search for one that does has
            # an end.
            stages -= fix.layout.pp
            if stages < 0:
                break
    yield from later


def _fitted(job: Job, rule: Rule, judge: Framework | None, buys: bool) -> Iterator[Fix]:
    """The nearest candidates whose only problem is memory, each with its first remedy.

    buys: look for larger GPUs or another number of them, instead of staying with the present ones.
    """
    # A dict keeps the order and drops repeats.
    made = dict.fromkeys((_mend(job, judge), *_candidates(job, rule, judge)))
    passing = (
        one
        for one in made
        if (buys or one.gpus == job.gpus) and not codes(severities_again(one, judge), ERROR)
    )
    for candidate in itertools.islice(passing, _FITTED):
        for remedy in itertools.islice(remedies(candidate, judge), 1):
            if buys or remedy.job.gpu == job.gpu:
                yield Fix.between(job, remedy.job)


def _world(job: Job) -> int:
    """The available GPUs, or as many as the layout needs."""
    return job.gpus or job.layout.world


def _fewer(job: Job) -> Iterator[Job]:
    """Layouts that leave a few GPUs idle."""
    gpus = _world(job)
    for world in range(gpus - 1, max(0, gpus - 1 - _IDLE), -1):
        for layout in itertools.islice(layouts(job, world), MOST):
            yield job.replace(layout=layout, gpus=world if job.gpus else None)


def _repaired(job: Job, rule: Rule, judge: Framework | None) -> Iterator[Job]:
    """`job` with each repair of a rule that gives a valid layout, judged on what the judge really runs."""
    seen = judge.job_of(rule.code, job) if judge else job
    made = (changed_job(job, changes) for changes in rule.repairs(seen))
    return (other for other in made if other is not None)


def _candidates(job: Job, rule: Rule, judge: Framework | None) -> Iterator[Job]:
    """Jobs that might pass, in the order in which they are offered."""
    repaired = list(_repaired(job, rule, judge))
    # For most rules a setting is nearer than another layout; for ranks, KV heads and stages it is the
    # other way.
    if not rule.layouts_first:
        yield from repaired
        yield from (_mend(made, judge) for made in repaired)
    # A repair that changes the layout counts among the layouts, in front of the neighbours.
    yield from (made for made in repaired if made.layout != job.layout)
    yield from (job.replace(layout=layout) for layout in layouts(job, _world(job)))
    yield from (_mend(made, judge) for made in repaired)
    # Last, another layout with its settings repaired as well: two steps away, so few are tried.
    for layout in itertools.islice(layouts(job, _world(job)), _MENDED):
        yield _mend(job.replace(layout=layout), judge)


def _mend(job: Job, judge: Framework | None) -> Job:
    """`job` with the first repair of every rule that still fails, repeated while that helps."""
    # One repair can break another rule, so a job is repaired in rounds, and the rounds have an end.
    for _ in range(_MENDS):
        failing = codes(severities_again(job, judge), ERROR)
        firsts = [
            next(_repaired(job, rule, judge), job) for code, rule in RULE_BY_CODE.items() if code in failing
        ]
        # One repair a round: after it another rule may fail, or no longer.
        mended = next((made for made in firsts if made != job), job)
        if mended == job:
            break
        job = mended
    return job
