"""Table 4 of the Llama 3 paper by what its sources leave open, in MFU.

    .venv/bin/python benchmarks/table4.py [--page]    # --page writes docs/accuracy.md

Settings are `as_printed`'s, whole sequences without document masks. The papers do not say whether MFU
counts half of attention's square (causal) or all of it (full), so both are printed beside what was measured:
430, 400 and 380 TFLOP/s a GPU, which it prints, over the peak of 989. As MFU it prints 43, 41 and 38 %.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _page
import as_printed
import llamapar as lp
from llamapar.describe.hardware import HARDWARE
from llamapar.timing.cost import Cost

OPEN: dict[str, dict[str, Any]] = {
    "as assumed": {},
    "matmuls at 700 W keep up what they do at 500 W in proportion": {"sustained": 0.89},
    "FlashAttention-3": {"flash": "fa3"},
    "kernels not fused": {"kernels": "eager"},
}
"""What nobody says of these runs → arguments of `lp.cost`, or a field of its GPU, by that reading."""

DOCUMENTS = {"documents, by figure 14": 0.25, "documents, by the text": 0.456}
"""Share of attention in the slowest rank's compute at 131,072 tokens. The fastest rank has a third of its
attention, and 0.83 of its compute by the axis of figure 14 (a), or 1 / 1.44 by the text (ISCA 2025 section
7.3.2)."""


@dataclass(frozen=True)
class Reading:
    """A row by one reading, and MFU that is predicted, by FLOPs of half of attention's square and of all."""

    name: str
    says: str
    measured: float
    cost: Cost

    @property
    def causal(self) -> float:
        return self.cost.mfu

    @property
    def full(self) -> float:
        model, tokens = self.cost.model, self.cost.tokens
        other_half = 6.0 * model.n_layers * self.cost.seq_len * model.q_dim * tokens
        return self.cost.mfu * (1 + other_half / self.cost.flops)


def read(row: dict[str, Any], says: str, **changes: Any) -> Reading:
    """A row with what a reading changes."""
    asked = as_printed.facts_of(row) | changes
    layout = lp.Layout(
        **{name: asked.pop(name) for name in list(asked) if name in lp.Layout.__dataclass_fields__}
    )
    measured = row["tflops_per_gpu"] * 1e12 / HARDWARE[asked["gpu"]].bfloat16
    if "sustained" in asked:
        asked["gpu"] = {"base": asked["gpu"], "sustained": asked.pop("sustained")}
    model = lp.ModelConfig(**as_printed.dims_of(row))
    return Reading(row["id"], says, measured, lp.cost(model, layout, **asked))


def readings() -> Iterator[Reading]:
    """Each row, by each reading."""
    for row in as_printed.rows_of("steps_published.json"):
        if not row["id"].startswith("meta-llama3"):
            continue
        found = [read(row, says, **changes) for says, changes in OPEN.items()]
        yield from found
        if row["cp"] > 1:
            seconds = found[0].cost.seconds
            for says, share in DOCUMENTS.items():
                attention = share / (1 - share) * (seconds["GEMMs"] + seconds["elementwise"])
                yield read(row, says, imbalance=attention / seconds["attention"])


def tables() -> dict[str, list[str]]:
    """That of docs/accuracy.md: the rows as `lp.cost` reads them."""
    rows = []
    for one in readings():
        if one.says == "as assumed":
            mfu = f"{one.measured:.1%}", f"{one.causal:.1%}", f"{one.full:.1%}"
            rows.append((one.name[-1], f"{one.cost.step_seconds:.2f}", *mfu))
    head = ("row", "step, s", "MFU that was published", "MFU, half of attention", "MFU, all of it")
    return {"table_4": _page.table(head, rows)}


def main() -> None:
    if "--page" in sys.argv:
        _page.write(tables())
        return
    for one in readings():
        mfu = f"{one.causal:.1%} causal, {one.full:.1%} full, {one.measured:.1%} measured"
        print(f"{one.name}: {one.cost.step_seconds:5.2f} s, {mfu}: {one.says}")


if __name__ == "__main__":
    main()
