"""The pinned job beside the current one: signed differences of each answer, and one sentence why. Pure."""

from __future__ import annotations

from llamapar.count.terms import GIB
from llamapar.describe.options import Values
from llamapar.errors import LlamaparError
from llamapar.records.tables import Plain, human, noun
from llamapar.rules.report import Report
from llamapar.timing.cost import Cost

from .answers import load, step_cost, traffic_of

SAME = "the same"

WHY = 3
"""The sentence names at most this many terms of a step."""

LEAST = 0.0005
"""Share of the pinned step below which a term is not named: it would read 0.0%."""

Job = tuple[Report, Values]
"""A report, and the values of the controls that made it."""


def compare_jobs(now: Job, pinned: Job) -> Plain:
    """The difference of each answer from the pinned job, and the reason for a slower step. Never raises."""
    differences = [_legal(now, pinned), _fits(now, pinned)]
    why = ""
    try:
        here, there = (step_cost(report.job, report.judge) for report, values in (now, pinned))
        faster = here.tokens_per_second_per_gpu / there.tokens_per_second_per_gpu - 1
        points = 100 * (here.mfu - there.mfu)
        text = f"{faster:+.1%} tokens/s · {points:+.1f} points of MFU"
        differences.append(_signed(text) if abs(faster) >= LEAST else SAME)
        why = _why(here, there)
    except LlamaparError as problem:
        differences.append("not known")
        why = f"no comparison of the time: {problem.what}"
    return {"differences": [*differences, _travels(now, pinned)], "why": why}


def _signed(text: str) -> str:
    """The text with a typographic minus sign, which is as wide as a plus."""
    return text.replace("-", "−")


def _legal(now: Job, pinned: Job) -> str:
    counts = [sum(f.severity == "error" for f in report.arithmetic) for report, _ in (now, pinned)]
    more = counts[0] - counts[1]
    return _signed(f"{more:+d} {noun(abs(more), 'error')}") if more else SAME


def _fits(now: Job, pinned: Job) -> str:
    try:
        here, there = (load(report).memory.expected_bytes for report, _ in (now, pinned))
    except LlamaparError:
        return "not known"
    more = (here - there) / GIB
    return _signed(f"{more:+.2f} GiB") if abs(more) >= 0.005 else SAME


def _travels(now: Job, pinned: Job) -> str:
    try:
        here, there = (traffic_of(report.job, report.judge, 0).by_axis for report, values in (now, pinned))
    except LlamaparError:
        return "not known"
    axes = {axis: here.get(axis, 0) - there.get(axis, 0) for axis in {**there, **here}}
    signed = [f"{axis.upper()} {'+' if n > 0 else '−'}{human(abs(n))}" for axis, n in axes.items() if n]
    return " · ".join(signed) or SAME


def _why(here: Cost, there: Cost) -> str:
    """The terms that differ most, as shares of the pinned step, in GPU time for each token."""
    own, other = (
        {name: s * c.layout.world / c.tokens for name, s in c.seconds.items()} for c in (here, there)
    )
    whole = sum(other.values())
    shares = {name: (own.get(name, 0) - other.get(name, 0)) / whole for name in {**other, **own}}
    net = sum(shares.values())
    most = sorted(shares, key=lambda name: -abs(shares[name]))[:WHY]
    named = [_signed(f"{name} {shares[name]:+.1%}") for name in most if abs(shares[name]) >= LEAST]
    if not named:
        return "a token takes the same GPU time, term by term"
    batches = [cost.tokens // cost.seq_len for cost in (here, there)]
    unlike = f"; the batches differ, {batches[0]:,} and {batches[1]:,}" if batches[0] != batches[1] else ""
    much = "less" if net < 0 else "more"
    return f"a token takes {abs(net):.1%} {much} GPU time: {', '.join(named)}{unlike}"
