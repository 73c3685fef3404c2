"""A breakdown of memory: named terms, each the value of a formula of its inputs, with its source.

The formula that is shown is the one that is evaluated, so the two cannot part ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import CodeType

from llamapar.describe.hardware import GPUS
from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.records.tables import Plain, Record, cut

GIB = 2**30

_NAMES = {"__builtins__": {}, "max": max, "min": min, "ceil": math.ceil}


@lru_cache(maxsize=1024)
def _compiled(formula: str) -> CodeType:
    return compile(formula, "<formula>", "eval")


@dataclass(frozen=True)
class Term:
    """One named part of a rank's memory: `formula`, in Python's arithmetic, of `inputs`, in bytes."""

    name: str
    formula: str
    inputs: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    @cached_property
    def bytes(self) -> int:
        """The formula's value, rounded where a published formula has fractions."""
        return round(eval(_compiled(self.formula), _NAMES, self.inputs))

    @property
    def used(self) -> dict[str, float]:
        """The inputs that the formula names."""
        names = _compiled(self.formula).co_names
        return {name: self.inputs[name] for name in names if name in self.inputs}


@dataclass(frozen=True, repr=False)
class Breakdown(Record):
    """The memory of the worst rank of one pipeline stage, by terms."""

    stage: int
    terms: tuple[Term, ...]

    @cached_property
    def total_bytes(self) -> int:
        return sum(term.bytes for term in self.terms)

    def bytes(self, *names: str) -> int:
        """Bytes of the terms of these names, or whose names start with one of them and a colon."""
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


@dataclass(frozen=True, repr=False)
class Memory(Record):
    """Every pipeline stage's breakdown beside the HBM of one GPU. how: the step and the accounting.

    stages: by PP rank.
    """

    model: ModelConfig
    layout: Layout
    how: str
    stages: tuple[Breakdown, ...]
    gpu: str

    @property
    def title(self) -> str:
        return f"{self.model.name}, {self.layout}, {self.how}"

    @property
    def verdict(self) -> str:
        """The worst stage's total against the GPU's HBM, in words."""
        return (
            f"worst: stage {self.worst.stage}, {self.worst.total_bytes / GIB:.2f} GiB "
            f"{'≤' if self.fits else '>'} {self.hbm_bytes / GIB:.2f} GiB of {self.gpu}: "
            f"{'fits' if self.fits else 'does not fit'}"
        )

    @property
    def hbm_bytes(self) -> int:
        return GPUS[self.gpu]

    @cached_property
    def worst(self) -> Breakdown:
        """The stage that needs most, the first of such."""
        return max(self.stages, key=lambda stage: stage.total_bytes)

    @property
    def fits(self) -> bool:
        """Whether the worst stage stays within the GPU's HBM."""
        return self.worst.total_bytes <= self.hbm_bytes

    @property
    def names(self) -> list[str]:
        """Names of all terms, in order."""
        return list(dict.fromkeys(term.name for stage in self.stages for term in stage.terms))

    def as_dict(self) -> Plain:
        """{"stages": [...], "worst": ..., "fits": ...}, the form of `llamapar memory --json`."""
        return {
            "stages": [stage.as_dict() for stage in self.stages],
            "worst": self.worst.as_dict(),
            "fits": self.fits,
        }

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        shown = [self.stages[i] for i in cut(len(self.stages))]
        rows: list[list[object]] = [
            [s.stage, f"{s.total_bytes / GIB:.2f}", *(f"{s.bytes(name) / GIB:.2f}" for name in self.names)]
            for s in shown
        ]
        return self.title, ["stage", "GiB", *self.names], rows, self.verdict
