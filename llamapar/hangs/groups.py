"""Process groups of flight records as groups of a layout: their axes, their coordinates, their members."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from llamapar.describe.layout import AXES, Layout
from llamapar.errors import LayoutError
from llamapar.records.trace import some

from .dumps import NAMELESS, WORLD, Dump, judge_members

ALL = "all"
"""In place of axes: the group of all ranks."""

_WORDS = {
    **dict.fromkeys(("tp", "tensor"), "tp"),
    **dict.fromkeys(("cp", "context"), "cp"),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage"), "pp"),
    **dict.fromkeys(("dp", "data", "fsdp", "ddp"), "dp"),
}
"""Words of a group's description → its axis; torch's meshes and Megatron-LM's groups are called so."""

_JOINT = ["-".join(names) for n in range(1, len(AXES) + 1) for names in itertools.combinations(AXES, n)]
"""Axes and joint axes, smaller ones first."""


@dataclass(frozen=True)
class Group:
    """A process group. ranks: its known members. axes: "tp", "dp-cp", ALL, or "" if none follows.

    where: "tp group of pp 1, dp 3", or its ranks.
    """

    name: str
    label: str
    ranks: tuple[int, ...]
    axes: str = ""
    where: str = ""


def axes_named(label: str) -> str:
    """The axes in a group's description: "mesh_tp" gives "tp"; "" without any."""
    words = re.split(r"[^a-z]+", label.lower())
    return "-".join(dict.fromkeys(_WORDS[word] for word in words if word in _WORDS))


def match_groups(
    dumps: Mapping[int, Dump], broken: Iterable[int], layout: Layout | None
) -> tuple[dict[str, Group], Layout | None]:
    """Name → group, and the layout in the order in which the ranks of named groups lie.

    broken: ranks whose dumps cannot be read. Raises LayoutError for a layout with fewer ranks than dumps.
    """
    labels = dict[str, str]()
    members = dict[str, Sequence[int]]()
    callers = defaultdict[str, set[int]](set)
    for rank, dump in dumps.items():
        members |= dump.members
        # Equal calls are one object in a dump, so each group is looked at once and not thousands of times.
        for call in {id(call): call for call, _, _ in dump.calls}.values():
            labels[call.group] = call.label
            callers[call.group].add(rank)
    seen = [Group(n, label, tuple(sorted(members.get(n) or callers[n]))) for n, label in labels.items()]
    # Ranks without a dump count too: groups name them, or their dumps cannot be read.
    top = max(itertools.chain(dumps, broken, *(group.ranks for group in seen)))
    if layout is not None:
        if layout.world <= top:
            what = f"the records name rank {top}, but the layout {layout} has only {layout.world} ranks"
            raise LayoutError(what, "", (), "layout")
        top = layout.world - 1
        # The order of axes that most descriptions of groups agree with. The layout's own is the first, and
        # `max` takes the first of equals.
        named = [(axes, group.ranks) for group in seen if (axes := axes_named(group.label))]
        orders = (layout.replace(order="-".join(order)) for order in itertools.permutations(layout.axes))
        layout = max(
            orders, key=lambda one: sum({*ranks} <= {*one.group(axes, ranks[0])} for axes, ranks in named)
        )
    everyone = tuple(range(top + 1))
    groups = {group.name: _placed(group, layout, bool(members.get(group.name)), everyone) for group in seen}
    judge_members((group.ranks for group in groups.values()), "the folder")
    return groups, layout


def _placed(group: Group, layout: Layout | None, whole: bool, everyone: tuple[int, ...]) -> Group:
    """The group with its axes and coordinates, and with the members that follow from the layout."""
    if group.label == WORLD:  # of which gloo records no members
        return replace(group, ranks=everyone, axes=ALL, where="group of all ranks")
    if group.name == NAMELESS:
        return replace(group, where="a group that no line names")
    named = axes_named(group.label)
    for axes in dict.fromkeys([*filter(None, [named]), *_JOINT]):
        if layout is None:
            break
        ranks = tuple(sorted(layout.group(axes, group.ranks[0])))
        # Known members must be exactly the layout's group. Of callers alone, two must lie in it, or the
        # description must name the axis.
        fits = ranks == group.ranks if whole else len(group.ranks) > 1 or axes == named
        if fits and len(ranks) > 1 and {*group.ranks} <= {*ranks}:
            place = _place(layout, ranks[0], axes.split("-"))
            where = f"{axes} group"
            if place:
                where = f"{axes} group of {place}"
            return replace(group, ranks=ranks, axes=axes, where=where)
    label = named or group.label.replace("undefined", "")
    return replace(group, where=f"{label} group of {named_ranks(group.ranks)}".lstrip())


def _place(layout: Layout, rank: int, without: Sequence[str] = ()) -> str:
    """ "tp 5, dp 3": a rank's coordinates on the axes that cut anything."""
    place = layout.coord_of(rank)._asdict().items()
    return ", ".join(f"{axis} {at}" for axis, at in place if layout.size(axis) > 1 and axis not in without)


def named_ranks(ranks: Sequence[int], layout: Layout | None = None) -> str:
    """ "rank 29 (tp 5, dp 3)", "ranks 0, 2", "ranks 0–7 and 8 more"; "" for none."""
    place = ""
    if layout and len(ranks) == 1:
        place = _place(layout, ranks[0])
    more = ""
    if place:
        more = f" ({place})"
    if len(ranks) > 8:
        more = f" and {len(ranks) - 8} more"
    if ranks:
        return f"{some(ranks[:8])}{more}"
    return ""
