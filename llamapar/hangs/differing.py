"""The first call of each group in which its ranks differ: who is missing, and whose call is another one.

What counts as a difference, and its words, are those of torch's own analyzer of flight records, which
`torchfrtrace` runs. Tests compare with what torch says of the same dumps. It is not asked here, because it
needs torch, its parts are private, and a hang's dumps are often read where no torch is installed.
"""

from __future__ import annotations

from collections.abc import Mapping

from .dumps import CollectiveCall, Dump
from .groups import Group
from .waits import UNEVEN

MISSING = "MISSING"


def differing_calls(groups: Mapping[str, Group], dumps: Mapping[int, Dump]) -> dict[str, str]:
    """Group's name → the first of its calls in which ranks differ: "all_reduce #12: rank 3 MISSING"."""
    calls: dict[str, dict[int, dict[int, CollectiveCall]]] = {name: {} for name in groups}
    for rank, dump in dumps.items():
        for call, number, _ in dump.calls:
            if not call.point:
                calls[call.group].setdefault(rank, {})[number] = call
    found = dict[str, str]()
    for name, by_rank in calls.items():
        members = groups[name].ranks
        # Buffers keep a rank's last calls, so they are compared from the latest beginning on.
        begins = max((min(own) for own in by_rank.values()), default=0)
        for number in sorted({n for own in by_rank.values() for n in own if n >= begins}):
            here = {rank: own[number] for rank in members if number in (own := by_rank.get(rank, {}))}
            told = dict[int, str]()
            if dumps.keys() >= {*members}:  # of a rank without a dump nobody knows whether it came
                told = dict.fromkeys({*members} - here.keys(), MISSING)
            first = next(iter(here.values()))
            told |= {rank: word for rank, call in here.items() if (word := _difference(first, call))}
            if told:
                ranks = ", ".join(f"rank {rank} {told[rank]}" for rank in sorted(told)[:8])
                found[name] = f"{first.op} #{number}: {ranks}"
                break
    return found


def _difference(one: CollectiveCall, other: CollectiveCall) -> str:
    """In what the calls of two ranks differ; "" for calls that fit."""
    if one.op != other.op:
        return "COLLECTIVE_TYPE_MISMATCH"
    if one.op not in UNEVEN and (one.inputs, one.outputs) != (other.inputs, other.outputs):
        return "SIZE_OR_SYNTAX_MISMATCH"
    if one.dtypes != other.dtypes:
        return "COLLECTIVE_DTYPE_MISMATCH"
    return ""
