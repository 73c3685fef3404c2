"""A breakdown of memory: named terms, each the value of a formula of its inputs, with its source.

The formula that is shown is the one that is evaluated, so the two cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import CodeType
from typing import NamedTuple

from llamapar.describe.hardware import Gpu
from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.records.tables import AsDict, Plain, Record, cut, plain_value

GIB = 2**30

_NAMES = {"__builtins__": {}, "max": max, "min": min, "ceil": math.ceil}


@lru_cache(maxsize=1024)
def _compiled(formula: str) -> CodeType:
    return compile(formula, "<formula>", "eval")


def evaluated(formula: str, inputs: Mapping[str, float]) -> float:
    """The value of Python arithmetic on `inputs`."""
    # Formulas are literals of this library, never input; the empty __builtins__ keeps them to arithmetic.
    return eval(_compiled(formula), _NAMES, inputs)


@dataclass(frozen=True)
class Term:
    """One named part of a whole: the value of `formula`, Python arithmetic on `inputs`; bytes or seconds."""

    name: str
    formula: str
    inputs: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    @cached_property
    def value(self) -> float:
        """The value of the formula."""
        return evaluated(self.formula, self.inputs)

    @cached_property
    def bytes(self) -> int:
        """The value, rounded because published formulas may give fractions."""
        return round(self.value)

    @property
    def used(self) -> dict[str, float]:
        """The inputs that the formula names."""
        # The compiled code knows which names it reads, so the table lists just these and never a stale
        # one.
        names = _compiled(self.formula).co_names
        return {name: self.inputs[name] for name in names if name in self.inputs}


@dataclass(frozen=True, repr=False)
class Breakdown(Record):
    """The memory of the worst rank of one pipeline stage, by terms.

    apart: terms that exist only at other moments than the worst one.
    """

    stage: int
    terms: tuple[Term, ...]
    apart: tuple[Term, ...] = ()

    @cached_property
    def total_bytes(self) -> int:
        return sum(term.bytes for term in self.terms)

    def bytes(self, *names: str) -> int:
        """Bytes of the terms with these names, or with names that start with one of them and a colon."""
        return sum(t.bytes for t in self.terms if t.name in names or t.name.partition(":")[0] in names)

    def as_dict(self) -> Plain:
        """{"stage", "total_bytes", "terms": {name: bytes}}."""
        terms = {term.name: term.bytes for term in self.terms}
        return {"stage": self.stage, "total_bytes": self.total_bytes, "terms": terms}

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        title = f"stage {self.stage}: {self.total_bytes / GIB:.2f} GiB a rank"
        rows: list[list[object]] = []
        for t in self.terms:
            inputs = ", ".join(f"{k}={v:,}" for k, v in t.used.items())
            rows.append([t.name, f"{t.bytes:,}", t.formula, inputs, t.source])
        return title, ["term", "bytes", "formula", "inputs", "source"], rows, ""


ALLOCATOR_TERM = "allocator (assumed)"
CONTEXT_TERM = "CUDA context (assumed)"

OUTSIDE = round(1.2 * GIB)
"""CUDA's context and NCCL's buffers, which torch's counters do not see (assumed)."""

SHARES = {
    "needs": (0.84, 1.0, 1.08),
    "max_allocated": (0.84, 0.99, 1.08),
    "max_reserved": (0.89, 1.06, 1.34),
    "nvidia-smi": (0.96, 1.26, 1.36),
}
"""What a run shows → shares of the terms: the low end, the middle and the high end of eight of ten runs.

They are percentiles of what a counter showed over the terms that it sees, the tenth, fiftieth and ninetieth,
in one half of the measured runs (`benchmarks/memory_rows.py --fit`); the other half scores them. What a run
needs is the sum of its terms, with the ends of max_allocated.
"""

FITS, UNDECIDED, TOO_MUCH = "fits", "undecided", "does not fit"
"""Outcomes: the whole interval fits the GPU's HBM, only a part of it does, or none of it."""

STATES = ("parameters", "master weights", "optimizer states")
"""Terms that are exact and exist together in every step; gradients may be narrower than they are counted."""

_GRADIENTS = ("gradients", "unreduced gradients", "gradient buckets")
SAVES = {
    "lora": (*_GRADIENTS, "master weights", "optimizer states", "optimizer's copy"),
    "8-bit-adam": ("optimizer states",),
    "offload": (*STATES, "optimizer's copy"),
    "4-bit": STATES,
    "zero": (*_GRADIENTS, *STATES, "optimizer's copy"),
}
"""What a run may do that is not counted → the terms that it makes smaller, or removes."""

