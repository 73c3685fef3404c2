"""`debug`: the cause of a failure by experiment. One thing is changed at a time, and what flips is to blame.

The attempt runs in one process, with each axis off, with other degrees and other sizes (`trials`). Rules that
predict every outcome are kept (`trial_rules`). Then layouts of as many ranks are tried, and what passes runs
on real ranks (`proof`). The answer says no more than the trials do. Left out: two causes at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import Degrees
from llamapar.describe.layout import AXES, Layout, LayoutLike, divisors
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.errors import real
from llamapar.records.tables import Plain, html_table, plural, text_table
from llamapar.rules.report import check

from .live_facts import HEAD, LiveFacts, live_facts
from .proof import MOST_RANKS, in_one_process, proved, replaced
from .trial_rules import DEGREES, degree_fits, rules_left, values_to_try
from .trials import ELSEWHERE, FAILS, PASSES, Attempt, Bench, Failure, Trial, error_of
from .vocabulary import NOT_SHARDING, SHARDING, UNKNOWN

_SHOWN = 3
"""Changes, and rules that no trial separates, that are listed."""

_OF_MESHES = re.compile(r"dtensor|shard|placement|mesh|redistribut", re.IGNORECASE)
"""Words of errors that a mesh of one rank raises too, where nothing is cut."""

_NEAREST = 2
"""Layouts that are offered."""


@dataclass(frozen=True, repr=False)
class Debugged:
    """What experiments say about a failure.

    verdict: "sharding", "not_sharding" or "unknown"; reason: why. axes: those that, set to 1 alone, make it
    pass. degrees: axis → degree → outcome. ranks: outcome of some ranks, as given. flips: (size, old, new),
    each of which alone makes it pass, the smallest change first. rules: conditions that predict every trial;
    several are rivals. layouts: of as many ranks, which pass here and in `check`. proof: what came of the fix
    on real ranks. trials: in their order.
    """

    verdict: str
    reason: str
    failure: Failure | None
    live: LiveFacts | None
    axes: tuple[str, ...] = ()
    degrees: dict[str, dict[int, str]] = field(default_factory=dict)
    ranks: dict[int, str] = field(default_factory=dict)
    flips: tuple[tuple[str, int, int], ...] = ()
    rules: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ()
    proof: str = ""
    trials: tuple[Trial, ...] = ()
    how: str = ""

    @property
    def lines(self) -> Iterator[str]:
        """The answer in sentences, what to do first; then the failure, its live facts, and the trials."""
        yield from self._sentences()
        if self.failure is not None:
            yield f"{self.failure.kind}: {self.failure.words}"
        if self.live is not None:
            yield from (self.live.place, *("  ".join(row).rstrip() for row in self.live.rows()))
            yield self.live.process
        yield self.how

    def _sentences(self) -> Iterator[str]:
        words = {SHARDING: "A sharding problem", NOT_SHARDING: "Not a sharding problem"}
        yield f"{words.get(self.verdict, 'Not known')}: {self.reason}"
        if self.layouts:
            yield f"try {' or '.join(map(_short, self.layouts))}"
        if self.proof:
            yield self.proof
        if len(self.rules) == 1:
            yield f"passes when {self.rules[0]}: right about every trial, and the only rule that is"
        elif self.rules:
            yield f"no trial separates: passes when {', or '.join(self.rules[:_SHOWN])}"
        for axis, outcomes in self.degrees.items():
            passing = _listed(n for n, outcome in outcomes.items() if outcome == PASSES)
            elsewhere = _listed(n for n, outcome in outcomes.items() if outcome == ELSEWHERE)
            failing = f"; failing elsewhere: {elsewhere}" if elsewhere else ""
            yield f"{axis} that pass: {passing or 'none'}{failing}; tried: {_listed(outcomes)}"
        if PASSES in self.ranks.values():
            some = [rank for rank, outcome in self.ranks.items() if outcome == PASSES]
            yield f"of ranks {_listed(self.ranks)} these pass: {_listed(some)}"
        if self.flips:
            yield f"passes with {', or '.join(f'{n} {a} → {b}' for n, a, b in self.flips[:_SHOWN])}"

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        for trial in self.trials:
            words = f"{trial.failure.words[:60]} (line {trial.failure.line})" if trial.failure else ""
            rows.append([trial.change or "as given", trial.outcome, words if trial.outcome != FAILS else ""])
        return "trials", ["changed", "outcome", "error"], rows, ""

    def table(self) -> str:
        """The trials as a table."""
        return text_table(*self._table())

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        first, *more = map(escape, self._sentences())
        failure = f"<br>{escape(f'{self.failure.kind}: {self.failure.words}')}" if self.failure else ""
        rows = [*self.live.rows()] if self.live else []
        live = (
            html_table(self.live.place, list(HEAD), rows, self.live.process, left=True) if self.live else ""
        )
        table = f"<summary>{escape(self.how)}</summary>{html_table(*self._table(), left=True)}"
        trials = f"<details>{table}</details>" if self.trials else ""
        return f"<p><b>{first}</b><br>{'<br>'.join(more)}{failure}</p>{live}{trials}"

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        return {
            "verdict": self.verdict, "reason": self.reason, "axes": list(self.axes),
            "degrees": {a: {str(n): o for n, o in tried.items()} for a, tried in self.degrees.items()},
            "flips": [list(flip) for flip in self.flips], "rules": list(self.rules),
            "layouts": [str(layout) for layout in self.layouts], "proof": self.proof,
            "trials": [[trial.change, trial.outcome] for trial in self.trials], "how": self.how,
        }  # fmt: skip


@checked_options
def debug(
    attempt: Attempt,
    model: object,
    layout: LayoutLike | None = None,
    *,
    deadline: float | None = 2.0,
    prove: bool = True,
    **degrees: Unpack[Degrees],
) -> Debugged:
    """Find out by experiment why code fails: run it again with one thing changed at a time.

    attempt: a function of (model, layout) that builds and runs what fails, as one rank of `layout`: plain
        torch, DTensor modules, or a call of `lp.run`. It is called many times, on meta tensors in a fake
        process group, where nothing is computed or sent. Its prints are dropped.
    model: a preset's name, a ModelConfig, or the sizes that the attempt reads: a dict, a config, any object
        that stores integers. Copies with one size changed are given to the attempt.
    layout, degrees: the layout that fails.
    deadline: seconds for all trials after the first; one that has begun is finished. None for no limit.
    prove: run a fix on real ranks too, if it is small enough; this takes seconds more.

    Raises LlamaparError if the process has a process group already.
    """
    if isinstance(model, str) and model in PRESETS:
        model = find_model(model)
    seconds = math.inf if deadline is None else real("deadline", deadline, 0.01, 3600)
    bench = Bench(attempt, model, Layout.of(layout), seconds)
    if bench.first is None:
        reason = f"the attempt passes as given, on {bench.way.words}; a failure of values needs real ranks"
        return Debugged(UNKNOWN, f"{reason}: lp.run, or %%ranks", None, None)
    live = live_facts(bench.first)
    return _Search(bench, live).answer(prove)


class _Search:
    """The experiments in their order, and what they say."""

    def __init__(self, bench: Bench, live: LiveFacts | None) -> None:
        self.bench, self.live = bench, live
        self.layout = bench.layout
        self.used = [axis for axis in AXES if getattr(self.layout, axis) > 1]
        self.alone = bench.trial(Layout())
        self.axes = [axis for axis in self.used if self._passes(self.layout.replace(**_off(axis)))]

    def _passes(self, layout: Layout) -> bool:
        trial = self.bench.trial(layout)
        return trial is not None and trial.outcome == PASSES

    def answer(self, prove: bool) -> Debugged:
        """The verdict, what flips the outcome, the rules that stand, layouts that pass, and the proof."""
        bench = self.bench
        verdict, reason = self._verdict()
        blamed = self.axes or (self.used if verdict == SHARDING else [])
        degrees = {axis: self._degrees(axis) for axis in blamed}
        layouts = tuple(self._layouts()) if verdict == SHARDING else ()
        near = self.live.sizes if self.live else ()
        changes = values_to_try(bench, near)
        flips: dict[str, tuple[str, int, int]] = {}
        for name, n in changes:
            trial = bench.trial(None, **{name: n})
            if trial is not None and trial.outcome == PASSES:
                flips.setdefault(name, (name, bench.sizes[name], n))
        rules = rules_left(bench, blamed or self.used, changes)
        how = f"{plural(len(bench.trials), 'trial')} on {bench.way.words}"
        how += "; the time is used up: more may pass" if bench.out_of_time else ""
        layouts, proof = self._proof(layouts) if prove else (layouts, "")
        return Debugged(
            verdict,
            reason,
            Failure.of(bench.first) if bench.first else None,
            self.live,
            tuple(self.axes),
            degrees,
            bench.by_rank(),
            tuple(flips.values()),
            tuple(rule.words for rule in rules),
            layouts,
            proof,
            tuple(bench.trials),
            how,
        )

    def _verdict(self) -> tuple[str, str]:
        """Whether sharding is to blame, by the run in one process, and why."""
        alone = self.alone
        if alone is None:
            return UNKNOWN, "the time was used up by the first trial"
        if alone.failure is None:
            ones = " or with ".join(f"{axis}=1" for axis in self.axes)
            return SHARDING, "it passes in one process" + (f", and with {ones} alone" if ones else "")
        if alone.outcome != FAILS:
            return UNKNOWN, f"in one process it fails elsewhere: {alone.failure.words}"
        if _OF_MESHES.search(alone.failure.words):
            return (
                UNKNOWN,
                "it fails on a mesh of one rank too: no degree is to blame, the mesh itself may be",
            )
        # A number of ranks that the code itself sets is still there in the run of one process.
        error = error_of(self.bench.attempt, self.bench.model, Layout(), 0, self.bench.way)
        facts = live_facts(error) if error else None
        still = [f"{name} = {n}" for name, n in facts.degrees.items()] if facts else []
        still += [f"{cut.operand}, {cut.part} of {cut.whole}" for cut in facts.shards()] if facts else []
        if still:
            return UNKNOWN, f"it fails with every degree 1 too, but the code still has {', '.join(still)}"
        return NOT_SHARDING, "it fails in one process too, at the same line"

    def _degrees(self, axis: str) -> dict[int, str]:
        """Degrees of an axis, everything else as given, and what came of each that was tried."""
        tried = {
            n: self.bench.trial(self.layout.replace(**{axis: n}))
            for n in DEGREES
            if degree_fits(self.bench, axis, n)
        }
        return {n: trial.outcome for n, trial in tried.items() if trial is not None}

    def _layouts(self) -> Iterator[Layout]:
        """The nearest layouts of as many ranks that pass here, and in `check` if it can judge the model."""
        found = 0
        for layout in sorted(_of_as_many(self.layout), key=self._distance):
            if found == _NEAREST or self.bench.out_of_time:
                return
            judged = isinstance(self.bench.model, ModelConfig)
            if self._passes(layout) and (not judged or check(self.bench.model, layout).ok):
                found += 1
                yield layout

    def _distance(self, layout: Layout) -> tuple[int, float]:
        """How much a layout changes: axes other than those to blame and dp first, then the degrees."""
        ratios = {a: abs(math.log2(getattr(layout, a) / getattr(self.layout, a))) for a in AXES}
        return sum(n > 0 for a, n in ratios.items() if a not in (*self.axes, "dp")), sum(ratios.values())

    def _proof(self, layouts: tuple[Layout, ...]) -> tuple[tuple[Layout, ...], str]:
        """The layouts that real ranks do not refute, and what came of the fix on them.

        The fix is the expression with a rank's part in it, else the nearest layout.
        """
        bench = self.bench
        given = bench.attempt, bench.model, bench.layout
        one, said = in_one_process(bench.attempt, bench.model), ""
        fixes = []
        for part in self.live.wholes_beside_parts() if self.live and self.axes else ():
            with replaced(bench.first, part.name, part.ranks) as code:
                if code and error_of(*given, bench.rank, bench.way) is None:
                    fixes.append(part)
        if fixes:
            rivals = "".join(f", or {part.name} // {part.ranks}" for part in fixes[1:])
            with replaced(bench.first, fixes[0].name, fixes[0].ranks):
                held, words = proved(*given, one)
            if held:
                return layouts, f"{fixes[0].remedy}{rivals}: {words}"
        for i, layout in enumerate(layouts):
            fixed = layout if layout.world <= MOST_RANKS else layout.replace(**_off("dp"))
            held, words = proved(bench.attempt, bench.model, fixed, one)
            said = f"{_short(fixed)}: {words}"
            if held:
                return layouts[i:], said
        return (), said


def _off(axis: str) -> dict[str, int]:
    """An axis set to 1, as changes of a Layout."""
    return {axis: 1, "dp_replicate": 1} if axis == "dp" else {axis: 1}


def _short(layout: Layout) -> str:
    """The degrees above 1, as "tp=2 dp=2"."""
    return " ".join(f"{a}={n}" for a in AXES if (n := getattr(layout, a)) > 1) or "one process"


def _listed(numbers: Iterable[object]) -> str:
    return ", ".join(map(str, numbers))


def _of_as_many(layout: Layout) -> Iterator[Layout]:
    """The other layouts with as many ranks."""
    for tp in divisors(layout.world):
        for cp in divisors(layout.world // tp):
            for pp in divisors(layout.world // tp // cp):
                dp = layout.world // tp // cp // pp
                if (tp, cp, pp) != (layout.tp, layout.cp, layout.pp) and dp % layout.dp_replicate == 0:
                    yield layout.replace(tp=tp, cp=cp, pp=pp, dp=dp)
