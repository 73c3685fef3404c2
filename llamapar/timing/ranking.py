"""A layout of a plan: its time and memory, its place among others, and what it loses to the best."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from llamapar.count.terms import FITS, GIB, TOO_MUCH, Memory
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, Layout
from llamapar.records.tables import Plain

from .cost import Cost
from .search import Degrees

TIE = 0.10
"""Steps whose predicted seconds differ by less share a place.

Of measured pairs of layouts of one job, 69 % of those nearer than this by prediction are in the right order,
and 82 % of those 10 to 15 % apart (benchmarks/cost_accuracy.py --pairs).
"""

TIGHT = "tight"
"""Outcome of a layout that may fit, but is expected to take from the headroom, or to need more."""


@dataclass(frozen=True)
class Ranked:
    """A layout that passes `check` and may fit, with its time and its `memory`."""

    job: Job
    cost: Cost
    held: Memory = field(repr=False)
    headroom: int = 0
    why: str = ""
    place: str = ""

    @property
    def memory_bytes(self) -> int:
        """The shown memory of its worst stage."""
        return self.held.expected_bytes

    @cached_property
    def outcome(self) -> str:
        """FITS; TIGHT if it is expected to take from the headroom; UNDECIDED; or TOO_MUCH."""
        return outcome_of(self.held, self.headroom)

    @property
    def gib(self) -> str:
        """Memory of its worst stage, in words; both ends of the range if they leave it undecided."""
        if self.held.within(self.cost.gpu.hbm_bytes) == FITS:
            return f"{self.memory_bytes / GIB:.1f}"
        return f"{self.held.low_bytes / GIB:.1f} to {self.held.high_bytes / GIB:.1f}"

    @property
    def layout(self) -> Layout:
        return self.job.layout

    @property
    def degrees(self) -> Degrees:
        return Degrees(*(self.layout.size(axis) for axis in AXES))

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        names = (*AXES, "dp_replicate", "micro_batch", "virtual_stages", "schedule", "layer_split", "zero")
        of_layout = self.layout.__dataclass_fields__
        return {
            **{name: getattr(self.layout if name in of_layout else self.job, name) for name in names},
            "recompute": self.job.recompute,
            "step_seconds": self.cost.step_seconds,
            "mfu": self.cost.mfu,
            "memory_gib": self.memory_bytes / GIB,
            "least_gib": self.held.low_bytes / GIB,
            "most_gib": self.held.high_bytes / GIB,
            "outcome": self.outcome,
            "place": self.place,
            "why": self.why,
        }


def outcome_of(held: Memory, headroom: int) -> str:
    """The outcome of a layout by its memory: see Ranked."""
    room = held.hbm_bytes
    if held.expected_bytes <= room - headroom:
        return held.within(room)
    # Where facts are open, some trainer may need less; counting all of them would take most of a search.
    if held.open_facts or held.low_bytes <= room:
        return TIGHT
    return TOO_MUCH


NAMED = 2
"""How many losses, and how many gains, a comparison names; the rest is summed as "others"."""


def losses_and_gains(one: Cost, best: Cost) -> str:
    """What a step loses against another and what it gains, term by term, and the sum: "+a −b = net"."""
    net = one.step_seconds - best.step_seconds
    names = dict.fromkeys([*best.seconds, *one.seconds])
    more = {name: one.seconds.get(name, 0.0) - best.seconds.get(name, 0.0) for name in names}
    ordered = sorted(more.items(), key=lambda term: term[1])
    shown = [*reversed(ordered[-NAMED:]), *ordered[:NAMED]]
    # Below a thousandth of the step a difference is of rounding.
    said = {name: value for name, value in shown if abs(value) > best.step_seconds / 1000}
    said["others"] = net - sum(said.values())
    terms = [f"{_signed(v)} s {name}" for name, v in said.items() if abs(v) > best.step_seconds / 1000]
    share = abs(net / best.step_seconds)
    verdict = f"{share:.1%} {'slower' if net >= 0 else 'faster'}" + (", a tie" if share < TIE else "")
    lay = one.layout
    crosses = lay.tp * lay.stride("tp") > one.gpu.domain and ordered[-1][0] == "exposed TP"
    place = ""
    if crosses:
        place = f"tp={lay.tp} crosses the node: "
    return f"{place}{' '.join(terms) or '0 s'} = {_signed(net)} s: {verdict}"


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '−'}{abs(seconds):.2g}"


def placed(ordered: list[Ranked]) -> list[Ranked]:
    """Layouts with their places: those within TIE of the first of a place share it, as "1="."""
    groups: list[list[Ranked]] = []
    for one in ordered:
        first = one
        if groups:
            first = groups[-1][0]
        slower = one.cost.step_seconds > first.cost.step_seconds * (1 + TIE)
        if not groups or slower or (one.outcome == TIGHT) != (first.outcome == TIGHT):
            groups.append([])
        groups[-1].append(one)
    found: list[Ranked] = []
    for group in groups:
        place = f"{len(found) + 1}{'=' * (len(group) > 1)}"
        found += [replace(one, place=place) for one in group]
    return found
