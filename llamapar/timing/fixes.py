"""Fixes of a finding: the search of `plan` in another order, the nearest to the present job first.

Same GPUs, same batch and same framework, as long as any layout of them passes; a fix that certainly fits
comes before one whose memory is undecided. A rule's own repairs, such as another sequence length, are tried
beside the layouts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice

from llamapar.count.terms import TOO_MUCH
from llamapar.describe.hardware import DEFAULT_GPU, HARDWARE, OFFERED
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, divisors
from llamapar.frameworks import Framework, recompute_of
from llamapar.place.orders import ALL_FORWARD_FIRST
from llamapar.rules import memory_rule
from llamapar.rules.fix import Fix, changed_job
from llamapar.rules.severity import codes, says, severities_again, unproven
from llamapar.rules.table import ARITHMETIC, ERROR, MEMORY, RULE_BY_CODE, WARNING, Rule

from .layer import Conditions
from .search import RECOMPUTE, Candidate, Degrees, candidates, degrees_of, of_degrees, splits_of

MOST = 3
"""The most fixes offered for one finding."""

NEAR = 1000
"""How many layouts are tried, the nearest or the fastest first."""

STAGES = 480
"""Pipeline stages whose memory one search counts, about a second's work, however deep the pipeline."""

_MENDED = 40
"""How many other layouts are also tried with repaired settings."""

_MENDS = 6
"""The most rounds of repairs on one job."""

_IDLE = 8
"""The most GPUs that a last resort leaves idle."""

_DOUBLED = {
    "tp": 1.2,
    "cp": 1.4,
    "pp": 1.6,
    "dp": 1.0,
    "dp_replicate": 1.0,
    "virtual_stages": 0.8,
    "micro_batch": 0.4,
}
"""How far away twice or half of a number is. DP is the cheapest degree to change, PP the dearest."""

_ZERO, _RECOMPUTE, _OTHER = 0.3, 0.5, 0.7
"""How far away the next ZeRO stage is, the next kind of recomputation, and another schedule or split."""


@lru_cache(maxsize=256)
def find_fixes(job: Job, rule: Rule, judge: Framework | None) -> tuple[Fix, ...]:
    """At most MOST fixes for `rule`, the nearest first; those that certainly fit, or else those that may.

    Each passes check without an error, ends this rule's finding, and brings no new warning. Larger GPUs or
    another number of GPUs are the last resort, and then one is offered.
    """
    for tries, most in ((_near, MOST), (_fastest, MOST), (_elsewhere, 1)):
        enough: set[Job] = set()
        if found := _passing(job, rule, judge, tries(job, rule, judge, enough), most, enough):
            return found
    return ()


def _passing(
    job: Job, rule: Rule, judge: Framework | None, tries: Iterable[Job], most: int, enough: set[Job]
) -> tuple[Fix, ...]:
    """The first jobs of `tries` that pass, as fixes; what fits goes to `enough`. `tries` is read lazily."""
    warned = codes(severities_again(job, judge), WARNING)
    doubted = unproven(job, judge) - {rule.code}
    # What certainly fits; what does by the estimate; and what does by the lower end of its range.
    found: tuple[list[Fix], list[Fix], list[Fix]] = ([], [], [])
    stages = STAGES
    for made in tries:
        fix = Fix(made, job, judge)
        # What a smaller change has mended needs no further one.
        if made == job or any({*one.changes} <= {*fix.changes} for one in found[0]):
            continue
        # The cheapest test first: this rule alone, then all rules, then evidence; memory is counted last.
        if rule not in MEMORY and says(rule, made, judge) in (ERROR, WARNING):
            continue
        if judge and made.layer_split not in (None, job.layer_split, *splits_of(judge)):
            continue
        left = severities_again(made, judge)
        if codes(left, ERROR) or codes(left, WARNING) - warned or unproven(made, judge) - doubted:
            continue
        doubt = 0
        if made.gpu is not None:
            stages -= made.layout.pp
            if stages < 0:
                break
            # Its own figure is cheap, those of everything that a call may mean are not.
            last = rule in MEMORY and (found[0] or found[1] or len(found[2]) >= most)
            if last and not memory_rule.has_room(made, judge):
                continue
            doubt = _doubt(job, rule, judge, made)
        if doubt < len(found) and not any({*one.changes} <= {*fix.changes} for one in found[doubt]):
            found[doubt].append(fix)
            if not doubt:
                enough.add(made)
        if len(found[0]) == most:
            break
    return tuple(next(filter(None, found), [])[:most])


