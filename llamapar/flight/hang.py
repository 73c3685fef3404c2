"""A hang, analysed from flight records: who waits for whom, and which rank diverged first.

There are two methods. Ranks with the same role run the same program, so the first call at which one of them
differs from most of the others is where the run went wrong: `parted`. If none differs, some rank simply did
not arrive: a `free` one, which others wait for and which waits for nobody. All waiting that follows from
either is a consequence, and gets no blame.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from llamapar.describe.layout import Layout

from .dumps import CollectiveCall, Dump, Folder
from .groups import Group, rank_label
from .order import Sent
from .program import LlamaStep

AHEAD = 64
"""Calls within which one that a rank makes too early is looked for in the other ranks' order."""

BEFORE = 32
"""Earlier collectives in which it is asked who came last."""

OFTEN = 0.8
"""Share of them in which a slow rank comes last."""

ONE_WAY = frozenset(("broadcast", "scatter", "gather", "reduce"))
"""Operations that some members may leave before all have come."""

LAG = 0.25
"""Share of the time between two of them by which a slow rank comes after the others."""


@dataclass(frozen=True)
class Wait:
    """A rank in a collective that has not ended; `at` is its index in the rank's dump.

    absent: members that never entered it; () if all did, but with different calls.
    """

    rank: int
    at: int
    absent: tuple[int, ...]


@dataclass(frozen=True)
class Parting:
    """The first call at which ranks of one role differ: `ranks` make `call` at these indices.

    others: ranks that make the call `usual` there. kind: what `ranks` did instead, a key of `verdict.DID`.
    tied: neither side is a clear majority.
    """

    ranks: Mapping[int, int]
    others: Mapping[int, int]
    call: CollectiveCall
    usual: CollectiveCall
    kind: str

    @property
    def tied(self) -> bool:
        return len(self.others) <= len(self.ranks) or len(self.others) < 2


