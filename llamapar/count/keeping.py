"""What autograd keeps of one layer: by this project's programs, by fused kernels, and the steps between.

Both ends are `lp.memory`'s own terms (`saved.kept_of_layer`). So a run can be compared with the
estimate to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from llamapar.place.cut import Cut
from llamapar.records.tables import AsDict, Record

from .exact import layer_terms
from .sizes import Sizes

STEPS = ("one kernel each for RMSNorm and RoPE", "SiLU again", "inputs gathered again")
"""The steps from the unfused programs to the fused formula; each changes one setting of `lp.memory`."""


@dataclass(frozen=True)
class KeptPart:
    """A part of a layer, in bytes: kept by the run, by the programs' formula, and after each of STEPS."""

    part: str
    found: int
    unfused: int
    steps: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Kept(AsDict, Record):
    """What a layer keeps for the backward of one micro-batch, part by part.

    unit: the numbers of the residual stream over tp, tokens·dim/tp; figures are bytes per such number.
    """

    json_names = ("found", "unfused", "fused", "steps")

    title: str
    unit: float
    parts: tuple[KeptPart, ...]

    @property
    def ok(self) -> bool:
        """Whether the run kept exactly what the formula says, to the byte."""
        return all(part.found == part.unfused for part in self.parts)

    @property
    def found(self) -> float:
        """Bytes that the run kept of a layer, per token·dim/tp."""
        return sum(part.found for part in self.parts) / self.unit

    @property
    def unfused(self) -> float:
        """The same figure by the formula of these programs."""
        return self.totals[0]

    @property
    def fused(self) -> float:
        """The same figure with fused kernels, inputs gathered again and outputs recomputed."""
        return self.totals[-1]

    @property
    def totals(self) -> list[float]:
        """The same figure by the formula of these programs, then after each of STEPS."""
        columns = zip(*((part.unfused, *part.steps) for part in self.parts), strict=True)
        return [sum(column) / self.unit for column in columns]

    @property
    def steps(self) -> dict[str, float]:
        """Step → the change in bytes per token·dim/tp."""
        changes = (after - before for before, after in pairwise(self.totals))
        return dict(zip(STEPS, changes, strict=True))

    @property
    def sentence(self) -> str:
        """Both ends in one sentence."""
        steps = ", ".join(f"{name} {change:+.2f}" for name, change in self.steps.items())
        return (
            f"a layer keeps {self.found:.2f} B a token·dim/tp (lp.memory, kernels='eager': "
            f"{self.unfused:.2f}), fused kernels {self.fused:.2f}: {steps}"
        )

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        for part in self.parts:
            sizes = (part.found, part.unfused, *part.steps)
            rows.append([part.part, *(f"{size / self.unit:.2f}" for size in sizes)])
        rows.append(["a layer", *(f"{total:.2f}" for total in (self.found, *self.totals))])
        head = ["B a token·dim/tp", "this run", "lp.memory, eager", *STEPS]
        return self.title, head, rows, self.sentence


def compare_kept(cut: Cut, found: Mapping[str, int], *, micro_batch: int, dtype: str, cp_method: str) -> Kept:
    """The formula for a layer beside what a run kept of one.

    found: part → bytes. cut: its seq_len must be known.
    """
    assert cut.seq_len is not None

    def terms(kernels: str, silu_kept: bool, regather: bool) -> dict[str, int]:
        sizes = Sizes(
            cut.model,
            cut.layout,
            seq_len=cut.seq_len or 1,
            micro_batch=micro_batch,
            kv_replication=cut.kv_replication,
            padding=cut.padding,
            chunking=cut.chunking,
            cp_method=cp_method,
            dtype=dtype,
            regather=regather,
        )
        inputs = {**sizes.activations, "kept": 4 if silu_kept else 3}
        rows = layer_terms(inputs, kernels, "none", model=cut.model)
        return {row.name.partition(": ")[2]: row.bytes for row in rows}

    unfused = terms("eager", True, False)
    # (SiLU's output kept, inputs gathered again), changed one at a time in the order of STEPS.
    after = [terms("fused", *settings) for settings in ((True, False), (False, False), (False, True))]
    tokens = max(cut.sequence.rank(r).tokens for r in (0, cut.layout.cp - 1)) * micro_batch
    parts = [
        KeptPart(name, found.get(name, 0), size, tuple(step[name] for step in after))
        for name, size in unfused.items()
    ]
    title = f"what autograd keeps of a layer for one micro-batch: {cut.model.name}, {cut.layout}, {dtype}"
    return Kept(title, tokens * cut.model.dim / cut.layout.tp, tuple(parts))
