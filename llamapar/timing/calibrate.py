"""`calibrate`: compares predictions with one's own runs, from their logs.

It fits one number, a factor of the whole step, so a few runs cannot be overfitted. Each run is also predicted
from the others alone.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from llamapar.describe.arguments import checked_options
from llamapar.errors import LlamaparError, real
from llamapar.records.tables import AsDict, Record

from .cost import Cost

_NUMBER = r"([\d,]+(?:\.\d+)?)"
_TPS = re.compile(rf"\btps: {_NUMBER}")
_ITERATION = re.compile(rf"elapsed time per iteration \(ms\): {_NUMBER}")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

SHORTEST = 1e-6
"""The shortest step that is accepted, in seconds; the longest is as many as go into one."""

WARM_UP = 2
"""Steps left out at the start of a log, in which kernels are compiled and caches filled."""


@dataclass(frozen=True, repr=False)
class Calibration(AsDict, Record):
    """Runs beside their predictions.

    factor: the median of measured over predicted steps.
    left_out: the error of each run, predicted with the factor of the others; empty for a single run.
    """

    json_names = ("factor", "errors", "left_out")

    costs: tuple[Cost, ...]
    measured: tuple[float, ...]
    factor: float
    left_out: tuple[float, ...]

    def seconds(self, cost: Cost) -> float:
        """A predicted step, corrected by the factor."""
        return cost.step_seconds * self.factor

    @property
    def errors(self) -> tuple[float, ...]:
        """The error of each uncorrected prediction: predicted over measured, less one."""
        return tuple(c.step_seconds / m - 1 for c, m in zip(self.costs, self.measured, strict=True))

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        for place, (one, seconds) in enumerate(zip(self.costs, self.measured, strict=True)):
            alone = f"{self.left_out[place]:+.1%}" if self.left_out else "one run"
            now = self.seconds(one)
            rows.append([str(one.layout), f"{seconds:.4g}", f"{one.step_seconds:.4g}", f"{now:.4g}", alone])
        head = ["layout", "measured s", "predicted s", "with the factor", "from the others"]
        return f"a step takes {self.factor:.3f} of what is predicted", head, rows, ""


def measured_seconds(log: str | float, cost: Cost) -> float:
    """Seconds of a step from a log of torchtitan (`tps:`) or Megatron-LM, or the number itself.

    It is the median of the log's steps after WARM_UP. Raises LlamaparError if the log gives no time.
    """
    if isinstance(log, (int, float)):
        return real("log", log, SHORTEST, 1 / SHORTEST, LlamaparError)
    # torchtitan colours its metrics, and the codes stand between "tps:" and the number.
    text = _COLOURS.sub("", str(log))
    rates, steps = (_numbers(pattern, text) for pattern in (_TPS, _ITERATION))
    if steps:
        return statistics.median(steps) / 1000
    if rates:
        # "tps" is tokens a second and GPU.
        return cost.tokens / cost.layout.world / statistics.median(rates)
    why = "read are torchtitan's 'tps: 7,123' and Megatron-LM's 'elapsed time per iteration (ms): 5181.0'"
    raise LlamaparError("no line of the log says how fast a step is", why, ["seconds of a step"], "log")


def _numbers(pattern: re.Pattern[str], text: str) -> list[float]:
    """A log's numbers after its first steps; all of them if it has no more."""
    found = [float(word.replace(",", "")) for word in pattern.findall(text) if word.strip("0.,")]
    return found[WARM_UP:] or found


@checked_options
def calibrate(runs: Sequence[tuple[Cost, str | float]]) -> Calibration:
    """How far predictions are from one's own runs: one factor for all, and the error of each run.

    runs: for each run its `cost`, and its log's text or the seconds of a step. A run's error is also given as
    predicted from the other runs alone. Raises LlamaparError for a log without a time, and without runs.
    """
    if not runs:
        raise LlamaparError("no run was given", "", ["[(lp.cost(...), log)]"], "runs")
    costs = tuple(cost for cost, _ in runs)
    times = tuple(measured_seconds(log, cost) for cost, log in runs)
    factors = [seconds / cost.step_seconds for cost, seconds in zip(costs, times, strict=True)]
    # A factor fits its own runs too well; predicting each run from the others shows what it is worth for
    # the next one.
    alone = tuple(
        statistics.median([*factors[:place], *factors[place + 1 :]]) / own - 1
        for place, own in enumerate(factors if len(factors) > 1 else ())
    )
    return Calibration(costs, times, statistics.median(factors), alone)