@dataclass(frozen=True, eq=False)
class Hang:
    """The dumps of a run, its groups by name, and its layout and program if known.

    places: rank → column of the picture, where ranks are compared by place instead of call by call.
    """

    folder: Folder
    groups: Mapping[str, Group]
    layout: Layout | None
    program: LlamaStep | None = None
    _belongs: dict[tuple[int, int], str] = field(default_factory=dict, init=False)
    _absent: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict, init=False)

    places: Mapping[int, int] = field(default_factory=dict, kw_only=True)

    @property
    def dumps(self) -> Mapping[int, Dump]:
        return self.folder.dumps

    def of_rank(self, rank: int) -> tuple[str, str, str]:
        """(its last collective, what it does there, the line of code)."""
        dump = self.dumps.get(rank)
        if dump is None:
            return "", self.folder.broken.get(rank, f"left no {self.folder.noun}"), ""
        if not len(dump):
            return "", "called nothing", ""
        wait = self.waits[rank][0] if rank in self.waits else None
        at = wait.at if wait else len(dump) - 1
        call, state = dump.calls[at], "is past it"
        if wait and wait.absent:
            state = f"waits for {rank_label(None, wait.absent)}"
        elif wait:
            alike = self.alike(call, dump.numbers[at])
            state = "is in it with all others" if alike else "is in it, and others call something else"
        where = self.groups[call.group].where(self.layout)
        return f"{where}: {call.op} #{dump.numbers[at]}", state, dump.stacks[at].line

    def belongs(self, rank: int, at: int) -> str:
        """The place of a call in a known program, such as "layer 17's MLP, forward"; else ""."""
        key = (rank, at)
        if key not in self._belongs:
            call = self.dumps[rank].calls[at]
            known = self.program is not None and self.layout is not None and call.ends is None
            self._belongs[key] = str((known and self._belonging(rank, at)) or "")
        return self._belongs[key]

    def _belonging(self, rank: int, at: int) -> Sent | None:
        assert self.program is not None
        assert self.layout is not None
        dump = self.dumps[rank]
        along: dict[str, list[int]] = {}
        for i, call in enumerate(dump.calls):
            if call.ends is None:
                along.setdefault(self.groups[call.group].along(self.layout), []).append(i)
        axis = self.groups[dump.calls[at].group].along(self.layout)
        calls = {name: [dump.calls[i] for i in places] for name, places in along.items()}
        lines = [dump.stacks[i].line for i in along[axis]]
        return self.program.belonging(self.layout, rank, axis, calls, lines, along[axis].index(at))

    def absent(self, group: str, number: int) -> tuple[int, ...]:
        """Members of a group that never entered a collective, according to their dumps."""
        known = self._absent.get((group, number))
        if known is None:
            members = self.groups[group].ranks
            gone = (r for r in members if r not in self.dumps or self.dumps[r].last.get(group, -1) < number)
            known = self._absent[group, number] = tuple(gone)
        return known

    def _missing(self, rank: int, at: int) -> tuple[int, ...]:
        """The ranks that a call waits for: the sender for a receive, the receiver for a send."""
        call = self.dumps[rank].calls[at]
        if call.ends is None:
            return self.absent(call.group, self.dumps[rank].numbers[at])
        members = self.groups[call.group].ranks
        others = {members[end] for end in call.ends if 0 <= end < len(members)} - {rank}
        # One that is in the matching end of the send or the receive has come.
        meet = {
            other
            for other in others & self.dumps.keys()
            for c in map(self.dumps[other].calls.__getitem__, self.dumps[other].open)
            if (c.group, c.ends) == (call.group, call.ends) and c.op != call.op
        }
        return tuple(sorted(others - meet))

    @cached_property
    def waits(self) -> dict[int, tuple[Wait, ...]]:
        """Rank → its wait. A failed last call counts too: one that members never entered."""
        found = {}
        for rank, dump in self.dumps.items():
            each = [Wait(rank, at, self._missing(rank, at)) for at in dump.open]
            last = len(dump) - 1
            if not each and last >= 0 and dump.calls[last].ends is None and not self._ended:
                each = [Wait(rank, last, self._missing(rank, last))] if self._failed(rank, last) else []
            if each:
                found[rank] = tuple(each)
        return found

    def _failed(self, rank: int, at: int) -> bool:
        """Whether a call ended without all members: some never came, and nobody continued."""
        dump = self.dumps[rank]
        call, number = dump.calls[at], dump.numbers[at]
        if not self.absent(call.group, number):
            return False
        entered = self.entered(call.group, number)
        return call.op in ONE_WAY or all(i == len(self.dumps[r]) - 1 for r, i in entered.items())

    @cached_property
    def sends(self) -> bool:
        """Whether the records show sends and receives, as only NCCL's do."""
        return any(call.ends for dump in self.dumps.values() for call in dump.calls)

    @cached_property
    def _ended(self) -> bool:
        """Whether all ranks of a role reached the same last call and left it, so that nothing hangs."""
        if any(dump.open for dump in self.dumps.values()):
            return False
        dumps = ([self.dumps[rank] for rank in ranks] for ranks in self.roles())
        last = [{self._codes[id(dump.calls[-1])] for dump in role if len(dump)} for role in dumps]
        return all(len(codes) <= 1 for codes in last)

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Ranks that others wait for and that wait for nobody: they are in no collective."""
        awaited = {rank for waits in self.waits.values() for wait in waits for rank in wait.absent}
        return tuple(sorted(awaited - self.waits.keys()))

    # -- who came late -----------------------------------------------------------------------------

    def entered(self, group: str, number: int) -> dict[int, int]:
        """Rank → its index, for ranks that entered a collective."""
        places = ((rank, self.dumps[rank]) for rank in self.groups[group].ranks if rank in self.dumps)
        found = {rank: dump.at.get((group, number)) for rank, dump in places}
        return {rank: at for rank, at in found.items() if at is not None}

    def alike(self, call: CollectiveCall, number: int) -> bool:
        """Whether all ranks that entered a collective made the same call."""
        entered = self.entered(call.group, number)
        return all(self.dumps[rank].calls[at].kind == call.kind for rank, at in entered.items())

    def lateness(self, rank: int, group: str, number: int) -> str:
        """How often a slow rank came last to the group's earlier collectives, and by how much; else ""."""
        lags, times = [], []
        for before in range(max(1, number - BEFORE), number):
            at = self.entered(group, before)
            came = {r: self.dumps[r].created[i] / 1e9 for r, i in at.items()}
            if rank in came and len(came) > 1:
                lags.append(came[rank] - max(t for r, t in came.items() if r != rank))
                times.append(came[rank])
        period = statistics.median([b - a for a, b in pairwise(times)]) if len(times) > 1 else 0.0
        late = [lag for lag in lags if lag > 0]
        typical = statistics.median(late) if late else 0.0
        often = len(lags) > 4 and len(late) >= OFTEN * len(lags)
        slow = often and period and typical > LAG * period
        return f"it came last to {len(late)} of the {len(lags)} before, by {typical:.2g} s" if slow else ""

    # -- who left the common way -------------------------------------------------------------------

    @cached_property
    def _codes(self) -> dict[int, int]:
        """id of a call → a number that is equal for the corresponding calls of other ranks in their own
        groups.
        """
        numbers: dict[object, int] = {}
        calls = {id(call): call for dump in self.dumps.values() for call in dump.calls}
        found = {}
        for key, call in calls.items():
            step = 0 if call.ends is None else call.ends[1] - call.ends[0]
            group = self.groups[call.group]
            what = (group.kind, self._twins[group.name], call.kind, step)
            found[key] = numbers.setdefault(what, len(numbers))
        return found

    @cached_property
    def _twins(self) -> dict[str, int]:
        """Name of a group → number of groups with the same ranks that were created before it."""
        made: Counter[tuple[int, ...]] = Counter()
        found = {}
        for name in sorted(self.groups, key=lambda name: (len(name), name)):
            found[name] = made[self.groups[name].ranks]
            made[self.groups[name].ranks] += 1
        return found

    def roles(self) -> list[list[int]]:
        """Ranks that run the same program: those of one pipeline rank, or all ranks."""
        if self.layout is None or self.layout.pp == 1:
            return [list(self.dumps)]
        stages: dict[int, list[int]] = {}
        for rank in self.dumps:
            stages.setdefault(self.layout.coord_of(rank).pp, []).append(rank)
        return list(stages.values())

    @cached_property
    def parted(self) -> Parting | None:
        """The earliest parting of all roles."""
        each = list(filter(None, (self._of_role(ranks) for ranks in self.roles())))
        found: dict[object, Parting] = {}
        for parting in each:  # The same parting in several roles counts once.
            key = (parting.kind, parting.tied, self._codes[id(parting.call)], self._codes[id(parting.usual)])
            same = found.get(key)
            if same is not None:
                ranks = {**same.ranks, **parting.ranks}
                parting = replace(same, ranks=ranks, others={**same.others, **parting.others})
            found[key] = parting
        return min(
            found.values(),
            key=lambda p: (p.tied, min(self.dumps[r].created[i] for r, i in p.ranks.items())),
            default=None,
        )

    def starts(self, ranks: Sequence[int]) -> dict[int, int]:
        """Rank → first index at which all buffers cover the same part of the run."""
        if not any(self.dumps[rank].lost for rank in ranks):
            return dict.fromkeys(ranks, 0)
        firsts: list[dict[str, tuple[int, int]]] = []
        for rank in ranks:
            dump, first = self.dumps[rank], dict[str, tuple[int, int]]()
            for at, call in enumerate(dump.calls):
                if call.ends is None:
                    first.setdefault(self.groups[call.group].kind, (dump.numbers[at], at))
            firsts.append(first)
        shared = set.intersection(*map(set, firsts))
        if not shared:
            return {}
        counts = Counter(self.groups[call.group].kind for call in self.dumps[ranks[0]].calls)
        # Align the buffers on the group with the most calls, because its numbers locate the start best.
        # Sorting makes the choice independent of the order of a set.
        kind = max(sorted(shared), key=lambda kind: counts[kind])
        start = max(first[kind][0] for first in firsts)
        found = {}
        for rank, first in zip(ranks, firsts, strict=True):
            dump = self.dumps[rank]
            found[rank] = dump.at.get((dump.calls[first[kind][1]].group, start), -1)
        return {rank: at for rank, at in found.items() if at >= 0}

    def _of_role(self, ranks: Sequence[int]) -> Parting | None:
        """The first harmful parting of ranks that run the same program."""
        ranks = [rank for rank in ranks if len(self.dumps[rank])]
        starts = self.starts(ranks) if len(ranks) > 1 else {}
        codes = self._codes
        rows = {r: [codes[id(call)] for call in self.dumps[r].calls[at:]] for r, at in starts.items()}
        waiting = [(list(rows), 0)] if rows else []
        found = []
        while waiting:
            peers, start = waiting.pop()
            split = _first_split({rank: rows[rank] for rank in peers}, start)
            if split is None:
                continue
            at, classes = split
            sides = [{rank: starts[rank] + at for rank in side} for side in classes]
            each = {rows[side[0]][at] for side in classes}
            harm = (
                self._unsettled(rank, i) or self._owed.get(rank, set()) & (each - {rows[rank][at]})
                for side in sides
                for rank, i in side.items()
            )
            if any(harm):
                found.append(self._parting(sides, rows, at))
            else:
                # This parting blocks nobody, so each side is compared further by itself.
                waiting += [(side, at) for side in classes if len(side) > 1]
        return min(found, key=lambda p: min(p.ranks.values()), default=None)

    @cached_property
    def _owed(self) -> dict[int, set[int]]:
        """Rank → codes of the calls in which others wait for it."""
        found: dict[int, set[int]] = {}
        for wait in (wait for each in self.waits.values() for wait in each):
            for rank in wait.absent:
                found.setdefault(rank, set()).add(self._codes[id(self.dumps[wait.rank].calls[wait.at])])
        return found

    def _unsettled(self, rank: int, at: int) -> bool:
        """Whether a call did not end with all members in the same call."""
        dump = self.dumps[rank]
        call = dump.calls[at]
        if not dump.done[at]:
            return True
        if call.ends is not None:
            return False
        entered = self.entered(call.group, dump.numbers[at])
        alike = self.alike(call, dump.numbers[at])
        members = self.groups[call.group].ranks
        gone = any(rank not in self.dumps for rank in members)  # The rank may have died in this call.
        return not alike or gone or len(entered) < sum(rank in self.dumps for rank in members)

    def _parting(self, sides: list[dict[int, int]], rows: Mapping[int, list[int]], at: int) -> Parting:
        sides = sorted(sides, key=len)
        usual = sides.pop()
        strange = {rank: i for side in sides for rank, i in side.items()}
        one, other = next(iter(strange)), max(usual, key=lambda rank: len(rows[rank]))
        mine, theirs = self.dumps[one].calls[strange[one]], self.dumps[other].calls[usual[other]]
        return Parting(
            strange, usual, mine, theirs, self._kind(mine, theirs, rows[one][at:], rows[other][at:])
        )

    def _kind(
        self, mine: CollectiveCall, theirs: CollectiveCall, own: Sequence[int], common: Sequence[int]
    ) -> str:
        """The kind of deviation, given how the rank's own later calls differ from the common ones."""
        same_group = self.groups[mine.group].kind == self.groups[theirs.group].kind
        soon = common[1:AHEAD]
        cases = (
            (own[1:2] == common[:1] and own[0] in soon[:1], "order"),
            (own[1:2] == common[:1], "extra"),
            (own[0] in soon, "skip"),
            (same_group and mine.op == theirs.op, "size"),
            (mine.kind == theirs.kind, "group"),
            (same_group, "operation"),
        )
        return next((name for holds, name in cases if holds), "branch")


def _first_split(rows: Mapping[int, Sequence[int]], start: int) -> tuple[int, list[list[int]]] | None:
    """The first position at which rows differ that agreed so far, and the value of each rank there."""
    longest = max(rows, key=lambda rank: len(rows[rank]))
    model, at = rows[longest], len(rows[longest])
    for row in rows.values():
        end = min(len(row), at)
        if row[start:end] != model[start:end]:
            at = next(i for i in range(start, end) if row[i] != model[i])
    if at == len(model):
        return None
    classes: dict[int, list[int]] = {}
    for rank, row in rows.items():
        if len(row) > at:
            classes.setdefault(row[at], []).append(rank)
    return at, list(classes.values())
