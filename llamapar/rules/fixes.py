"""Ways out of a finding: the nearest layouts or settings that themselves pass `check`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, Layout, divisors
from llamapar.describe.splits import NO_PADDING
from llamapar.errors import LlamaparError
from llamapar.frameworks import ADAPTS, FAILS, NA, UNKNOWN, WORKS, Framework

from .table import ERROR, NOTE, RULE_BY_CODE, RULES, WARNING, Changes, Rule

MOST = 3
"""Fixes offered for one finding."""

_COST = {"tp": 1.2, "cp": 1.4, "pp": 1.6, "dp": 1.0}
"""Weight of doubling or halving an axis: DP is the cheapest to turn, PP the dearest."""

_NEAR = 7
"""Divisors of the world size that are tried per axis: of TP, those that divide the heads."""

_IDLE = 8
"""Most GPUs that a last resort leaves idle."""

_MENDED = 40
"""Other layouts that are tried with settings mended as well."""

_LAYOUT_FIELDS = frozenset(Layout.__dataclass_fields__)


@dataclass(frozen=True, repr=False)
class Fix:
    """A job that passes, and what was changed to get there."""

    job: Job
    changes: tuple[tuple[str, Any], ...]

    @property
    def layout(self) -> Layout:
        return self.job.layout

    @property
    def text(self) -> str:
        """The changes, ready to read: "tp=8 dp=8 (64 ranks)"."""
        words = " ".join(
            f"padding={value}" if name == "padding" else f"{name}={value}" for name, value in self.changes
        )
        if any(name in AXES for name, _ in self.changes):
            lay = self.layout
            words += f" ({lay.tp}·{lay.cp}·{lay.pp}·{lay.dp} = {lay.world} ranks)"
        return words

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the whole layout, and whatever else was changed."""
        others = {name: value for name, value in self.changes if name not in AXES}
        if "padding" in others:
            others["padding"] = str(others["padding"])
        return {axis: getattr(self.layout, axis) for axis in AXES} | others | {"text": self.text}

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def severity_of(rule: Rule, job: Job, judge: Framework | None) -> str | None:
    """How bad a rule that applies is: the judge's verdict where there is one, else the paper's."""
    own = rule.severity(job)
    case = judge.case(rule.code, job) if judge else None
    if case is None:
        return own
    if case.verdict in FAILS:
        return ERROR
    if case.verdict in (WORKS, ADAPTS):
        return NOTE if own or case.verdict == ADAPTS else None
    if case.verdict == NA:
        return rule.if_na or own
    return own or (NOTE if case.verdict == UNKNOWN else None)


def severities(job: Job, judge: Framework | None) -> dict[str, str]:
    """Severity by code of every rule that has something to say, without its words."""
    padding = judge.padding if judge else NO_PADDING
    return {
        rule.code: severity
        for rule in RULES
        if rule.applies(job, padding) and (severity := severity_of(rule, job, judge))
    }


_severities = lru_cache(maxsize=8192)(severities)
"""The findings of one report search the same candidates."""


def find_fixes(job: Job, rule: Rule, judge: Framework | None) -> Iterator[Fix]:
    """At most MOST fixes for `rule`, the nearest first.

    Each passes check without an error, ends this rule's finding, and brings no new warning. Another
    number of GPUs is the last resort: one such fix, the nearest, and only where nothing else was found.
    """
    accepted = {code for code, severity in severities(job, judge).items() if severity == WARNING}
    accepted.discard(rule.code)

    def passes(candidate: Job) -> bool:
        left = _severities(candidate, judge)
        return not any(s == ERROR or (s == WARNING and code not in accepted) for code, s in left.items())

    tried, resort = {job}, []
    found = 0
    for candidate in _candidates(job, rule, judge):
        if candidate in tried:
            continue
        tried.add(candidate)
        if candidate.gpus != job.gpus:
            resort.append(candidate)
        elif passes(candidate):
            yield Fix(candidate, _changed(job, candidate))
            found += 1
            if found == MOST:
                return
    if not found:
        there = _world(job)
        nearest = sorted([*_fewer(job), *resort], key=lambda made: abs(_world(made) - there))
        last = next(filter(passes, nearest), None)
        if last is not None:
            yield Fix(last, _changed(job, last))


