"""`reasons`: the Llama 3 papers' own arguments for a layout, with the numbers of the job at hand.

Each argument is a section of "Scaling Llama 3 Training with Efficient Parallelism Strategies" (ISCA 2025).
Its numbers come from the formulas of the step, evaluated again with one thing changed.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    rows = [row for made in (_batch, _order, _half_tp, _bubble, _zero_3, _masks) for row in made(cost)]
    return Reasons(cost.title, tuple(rows))


def _with(cost: Cost, **changes: object) -> Cost | None:
    try:
        return cost.changed(**changes)
    except LlamaparError:  # heads or layers do not divide
        return None


def _batch(cost: Cost) -> Iterator[Reason]:
    gpus = cost.layout.world
    sequences = cost.tokens / cost.seq_len
    if gpus > sequences:
        least = gpus / sequences
        says = (
            f"{gpus:,} GPUs share {sequences:,.0f} sequences, {least:g} GPUs each: TP alone leaves a group "
            f"tp/{least:g} sequences, so that TP, CP and PP together must be at least {least:g}"
        )
        yield Reason("batch", says, "section 5.1")


def _order(cost: Cost) -> Iterator[Reason]:
    layout = cost.layout
    if layout.tp == 1 or layout.order == OUTERMOST or layout.world == layout.tp:
        return
    turned = _with(cost, order=OUTERMOST)
    if turned is None:
        return
    # Only the order changes: the difference is what the network costs where NVLink would have done.
    own, other = (one.seconds["exposed TP"] for one in (cost, turned))
    says = (
        f"TP's collectives come in every layer: {own:.3g} s a step with its ranks side by side, {other:.3g} "
        f"s with TP as the outermost axis"
    )
    yield Reason("order of axes", says, "section 5.2")


def _half_tp(cost: Cost) -> Iterator[Reason]:
    layout = cost.layout
    if layout.tp == 1 or layout.tp % 2:
        return
    half = _with(
        # Twice the batch keeps the sequences of each group, so that only TP itself changes.
        cost,
        tp=layout.tp // 2,
        global_batch=2 * round(cost.tokens / cost.seq_len),
        dp=layout.dp * 2,
    )
    if half is not None:
        gain = half.mfu / cost.mfu - 1
        says = (
            f"TP {layout.tp // 2}, with twice the groups and twice the batch, would bring {gain:+.1%} of "
            "throughput if memory had room"
        )
        yield Reason("half the TP", says, "section 8.1")


def _bubble(cost: Cost) -> Iterator[Reason]:
    layout = cost.layout
    if layout.pp == 1:
        return
    end = next(term for term in cost.terms if term.name == "pipeline idle").inputs
    share = (end["end"] - end["busy"]) / end["busy"]
    says = (
        f"ranks wait {share:.1%} of their compute, with {cost.micro_batches} micro-batches for "
        f"pp={layout.pp} and {layout.virtual_stages} virtual stages; (pp - 1)/(v·m) is "
        f"{(layout.pp - 1) / layout.virtual_stages / cost.micro_batches:.1%}"
    )
    yield Reason("bubble", says, "section 3.1")


def _zero_3(cost: Cost) -> Iterator[Reason]:
    layout, gpu = cost.layout, cost.gpu
    tokens = cost.layer.forward["GEMMs"].inputs["tokens"]
    # FLOPs that a GPU makes while its NIC moves one byte: with fewer tokens than that the gather takes
    # longer than its matmul.
    balance = gpu.bfloat16 / gpu.net_rate
    bound = "the network bounds it" if tokens < balance else "compute hides it"
    says = (
        f"gathering a weight of 2 bytes for {tokens:,.0f} tokens of 2 FLOPs is {tokens:,.0f} FLOPs a byte, "
        f"and a GPU makes {balance:,.0f} in the time that its NIC moves one: {bound}"
    )
    if layout.dp * layout.cp > 1:
        yield Reason("ZeRO 3", says, "section 3.1.3")


def _masks(cost: Cost) -> Iterator[Reason]:
    if cost.layout.cp == 1:
        return
    uneven = _with(cost, imbalance=IMBALANCE)
    if uneven is not None:
        share = cost.seconds["exposed CP"] / cost.step_seconds
        waits = uneven.step_seconds - cost.step_seconds
        says = (
            f"exposed CP is {share:.1%} of the step; a rank whose documents make {IMBALANCE:g} times the "
            f"mean's attention would add {waits:.3g} s of waiting"
        )
        yield Reason("document masks", says, "section 7.3.2")
