"""What a change of a job gains and costs: memory, time for the same tokens, idle GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from llamapar.count.terms import GIB
from llamapar.describe.job import Job
from llamapar.frameworks import Framework
from llamapar.late import late
from llamapar.records.tables import Plain, plural

from .memory_rule import Load, load_of

WORTH_SAYING = 0.01
"""Smaller differences of time are not mentioned."""


@dataclass(frozen=True)
class Effect:
    """What a change of a job gains and costs. load: its memory afterwards; None if nothing can be counted.

    time: seconds for the same tokens as a multiple of those before; None if one of both cannot be timed.
    idle_gpus: available GPUs that stay idle.
    """

    load: Load | None
    time: float | None
    idle_gpus: int

    @property
    def gain(self) -> str:
        """The expected memory of the worst rank: "61.30 GiB"; empty if every known GPU has that much."""
        if self.load is None or not self.load.matters:
            return ""
        held = self.load.memory
        gib = f"{held.expected_bytes / GIB:.2f} GiB"
        return gib if self.load.whole else f"{gib} before activations"

    @property
    def price(self) -> list[str]:
        """Time and GPUs in words: "12% slower", "3% less time", "takes 2.4 x the time", "4 GPUs idle"."""
        found = []
        if self.time is not None and self.time >= 2:
            found.append(f"takes {self.time:.1f} x the time")
        elif self.time is not None and abs(self.time - 1) >= WORTH_SAYING:
            found.append(f"{abs(self.time - 1):.0%} {'slower' if self.time > 1 else 'less time'}")
        return [*found, *([f"{plural(self.idle_gpus, 'GPU')} idle"] if self.idle_gpus else [])]

    @property
    def text(self) -> str:
        """Gain and price in one line."""
        return ", ".join(filter(None, [self.gain, *self.price]))

    def as_dict(self) -> Plain:
        """Plain values for JSON; None for an unknown number."""
        memory = self.load.memory.expected_bytes if self.load else None
        return {"memory_bytes": memory, "time": self.time, "idle_gpus": self.idle_gpus}


def effect(old: Job, new: Job, judge: Framework | None) -> Effect:
    """What the change from `old` to `new` gains and costs, as `memory` and `cost` count it."""
    # The judge may run other settings than a Job asks for, so both are compared as it would run them.
    old, new = (old, new) if judge is None else (judge.runs(old), judge.runs(new))
    # Only GPUs that were there before count: a fix with more ranks leaves none of them idle.
    idle = max(0, (old.gpus or old.layout.world) - new.layout.world)
    if judge is not None and not judge.trains:  # both accounts are of training
        return Effect(None, None, idle)
    return Effect(load_of(new, judge), late("times_longer")(old, new, judge), idle)
