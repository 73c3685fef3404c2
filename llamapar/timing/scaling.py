"""`scaling`: the fastest layout on more GPUs, for one batch, or for a batch that grows with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llamapar.describe.arguments import checked_options
from llamapar.describe.options import OPTIONS
from llamapar.errors import Choice, LayoutError, flag, whole
from llamapar.records.tables import Record

from .plan import Plan, Ranked, search


@dataclass(frozen=True, repr=False)
class Scaling(Record):
    """The fastest layout for each number of GPUs, ascending. weak: whether the batch grows with them."""

    plans: tuple[Plan, ...]
    weak: bool

    @property
    def found(self) -> list[tuple[int, Ranked]]:
        """(GPUs, fastest layout) for each number of GPUs on which some layout holds the model."""
        return [(one.gpus, one.best) for one in self.plans if one.layouts]

    @property
    def efficiency(self) -> list[float]:
        """Throughput of a GPU over that with the fewest GPUs, for each of `found`."""
        rates = [one.cost.tokens_per_second_per_gpu for _, one in self.found]
        return [rate / rates[0] for rate in rates]

    @property
    def title(self) -> str:
        """What grows, in one line."""
        asked = self.plans[0].asked
        grows = "as many sequences a GPU" if self.weak else f"{asked.job.global_batch} sequences a step"
        return f"{asked.job.model.name} on more {asked.how.gpu.name}, {grows}"

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        for (gpus, one), share in zip(self.found, self.efficiency, strict=True):
            rate = one.cost.tokens_per_second_per_gpu
            rows.append(
                [
                    *(gpus, one.job.global_batch, one.layout, f"{one.cost.step_seconds:.4g}"),
                    *(f"{gpus * rate:,.0f}", f"{share:.1%}", f"{1e12 / rate / 3600:,.0f}"),
                ]
            )
        none = ", ".join(str(one.gpus) for one in self.plans if not one.layouts)
        head = ["GPUs", "sequences", "the fastest layout", "seconds", "tokens/s", "a GPU's share"]
        head.append("GPU-hours a trillion tokens")
        return self.title, head, rows, f"no layout of {none} GPUs passes and fits" if none else ""


@checked_options
def scaling(plan: Plan, gpus: Sequence[int], *, weak: bool = False) -> Scaling:
    """The fastest layout on other numbers of GPUs, by the same search as a plan.

    plan: from `plan`. gpus: how many, for each search. weak: each GPU keeps its share of the batch (weak
    scaling);
        else the batch stays as it is (strong scaling).
    Raises LayoutError for an invalid number of GPUs, and if a batch would not be a whole number.
    """
    job, found = plan.asked.job, []
    sequences = job.global_batch or 1
    for count in sorted({whole("gpus", n, 1, OPTIONS["gpus"].most) for n in gpus}):
        batch = sequences
        if flag("weak", weak):
            batch = sequences * count // plan.gpus
            if batch * plan.gpus != sequences * count:
                least = plan.gpus // math.gcd(plan.gpus, sequences)
                near = [count // least * least or least, (count // least + 1) * least]
                raise LayoutError(
                    f"{count} GPUs of {sequences}/{plan.gpus} sequences each",
                    "a batch is a whole number of sequences",
                    [Choice.of(gpus=n) for n in dict.fromkeys(near)],
                    "gpus",
                )
        own = replace(plan.asked, job=job.replace(gpus=count, global_batch=batch))
        found.append(search(own, 1))
    return Scaling(tuple(found), weak)
