"""Who waits in which collective, and who is behind: members of its group that have not entered it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llamapar.records.tables import AsDict

from .dumps import CollectiveCall, Dump
from .groups import Group

UNEVEN = ("scatter", "gather", "all_to_all", "coalesced")
"""Operations in which ranks give, or get, pieces of different sizes."""


@dataclass(frozen=True)
class Waiting(AsDict):
    """A call that has not ended. ranks: those that are in it. behind: members that have not entered it.

    where, axes: those of its group, whose name is `name`. numel: how many numbers go in and come out.
    """

    json_names = ("where", "axes", "op", "number", "shape", "numel", "ranks", "behind")

    name: str
    where: str
    axes: str
    op: str
    number: int
    shape: str
    numel: tuple[int, int]
    ranks: Sequence[int]
    behind: Sequence[int]


def waiting_calls(dumps: Mapping[int, Dump], groups: Mapping[str, Group]) -> list[Waiting]:
    """Every call that has not ended, first those that wait for a rank which itself waits for nobody."""
    found = dict[tuple[object, ...], tuple[CollectiveCall, int, list[int]]]()
    for rank, dump in dumps.items():
        for call, number in dump.open:
            # The two ends of a send are one call; so are uneven pieces, but not a sum's other sizes.
            key: tuple[object, ...] = (call.op, call.inputs)
            if call.point:
                key = (*call.ends,)
            elif call.op in UNEVEN:
                key = (call.op,)
            found.setdefault((call.group, number, *key), (call, number, []))[2].append(rank)
    every = []
    for call, number, ranks in found.values():
        group = groups[call.group]
        if call.point:
            behind = sorted({group.ranks[end] for end in call.ends if end < len(group.ranks)} - {*ranks})
        else:
            last = {rank: dumps[rank].last.get(group.name, -1) for rank in group.ranks if rank in dumps}
            behind = [rank for rank in group.ranks if last.get(rank, -1) < number]
        came, went = call.numel
        if "all_gather" in call.op:  # gloo records one of a list of outputs
            went = max(went, came * len(group.ranks))
        place = (group.name, group.where, group.axes)
        every.append(Waiting(*place, call.op, number, call.shape, (came, went), ranks, behind))
    free = {*free_ranks(every)}
    # Without such a rank, a call that all have come to differs on them.
    return sorted(every, key=lambda one: (not free & {*one.behind}, len(one.behind) > 0, -len(one.ranks)))


def free_ranks(waits: Sequence[Waiting]) -> list[int]:
    """Ranks that others wait for and that wait in no call themselves."""
    waiting = {rank for one in waits for rank in one.ranks}
    return sorted({rank for one in waits for rank in one.behind} - waiting)
