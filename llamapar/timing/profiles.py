"""Profiles: what a trainer's steps take beyond the formulas; and how far measured steps are from the answer.

`benchmarks/cost_accuracy.py` finds both on one half of the published rows, and scores them on the other
half. Trainers without a profile are torchtitan, Megatron-LM and NeMo: their best fit is within 3 % of the
formulas, or is worse on the rows that it was not made from.
"""

from __future__ import annotations

from dataclasses import dataclass

from llamapar.describe.layout import Layout
from llamapar.describe.options import offer
from llamapar.records.tables import three_digits


@dataclass(frozen=True)
class Profile:
    """The fitted numbers of a trainer, and how accurate they are.

    slower: seconds of a layer over what its formulas say. host: seconds in which the host launches a layer's
    forward; its backward takes twice as long, three times with full recomputation. rows: those that it was
    fitted to, with kernels as they say. others: its accuracy on other rows.
    """

    slower: float = 1.0
    host: float = 0.0
    kernels: str = ""
    rows: str = ""
    others: str = ""


PROFILES = {
    "none": Profile(),
    "nanotron": Profile(
        1.14,
        0.0015,
        "eager",
        "Ultra-Scale Playbook's benchmarks: of the half seen, one stage, TP to 8 and 256 GPUs, 66 rows",
        "the other half, 79 rows: median 4.9 %, nine of ten within 17.7 %",
    ),
}
"""Trainer → its profile on H100 of 700 W. "none" is that of all the others."""

offer("profile", PROFILES)


@dataclass(frozen=True)
class Spread:
    """Measured steps over expected ones: of `readings` eight in ten lie between low and high. why: so wide.

    Of fewer readings than FEW all do, and nothing is said of how many further ones would.
    """

    low: float
    high: float
    readings: int
    why: str = ""

    def told(self, seconds: float) -> str:
        """The interval of an expected step, in words."""
        ends = f"{three_digits(self.low * seconds)} to {three_digits(self.high * seconds)} s"
        if self.readings < FEW:
            return f"the {self.readings} readings lie within {ends}"
        return f"eight of ten runs take {ends}, by {self.readings} readings"


FEW = 10
"""The fewest readings from which a share can be told."""


ONE_MODEL = (
    "these readings are of 405B; two measured runs of 8B took 9 and 13 % longer than expected, outside them"
)
"""NVIDIA's tables of 2026: Megatron-Bridge, docs/performance-archive.md @067f987d."""

UNNAMED = "no trainer is named"

LONG = 16384
"""Tokens of a sequence above which attention's kernels decide a step more than the trainer does."""

SPREADS = {
    "a trainer is named": Spread(0.90, 1.11, 78),
    "8 bits on Blackwell": Spread(0.96, 1.18, 18),
    "8 bits on Blackwell Ultra": Spread(1.0, 1.06, 11, ONE_MODEL),
    "4 bits on Blackwell": Spread(0.98, 1.08, 5),
    "4 bits on Blackwell Ultra": Spread(1.0, 1.09, 5),
    UNNAMED: Spread(0.90, 1.32, 33, "no trainer is named; each keeps and sends in its own way"),
    "long sequences": Spread(
        0.90, 1.59, 12, "attention's kernels differ most in sequences of over 16,384 tokens"
    ),
    "nanotron": Spread(0.94, 1.32, 66),
    "nanotron in a pipeline": Spread(
        0.91,
        10.4,
        195,
        "a quarter of nanotron's measured runs with a pipeline took 0.3 to 1.5 s more for every micro-batch, "
        "whatever the model, and nobody says why",
    ),
    "nanotron on more": Spread(
        1.0,
        44.0,
        165,
        "nanotron's measured runs on more than 256 GPUs, or with TP over several machines, took 1.6 to 44 "
        "times as long as the formulas say, and nobody says why",
    ),
}
"""Kind of step → how far measured ones are from the answer.

Found on one half of the rows by split conformal prediction, and scored on the other
(`benchmarks/cost_accuracy.py`).
"""


GENERATIONS = {
    "b200": "Blackwell",
    "gb200": "Blackwell",
    "b300": "Blackwell Ultra",
    "gb300": "Blackwell Ultra",
}
"""Beginning of a GPU's name → its generation, where that has intervals of its own."""


BITS = {"float8": "8 bits", "mxfp8": "8 bits", "nvfp4": "4 bits"}
"""Precisions whose readings stand together behind an interval."""


def spread_of(trainer: str, profile: str, layout: Layout, seq_len: int, rate: tuple[str, str]) -> Spread:
    """The Spread of a step. trainer: its name, or "". profile: the one in use. rate: precision, and GPU."""
    kind = UNNAMED
    if trainer and (trainer == profile or trainer not in PROFILES):
        kind = "a trainer is named"
    if trainer == "nanotron" and (layout.tp > 8 or layout.world > 256):
        kind = "nanotron on more"
    elif trainer == "nanotron" and layout.pp > 1:
        kind = "nanotron in a pipeline"
    elif seq_len > LONG:
        kind = "long sequences"
    elif profile == "nanotron":
        kind = profile
    elif kind != UNNAMED:
        of_gpu = f"{BITS.get(rate[0])} on {GENERATIONS.get(rate[1].partition('-')[0])}"
        if of_gpu in SPREADS:
            kind = of_gpu
    return SPREADS[kind]
