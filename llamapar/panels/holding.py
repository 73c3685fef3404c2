"""Keep GPUs and global batch constant when an axis moves, and say which number compensates. Pure.

One axis compensates, DP by default. If it cannot become a whole number, the number of GPUs changes instead.
Degrees set together are all intended: an axis that is set never compensates.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from llamapar.describe.layout import AXES
from llamapar.describe.options import OPTIONS, Values
from llamapar.records.tables import plural

PER_DP = ("batch_per_dp", "micro_batches")
"""Counts of a DP group: the global batch is this many times DP."""


def is_count(value: object, name: str) -> TypeGuard[int]:
    """Whether a value is a whole number that this control accepts."""
    return type(value) is int and 0 < value <= OPTIONS[name].most


def valid_degrees(values: Mapping[str, object]) -> dict[str, int] | None:
    """The four degrees, or None if one is no valid number of ranks."""
    degrees = {axis: n for axis in AXES if is_count((n := values[axis]), axis)}
    if len(degrees) == len(AXES):
        return degrees
    return None


def ranks_in_words(values: Values) -> str:
    """The product of the degrees, and the number of GPUs if it differs; empty for invalid degrees."""
    degrees = valid_degrees(values)
    gpus = values["gpus"]
    if degrees is None:
        return ""
    world = math.prod(degrees.values())
    there = plural(world, "GPU")
    if is_count(gpus, "gpus") and gpus != world:
        there = f"{world:,} of {plural(gpus, 'GPU')}"
    return f"{' · '.join(map(str, degrees.values()))} = {there}"


def rank_within(rank: object, values: Values) -> object:
    """`rank`, limited to a smaller layout; unchanged if the degrees are invalid."""
    degrees = valid_degrees(values)
    if degrees is None or not isinstance(rank, int):
        return rank
    return rank % math.prod(degrees.values())


def kept_gpus(values: Values, before: int) -> int:
    """The GPUs that a move keeps: those of the job, or else one for each rank.

    before: those of before, where the degrees are invalid.
    """
    degrees = valid_degrees(values)
    gpus = values["gpus"]
    if degrees is None:
        return before
    if is_count(gpus, "gpus"):
        return gpus
    return math.prod(degrees.values())


@dataclass(frozen=True)
class Move:
    """The consequences of a move: other controls, a sentence about them, and the GPUs to keep."""

    more: Values = field(default_factory=dict)
    gave: str = ""
    gpus: int = 0


def also_changed(values: Values, changes: Values, kept: int) -> Move:
    """The controls that `changes` also change; none if no degree and no GPUs change.

    kept: the GPUs to keep. If no axis could reach them, the layout has another number, and the way back finds
    them again.
    """
    after = values | changes
    now = valid_degrees(values)
    degrees = valid_degrees(after)
    gpus = after["gpus"]
    giver = after["gives"]
    if now is None or degrees is None or giver not in AXES or not {*AXES, "gpus"} & changes.keys():
        return Move()
    if gpus is not None and not is_count(gpus, "gpus"):
        return Move()
    axes = [axis for axis in AXES if axis in changes and degrees[axis] != now[axis]]
    asked = gpus if "gpus" in changes and gpus else kept
    if not axes and asked == kept:
        return Move()
    more: Values = {}
    others = math.prod(n for axis, n in degrees.items() if axis != giver)
    blocked = giver not in changes and asked % others != 0
    if giver in changes:
        kept = asked if "gpus" in changes else math.prod(degrees.values())
    elif not blocked:
        kept = asked
        degrees[giver] = more[giver] = asked // others
    before, world = (math.prod(each.values()) for each in (now, degrees))
    if blocked:
        reason = f"at least {plural(others, 'GPU')}" if asked < others else f"a multiple of {others:,} GPUs"
        moved = " with ".join(f"{axis.upper()} {degrees[axis]}" for axis in axes)
        said = f"{moved} needs {reason}, so the job now has {world:,} instead of {asked:,}"
        if "gpus" in changes:
            said = f"{giver.upper()} cannot follow: the other axes need {reason}"
    elif giver in more and degrees[giver] != now[giver]:
        said = f"{giver.upper()} went from {now[giver]} to {degrees[giver]}, so the job "
        said += f"{'keeps its' if world == before else 'now has'} {plural(world, 'GPU')}"
    elif world == before:
        said = f"The job keeps its {plural(world, 'GPU')}"
    else:
        said = f"The job now has {plural(world, 'GPU')} instead of {before:,}"
    if gpus is not None and "gpus" not in changes and world <= OPTIONS["gpus"].most:
        more["gpus"] = world
    batch, told = kept_batch(after, changes, now["dp"], degrees["dp"])
    return Move(more | batch, f"{said}{told}.", kept)


def kept_batch(after: Values, changes: Container[str], before: int, dp: int) -> tuple[Values, str]:
    """The counts of a DP group that give the same global batch with another DP, and a sentence about them."""
    more: Values = {}
    told = ""
    for name in PER_DP:
        n = after[name]
        if dp == before or name in changes or not is_count(n, name):
            continue
        each = 1 if name == "batch_per_dp" else after["micro_batch"] or 1
        whole, rest = divmod(n * before, dp)
        more[name] = None if rest else whole
        if rest and after["global_batch"] is None and is_count(each, "micro_batch"):
            more["global_batch"] = n * before * each
        told += f"; {name} went from {n} to {more[name] or 'nothing, for it would not be whole'}"
    return more, told and f"{told}; the global batch stays"
