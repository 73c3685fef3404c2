"""One configuration, every tool's total, and the steps that lead from our estimate to each of theirs."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import ReconcileKeywords
from llamapar.describe.layout import AXES, Layout, LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.records.tables import Plain, Record

from .account import memory
from .terms import GIB, Breakdown

GROUPS = {
    "states": (
        *("parameters", "gradients", "unreduced gradients", "gradient buckets", "master weights"),
        *("optimizer states", "weights and optimizer"),
    ),
    "activations": ("activations", "embedding", "logits and loss"),
    "buffers": (
        *("gathered parameters", "gradients in flight", "pipeline buffers", "backward workspace"),
        *("reduction buckets", "optimizer's copy", "gradients of the step"),
    ),
    "assumed": ("allocator (assumed)", "CUDA context (assumed)"),
}
"""Part of a total that a tool may report → the terms of a breakdown that it adds up."""


def peers_of(model: str, layout: Layout, seq_len: int) -> Iterator[dict[str, str]]:
    """Rows of peers.csv for a configuration: other tools' results in GiB a GPU.

    "" is what a tool does not report. Each ran on CPU with micro_batch 1 and ZeRO 1.
    """
    asked = [model, *(str(layout.size(axis)) for axis in AXES), str(seq_len)]
    with (files(__package__) / "peers.csv").open(encoding="utf-8") as lines:
        yield from (row for row in csv.DictReader(lines) if list(row.values())[: len(asked)] == asked)


@dataclass(frozen=True)
class Tool:
    """One tool's total. steps: (what differs, bytes); their sum leads from our total to it."""

    name: str
    total_bytes: int
    steps: tuple[tuple[str, int], ...]
    note: str = ""


@dataclass(frozen=True, repr=False)
class Reconciliation(Record):
    """The total of our worst stage, and every tool's beside it, smallest first."""

    _left = True

    title: str
    ours: Breakdown
    tools: tuple[Tool, ...]

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        tools = [{**vars(t), "steps": [{"what": w, "bytes": n} for w, n in t.steps]} for t in self.tools]
        return {"ours": self.ours.as_dict(), "tools": tools}

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = [["llamapar, exact", f"{self.ours.total_bytes / GIB:,.2f}", "", ""]]
        for t in self.tools:
            steps = ", ".join(f"{what} {n / GIB:+,.2f}" for what, n in t.steps if abs(n) >= GIB / 200)
            rows.append([t.name, f"{t.total_bytes / GIB:,.2f}", steps, t.note])
        foot = "no other tool was run on this configuration"
        if self.tools:
            foot = ""
        return self.title, ["tool", "GiB", "from ours, GiB", "what it does"], rows, foot


def by_step(found: Breakdown) -> dict[str, int]:
    """The breakdown's bytes by the parts that tools report."""
    return {group: found.bytes(*names) for group, names in GROUPS.items()}


def _steps(ours: Mapping[str, int], theirs: Mapping[str, int], total: int) -> tuple[tuple[str, int], ...]:
    """From ours to theirs: one step for each group that they separate, and one for the rest."""
    known = [(name, theirs[name] - ours[name]) for name in ours if name in theirs]
    # What they do not report apart is one step with all names, so that the steps always add up to their
    # total.
    rest = total - sum(ours.values()) - sum(n for _, n in known)
    together = ", ".join(name for name in ours if name not in theirs)
    return tuple((name, n) for name, n in [*known, (together or "rounding", rest)] if n)


@checked_options
def reconcile(
    model: ModelLike, layout: LayoutLike | None = None, **options: Unpack[ReconcileKeywords]
) -> Reconciliation:
    """Our exact estimate of the worst stage, beside other tools that were run on the same inputs.

    Arguments: as in `memory`. The tools were run for the configurations in `llamapar/count/peers.csv`.
    """
    exact = memory(model, layout, **options)
    m = exact.model
    m.require_judged("all of the memory")
    ours = by_step(exact.worst)
    tools = []
    for peer in peers_of(m.name, exact.layout, options["seq_len"]):
        theirs_known = {name: round(float(peer[name]) * GIB) for name in ours if peer.get(name)}
        total = round(float(peer["total"]) * GIB)
        tools.append(Tool(peer["tool"], total, _steps(ours, theirs_known, total), peer["note"]))
    tools.sort(key=lambda tool: tool.total_bytes)
    return Reconciliation(exact.title, exact.worst, tuple(tools))
