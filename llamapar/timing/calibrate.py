"""`calibrate`: what a run of one's own says of the predictions, from its log.

One number is fitted, a factor of the whole step, so that a few runs cannot be overfitted. Each run is also
predicted from the others alone.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from llamapar.describe.arguments import named
from llamapar.errors import LlamaparError, shown
from llamapar.records.tables import Plain, Record

from .cost import Cost

_NUMBER = r"([\d,]+(?:\.\d+)?)"
_TPS = re.compile(rf"\btps: {_NUMBER}")
_ITERATION = re.compile(rf"elapsed time per iteration \(ms\): {_NUMBER}")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

WARM_UP = 2
"""Steps at the start of a log that are left out: kernels are compiled and caches filled."""


@dataclass(frozen=True, repr=False)
class Calibration(Record):
    """Runs beside their predictions. factor: of a measured step over the predicted one, the median.

    left_out: error of each run as predicted with the factor of the others; empty for a single run.
    """

    costs: tuple[Cost, ...]
    measured: tuple[float, ...]
    factor: float
    left_out: tuple[float, ...]

    def seconds(self, cost: Cost) -> float:
        """A predicted step, as these runs say."""
        return cost.step_seconds * self.factor

    @property
    def errors(self) -> tuple[float, ...]:
        """Of each prediction before: predicted over measured, less one."""
        return tuple(c.step_seconds / m - 1 for c, m in zip(self.costs, self.measured, strict=True))

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        return {"factor": self.factor, "errors": list(self.errors), "left_out": list(self.left_out)}

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        for place, (one, seconds) in enumerate(zip(self.costs, self.measured, strict=True)):
            alone = f"{self.left_out[place]:+.1%}" if self.left_out else "one run"
            now = self.seconds(one)
            rows.append([str(one.layout), f"{seconds:.4g}", f"{one.step_seconds:.4g}", f"{now:.4g}", alone])
        head = ["layout", "measured s", "predicted s", "with the factor", "from the others"]
        return f"a step takes {self.factor:.3f} of what is predicted", head, rows, ""


def measured_seconds(log: str | float, cost: Cost) -> float:
    """Seconds of a step that a log says: of torchtitan (`tps:`), of Megatron-LM, or the number itself.

    The median of its steps after WARM_UP. Raises LlamaparError where it says none.
    """
    if isinstance(log, (int, float)) and not isinstance(log, bool):
        if math.isfinite(log) and log > 0:
            return float(log)
        raise LlamaparError(f"a step of {shown(log)} seconds", "a time is over 0", [], "log")
    text = _COLOURS.sub("", str(log))
    rates, steps = (_numbers(pattern, text) for pattern in (_TPS, _ITERATION))
    if steps:
        return statistics.median(steps) / 1000
    if rates:
        return cost.tokens / cost.layout.world / statistics.median(rates)
    why = "read are torchtitan's 'tps: 7,123' and Megatron-LM's 'elapsed time per iteration (ms): 5181.0'"
    raise LlamaparError("no line of the log says how fast a step is", why, ["seconds of a step"], "log")


def _numbers(pattern: re.Pattern[str], text: str) -> list[float]:
    """Those that a log has after its first steps, all of them where it has no more."""
    found = [float(word.replace(",", "")) for word in pattern.findall(text)]
    found = [number for number in found if number > 0]
    return found[WARM_UP:] or found


@named
def calibrate(runs: Sequence[tuple[Cost, str | float]]) -> Calibration:
    """How far predictions are from one's own runs: each its `cost`, and its log's text or seconds of a step.

    One factor for all of them; a run's error is told as predicted from the others alone, too. Raises
    LlamaparError for a log that says no time, and without runs.
    """
    if not runs:
        raise LlamaparError("no run was given", "", ["[(lp.cost(...), log)]"], "runs")
    costs = tuple(cost for cost, _ in runs)
    times = tuple(measured_seconds(log, cost) for cost, log in runs)
    factors = [seconds / cost.step_seconds for cost, seconds in zip(costs, times, strict=True)]
    alone = []
    for place in range(len(factors) if len(factors) > 1 else 0):
        others = statistics.median([*factors[:place], *factors[place + 1 :]])
        alone.append(others / factors[place] - 1)
    return Calibration(costs, times, statistics.median(factors), tuple(alone))
