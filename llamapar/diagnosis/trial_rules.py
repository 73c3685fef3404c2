"""Rules that trials leave standing: when the attempt passes, as a sentence over degrees and sizes.

Every rule of a small language ("tp divides n_kv_heads", "dim equals ffn_dim") predicts the outcome of each
trial. A rule stands while all its predictions are right. As long as two rules stand, a trial is looked for on
which they differ. What is left is said; several that no trial separates are said together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from llamapar.describe.layout import AXES, Layout

from .trials import ELSEWHERE, PASSES, Bench, Trial

DEGREES = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64)
"""Degrees of an axis that are tried."""

_EACH = 12
"""Values of a size that are tried, the nearest ones."""

_MOST_SIZES = 12
"""Sizes about which rules are made."""

Sizes = Mapping[str, int]
Change = tuple[Layout, dict[str, int]]


class TrialRule(NamedTuple):
    """A condition under which the attempt passes: its words, and whether a layout and sizes meet it."""

    words: str
    holds: Callable[[Layout, Sizes], bool]

    def predicts(self, trials: Iterable[Trial]) -> bool:
        """Whether the rule is right about every trial; a trial that fails elsewhere proves nothing."""
        return all(
            self.holds(trial.layout, trial.sizes) == (trial.outcome == PASSES)
            for trial in trials
            if trial.outcome != ELSEWHERE
        )


def rules(axes: Collection[str], names: Iterable[str]) -> Iterator[TrialRule]:
    """The rules about some axes and sizes, the simplest first."""
    terms: dict[str, tuple[int, tuple[str, ...]]] = {axis: (1, (axis,)) for axis in axes}
    terms |= {f"2·{axis}": (2, (axis,)) for axis in axes}
    terms |= {"·".join(pair): (1, pair) for pair in itertools.combinations(axes, 2)}
    terms["the number of ranks"] = 1, AXES
    named = [*names][:_MOST_SIZES]
    yield from (_is_one(axis) for axis in axes)
    for words, (factor, of) in terms.items():
        for name in named:
            yield from _of_ranks(words, factor, of, name)
    for one, other in itertools.permutations(named, 2):
        yield from _of_sizes(one, other)


def _is_one(axis: str) -> TrialRule:
    return TrialRule(f"{axis} is 1", lambda layout, sizes: getattr(layout, axis) == 1)


def _of_ranks(words: str, factor: int, axes: tuple[str, ...], name: str) -> Iterator[TrialRule]:
    """A number of ranks divides a size, or is at most that."""

    def ranks(layout: Layout) -> int:
        return factor * math.prod(int(getattr(layout, axis)) for axis in axes)

    yield TrialRule(f"{words} divides {name}", lambda layout, sizes: sizes[name] % ranks(layout) == 0)
    yield TrialRule(f"{words} is at most {name}", lambda layout, sizes: ranks(layout) <= sizes[name])


def _of_sizes(one: str, other: str) -> Iterator[TrialRule]:
    """A size equals another, divides it, or is at most that."""
    if one < other:
        yield TrialRule(f"{one} equals {other}", lambda layout, sizes: sizes[one] == sizes[other])
    yield TrialRule(f"{one} divides {other}", lambda layout, sizes: sizes[other] % sizes[one] == 0)
    yield TrialRule(f"{one} is at most {other}", lambda layout, sizes: sizes[one] <= sizes[other])


def values_to_try(bench: Bench, near: Iterable[int]) -> list[tuple[str, int]]:
    """Name and new value of each change of one size, those that change it least first.

    near: numbers of the failing expression, which may be what a size should have been.
    """
    degrees = {n for axis in AXES if (n := getattr(bench.layout, axis)) > 1}
    units = degrees | {2 * n for n in degrees} | {bench.layout.world}
    products = {a * b for a, b in itertools.combinations([*bench.sizes.values()][:_MOST_SIZES], 2)}
    others = {*bench.sizes.values(), *near, *products, 1, 2}
    found = []
    for name, n in bench.sizes.items():
        values = others | {n + 1, 2 * n, n // 2}
        for unit in units:
            values |= {-(-n // unit) * unit, n // unit * unit, n * unit, n // unit}
        fits = sorted((v for v in values if 0 < v != n), key=lambda v: abs(math.log(v / n)))
        found += [(name, value) for value in fits[:_EACH]]
    return sorted(found, key=lambda change: abs(math.log(change[1] / bench.sizes[change[0]])))


def rules_left(bench: Bench, axes: Collection[str], changes: list[tuple[str, int]]) -> tuple[TrialRule, ...]:
    """The rules that every trial left standing, after trials on which those that stood differed.

    axes: those that may be to blame. changes: sizes that can be changed, and to what.
    """
    degrees = [(axis, n) for axis in axes for n in DEGREES if degree_fits(bench, axis, n)]
    layouts = [bench.layout.replace(**{axis: n}) for axis, n in degrees]
    tries: list[Change] = [(layout, {}) for layout in layouts]
    tries += [(bench.layout, {name: n}) for name, n in changes]
    tries += [(layout, {name: n}) for layout in layouts[:8] for name, n in changes[:24]]
    kept = [rule for rule in rules(axes, bench.sizes) if rule.predicts(bench.trials)]
    for layout, changed in tries:
        if len(kept) < 2 or bench.out_of_time:
            break
        sizes = {**bench.sizes, **changed}
        if len({rule.holds(layout, sizes) for rule in kept}) == 2:
            trial = bench.trial(layout, **changed)
            kept = [rule for rule in kept if trial is None or rule.predicts([trial])]
    passed = [trial for trial in bench.trials if trial.outcome == PASSES and trial.layout.world > 1]
    # One pass alone fits too many rules; the change that made it is listed anyway.
    return tuple(kept) if len(passed) > 1 or bench.layout.world == 1 else ()


def degree_fits(bench: Bench, axis: str, n: int) -> bool:
    """Whether the layout with this degree is valid: dp must be a multiple of dp_replicate."""
    return axis != "dp" or n % bench.layout.dp_replicate == 0
