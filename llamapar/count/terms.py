"""A breakdown of memory: named terms, each the value of a formula of its inputs, with its source.

The formula that is shown is the one that is evaluated, so the two cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import CodeType

from llamapar.describe.hardware import Gpu
from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.records.tables import AsDict, Plain, Record, cut

GIB = 2**30

_NAMES = {"__builtins__": {}, "max": max, "min": min, "ceil": math.ceil}


@lru_cache(maxsize=1024)
def _compiled(formula: str) -> CodeType:
    return compile(formula, "<formula>", "eval")


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
        # Formulas are literals of this library, never input; the empty __builtins__ keeps them to arithmetic.
        return eval(_compiled(self.formula), _NAMES, self.inputs)

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

    apart: terms that exist only at other moments than the worst one, if moments are distinguished.
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


ALLOCATOR_TERM, CONTEXT_TERM = "allocator (assumed)", "CUDA context (assumed)"

CUBLAS = 32 * 2**20
"""cuBLAS's workspace on an H100: the least that is allocated besides tensors (CUBLAS_WORKSPACE_CONFIG)."""

MARGIN = 0.08
"""How far an estimate may be off, as a share.

Nine of ten runs of the first half of tests/oracles/peaks_measured.json, with known trainer and counter, are
nearer. The formulas were made with these runs; no other row was used for this number.
"""

RESERVED = 1.3
"""What torch's allocator has reserved, over what was allocated at the peak.

Nine of ten runs of tests/oracles/reserved.json have less.
"""

OUTSIDE = (0.4 * GIB, 2 * GIB)
"""Assumed: CUDA's context and NCCL's buffers, which torch's counters do not see."""

COUNTERS = ("allocated", "reserved", "device")
"""What a measurement may have counted: torch's tensors, its allocator, or the whole GPU."""

FITS, UNDECIDED, TOO_MUCH = "fits", "undecided", "does not fit"
"""Outcomes: both ends of the range fit the GPU's HBM, only the lower one, or neither."""


@dataclass(frozen=True, repr=False)
class Memory(AsDict, Record):
    """Every pipeline stage's breakdown beside the HBM of one GPU. how: the step and the accounting.

    stages: by PP rank, with every open choice at its upper end. lighter: the same at the lower end.
    open_facts: arguments of `memory` that would decide between the ends; empty if there is no range.
    heaviest: for an unknown trainer, the upper bound over all trainers; else the same as `stages`.
    """

    json_names = ("stages", "worst", "fits", "low_bytes", "high_bytes", "outcome", "open_facts")

    model: ModelConfig
    layout: Layout
    how: str
    stages: tuple[Breakdown, ...]
    gpu: Gpu
    lighter: Callable[[], Sequence[Breakdown]] | None = field(default=None, compare=False)
    open_facts: tuple[str, ...] = ()
    heaviest: Callable[[], Sequence[Breakdown]] | None = field(default=None, compare=False)

    @property
    def title(self) -> str:
        return f"{self.model.name}, {self.layout}, {self.how}"

    @property
    def verdict(self) -> str:
        """The worst stage's total against the GPU's HBM, in words; both ends if they differ."""
        total = self.worst.total_bytes
        sign = "≤" if total <= self.hbm_bytes else ">"
        told = (
            f"worst: stage {self.worst.stage}, {total / GIB:.2f} GiB {sign} {self.hbm_bytes / GIB:.2f} GiB "
            f"of {self.gpu}: {self.outcome}"
        )
        if not self.open_facts:
            return told
        ends = f"{self.low_bytes / GIB:.2f} to {self.high_bytes / GIB:.2f} GiB"
        return f"{told}; {ends} {self.until}"

    @property
    def until(self) -> str:
        """The facts that would decide between the ends, in words."""
        return f"until {' or '.join(self.open_facts)} is known"

    @property
    def hbm_bytes(self) -> int:
        return self.gpu.hbm_bytes

    @cached_property
    def worst(self) -> Breakdown:
        """The stage that needs most; the first one of several."""
        return max(self.stages, key=lambda stage: stage.total_bytes)

    @property
    def lower(self) -> Sequence[Breakdown]:
        """Lower bound for each stage."""
        return self.lighter() if self.lighter else self.stages

    @property
    def upper(self) -> Sequence[Breakdown]:
        """Upper bound for each stage; for an unknown trainer, the heaviest known one."""
        return self.heaviest() if self.heaviest else self.stages

    @cached_property
    def low_bytes(self) -> int:
        """Lower bound on the bytes of the worst stage."""
        return max(stage.total_bytes for stage in self.lower)

    @cached_property
    def high_bytes(self) -> int:
        """Upper bound on the bytes of the worst stage."""
        return max(stage.total_bytes for stage in self.upper)

    def ends(self, counter: str | None = None, stage: int | None = None) -> tuple[int, int]:
        """Lower and upper bound in bytes, as one of COUNTERS would count them.

        counter: None if unknown. stage: a PP rank; by default the one that needs most. torch's allocator may
        keep what every moment of a step took; other counters see only the worst moment. A counter of the
        whole GPU also sees OUTSIDE.
        """
        found = []
        for stages in (self.lower, self.upper):
            one = stages[stage] if stage is not None else max(stages, key=lambda s: s.total_bytes)
            found.append(one)
        least, most = (one.total_bytes - one.bytes(CONTEXT_TERM) for one in found)
        # The allocator may still hold blocks of other moments of the step, so these may show in what is
        # reserved.
        if counter != "allocated":
            most += sum(term.bytes for term in found[1].apart)
        # The assumed slack is for the upper end; for the lower one only cuBLAS's workspace is certain.
        least += CUBLAS - found[0].bytes(ALLOCATOR_TERM)
        if counter == "device":
            least, most = least + round(OUTSIDE[0]), most + round(OUTSIDE[1])
        return least, most

    def counted(self, counter: str | None = None, stage: int | None = None) -> tuple[int, int]:
        """The least and most bytes that a measurement may show: `ends`, widened by their possible error."""
        # OUTSIDE is assumed and not estimated, so it is added after the widening by MARGIN.
        low, high = self.ends("reserved" if counter == "device" else counter, stage)
        least, most = low * (1 - MARGIN), high * (1 + MARGIN)
        if counter != "allocated":
            most = max(most, self.ends("allocated", stage)[1] * RESERVED)
        if counter == "device":
            least += OUTSIDE[0]
        if counter in ("device", None):
            most += OUTSIDE[1]
        return round(least), round(most)

    @property
    def outcome(self) -> str:
        """FITS, UNDECIDED or TOO_MUCH: the range against the GPU's HBM."""
        return self.within(self.hbm_bytes)

    def within(self, room: int) -> str:
        """The outcome for a memory of `room` bytes. The heaviest estimate is made only if it decides."""
        # The cheap test first: `high_bytes` may count every stage again under another layout.
        if self.worst.total_bytes <= room and self.high_bytes <= room:
            return FITS
        return UNDECIDED if self.low_bytes <= room else TOO_MUCH

    @property
    def fits(self) -> bool:
        """Whether the worst stage certainly stays within the GPU's HBM."""
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
