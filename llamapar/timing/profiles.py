"""Profiles: what a trainer's steps on one GPU take beyond the formulas, in at most two fitted numbers.

`benchmarks/cost_accuracy.py --fit` finds them on the named rows, and scores them on other rows of the same
trainer. Trainers without a profile are torchtitan, Megatron-LM and NeMo: their best fit is within 3 % of the
formulas, or is worse on the rows that it was not made from.
"""

from __future__ import annotations

from dataclasses import dataclass

from llamapar.describe.options import offer


@dataclass(frozen=True)
class Profile:
    """The fitted numbers of a trainer, and how accurate they are.

    slower: seconds of a layer over what its formulas say. host: seconds in which the host launches a layer's
    forward; its backward takes twice as long, three times with full recomputation. rows: those that it was
    fitted to. others: its accuracy on other rows.
    """

    slower: float
    host: float
    rows: str
    others: str


PROFILES = {
    "nanotron": Profile(
        1.14,
        0.0015,
        "Ultra-Scale Playbook's benchmarks: of the half seen, one stage, TP to 8 and 256 GPUs, 66 rows",
        "the other half, 79 rows: median 4.9 %, nine of ten within 17.8 %",
    ),
}
"""Trainer → its profile on H100 of 700 W."""

offer("profile", PROFILES)
