"""Process groups of flight records, matched to the groups of a layout that is given or inferred."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from llamapar.describe.layout import AXES, Layout
from llamapar.errors import LayoutError
from llamapar.records.trace import some

from .dumps import WORLD, Folder, judge_members

ALL = "all"
"""In place of axes: the group of all ranks."""

_WORDS = {
    **dict.fromkeys(("tp", "tensor"), "tp"),
    **dict.fromkeys(("cp", "context"), "cp"),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage"), "pp"),
    **dict.fromkeys(("dp", "data", "fsdp", "ddp"), "dp"),
}
"""Words of a group's description → its axis; torch's meshes and Megatron-LM's groups are called so."""


@dataclass(frozen=True)
class Group:
    """A process group. ranks: its known members. axes: "tp", "dp-cp", ALL, or "".

    whole: whether all members are known.
    """

    name: str
    label: str
    ranks: tuple[int, ...]
    axes: str = ""
    whole: bool = False

    @cached_property
    def kind(self) -> str:
        """The key of the corresponding group on other ranks of the program."""
        if self.axes or self.label not in ("", "undefined"):
            return self.axes or self.label
        return f"stride {self.stride}"

    @cached_property
    def stride(self) -> int:
        """Distance between its ranks; 0 for a single rank."""
        ordered = sorted(self.ranks)
        return math.gcd(*(b - a for a, b in itertools.pairwise(ordered))) if len(ordered) > 1 else 0

    def along(self, layout: Layout) -> str:
        """Its axes; for the group of all ranks, the only axis of the layout if there is just one."""
        alone = [axis for axis in AXES if layout.size(axis) == layout.world > 1]
        return alone[0] if self.axes == ALL and alone else self.axes

    def where(self, layout: Layout | None) -> str:
        """ "tp group of dp 3, pp 1", or its ranks."""
        if self.axes == ALL:
            return "group of all ranks"
        if layout is None or not self.axes:
            named = "" if self.label in ("", "undefined") else f"{self.label} "
            return f"{named}group of {some(self.ranks)}"
        coord, own = layout.coord_of(self.ranks[0]), self.axes.split("-")
        others = [f"{axis} {getattr(coord, axis)}" for axis in reversed(layout.axes)
                  if axis not in own and layout.size(axis) > 1]  # fmt: skip
        return f"{self.axes} group" + (f" of {', '.join(others)}" if others else "")


def axes_named(label: str) -> str:
    """The axes in a group's description: "mesh_tp" gives "tp"; "" without any."""
    if label == WORLD:
        return ALL
    words = re.split(r"[^a-z]+", label.lower())
    return "-".join(dict.fromkeys(_WORDS[word] for word in words if word in _WORDS))


def match_groups(folder: Folder, layout: Layout | None) -> tuple[dict[str, Group], Layout | None]:
    """Name → group, and the layout: the given one, or the one that explains the groups, or None.

    Raises LayoutError for a layout with fewer ranks than dumps.
    """
    seen = _seen(folder)
    # Ranks without a dump count too: groups name them, or their dumps cannot be read.
    top = max(itertools.chain(folder.dumps, folder.broken, *(group.ranks for group in seen.values())))
    if layout is not None and layout.world <= top:
        raise LayoutError(
            f"the records name rank {top}, but the layout {layout} has only {layout.world} ranks",
            "",
            (),
            "layout",
        )
    found = _found(seen.values(), top)
    if layout is None:
        layout = found
    elif found and all(found.size(axis) == layout.size(axis) for axis in AXES):
        layout = layout.replace(order=found.order)  # in which the ranks really lie
    world = layout.world if layout else top + 1
    # gloo records no members, so the group of all ranks is filled in from the number of ranks.
    everyone = tuple(range(world)) if any(group.axes == ALL for group in seen.values()) else ()
    if layout is None:  # without names of axes, the ranks still lie in a grid
        strides = sorted({g.stride for g in seen.values() if g.axes != ALL and g.stride})
        # Names of axes are lent by stride, smallest first, only to find the members; they are taken away
        # again below, because nothing says that the axis is really TP.
        axes = dict(zip(strides, AXES, strict=False))
        plain = [
            replace(group, axes=axes[group.stride])
            for group in seen.values()
            if group.axes != ALL and group.stride in axes
        ]
        grid = _found(plain, top)
        whole = {group.name: _completed(group, grid, everyone) for group in plain if grid is not None}
        seen |= {name: replace(group, axes="") for name, group in whole.items()}
    groups = {name: _completed(group, layout, everyone) for name, group in seen.items()}
    judge_members((group.ranks for group in groups.values()), "the folder")
    return groups, layout


