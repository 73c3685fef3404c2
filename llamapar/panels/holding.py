"""What gives when an axis moves: the GPUs and the global batch are held, and what gave is said. Pure.

One axis gives, DP unless the controls say another. Where it cannot give a whole number the count of GPUs
changes instead. Degrees that are said together are all meant: an axis that is said never gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from llamapar.describe.layout import AXES
from llamapar.describe.options import OPTIONS, Values

PER_DP = ("batch_per_dp", "micro_batches")
"""Counts of a DP group: the global batch is this many times DP."""


def is_count(value: object, name: str) -> TypeGuard[int]:
    """Whether it is a whole number that a control of this name can have."""
    return type(value) is int and 0 < value <= OPTIONS[name].most


def counted(values: Mapping[str, object]) -> dict[str, int] | None:
    """The four degrees, or None if one of them is not a valid number of ranks."""
    degrees = {axis: n for axis in AXES if is_count((n := values[axis]), axis)}
    return degrees if len(degrees) == len(AXES) else None


@dataclass(frozen=True)
class Held:
    """What is held: the last layout there was, which a wrong number in a box does not touch, and its GPUs.

    gpus: those that an axis gives for. Where none could give evenly they are others than the layout has, so
    that the way back finds them.
    """

    degrees: Mapping[str, int] = field(default_factory=dict)
    gpus: int = 0

    def after(self, values: Values) -> Held:
        """What is held after controls were set without a move: their layout, else the last valid one."""
        degrees, gpus = counted(values), values["gpus"]
        if degrees is None:
            return self
        return Held(degrees, gpus if is_count(gpus, "gpus") else math.prod(degrees.values()))


NOTHING = Held()


@dataclass(frozen=True)
class Move:
    """What follows from a move: other controls, a sentence of what gave, and the GPUs that stay held."""

    more: Values = field(default_factory=dict)
    gave: str = ""
    gpus: int = 0


def moved(values: Values, changes: Values, last: Held) -> Move:
    """What `changes` of the controls bring with them; nothing where no degree and no GPUs change."""
    after = values | changes
    degrees, gpus, giver = counted(after), after["gpus"], after["gives"]
    if degrees is None or not last.degrees or giver not in AXES or not {*AXES, "gpus"} & changes.keys():
        return Move()
    if gpus is not None and not is_count(gpus, "gpus"):
        return Move()
    axes = [axis for axis in AXES if axis in changes and degrees[axis] != last.degrees[axis]]
    asked = gpus if "gpus" in changes and gpus else last.gpus
    if not axes and asked == last.gpus:
        return Move()
    said = ", ".join(f"{axis} {last.degrees[axis]} → {degrees[axis]}" for axis in axes)
    said = said or f"GPUs {last.gpus:,} → {asked:,}"
    more: Values = {}
    keeps = last.gpus
    others = math.prod(n for axis, n in degrees.items() if axis != giver)
    if giver in changes:
        keeps = asked if "gpus" in changes else math.prod(degrees.values())
    elif asked % others == 0:
        keeps = asked
        degrees[giver] = more[giver] = asked // others
        if degrees[giver] != last.degrees[giver]:
            said += f": {giver} {last.degrees[giver]} → {degrees[giver]}"
    else:
        said += f": {giver} cannot give evenly, {asked:,} GPUs are no multiple of {others:,}"
    before, world = (math.prod(each.values()) for each in (last.degrees, degrees))
    if axes:
        said += f", still {world:,} GPUs" if world == before else f"; {before:,} → {world:,} GPUs"
    if gpus is not None and "gpus" not in changes and world <= OPTIONS["gpus"].most:
        more["gpus"] = world
    batch, told = _batch(after, changes, last.degrees["dp"], degrees["dp"])
    return Move(more | batch, said + told, keeps)


def _batch(after: Values, changes: Values, before: int, dp: int) -> tuple[Values, str]:
    """Counts of a DP group that make the same global batch of another DP, and what is said of them."""
    more: Values = {}
    told = ""
    for name in PER_DP:
        n = after[name]
        if dp == before or name in changes or not is_count(n, name):
            continue
        if n * before % dp == 0:
            more[name] = n * before // dp
            told += f"; {name} {n} → {more[name]}"
            continue
        each = 1 if name == "batch_per_dp" else after["micro_batch"] or 1
        more[name] = None
        if after["global_batch"] is None and is_count(each, "micro_batch"):
            more["global_batch"] = n * before * each
        told += f"; {name} {n} is no whole number for dp {dp}"
    return more, told and f"{told}, still the same global batch"
