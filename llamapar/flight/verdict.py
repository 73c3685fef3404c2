"""The verdict on a hang: one cause with its level, and the position of every rank, as a record.

One cause at most is named, since all other waiting follows from it. Where the records leave two readings, the
text gives both, or nobody is named.
"""

from __future__ import annotations

from dataclasses import dataclass

from llamapar.describe.layout import Layout
from llamapar.diagnosis.hypothesis import LIKELY, POSSIBLE, WEAK, Level
from llamapar.records.tables import Plain, Record

from .dumps import CollectiveCall, Folder
from .groups import Group, match_groups, rank_label
from .hang import ONE_WAY, Hang, Parting
from .program import LlamaStep

DID = {
    "size": "has other sizes or dtypes: {mine} where {others} {call} {usual}",
    "operation": "called {mine} where {others} {call} {usual}",
    "order": "called {mine} before {usual}; {others} {call} them in the other order",
    "skip": "skipped {usual} and went on to {mine}; {others} {call} it",
    "group": "called {mine} in {its} where {others} {call} it in {theirs}",
    "extra": "called {mine} besides; {others} {call} {usual} there",
    "branch": "called {mine} where {others} {call} {usual}",
}
"""Kind of a parting → what is said of the ranks that left the common way."""


@dataclass(frozen=True, repr=False)
class RankPositions(Record):
    """The position of every rank: rank → (collective, whether it waits there, line of code).

    ranks: the culprits; () if none can be named. kind: what they did. level: how certain that is. collective:
    the one at which it went wrong; group: its group.
    """

    hang: Hang
    kind: str
    ranks: tuple[int, ...]
    level: Level
    cause: str
    group: Group | None = None
    collective: CollectiveCall | None = None
    number: int = 0

    @property
    def layout(self) -> Layout | None:
        return self.hang.layout

    @property
    def every(self) -> list[int]:
        """All ranks, including those without a dump."""
        members = (rank for group in self.hang.groups.values() for rank in group.ranks)
        return sorted({*self.hang.dumps, *self.hang.folder.broken, *members})

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: dict[tuple[str, str, str], list[int]] = {}
        for rank in self.every:
            rows.setdefault(self.hang.of_rank(rank), []).append(rank)
        each: list[list[object]] = [[rank_label(None, ranks), *row] for row, ranks in rows.items()]
        return "where every rank stands", ["ranks", "last collective", "there", "line"], each, ""

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        layout = (
            None
            if self.layout is None
            else {a: getattr(self.layout, a) for a in (*self.layout.axes, "order")}
        )
        return {
            "kind": self.kind, "ranks": list(self.ranks), "level": str(self.level), "layout": layout,
            "standing": {str(rank): list(self.hang.of_rank(rank)) for rank in self.every[:4096]},
        }  # fmt: skip


def standing(
    folder: Folder, layout: Layout | None = None, program: LlamaStep | None = None, of: type[Hang] = Hang
) -> RankPositions:
    """The cause of the hang, and the position of every rank. program: names the layer and part of each
    collective. of: how the ranks' calls are compared.
    """
    groups, layout = match_groups(folder, layout)
    hang = of(folder, groups, layout, program)
    # The order is that of certainty: ranks that differ, ranks that never came, an even split, and at last
    # a wait without a culprit.
    if not hang.waits:
        words = "no rank waits in a collective that was recorded"
        cause = words if hang.sends else f"{words}; gloo records no send and no receive"
        return RankPositions(hang, "none", (), WEAK, cause)
    parted = hang.parted
    both = {**parted.ranks, **parted.others} if parted else {}
    met = {(hang.dumps[rank].calls[at].group, hang.dumps[rank].numbers[at]) for rank, at in both.items()}
    # Two sides that met in one collective with different calls: the error lies there, whoever waits.
    if parted is not None and (not parted.tied or (len(met) == 1 and parted.call.ends is None)):
        return _parting(hang, parted)
    if hang.free:
        return _not_come(hang, parted)
    if parted is not None:
        return _parting(hang, parted)
    return _around(hang)


