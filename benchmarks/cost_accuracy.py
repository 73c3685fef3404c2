"""What is fitted to measured steps: the profiles of trainers, and how wide an interval is.

    .venv/bin/python benchmarks/cost_accuracy.py    # both, on the half seen, and on the other

Rows are those of `as_printed.py`, which scores what the command prints; nothing else is fitted to them. A
profile is found by least mean error. An interval's ends are measured over expected steps of the half seen, by
kind of step as `timing.profiles` tells them apart: with n of them, the k-th from either end, where k is the
whole part of (n + 1) / 10, so that a further step lies between them eight times in ten (split conformal
prediction, arXiv:1604.04173).
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import as_printed
import llamapar as lp
from as_printed import Told, percentile
from llamapar.describe.layout import Layout
from llamapar.timing.cost import Cost
from llamapar.timing.profiles import SPREADS

SLOWER = [step / 100 for step in range(80, 160)]
HOST = [step / 1e4 for step in range(40)]
FITTED = {"nanotron": HOST, "torchtitan": [0.0], "NVIDIA NeMo": [0.0]}
"""Rows' group → seconds of its host that are tried; 0 alone where nobody says that it is slow."""


def in_python(told: Told) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row's layout and its settings, as `lp.cost` takes them."""
    names = Layout.__dataclass_fields__
    layout = {name: value for name, value in told.facts.items() if name in names}
    return layout, {name: value for name, value in told.facts.items() if name not in names}


def cost_of(told: Told, **changes: Any) -> Cost:
    """A row's cost. Raises LayoutError."""
    layout, settings = in_python(told)
    return lp.cost(lp.ModelConfig(**told.model), Layout(**layout), **settings | changes)


Run = tuple[Cost, float]
"""A run's cost without a profile, and its measured seconds."""


@cache
def runs(group: str, half: str) -> tuple[Run, ...]:
    """The runs of a group that can be predicted."""
    rows = [*as_printed.published(), *as_printed.ultrascale()]
    asked = [told for told in rows if told.group.startswith(group) and told.half == half and not told.why]
    fair = [told for told in asked if group != "nanotron" or told.group.startswith("nanotron, one stage")]
    found = []
    for told in fair:
        cost = cost_of(told, profile="none")
        answer = cost.as_dict()
        printed = float(answer[told.key])
        measured = told.value if told.key == "step_seconds" else cost.step_seconds * printed / told.value
        found.append((cost, measured))
    return tuple(found)


def refitted(rows: Iterable[Run], slower: float, host: float) -> list[float]:
    """Their errors with two constants of a profile; a bubble grows as the layers do."""
    found = []
    for cost, measured in rows:
        phases = cost.layer.seconds
        counts = next(term.inputs for term in cost.terms if term.name == "GEMMs")
        passes = counts["micro_batches"] * counts["layers"]
        launched = 3 if "recompute full" in cost.how else 2
        layers = max(slower * phases[0], host) + max(slower * phases[1], launched * host)
        bubble = cost.seconds.get("pipeline idle", 0.0)
        more = passes * (layers - sum(phases)) + bubble * (layers / sum(phases) - 1)
        found.append((cost.step_seconds + more) / measured - 1)
    return found


def fit(rows: Iterable[Run], hosts: list[float]) -> tuple[float, float]:
    """The two constants of least mean error."""
    every = itertools.product(SLOWER, hosts)
    return min(every, key=lambda each: statistics.mean(map(abs, refitted(rows, *each))))


def said(errors: list[float]) -> str:
    """Median and 90th percentile of absolute errors, in words."""
    sizes = list(map(abs, errors))
    return f"{len(sizes)} rows: median {statistics.median(sizes):.1%}, p90 {percentile(sizes, 0.9):.1%}"


def ends(ratios: list[float]) -> tuple[float, float]:
    """The ends of an interval."""
    ordered, k = sorted(ratios), max(1, (len(ratios) + 1) // 10)
    return ordered[k - 1], ordered[-k]


def measured_spreads(half: str) -> dict[str, list[float]]:
    """Kind of step → measured over expected seconds of a half's rows."""
    by_spread = {spread: kind for kind, spread in SPREADS.items()}
    found: dict[str, list[float]] = {kind: [] for kind in SPREADS}
    for row in as_printed.time_rows()[0]:
        if row.told.half == half:
            kind = by_spread[cost_of(row.told).spread]
            found[kind].append(row.measured / row.expected)
    return found


def main() -> None:
    for group, hosts in FITTED.items():
        found = fit(runs(group, "seen"), hosts)
        print(f"{group}: slower {found[0]}, host {found[1]} s")
        for half in ("seen", "unseen"):
            own = runs(group, half)
            print(f"  {half}: {said(refitted(own, 1.0, 0.0))} -> {said(refitted(own, *found))}")
    seen, unseen = (measured_spreads(half) for half in ("seen", "unseen"))
    for kind, spread in SPREADS.items():
        if seen[kind]:
            low, high = ends(seen[kind])
            held = [spread.low <= ratio <= spread.high for ratio in unseen[kind]]
            share = f"{statistics.mean(held):.0%} of {len(held)} others" if held else "no others"
            print(f"{kind}: {low:.3f} to {high:.3f} of {len(seen[kind])}, {spread.readings} kept; ", end="")
            print(f"{spread.low} to ", end="")
            print(f"{spread.high} hold {share}")


if __name__ == "__main__":
    main()