def _doubt(job: Job, rule: Rule, judge: Framework | None, made: Job) -> int:
    """0 if a job fits as surely as can be asked, 1 if its estimate does, 2 if it may, 3 if it is refused."""
    if rule in MEMORY and job.model.experts:
        return 3  # whether another layout would hold the experts is not known
    if judge is not None and not judge.trains:
        weights = memory_rule.serving_load_of(made, judge)
        if weights and made.gpu and weights.outcome(made.gpu) == TOO_MUCH:
            return 3
        return 0
    # A cheap bound first, for an interval is of every trainer's account. It does not know of `saves`.
    if not made.saves and made.gpu and memory_rule.least_of(made, judge) > made.gpu.hbm_bytes:
        return 3
    finding = memory_rule.finding_of(made, judge)
    if finding is None or finding[0] == memory_rule.NO_ACTIVATIONS:
        return 0
    if finding[0] != memory_rule.OPEN or rule.code == memory_rule.OPEN:
        return 3
    # A job whose own memory is undecided cannot ask more of its fixes. Without a framework most estimates
    # are ranges, so a fix of another rule needs no more than an estimate that fits.
    if memory_rule.finding_of(job, judge) == finding:
        return 0
    if not memory_rule.has_room(made, judge):
        # Nobody buys a GPU that is expected to have too little.
        if made.gpu == job.gpu:
            return 2
        return 3
    if judge is None and rule not in MEMORY:
        return 0
    return 1


# -- what is tried, in order -----------------------------------------------------------------------


def _near(job: Job, rule: Rule, judge: Framework | None, enough: Container[object]) -> Iterator[Job]:
    """Repairs that keep the batch, and layouts, whichever is nearer; then what changes the batch."""
    repaired = list(_repaired(job, rule, judge))
    repaired += [_mend(made, judge) for made in (*repaired, job)]
    own = [made for made in repaired if (made.sequences, made.seq_len) == (job.sequences, job.seq_len)]
    both = (_mend(made, judge) for made in islice(nearest(job, rule, judge), _MENDED))
    # For most rules a setting is nearer than another layout; for ranks, KV heads and stages it is the other
    # way, unless the repair is itself a layout.
    first = (made for made in own if not rule.layouts_first or made.layout != job.layout)
    for made in chain(first, islice(nearest(job, rule, judge, enough), NEAR), own, repaired, both):
        if (made.gpus, made.gpu) == (job.gpus, job.gpu):
            yield made


def _fastest(job: Job, rule: Rule, judge: Framework | None, enough: Container[object]) -> Iterator[Job]:
    """Layouts in the order of a plan."""
    if job.gpu and job.seq_len and job.sequences and not job.model.experts:
        every = candidates(job, _conditions(job, judge), job.gpus or job.layout.world, judge)
        for one in heapq.nsmallest(NEAR, every):
            yield Candidate._make(one).job(job, recompute_of(judge, job.recompute))


def _elsewhere(job: Job, rule: Rule, judge: Framework | None, enough: Container[object]) -> Iterator[Job]:
    """Larger GPUs; then other numbers of GPUs, the nearest first."""
    for gpu in [larger for larger in OFFERED if job.gpu and larger.hbm_bytes > job.gpu.hbm_bytes]:
        yield from islice(nearest(job.replace(gpu=gpu), rule, judge, enough), NEAR)
    gpus = job.gpus or job.layout.world
    others = list(_repaired(job, rule, judge))
    few_idle = range(gpus - 1, max(0, gpus - 1 - _IDLE), -1)
    # A trainer without some axes may run on a part of the GPUs alone.
    parts = reversed(divisors(gpus)[:-1])
    for world in dict.fromkeys((*few_idle, *parts)):
        others += islice(nearest(job, rule, judge, (), world), MOST)
    yield from sorted(others, key=lambda made: abs((made.gpus or made.layout.world) - gpus))