def _title(hang: Hang, group: Group, ranks: tuple[int, ...]) -> str:
    """ "tp group of dp 3, pp 1: rank 29 (tp 5)"."""
    return f"{group.where(hang.layout)}: {rank_label(hang.layout, ranks, group.axes)}"


def _text(hang: Hang, rank: int, at: int) -> str:
    dump, belongs = hang.dumps[rank], hang.belongs(rank, at)
    text = f"{dump.calls[at].op} #{dump.numbers[at]}"
    text += f", {dump.calls[at].shape}" if dump.calls[at].shape else ""
    return f"{text} ({belongs})" if belongs else text


def _before(hang: Hang, rank: int, at: int) -> str:
    """The last call that succeeded, in the rank's own order."""
    if at < 1:
        return ""
    dump = hang.dumps[rank]
    group = hang.groups[dump.calls[at - 1].group]
    return f"; last common: {_text(hang, rank, at - 1)} of the {group.where(hang.layout)}"


def _parting(hang: Hang, parted: Parting) -> RankPositions:
    ranks = tuple(sorted(parted.ranks))
    one, other = ranks[0], min(parted.others)
    mine, usual = _text(hang, one, parted.ranks[one]), _text(hang, other, parted.others[other])
    group, own = hang.groups[parted.usual.group], hang.groups[parted.call.group]
    # The culprit's own group of the kind that the others called in: they may be another group of the same
    # axis.
    here = next((g for g in hang.groups.values() if g.kind == group.kind and one in g.ranks), own)
    others = "the other " + ("rank" if len(parted.others) == 1 else f"{len(parted.others)} of their role")
    words = {
        "mine": mine,
        "usual": usual,
        "others": others,
        "its": f"the {own.where(hang.layout)}",
        "theirs": f"the {here.where(hang.layout)}",
        "call": "calls" if len(parted.others) == 1 else "call",
    }
    if own.kind != here.kind and parted.kind != "group":
        words |= {
            "mine": f"{mine} of the {own.where(hang.layout)}",
            "usual": f"{usual} of their {here.kind} group",
        }
    done = DID[parted.kind].format_map(words)
    line = hang.dumps[one].stacks[parted.ranks[one]].line
    text = f"{_title(hang, here, ranks)} {done}" + (f" ({line})" if line else "")
    text += _before(hang, one, parted.ranks[one])
    if parted.tied:
        one_side, other_side = (rank_label(hang.layout, side) for side in (ranks, sorted(parted.others)))
        text = f"{one_side} and {other_side} go different ways, and neither is the larger side: {text}"
        return RankPositions(hang, "tie", (), POSSIBLE, text, here, parted.usual)
    number = hang.dumps[other].numbers[parted.others[other]]
    return RankPositions(hang, parted.kind, ranks, LIKELY, text, here, parted.usual, number)