STATE_BYTES = 6
"""Bytes of a 16-bit weight and its two moments in 16 bits: no trainer here has less for a parameter."""

VALUES = 4
"""How many values of an open fact are listed."""


class Figure(NamedTuple):
    """Bytes: the expected figure, and the ends of an interval that holds eight of ten runs."""

    low: int
    expected: int
    high: int

    def __str__(self) -> str:
        """In GiB: "66.0 (61.2 to 74.8)"."""
        return f"{self.expected / GIB:.1f} ({self.low / GIB:.1f} to {self.high / GIB:.1f})"


def fullest(stages: Iterable[Breakdown]) -> Breakdown:
    """The stage that needs most; the first one of several."""
    return max(stages, key=lambda stage: stage.total_bytes)


@dataclass(frozen=True)
class Meaning:
    """One thing that a call may mean: a trainer, or a day of the one that it names, and a recomputation."""

    trainer: str
    recompute: str
    worst: Breakdown


@dataclass(frozen=True, repr=False)
class Memory(AsDict, Record):
    """Every pipeline stage's breakdown beside the HBM of one GPU. how: the step and the accounting.

    stages: by PP rank, as expected. ways: what else the call may mean, counted when it is asked for.
    open_facts: arguments of `memory` that the call leaves open, which widens the interval. published: whether
    a file's own sizes are all that is counted, so that there is no interval. saves: keys of SAVES; what they
    make smaller is counted in full, so that the figures are upper bounds.
    """

    json_names = (
        *("stages", "worst", "fits", "outcome", "expected_bytes", "low_bytes", "high_bytes", "counters"),
        *("open_facts", "narrows"),
    )

    model: ModelConfig
    layout: Layout
    how: str
    stages: tuple[Breakdown, ...]
    gpu: Gpu
    ways: Callable[[], Iterable[Meaning]] | None = field(default=None, compare=False)
    open_facts: tuple[str, ...] = ()
    published: bool = False
    saves: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.model.name}, {self.layout}, {self.how}"

    @property
    def verdict(self) -> str:
        """The expected figure, its interval and the GPU's HBM, in words; then what a run shows."""
        expected = self.expected_bytes / GIB
        room = self.hbm_bytes / GIB
        needs = self.figure()
        sign = ">"
        if expected <= room:
            sign = "≤"
        most = ""
        if self.saves:
            most = "at most "
        if self.not_counted:
            least = f"at least {self.low_bytes / GIB:.2f} GiB, and {self.gpu} has {room:.2f}: {self.outcome}"
            return f"worst: stage {self.worst.stage}, {least}\nnot counted: {self.not_counted}"
        told = (
            f"worst: stage {self.worst.stage}, {most}{expected:.2f} GiB {sign} {room:.2f} GiB of {self.gpu}: "
            f"{self.outcome}"
        )
        if self.published:
            return told
        told += f"; eight of ten runs need {needs.low / GIB:.1f} to {needs.high / GIB:.1f}"
        shows = ", ".join(f"{name} {figure}" for name, figure in self.counters.items())
        saved = ""
        if self.saves:
            saved = f"not counted: what {', '.join(self.saves)} saves"
        return "\n".join(filter(None, [told, f"a run shows: {shows}", self.narrows, saved]))

    @property
    def not_counted(self) -> str:
        """What of a mixture of experts is not counted, so that the figures are lower bounds; else empty."""
        return self.model.unjudged

    def as_dict(self) -> Plain:
        """Plain values for JSON; of a mixture of experts without a total, for there is none."""
        if self.not_counted:
            known = ("stages", "outcome", "low_bytes", "not_counted")
            return {name: plain_value(getattr(self, name)) for name in known}
        return super().as_dict()

    @property
    def hbm_bytes(self) -> int:
        return self.gpu.hbm_bytes

    @cached_property
    def worst(self) -> Breakdown:
        """The stage that needs most; the first one of several."""
        return fullest(self.stages)

    @property
    def expected_bytes(self) -> int:
        """What the worst stage is expected to need: the sum of its terms."""
        return self.worst.total_bytes

    @cached_property
    def others(self) -> tuple[Meaning, ...]:
        """Everything that the call may mean, if it leaves something open."""
        if self.ways and self.open_facts:
            return tuple(self.ways())
        return ()

    @cached_property
    def counters(self) -> dict[str, Figure]:
        """What torch's two counters and nvidia-smi show for the worst stage."""
        return {name: self.figure(name) for name in SHARES if name != "needs"}

    def figure(self, shows: str = "needs") -> Figure:
        """What the worst stage needs, or what a run shows of it: a key of SHARES."""
        return self._spread([self.worst, *(way.worst for way in self.others)], shows)

    def _spread(self, stages: Sequence[Breakdown], shows: str = "needs") -> Figure:
        """The Figure of stages that may be the worst, of which the first is the expected one."""
        if self.published:
            return Figure(*[self.expected_bytes] * 3)
        # torch's counters see nothing of CUDA's context, which is a term of the total.
        seen = 0
        if shows != "needs":
            seen = self.worst.bytes(CONTEXT_TERM)
        outside = 0
        if shows == "nvidia-smi":
            outside = OUTSIDE
        totals = [stage.total_bytes for stage in stages]
        freed = [stage.bytes(*{name for saved in self.saves for name in SAVES[saved]}) for stage in stages]
        least = min(total - less for total, less in zip(totals, freed, strict=True))
        ends = zip((least, totals[0], max(totals)), SHARES[shows], strict=True)
        found = [round((total - seen) * share) + outside for total, share in ends]
        # Weights, gradients and states are counted to the byte, so no run needs less.
        states = [stage.bytes(*STATES) for stage in stages]
        found[0] = max(found[0], min(held - less for held, less in zip(states, freed, strict=True)))
        if self.not_counted:
            # Each expert's weight and two moments are on some rank, so the fullest has at least its share.
            of_experts = 0
            if not self.saves:
                of_experts = STATE_BYTES * self.model.expert_params
            return Figure(*[max(found[0], of_experts // self.layout.world)] * 3)
        # The allocator gives back what it does not use before it fails, so a run that fits shows no more.
        most = self.hbm_bytes
        if not (shows != "needs" and totals[0] <= self.hbm_bytes):
            most = max(found)
        return Figure(*(min(one, most) for one in found))

    @property
    def low_bytes(self) -> int:
        """The low end of what the worst stage may need."""
        return self.figure().low

    @property
    def high_bytes(self) -> int:
        """The high end of what the worst stage may need."""
        return self.figure().high

    @property
    def narrows(self) -> str:
        """The open fact that narrows the interval most, with what its values leave; "" if none is open."""
        found = []
        for fact in self.open_facts:
            values: dict[str, list[Breakdown]] = {}
            for way in self.others:
                value = way.trainer
                if fact == "recompute":
                    value = way.recompute
                values.setdefault(value, []).append(way.worst)
            ends = [(value, self._spread(stages)) for value, stages in values.items()]
            ends.sort(key=lambda pair: pair[1].high)
            found.append((max(one.high / one.low for _, one in ends), fact, ends))
        whole = self.figure()
        narrowest = min(found, default=(math.inf, "", []))
        if narrowest[0] >= whole.high / whole.low:
            return ""
        _, fact, ends = narrowest
        asked = fact
        if fact == "@date":
            asked = "framework with @date"
        words = [f"{value} {one.low / GIB:.1f} to {one.high / GIB:.1f}" for value, one in ends]
        shown = [words[i] for i in cut(len(words), VALUES)]
        shown[-1:-1] = ["…"] * (len(words) > VALUES)
        return f"--{asked} would narrow it most: {', '.join(shown)}"

    @property
    def outcome(self) -> str:
        """FITS, UNDECIDED or TOO_MUCH: the interval against the GPU's HBM."""
        return self.within(self.hbm_bytes)

    def within(self, room: int) -> str:
        """The outcome for a memory of `room` bytes."""
        # The cheap test first: the interval may need every trainer counted.
        if self.expected_bytes <= room and self.high_bytes <= room and not self.not_counted:
            return FITS
        if self.low_bytes <= room:
            return UNDECIDED
        return TOO_MUCH

    @property
    def fits(self) -> bool:
        """Whether the whole interval of the worst stage stays within the GPU's HBM."""
        return self.outcome == FITS

    @property
    def names(self) -> list[str]:
        """Names of all terms, in order."""
        return list(dict.fromkeys(term.name for stage in self.stages for term in stage.terms))

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        shown = [self.stages[i] for i in cut(len(self.stages))]
        rows: list[list[object]] = [
            [s.stage, f"{s.total_bytes / GIB:.2f}", *(f"{s.bytes(name) / GIB:.2f}" for name in self.names)]
            for s in shown
        ]
        return self.title, ["stage", "GiB", *self.names], rows, self.verdict