def nearest(
    job: Job, rule: Rule, judge: Framework | None, enough: Container[object] = (), gpus: int | None = None
) -> Iterator[Job]:
    """Layouts of the search that `rule` may let pass, the nearest to `job` first.

    enough: jobs that passed, whose degrees need no other settings. gpus: by default as many as the job has.
    """
    many = gpus or job.gpus or job.layout.world
    job = job.replace(gpus=many if job.gpus else None)
    old = {name: getattr(job.layout, name) for name in (*_DOUBLED, "zero") if name != "micro_batch"}
    old["micro_batch"] = job.micro_batch_size
    how = _conditions(job, judge)
    # A trainer may lack the ZeRO stage that the job says, which is then not what a fix changes.
    zeros = {job.layout.zero, *(judge.zero if judge else range(4))}
    orders = [job, *([job.replace(schedule="1f1b")] if job.schedule in ALL_FORWARD_FIRST else [])]

    def far(one: Candidate | Degrees, names: Iterable[str]) -> float:
        return sum(_DOUBLED[name] * abs(math.log2(getattr(one, name) / old[name])) for name in names)

    mode = recompute_of(judge, job.recompute)

    def distance(one: Candidate) -> float:
        modes = RECOMPUTE.index(one.recompute) - RECOMPUTE.index(mode)
        others = (one.schedule != job.schedule) + bool(one.layer_split)
        return (
            far(one, _DOUBLED)
            + _ZERO * abs(one.zero - old["zero"])
            + _RECOMPUTE * abs(modes)
            + _OTHER * others
        )

    # A layout is at least as far as its degrees, so those that are nearer than the next degrees can go. With
    # each degrees the job's own settings come first; others only where these have not passed.
    waiting: list[tuple[float, tuple[object, ...], Degrees, Job, bool]] = []

    def otherwise(degrees: Degrees) -> Iterator[tuple[float, tuple[object, ...], Degrees, Job, bool]]:
        """The layouts of these degrees with other settings than the job's own."""
        for order in orders:
            for one in map(Candidate._make, of_degrees(order, how, degrees, judge, zeros)):
                yield distance(one), (2, *one[2:]), degrees, one.job(job, mode), True

    def ready(least: float) -> Iterator[Job]:
        while waiting and waiting[0][0] <= least:
            _, _, degrees, made, last = heapq.heappop(waiting)
            if last:
                yield made
            elif made not in enough and not job.model.experts:  # whose step is not timed
                for each in otherwise(degrees):
                    heapq.heappush(waiting, each)

    for least, degrees in sorted((far(one, AXES), one) for one in degrees_of(job, many, judge)):
        yield from ready(least)
        v = 1
        if degrees.pp > 1:
            v = job.layout.virtual_stages
        copies = math.gcd(degrees.dp, job.layout.dp_replicate)
        size = job.micro_batch_size
        zero = job.layout.zero
        plain = Candidate(False, 0.0, *degrees, size, v, zero, mode, job.schedule, "", copies).job(job, mode)
        if not _refused(plain, rule, judge):
            heapq.heappush(waiting, (least, (0, *degrees), degrees, plain, True))
            heapq.heappush(waiting, (least + _ZERO, (1, *degrees), degrees, plain, False))
    yield from ready(math.inf)


def _refused(job: Job, rule: Rule, judge: Framework | None) -> bool:
    """Whether a rule of degrees, which no other setting satisfies, refuses the job, or is `rule`."""
    refused = any(says(other, job, judge) == ERROR for other in ARITHMETIC if other.axis)
    return refused or bool(rule.axis and says(rule, job, judge) in (ERROR, WARNING))


def _conditions(job: Job, judge: Framework | None) -> Conditions:
    """The usual conditions of a job; without a GPU, or a trainer, one of endless memory.

    A GPU whose rates are unknown borrows the default one's, which only decide what is tried first.
    """
    bounded = job.gpu is not None and (judge is None or judge.trains)
    rated = job.gpu
    if rated is None or rated.unknown_rates():
        rated = HARDWARE[DEFAULT_GPU]
    borrowed = replace(rated, hbm_bytes=job.gpu.hbm_bytes if job.gpu and bounded else 2**62)
    return Conditions.of_job(job.replace(gpu=borrowed), judge)


# -- a rule's own repairs --------------------------------------------------------------------------


def _repaired(job: Job, rule: Rule, judge: Framework | None) -> Iterator[Job]:
    """`job` with each repair of a rule that gives a valid layout, judged on what the judge really runs."""
    seen = job
    if judge:
        seen = judge.job_of(rule.code, job)
    made = (changed_job(job, changes) for changes in rule.repairs(seen))
    return (other for other in made if other is not None)


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
