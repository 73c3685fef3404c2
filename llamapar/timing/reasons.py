"""`reasons`: the Llama 3 papers' own arguments for a layout, with the numbers of the job at hand.

Each argument is a section of "Scaling Llama 3 Training with Efficient Parallelism Strategies" (ISCA 2025).
Its numbers come from the formulas of the step, evaluated again with one thing changed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from llamapar.describe.arguments import checked_options
from llamapar.errors import LlamaparError
from llamapar.records.tables import Record

from .cost import Cost

OUTERMOST = "dp-pp-cp-tp"
"""The paper's order of axes, outermost first."""

IMBALANCE = 1.44
"""The slowest rank's compute over the fastest's, by document masks at 131,072 tokens (section 7.3.2)."""


@dataclass(frozen=True)
class Reason:
    """An argument, as a sentence with this job's numbers. section: of the paper."""

    about: str
    says: str
    section: str


@dataclass(frozen=True, repr=False)
class Reasons(Record):
    """Why a layout is as it is, argument by argument."""

    title: str
    rows: tuple[Reason, ...]

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = [[row.about, row.says, f"ISCA 2025, {row.section}"] for row in self.rows]
        return self.title, ["argument", "with these numbers", "source"], rows, ""


@checked_options
def reasons(cost: Cost) -> Reasons:
    """The Llama 3 papers' arguments for a layout, with the numbers of a step.

    cost: from `cost`. Arguments about axes of one rank are left out.
    """
    found = list[Reason]()
    for about, section, argument in _ARGUMENTS:
        with suppress(LlamaparError):  # the changed layout does not divide heads or layers
            found += [Reason(about, said, f"section {section}") for said in [argument(cost)] if said]
    return Reasons(cost.title, tuple(found))


def _batch(cost: Cost) -> str:
    sequences = cost.tokens / cost.seq_len
    least = cost.layout.world / sequences
    if least <= 1:
        return ""
    return (
        f"{cost.layout.world:,} GPUs share {sequences:,.0f} sequences, {least:g} GPUs each: TP alone leaves "
        f"a group tp/{least:g} sequences, so that TP, CP and PP together must be at least {least:g}"
    )


def _order(cost: Cost) -> str:
    layout = cost.layout
    if layout.tp in (1, layout.world) or layout.order == OUTERMOST:
        return ""
    # Only the order changes: the difference is what the network costs where NVLink would have done.
    own, other = (one.seconds["exposed TP"] for one in (cost, cost.changed(order=OUTERMOST)))
    return (
        f"TP's collectives come in every layer: {own:.3g} s a step with its ranks side by side, {other:.3g} "
        f"s with TP as the outermost axis"
    )


def _half_tp(cost: Cost) -> str:
    tp = cost.layout.tp // 2
    if not tp or cost.layout.tp % 2:
        return ""
    # Twice the batch keeps the sequences of each group, so that only TP itself changes.
    half = cost.changed(tp=tp, global_batch=2 * round(cost.tokens / cost.seq_len), dp=cost.layout.dp * 2)
    return (
        f"TP {tp}, with twice the groups and twice the batch, would bring {half.mfu / cost.mfu - 1:+.1%} of "
        "throughput if memory had room"
    )


def _bubble(cost: Cost) -> str:
    layout = cost.layout
    if layout.pp == 1:
        return ""
    end = next(term for term in cost.terms if term.name == "pipeline idle").inputs
    return (
        f"ranks wait {end['end'] / end['busy'] - 1:.1%} of their compute, with {cost.micro_batches} "
        f"micro-batches for pp={layout.pp} and {layout.virtual_stages} virtual stages; (pp - 1)/(v·m) is "
        f"{(layout.pp - 1) / layout.virtual_stages / cost.micro_batches:.1%}"
    )


def _zero_3(cost: Cost) -> str:
    if cost.layout.dp * cost.layout.cp == 1:
        return ""
    tokens = cost.layer.forward["GEMMs"].inputs["tokens"]
    # FLOPs that a GPU makes while its NIC moves one byte: with fewer tokens than that the gather takes
    # longer than its matmul.
    balance = cost.gpu.bfloat16 / cost.gpu.net_rate
    bound = "compute hides it"
    if tokens < balance:
        bound = "the network bounds it"
    return (
        f"gathering a weight of 2 bytes for {tokens:,.0f} tokens of 2 FLOPs is {tokens:,.0f} FLOPs a byte, "
        f"and a GPU makes {balance:,.0f} in the time that its NIC moves one: {bound}"
    )


def _masks(cost: Cost) -> str:
    if cost.layout.cp == 1:
        return ""
    waits = cost.changed(imbalance=IMBALANCE).step_seconds - cost.step_seconds
    return (
        f"exposed CP is {cost.seconds['exposed CP'] / cost.step_seconds:.1%} of the step; a rank whose "
        f"documents make {IMBALANCE:g} times the mean's attention would add {waits:.3g} s of waiting"
    )


_ARGUMENTS = (
    ("batch", "5.1", _batch),
    ("order of axes", "5.2", _order),
    ("half the TP", "8.1", _half_tp),
    ("bubble", "3.1", _bubble),
    ("ZeRO 3", "3.1.3", _zero_3),
    ("document masks", "7.3.2", _masks),
)
"""What an argument is about, its section, and its words; "" where it does not apply."""