def _not_come(hang: Hang, parted: Parting | None) -> RankPositions:
    """Ranks that everybody waits for, and that are in no collective themselves."""
    # Ranks with a dump come first, because theirs can be read; one without may only have lost it.
    there = tuple(rank for rank in hang.free if rank in hang.dumps)
    ranks = there or hang.free
    waits = [wait for each in hang.waits.values() for wait in each if set(wait.absent) & set(ranks)]
    # The earliest wait: later ones may follow from it.
    first = min(waits, key=lambda wait: hang.dumps[wait.rank].created[wait.at])
    dump = hang.dumps[first.rank]
    call, number = dump.calls[first.at], dump.numbers[first.at]
    ranks = tuple(rank for rank in ranks if any(rank in wait.absent for wait in waits))
    group = hang.groups[call.group]
    here = tuple(rank for rank in ranks if rank in first.absent) or ranks
    waiting = sorted({w.rank for w in waits if hang.dumps[w.rank].calls[w.at] is call})
    text = f"{_title(hang, group, here)} never entered {_text(hang, first.rank, first.at)}"
    text += f"; {rank_label(hang.layout, waiting)} wait{'s' * (len(waiting) == 1)}"
    kind, level = "late", LIKELY
    if not there:
        broken = [rank for rank in ranks if rank in hang.folder.broken]
        failed = [rank for rank in hang.waits if not hang.dumps[rank].open]
        members = {rank for group in hang.groups.values() for rank in group.ranks}
        known = {*range(max(hang.dumps)), *members, *hang.folder.broken}
        alone = len(ranks) == 1 and {*ranks} == known - hang.dumps.keys()
        kind = "cut" if broken else "gone"
        level = LIKELY if len(failed) > 1 and alone and not broken and parted is None else POSSIBLE
        noun = hang.folder.noun
        how = "it died" if level is LIKELY else f"it died, or its {noun} is lost"
        text += "; its dump is cut off" if broken else f"; it left no {noun}: {how}"
        if len(failed) == 1:  # The rank never left its last call, or left it and called nothing more.
            text += f"; or {rank_label(hang.layout, failed)} is the one, whose calls have ended"
    else:
        if late := hang.lateness(here[0], call.group, number):
            kind = "slow"
            text += f"; {late}: it may only be slow"
        else:
            text += "; it is in no collective: it computes, waits outside of them, raised, or has ended"
        # What cannot be seen lowers the level: unknown members, missing dumps, sends that gloo does not
        # record.
        unseen = not all(group.whole for group in hang.groups.values())
        lost = set(range(max(hang.dumps))) - hang.dumps.keys()
        # Ranks in several stages may wait for each other in sends that the records do not show.
        stages = {hang.layout.coord_of(rank).pp for rank in ranks} if hang.layout else set()
        if (
            parted is not None
            or len(ranks) > len(hang.waits)
            or (unseen and lost)
            or (len(stages) > 1 and not hang.sends)
        ):
            level = POSSIBLE
    text += _before(hang, first.rank, first.at)
    return RankPositions(hang, kind, ranks, level, text, group, call, number)


def _around(hang: Hang) -> RankPositions:
    """Everybody waits for a rank that waits itself, and no rank differs from its peers."""
    waits = [wait for each in hang.waits.values() for wait in each]
    first = min(waits, key=lambda wait: (not wait.absent, hang.dumps[wait.rank].created[wait.at]))
    last, met = first, {first.rank}
    # Follow the waiting from rank to rank; `met` ends the walk where it would go round.
    while onward := [r for r in last.absent if r in hang.waits and r not in met]:
        met.add(onward[0])
        last = hang.waits[onward[0]][0]
    if not last.absent:  # in the end all wait for one that all have entered
        first = last
    call = hang.dumps[first.rank].calls[first.at]
    group = hang.groups[call.group]
    where, text = group.where(hang.layout), _text(hang, first.rank, first.at)
    if not first.absent:
        all_of = "every rank" if group.whole and hang.layout else f"every rank that left a {hang.folder.noun}"
        words = f"{where}: {all_of} has entered {text}, in the same form: "
        words += f"the network or a GPU, or a rank without a {hang.folder.noun}, rather than the program"
        if call.op in ONE_WAY:
            words += "; or its ranks do not name the same root, which no record holds"
        return RankPositions(hang, "inside", (), POSSIBLE, words, group, call)
    other = next((hang.waits[rank][0] for rank in first.absent if rank in hang.waits), None)
    one = rank_label(hang.layout, [first.rank], group.axes)
    words = f"{where}: {one} waits in {text} for {rank_label(hang.layout, first.absent)}"
    if other is not None:
        its = hang.groups[hang.dumps[other.rank].calls[other.at].group]
        words += (
            f", and {rank_label(hang.layout, [other.rank])} in {_text(hang, other.rank, other.at)} of the "
        )
        words += (
            f"{its.where(hang.layout)} for {rank_label(hang.layout, other.absent)}: they wait for each other"
        )
    return RankPositions(hang, "tie", (), POSSIBLE, words, group, call)