def _world(job: Job) -> int:
    """The GPUs that there are, or that the layout asks for."""
    return job.gpus or job.layout.world


def _fewer(job: Job) -> Iterator[Job]:
    """Layouts that leave a few GPUs idle."""
    there = _world(job)
    for world in range(there - 1, max(0, there - 1 - _IDLE), -1):
        for layout in itertools.islice(_layouts(job, world), MOST):
            yield job.replace(layout=layout, gpus=world if job.gpus else None)


def _candidates(job: Job, rule: Rule, judge: Framework | None) -> Iterator[Job]:
    """Jobs that might pass, in the order in which they should be offered."""
    repaired = [made for changes in rule.repairs(job) if (made := apply(job, changes))]
    if rule.repairs_first:
        yield from repaired
        yield from (_mend(made, judge) for made in repaired)
    yield from (made for made in repaired if made.layout != job.layout)
    yield from (job.replace(layout=layout) for layout in _layouts(job, _world(job)))
    yield from (_mend(made, judge) for made in repaired)
    for layout in itertools.islice(_layouts(job, _world(job)), _MENDED):
        yield _mend(job.replace(layout=layout), judge)


def _mend(job: Job, judge: Framework | None) -> Job:
    """`job` with the first repair of every rule that still fails, over and over while that helps."""
    for _ in range(6):
        failing = [RULE_BY_CODE[code] for code, s in _severities(job, judge).items() if s == ERROR]
        for rule in failing:
            made = next((m for c in rule.repairs(job) if (m := apply(job, c))), None)
            if made is not None and made != job:
                job = made
                break
        else:
            break
    return job


def apply(job: Job, changes: Changes) -> Job | None:
    """`job` with changes to its own fields or its layout's; None where no such layout exists."""
    of_layout = {name: value for name, value in changes.items() if name in _LAYOUT_FIELDS}
    of_job = {name: value for name, value in changes.items() if name not in _LAYOUT_FIELDS}
    try:
        if of_layout:
            job = job.replace(layout=job.layout.replace(**of_layout))
        return job.replace(**of_job) if of_job else job
    except LlamaparError:
        return None


def _nearest(degrees: list[int], present: int) -> list[int]:
    """The degrees nearest to the present one, and 1."""
    near = sorted(degrees, key=lambda d: abs(math.log2(d / present)))[:_NEAR]
    return near if 1 in near else [*near, 1]


def _layouts(job: Job, world: int) -> Iterator[Layout]:
    """Layouts of `world` ranks, the nearest first."""
    lay = job.layout
    ways = divisors(world)
    options = [
        _nearest([d for d in ways if job.model.n_heads % d == 0], lay.tp),
        _nearest(ways, lay.cp),
        _nearest(ways, lay.pp),
    ]
    ranked = []
    for tp, cp, pp in itertools.product(*options):
        if world % (tp * cp * pp):
            continue
        degrees = {"tp": tp, "cp": cp, "pp": pp, "dp": world // (tp * cp * pp)}
        if degrees["dp"] % lay.dp_replicate:
            continue
        cost = sum(
            weight * abs(math.log2(degrees[axis] / getattr(lay, axis))) for axis, weight in _COST.items()
        )
        ranked.append((cost, tuple(degrees.values()), degrees))
    ranked.sort(key=lambda row: row[:2])
    for _, _, degrees in ranked:
        with suppress(LlamaparError):
            yield lay.replace(**degrees)


def _changed(old: Job, new: Job) -> tuple[tuple[str, Any], ...]:
    """Name and new value of every field that differs, axes first."""
    changed = [
        (name, getattr(new.layout, name))
        for name in Layout.__dataclass_fields__
        if getattr(new.layout, name) != getattr(old.layout, name)
    ]
    changed += [
        (name, getattr(new, name))
        for name in Job.__dataclass_fields__
        if name not in ("model", "layout") and getattr(new, name) != getattr(old, name)
    ]
    return tuple(changed)