def _seen(folder: Folder) -> dict[str, Group]:
    """The groups with the ranks that the dumps record, or that called something in the group."""
    labels, members, callers = dict[str, str](), dict[str, tuple[int, ...]](), dict[str, set[int]]()
    for rank, dump in folder.dumps.items():
        # Equal calls are one object in a dump, so each group is looked at once and not thousands of
        # times.
        for call in {id(call): call for call in dump.calls}.values():
            labels[call.group] = call.label
            callers.setdefault(call.group, set()).add(rank)
        # A dump may list groups of which its rank is no member; only a member's list counts.
        members |= {name: ranks for name, ranks in dump.members.items() if rank in ranks}
    found = {}
    for name, label in labels.items():
        ranks = members.get(name) or tuple(sorted(callers[name]))
        found[name] = Group(name, label, ranks, axes_named(label), name in members)
    return found


def _completed(group: Group, layout: Layout | None, everyone: tuple[int, ...]) -> Group:
    """The group with its axes, and with the members that follow from the layout."""
    if group.axes == ALL:
        return group if group.whole else Group(group.name, group.label, everyone, ALL, True)
    if layout is None:
        return Group(group.name, group.label, group.ranks, "", group.whole)
    for axes in dict.fromkeys([*filter(None, [group.axes]), *_JOINT]):
        try:
            ranks = tuple(layout.group(axes, group.ranks[0]))
        except LayoutError:
            continue
        # Known members must be exactly the layout's group. Of callers alone, two must lie in it, or the
        # description must name the axis.
        fits = ranks == group.ranks if group.whole else len(group.ranks) > 1 or axes == group.axes
        if fits and len(ranks) > 1 and set(group.ranks) <= set(ranks):
            return Group(group.name, group.label, ranks, axes, True)
    return Group(group.name, group.label, group.ranks, "", group.whole)


_JOINT = ["-".join(names) for n in range(1, len(AXES) + 1) for names in itertools.combinations(AXES, n)]
"""Axes and joint axes, smaller ones first."""


def _found(groups: Iterable[Group], top: int) -> Layout | None:
    """The layout that explains every group whose description names one axis."""
    named = [group for group in groups if group.axes in AXES]
    sizes: dict[str, int] = {}
    strides: dict[str, int] = {}
    for group in named:
        if len(group.ranks) > 1:
            sizes[group.axes] = max(sizes.get(group.axes, 0), len(group.ranks))
            strides[group.axes] = math.gcd(strides.get(group.axes, 0), group.stride)
    # An axis ends where the next slower one begins, and the slowest where the ranks do: so strides give
    # the sizes, even if members left no dump.
    widest = max(strides.values(), default=1)
    ends = [*sorted(strides.values())[1:], -(-(top + 1) // widest) * widest][: len(strides)]
    for axis, end in zip(sorted(strides, key=strides.__getitem__), ends, strict=True):
        most = end // strides[axis]
        if not most:  # two axes of one stride
            return None
        if sizes[axis] > most or most % sizes[axis]:  # members that left no dump
            sizes[axis] = most
    rest = -(-(top + 1) // math.prod(sizes.values()))
    if rest > 1 and "dp" not in sizes:  # an axis on which nothing was called yet
        sizes["dp"], strides["dp"] = rest, math.prod(sizes.values())
    # Axes without a group come last, in their usual order; they have one rank, so their place does not
    # matter.
    order = sorted(AXES, key=lambda axis: (strides.get(axis, top + 2), AXES.index(axis)))
    try:
        layout = Layout.of({**sizes, "order": "-".join(order)})
    except LayoutError:
        return None
    # Less than twice the ranks that were seen: a layout that needs more missing ranks than seen ones
    # explains nothing.
    fits = all(set(group.ranks) <= set(layout.group(group.axes, group.ranks[0])) for group in named
               if max(group.ranks) < layout.world)  # fmt: skip
    return layout if named and fits and top < layout.world < 2 * (top + 1) else None


def rank_label(layout: Layout | None, ranks: Iterable[int], axes: str = "") -> str:
    """ "rank 29 (tp 5)", "ranks 0, 2"."""
    ranks = list(ranks)
    text = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}"
    if len(ranks) > 8:
        text += f" and {len(ranks) - 8} more"
    own = axes.split("-") if layout is not None and len(ranks) == 1 and axes else []
    if layout is not None and own:
        coord = layout.coord_of(ranks[0])
        shown = [
            axis for axis in reversed(layout.axes) if layout.size(axis) > 1 and (axis in own or axes == "all")
        ]
        text += f" ({', '.join(f'{axis} {getattr(coord, axis)}' for axis in shown)})"
    return text
